// A tile of codes and of rounded inputs. A file that includes this defines `put_codes` and `put_inputs`, which take their words.
#include "common/tile_scales.wgsl"
#include "common/rounded.wgsl"
#include "common/codes16.wgsl"

const GROUP_WORDS: u32 = GROUP / 4u;
const TILE_WORDS: u32 = TILE_COLUMNS / 4u;

fn fetch_codes(slot: u32, half: u32, output: u32, w: Coded) {
    weight_scales[(slot * GROUPS + half) * TILE_OUTS + output] = vec2<f32>(w.scale, w.offset);
    for (var i = 0u; i < GROUP_WORDS; i++) {
        put_codes(slot, half * GROUP_WORDS + i, output, w.codes[i]);
    }
}

fn fetch(thread: u32, column: u32, cols: u32) {
    let mine = thread % 32u;
    let half = thread / 32u;
    let part = column / GROUP + half;
    from_second = false;
    fetch_codes(0u, half, mine, codes16(row_place(mine), part));
    if (GATED) {
        from_second = true;
        fetch_codes(1u, half, mine, codes16(second_place(mine), part));
    }
    let q = rounded_place(mine) + column / TILE_COLUMNS * ROUNDED_WORDS;
    let scale = bitcast<f32>(scratch[q + ROUNDED_SCALE]);
    input_scales[half * TILE_ROWS + mine] = vec2<f32>(scale, scale * bitcast<f32>(scratch[q + ROUNDED_SUMS + half]));
    for (var word = half * GROUP_WORDS; word < (half + 1u) * GROUP_WORDS; word++) {
        put_inputs(word, mine, scratch[q + word], scratch[q + ROUNDED_LOW + word]);
    }
}
