// Products of codes of weights with the two bytes of rounded inputs by cooperative matrices of 16 x 16: f16 holds both exactly, and
// float32 the sums of a group. Each subgroup of the workgroup has sixteen rows, and all outputs.
#include "common/tile_rounded.wgsl"

const EDGE: u32 = 16u;

// [column][output], of the second matrix behind that of the first; [column][row], high bytes in steps of 128.
var<workgroup> weights: array<f16, TILE_COLUMNS * TILE_OUTS * LANE_SLOTS>;
var<workgroup> high_inputs: array<f16, TILE_COLUMNS * TILE_ROWS>;
var<workgroup> low_inputs: array<f16, TILE_COLUMNS * TILE_ROWS>;
// What a group gives, [row][output].
var<workgroup> results: array<f32, TILE_ROWS * TILE_OUTS>;
var<workgroup> zeros: array<f32, EDGE * EDGE>;

fn put_codes(slot: u32, word: u32, output: u32, codes: u32) {
    let values = vec4<f16>(unpack4xI8(codes));
#repeat e 4
    weights[(slot * TILE_COLUMNS + 4u * word + $eu) * TILE_OUTS + output] = values[$e];
#end
}

fn put_inputs(word: u32, row: u32, high: u32, low: u32) {
    let high_values = vec4<f16>(unpack4xI8(high)) * 128.0h;
    let low_values = vec4<f16>(unpack4xI8(low));
#repeat e 4
    high_inputs[(4u * word + $eu) * TILE_ROWS + row] = high_values[$e];
    low_inputs[(4u * word + $eu) * TILE_ROWS + row] = low_values[$e];
#end
}

fn begin(thread: u32) {
    for (var i = thread; i < EDGE * EDGE; i += THREADS) {
        zeros[i] = 0.0;
    }
}

fn multiply(thread: u32, group: u32, second: bool) {
    let first = thread / SUBGROUP * EDGE;
    let column = group * GROUP;
    let slot = select(0u, TILE_COLUMNS, second);
    let high = coopLoad<coop_mat16x16<f16, A>>(&high_inputs[column * TILE_ROWS + first], TILE_ROWS);
    let low = coopLoad<coop_mat16x16<f16, A>>(&low_inputs[column * TILE_ROWS + first], TILE_ROWS);
#repeat o 2
    let w$o = coopLoadT<coop_mat16x16<f16, B>>(&weights[(slot + column) * TILE_OUTS + $ou * EDGE], TILE_OUTS);
    let none$o = coopLoadT<coop_mat16x16<f32, C>>(&zeros[0], EDGE);
    let sum$o = coopMultiplyAdd(high, w$o, coopMultiplyAdd(low, w$o, none$o));
    coopStoreT(sum$o, &results[first * TILE_OUTS + $ou * EDGE], TILE_OUTS);
#end
    workgroupBarrier();
    for (var n = 0u; n < BATCH; n++) {
        for (var o = 0u; o < OUTS; o++) {
            let place = row_in_tile(thread, n) * TILE_OUTS + output_in_tile(thread, o);
            add_group(thread, n, o, group, second, results[place]);
        }
    }
    workgroupBarrier();
}
