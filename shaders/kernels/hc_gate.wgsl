#include "common/work.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * THREADS + thread;
    if (column >= args.width) {
        return;
    }
    var sum = 0.0;
    for (var stream = 0u; stream < args.streams; stream++) {
        let i = stream * args.width + column;
        let gate = work_f32(args.gates_at + group.y * args.gates_stride + i);
        sum += gate * work_f32(args.normed_at + group.y * args.normed_stride + i);
    }
    set_work(args.out_at + group.y * args.out_stride + column, sum * (1.0 / f32(args.streams)));
}
