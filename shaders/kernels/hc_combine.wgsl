#include "common/work.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * THREADS + thread;
    if (column >= args.width * args.streams) {
        return;
    }
    let weight = work_f32(args.weights_at + group.y * args.weights_stride + column / args.width);
    let place = args.x_at + group.y * args.x_stride + column;
    set_work(place, work_f32(place) + weight * work_f32(args.y_at + group.y * args.y_stride + column % args.width));
}
