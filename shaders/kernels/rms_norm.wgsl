#include "common/work.wgsl"
#include "sum"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.x * args.group;
    let x = args.x_at + group.y * args.x_stride + first;
    let out = args.out_at + group.y * args.out_stride + first;
    var squares = 0.0;
    for (var i = thread; i < args.group; i += THREADS) {
        let v = work_f32(x + i);
        squares += v * v;
    }
    let scale = 1.0 / sqrt(workgroup_sum(thread, squares) / f32(args.group) + args.eps);
    for (var i = thread; i < args.group; i += THREADS) {
        var v = work_f32(x + i) * scale;
        if (args.weight_at != NONE) {
            v *= bitcast<f32>(w2[args.weight_at + (first + i) % args.weight_len]);
        }
        set_work(out + i, v);
    }
}
