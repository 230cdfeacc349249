// Products of a tile of float32 weights and inputs by cooperative matrices of 8 x 8: each subgroup of the workgroup has as many rows as
// the others, and all outputs. What every thread's own products are is found in workgroup memory at the end.
#include "common/tile_floats.wgsl"

const EDGE: u32 = 8u;
// Rows of a subgroup, in matrices; their number is that of two subgroups.
const SUBGROUP_ROWS: u32 = TILE_ROWS * SUBGROUP / THREADS;

// [row][output], of the second matrix behind that of the first.
var<workgroup> results: array<f32, TILE_ROWS * TILE_OUTS * LANE_SLOTS>;

fn add_products(thread: u32, cols: u32) {
    let first = thread / SUBGROUP * SUBGROUP_ROWS;
    for (var i = thread; i < TILE_ROWS * TILE_OUTS * LANE_SLOTS; i += THREADS) {
        results[i] = 0.0;
    }
    workgroupBarrier();
#repeat s LANE_SLOTS
#repeat n 2
#repeat o 4
    var c$s$n$o = coopLoadT<coop_mat8x8<f32, C>>(&results[($su * TILE_ROWS + first + $nu * EDGE) * TILE_OUTS + $ou * EDGE], TILE_OUTS);
#end
#end
#end
    for (var column = 0u; column < cols; column += TILE_COLUMNS) {
        fetch(thread, column, cols);
        workgroupBarrier();
        for (var k = 0u; k < TILE_COLUMNS; k += EDGE) {
#repeat n 2
            let x$n = coopLoad<coop_mat8x8<f32, A>>(&inputs[k * TILE_ROWS + first + $nu * EDGE], TILE_ROWS);
#end
#repeat s LANE_SLOTS
#repeat o 4
            let w$s$o = coopLoadT<coop_mat8x8<f32, B>>(&weights[($su * TILE_COLUMNS + k) * TILE_OUTS + $ou * EDGE], TILE_OUTS);
#repeat n 2
            c$s$n$o = coopMultiplyAdd(x$n, w$s$o, c$s$n$o);
#end
#end
#end
        }
        workgroupBarrier();
    }
#repeat s LANE_SLOTS
#repeat n 2
#repeat o 4
    coopStoreT(c$s$n$o, &results[($su * TILE_ROWS + first + $nu * EDGE) * TILE_OUTS + $ou * EDGE], TILE_OUTS);
#end
#end
#end
    workgroupBarrier();
    for (var n = 0u; n < BATCH; n++) {
        for (var o = 0u; o < OUTS; o++) {
            let place = row_in_tile(thread, n) * TILE_OUTS + output_in_tile(thread, o);
            sums[n * OUTS + o] = results[place];
            if (GATED) {
                second_sums[n * OUTS + o] = results[TILE_ROWS * TILE_OUTS + place];
            }
        }
    }
}
