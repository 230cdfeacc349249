// A workgroup of 64 threads takes 32 outputs and 32 rows, 32 columns at a time: decoded weights and inputs lie in workgroup memory,
// where each thread finds those of its 4 x 4 products.

#include "common/sixteen.wgsl"

const TILE_OUTS: u32 = 32u;
const TILE_ROWS: u32 = 32u;
const TILE_COLUMNS: u32 = 32u;
// Threads that share the outputs of a row of threads; their outputs lie as far apart, so that they read neighbouring words.
const ACROSS: u32 = 8u;

fn output_in_tile(thread: u32, o: u32) -> u32 {
    return thread % ACROSS + o * ACROSS;
}

fn row_in_tile(thread: u32, n: u32) -> u32 {
    return thread / ACROSS + n * ACROSS;
}

// [column][output], of the second matrix behind that of the first; [column][row].
var<workgroup> weights: array<f32, TILE_COLUMNS * TILE_OUTS * LANE_SLOTS>;
var<workgroup> inputs: array<f32, TILE_COLUMNS * TILE_ROWS>;

fn put_weights(at: u32, v: vec4<f32>) {
    weights[at] = v.x;
    weights[at + TILE_OUTS] = v.y;
    weights[at + 2u * TILE_OUTS] = v.z;
    weights[at + 3u * TILE_OUTS] = v.w;
}

fn put_weights16(at: u32, v: Sixteen) {
    put_weights(at, v.a);
    put_weights(at + 4u * TILE_OUTS, v.b);
    put_weights(at + 8u * TILE_OUTS, v.c);
    put_weights(at + 12u * TILE_OUTS, v.d);
}

fn put_inputs(at: u32, v: vec4<f32>) {
    inputs[at] = v.x;
    inputs[at + TILE_ROWS] = v.y;
    inputs[at + 2u * TILE_ROWS] = v.z;
    inputs[at + 3u * TILE_ROWS] = v.w;
}

// Half of the threads fetch the first sixteen columns, each an output's weights and a row's inputs, half the others.
fn fetch(thread: u32, column: u32, cols: u32) {
    let mine = thread % 32u;
    let half = thread / 32u;
    let part = column / 16u + half;
    // A tail may end before the second half begins.
    let left = max(cols, 16u * part) - 16u * part;
    let place = 16u * half * TILE_OUTS + mine;
    from_second = false;
    var w = weights16(row_place(mine), part);
    var x = inputs16(x_place(mine) + 16u * part);
    if (HAS_TAIL) {
        w = kept16(w, left);
        x = kept16(x, left);
    }
    put_weights16(place, w);
    put_inputs(place, x.a);
    put_inputs(place + 4u * TILE_ROWS, x.b);
    put_inputs(place + 8u * TILE_ROWS, x.c);
    put_inputs(place + 12u * TILE_ROWS, x.d);
    if (GATED) {
        from_second = true;
        w = weights16(second_place(mine), part);
        if (HAS_TAIL) {
            w = kept16(w, left);
        }
        put_weights16(TILE_COLUMNS * TILE_OUTS + place, w);
    }
}

fn add_products(thread: u32, cols: u32) {
    for (var i = 0u; i < BATCH * OUTS; i++) {
        sums[i] = 0.0;
        second_sums[i] = 0.0;
    }
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
