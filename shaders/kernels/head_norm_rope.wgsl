#include "common/work.wgsl"
#include "sum"
#include "common/rotate.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let x = args.x_at + group.y * args.x_stride + group.x * args.head_stride;
    if (args.weight_at != NONE) {
        var squares = 0.0;
        for (var i = thread; i < args.dim; i += THREADS) {
            let v = work_f32(x + i);
            squares += v * v;
        }
        let scale = 1.0 / sqrt(workgroup_sum(thread, squares) / f32(args.dim) + args.eps);
        for (var i = thread; i < args.dim; i += THREADS) {
            set_work(x + i, work_f32(x + i) * scale * bitcast<f32>(w2[args.weight_at + i]));
        }
        storageBarrier();
    }
    if (args.angles_at == NONE) {
        return;
    }
    let angles = args.angles_at + group.y * args.pairs * 2u;
    for (var pair = thread; pair < args.pairs; pair += THREADS) {
        let places = vec2<u32>(x) + pair_places(args.pairing, args.pairs, pair);
        let ab = turned(vec2<f32>(work_f32(places.x), work_f32(places.y)), angles, args.pairs, pair);
        set_work(places.x, ab.x);
        set_work(places.y, ab.y);
    }
}
