#include "common/work.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * THREADS + thread;
    if (column >= args.width) {
        return;
    }
    let place = args.x_at + group.y * args.x_stride + column;
    var y = work_f32(args.y_at + group.y * args.y_stride + column);
    if (args.scale_at != NONE) {
        y *= work_f32(args.scale_at + group.y * args.scale_stride);
    }
    set_work(place, work_f32(place) + y);
}
