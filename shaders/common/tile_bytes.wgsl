// Products of bytes: codes of weights, and the two bytes of rounded inputs, four at a time. Sums of a group are exact integers.
#include "common/tile_rounded.wgsl"

// [word of four columns][output], of the second matrix behind that of the first; [word][row].
var<workgroup> weights: array<u32, TILE_WORDS * TILE_OUTS * LANE_SLOTS>;
var<workgroup> high_inputs: array<u32, TILE_WORDS * TILE_ROWS>;
var<workgroup> low_inputs: array<u32, TILE_WORDS * TILE_ROWS>;

fn put_codes(slot: u32, word: u32, output: u32, codes: u32) {
    weights[(slot * TILE_WORDS + word) * TILE_OUTS + output] = codes;
}

fn put_inputs(word: u32, row: u32, high: u32, low: u32) {
    high_inputs[word * TILE_ROWS + row] = high;
    low_inputs[word * TILE_ROWS + row] = low;
}

fn begin(thread: u32) {}

fn multiply(thread: u32, group: u32, second: bool) {
    var steps: array<i32, BATCH * OUTS>;
    for (var i = 0u; i < BATCH * OUTS; i++) {
        steps[i] = 0;
    }
    let slot = select(0u, TILE_WORDS, second);
    for (var word = group * GROUP_WORDS; word < (group + 1u) * GROUP_WORDS; word++) {
#repeat n BATCH
        let high$n = high_inputs[word * TILE_ROWS + row_in_tile(thread, $nu)];
        let low$n = low_inputs[word * TILE_ROWS + row_in_tile(thread, $nu)];
#end
#repeat o OUTS
        let w$o = weights[(slot + word) * TILE_OUTS + output_in_tile(thread, $ou)];
#repeat n BATCH
        steps[$nu * OUTS + $ou] += 128 * dot4I8Packed(w$o, high$n) + dot4I8Packed(w$o, low$n);
#end
#end
    }
#repeat n BATCH
#repeat o OUTS
    add_group(thread, $nu, $ou, group, second, f32(steps[$nu * OUTS + $ou]));
#end
#end
}
