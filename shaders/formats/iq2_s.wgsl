const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 82u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/grids.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let packed = byte_at(block + 74u + part / 2u) >> (4u * (part % 2u));
    let scale = half_at(block) * (0.5 + f32(packed & 15u)) * 0.25;
    let high = byte_at(block + 66u + part / 2u) >> (4u * (part % 2u));
    let low = half_word_at(block + 2u + 2u * part);
    let indices = vec2<u32>((low & 255u) | ((high & 3u) << 8u), (low >> 8u) | ((high & 12u) << 6u));
    let signs = half_word_at(block + 34u + 2u * part);
    return signed_grid16(IQ2S_AT, indices, vec2<u32>(signs, signs >> 8u), scale);
}
