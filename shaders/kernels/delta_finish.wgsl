#include "common/work.wgsl"
#include "sum"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let out = args.out_at + group.y * args.out_stride + group.x * args.value_dim;
    let gate = args.gate_at + group.y * args.gate_stride + group.x * args.value_dim;
    var squares = 0.0;
    for (var i = thread; i < args.value_dim; i += THREADS) {
        let v = work_f32(out + i);
        squares += v * v;
    }
    let scale = 1.0 / sqrt(workgroup_sum(thread, squares) / f32(args.value_dim) + args.eps);
    for (var i = thread; i < args.value_dim; i += THREADS) {
        set_work(out + i, work_f32(out + i) * scale * bitcast<f32>(w2[args.norm_at + i]) * work_f32(gate + i));
    }
}
