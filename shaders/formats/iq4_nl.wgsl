const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 18u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/codes.wgsl"

fn decode32(block: u32, pair: u32) -> ThirtyTwo {
    let d = half_at(block);
    let codes = words4_at(block + 2u);
    return ThirtyTwo(decoded(table16(IQ4_VALUES, nibbles4(codes, 0u), d)), decoded(table16(IQ4_VALUES, nibbles4(codes, 1u), d)));
}

fn coded16(block: u32, part: u32) -> Coded {
    return table16(IQ4_VALUES, nibbles4(words4_at(block + 2u), part), half_at(block));
}
