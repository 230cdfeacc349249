const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 98u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/grids.wgsl"

fn decode32(block: u32, pair: u32) -> ThirtyTwo {
    let packed = word_at(block + 66u + 4u * pair);
    let scale = half_at(block) * (0.5 + f32(packed >> 28u)) * 0.5;
    let q = words2_at(block + 2u + 8u * pair);
    let low = sign_bits(packed) | (sign_bits(packed >> 7u) << 8u);
    let high = sign_bits(packed >> 14u) | (sign_bits(packed >> 21u) << 8u);
    let at = vec4<u32>(IQ3XXS_AT);
    return ThirtyTwo(decoded(signed_fours(unpack4xU8(q.x) + at, low, scale)), decoded(signed_fours(unpack4xU8(q.y) + at, high, scale)));
}

fn coded16(block: u32, part: u32) -> Coded {
    let packed = word_at(block + 66u + 4u * (part / 2u));
    let scale = half_at(block) * (0.5 + f32(packed >> 28u)) * 0.5;
    let shift = 14u * (part % 2u);
    let signs = sign_bits(packed >> shift) | (sign_bits(packed >> (shift + 7u)) << 8u);
    let q = unpack4xU8(word_at(block + 2u + 4u * part));
    return signed_fours(q + vec4<u32>(IQ3XXS_AT), signs, scale);
}
