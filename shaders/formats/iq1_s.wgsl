const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 50u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/grids.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let group = part / 2u;
    let packed = half_word_at(block + 34u + 2u * group);
    let scale = half_at(block) * f32(2u * ((packed >> 12u) & 7u) + 1u);
    let low = half_word_at(block + 2u + 2u * part);
    let high = packed >> (6u * (part % 2u));
    let indices = vec2<u32>((low & 255u) | ((high & 7u) << 8u), (low >> 8u) | ((high & 0x38u) << 5u));
    return shifted_grid16(indices, scale, vec2<bool>((packed & 0x8000u) != 0u));
}
