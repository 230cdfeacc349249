// A row stores its raw key; the row that completes a block stores the block's pooled key.

#include "common/work.wgsl"
#include "sum"
#include "common/rows.wgsl"
#include "common/rotate.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let token = row_word(row, ROW_INDEX);
    let in_span = row_word(row, ROW_IN_SPAN);
    let base = args.state_at + row_word(row, ROW_SLOT) * args.slot_stride;
    let key = args.key_at + row * args.key_stride;
    let completes = (token + 1u) % args.ratio == 0u;
    let pooled = base + (args.cells + token / args.ratio) * args.dim;
    var squares = 0.0;
    for (var i = thread; i < args.dim; i += THREADS) {
        state[base + token * args.dim + i] = work[key + i];
        if (completes) {
            var sum = 0.0;
            for (var back = args.ratio; back > 0u; back--) {
                // Tokens before the window were stored by earlier runs.
                if (back - 1u <= in_span) {
                    sum += work_f32(key - (back - 1u) * args.key_stride + i);
                } else {
                    sum += bitcast<f32>(state[base + (token + 1u - back) * args.dim + i]);
                }
            }
            let mean = sum / f32(args.ratio);
            squares += mean * mean;
            state[pooled + i] = bitcast<u32>(mean);
        }
    }
    let scale = 1.0 / sqrt(workgroup_sum(thread, squares) / f32(args.dim) + args.eps);
    if (!completes) {
        return;
    }
    for (var i = thread; i < args.dim; i += THREADS) {
        let normed = bitcast<f32>(state[pooled + i]) * scale * bitcast<f32>(w2[args.weight_at + i]);
        state[pooled + i] = bitcast<u32>(normed);
    }
    storageBarrier();
    let angles = args.angles_at + row * args.pairs * 2u;
    for (var pair = thread; pair < args.pairs; pair += THREADS) {
        let places = vec2<u32>(pooled) + pair_places(args.pairing, args.pairs, pair);
        let ab = vec2<f32>(bitcast<f32>(state[places.x]), bitcast<f32>(state[places.y]));
        let turned_ab = turned(ab, angles, args.pairs, pair);
        state[places.x] = bitcast<u32>(turned_ab.x);
        state[places.y] = bitcast<u32>(turned_ab.y);
    }
}
