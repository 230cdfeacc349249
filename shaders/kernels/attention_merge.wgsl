// Adds the parts of a row's attention.

#include "common/work.wgsl"
#include "common/functions.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head = group.x;
    let row = group.y;
    let partial = args.partial_at + (row * args.heads + head) * args.splits * (args.dim + 2u);
    var top = -3.0e38;
    for (var split = 0u; split < args.splits; split++) {
        top = max(top, bitcast<f32>(scratch[partial + split * (args.dim + 2u)]));
    }
    for (var i = thread; i < args.dim; i += THREADS) {
        var sum = 0.0;
        var value = 0.0;
        for (var split = 0u; split < args.splits; split++) {
            let part = partial + split * (args.dim + 2u);
            let factor = exp(bitcast<f32>(scratch[part]) - top);
            sum += factor * bitcast<f32>(scratch[part + 1u]);
            value += factor * bitcast<f32>(scratch[part + 2u + i]);
        }
        value /= sum;
        if (args.gate_at != NONE) {
            value *= sigmoid(work_f32(args.gate_at + row * args.gate_stride + head * args.gate_head_stride + i));
        }
        set_work(args.out_at + row * args.out_stride + head * args.out_head_stride + i, value);
    }
}
