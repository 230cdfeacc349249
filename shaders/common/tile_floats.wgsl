// A tile of float32 weights and inputs.
#include "common/tile.wgsl"

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

// A thread fetches a group of an output's weights and of a row's inputs.
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
