// Each thread has OUTS outputs of its own. A subgroup of SUBGROUP threads reads 32 inputs together, four each, and hands them
// round: where a processor plays the card, a load costs as much as eight products, and handing round costs one instruction.

#include "common/each_own.wgsl"

const COLUMNS: u32 = 32u;

// 32 weights from a column on; `left` columns are left.
fn weights32(row: u32, column: u32, left: u32) -> array<vec4<f32>, 8> {
    var w = decode32(row + column / BLOCK_LEN * BLOCK_BYTES, column % BLOCK_LEN / COLUMNS);
    if (HAS_TAIL) {
        w = ThirtyTwo(kept16(w.low, left), kept16(w.high, max(left, 16u) - 16u));
    }
    return array<vec4<f32>, 8>(w.low.a, w.low.b, w.low.c, w.low.d, w.high.a, w.high.b, w.high.c, w.high.d);
}

fn add4(sum: f32, w: vec4<f32>, x: vec4<f32>) -> f32 {
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

fn add_products(thread: u32, cols: u32) {
    let mine = 4u * (thread % SUBGROUP);
    for (var i = 0u; i < BATCH * OUTS; i++) {
        sums[i] = 0.0;
        second_sums[i] = 0.0;
    }
    for (var column = 0u; column < cols; column += COLUMNS) {
        let left = cols - column;
#repeat o OUTS
        from_second = false;
        var w$o = weights32(row_place(output_in_tile(thread, $ou)), column, left);
        var second$o = w$o;
        if (GATED) {
            from_second = true;
            second$o = weights32(second_place(output_in_tile(thread, $ou)), column, left);
        }
#end
#repeat n BATCH
        var x$n = work4(x_place($nu) + column + mine);
        if (HAS_TAIL) {
            x$n = kept4(x$n, max(left, mine) - mine);
        }
#repeat k 8
        let x$n_$k = subgroupBroadcast(x$n, $ku);
#repeat o OUTS
        sums[$nu * OUTS + $ou] = add4(sums[$nu * OUTS + $ou], w$o[$k], x$n_$k);
        if (GATED) {
            second_sums[$nu * OUTS + $ou] = add4(second_sums[$nu * OUTS + $ou], second$o[$k], x$n_$k);
        }
#end
#end
#end
    }
}
