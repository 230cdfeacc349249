// Products of a tile in float32.
#include "common/tile_floats.wgsl"

fn add_products(thread: u32, cols: u32) {
    clear_sums();
    for (var column = 0u; column < cols; column += TILE_COLUMNS) {
        fetch(thread, column, cols);
        workgroupBarrier();
        for (var k = 0u; k < TILE_COLUMNS; k++) {
#repeat n BATCH
            let x$n = inputs[k * TILE_ROWS + row_in_tile(thread, $nu)];
#end
#repeat o OUTS
            let w$o = weights[k * TILE_OUTS + output_in_tile(thread, $ou)];
#repeat n BATCH
            sums[$nu * OUTS + $ou] = fma(w$o, x$n, sums[$nu * OUTS + $ou]);
#end
            if (GATED) {
                let second = weights[(TILE_COLUMNS + k) * TILE_OUTS + output_in_tile(thread, $ou)];
#repeat n BATCH
                second_sums[$nu * OUTS + $ou] = fma(second, x$n, second_sums[$nu * OUTS + $ou]);
#end
            }
#end
        }
        workgroupBarrier();
    }
}
