#include "common/work.wgsl"

fn product_at(i: u32) -> f32 {
    if (args.products_in_scratch == 1u) {
        return bitcast<f32>(scratch[i]);
    }
    return work_f32(i);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * THREADS + thread;
    let row = group.y;
    if (column >= args.width) {
        return;
    }
    var sum = 0.0;
    for (var j = 0u; j < args.used; j++) {
        var weight = work_f32(args.weights_at + row * args.weights_stride + j);
        if (args.scale_at != NONE) {
            let expert = min(work[args.ids_at + row * args.ids_stride + j], args.experts - 1u);
            weight *= bitcast<f32>(w2[args.scale_at + expert]);
        }
        sum += weight * product_at(args.products_at + row * args.products_stride + j * args.width + column);
    }
    set_work(args.out_at + row * args.out_stride + column, sum);
}
