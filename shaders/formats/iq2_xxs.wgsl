const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 66u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/grids.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let group = block + 2u + 8u * (part / 2u);
    let packed = word_at(group + 4u);
    let scale = half_at(block) * (0.5 + f32(packed >> 28u)) * 0.25;
    let first = 2u * (part % 2u);
    let indices = vec2<u32>(byte_at(group + first), byte_at(group + first + 1u));
    let signs = vec2<u32>(sign_bits(packed >> (7u * first)), sign_bits(packed >> (7u * first + 7u)));
    return signed_grid16(IQ2XXS_AT, indices, signs, scale);
}
