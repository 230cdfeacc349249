const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 18u;
const HAS_TAIL: bool = false;
#include "common/grids.wgsl"

fn decode16(block: u32, part: u32) -> Sixteen {
    return table16(IQ4_AT, nibbles4(words4_at(block + 2u), part), half_at(block));
}
