// Products of weights that lie as f16, which holds their codes exactly, with float32 inputs and sums: half the memory of a workgroup
// and half the reads of a tile of float32 weights, and no other results.
#include "common/tile_scales.wgsl"
#include "halves"

const GROUP_PAIRS: u32 = GROUP / 2u;
const TILE_PAIRS: u32 = TILE_COLUMNS / 2u;

// [pair of columns][output], of the second matrix behind that of the first; [pair][row].
var<workgroup> weights: array<vec2<f16>, TILE_PAIRS * TILE_OUTS * LANE_SLOTS>;
var<workgroup> inputs: array<vec2<f32>, TILE_PAIRS * TILE_ROWS>;

fn put_halves(slot: u32, half: u32, output: u32, w: Halves) {
    weight_scales[(slot * GROUPS + half) * TILE_OUTS + output] = w.scales;
    let place = (slot * TILE_PAIRS + half * GROUP_PAIRS) * TILE_OUTS + output;
#repeat i 8
    weights[place + $iu * TILE_OUTS] = w.pairs[$i];
#end
}

fn put_inputs(at: u32, x: vec4<f32>) {
    inputs[at] = x.xy;
    inputs[at + TILE_ROWS] = x.zw;
}

// A thread fetches a group of an output's weights and of a row's inputs.
fn fetch(thread: u32, column: u32, cols: u32) {
    let mine = thread % 32u;
    let half = thread / 32u;
    let part = column / GROUP + half;
    // A tail may end before the second group begins.
    let left = max(cols, GROUP * part) - GROUP * part;
    from_second = false;
    put_halves(0u, half, mine, halves16(row_place(mine), part, left));
    if (GATED) {
        from_second = true;
        put_halves(1u, half, mine, halves16(second_place(mine), part, left));
    }
    var x = inputs16(x_place(mine) + GROUP * part);
    if (HAS_TAIL) {
        x = kept16(x, left);
    }
    let place = half * GROUP_PAIRS * TILE_ROWS + mine;
    put_inputs(place, x.a);
    put_inputs(place + 2u * TILE_ROWS, x.b);
    put_inputs(place + 4u * TILE_ROWS, x.c);
    put_inputs(place + 6u * TILE_ROWS, x.d);
    let sum = x.a + x.b + x.c + x.d;
    input_scales[half * TILE_ROWS + mine] = vec2<f32>(1.0, (sum.x + sum.y) + (sum.z + sum.w));
}

fn begin(thread: u32) {}

fn multiply(thread: u32, group: u32, second: bool) {
    var codes: array<f32, BATCH * OUTS>;
    for (var i = 0u; i < BATCH * OUTS; i++) {
        codes[i] = 0.0;
    }
    let slot = select(0u, TILE_PAIRS, second);
    for (var pair = group * GROUP_PAIRS; pair < (group + 1u) * GROUP_PAIRS; pair++) {
#repeat n BATCH
        let x$n = inputs[pair * TILE_ROWS + row_in_tile(thread, $nu)];
#end
#repeat o OUTS
        let w$o = vec2<f32>(weights[(slot + pair) * TILE_OUTS + output_in_tile(thread, $ou)]);
#repeat n BATCH
        codes[$nu * OUTS + $ou] = fma(w$o.y, x$n.y, fma(w$o.x, x$n.x, codes[$nu * OUTS + $ou]));
#end
#end
    }
#repeat n BATCH
#repeat o OUTS
    add_group(thread, $nu, $ou, group, second, codes[$nu * OUTS + $ou]);
#end
#end
}
