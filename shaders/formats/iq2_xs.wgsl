const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 74u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/grids.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let packed = byte_at(block + 66u + part / 2u) >> (4u * (part % 2u));
    let scale = half_at(block) * (0.5 + f32(packed & 15u)) * 0.25;
    let q = vec2<u32>(half_word_at(block + 2u + 4u * part), half_word_at(block + 4u + 4u * part));
    let signs = vec2<u32>(sign_bits(q.x >> 9u), sign_bits(q.y >> 9u));
    return signed_grid16(IQ2XS_AT, q & vec2<u32>(511u), signs, scale);
}
