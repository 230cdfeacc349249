// Scales of a tile whose weights are codes: `scale * code + offset`, for groups of columns. A file that includes this
// defines `fetch`, by which each thread brings a group of an output's codes and of a row's inputs into workgroup memory, `multiply`,
// which adds up a group's codes times inputs and gives them to `add_group`, and what comes before the first tile, `begin`.
#include "common/tile.wgsl"

// Scale and offset of an output's codes, [group][output], of the second matrix behind those of the first.
var<workgroup> weight_scales: array<vec2<f32>, GROUPS * TILE_OUTS * LANE_SLOTS>;
// Scale of a row's inputs, and the sum of those of the group, [group][row].
var<workgroup> input_scales: array<vec2<f32>, GROUPS * TILE_ROWS>;

fn add_group(thread: u32, n: u32, o: u32, group: u32, second: bool, codes: f32) {
    let w = weight_scales[(select(0u, GROUPS, second) + group) * TILE_OUTS + output_in_tile(thread, o)];
    let x = input_scales[group * TILE_ROWS + row_in_tile(thread, n)];
    var value = w.x * x.x * codes;
    if (HAS_OFFSET) {
        value = fma(w.y, x.y, value);
    }
    if (second) {
        second_sums[n * OUTS + o] += value;
    } else {
        sums[n * OUTS + o] += value;
    }
}

fn add_products(thread: u32, cols: u32) {
    clear_sums();
    begin(thread);
    for (var column = 0u; column < cols; column += TILE_COLUMNS) {
        fetch(thread, column, cols);
        workgroupBarrier();
        for (var group = 0u; group < GROUPS; group++) {
            multiply(thread, group, false);
            if (GATED) {
                multiply(thread, group, true);
            }
        }
        workgroupBarrier();
    }
}
