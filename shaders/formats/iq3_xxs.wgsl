const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 98u;
const HAS_TAIL: bool = false;
#include "common/grids.wgsl"

fn decode16(block: u32, part: u32) -> Sixteen {
    let packed = word_at(block + 66u + 4u * (part / 2u));
    let scale = half_at(block) * (0.5 + f32(packed >> 28u)) * 0.5;
    let shift = 14u * (part % 2u);
    let signs = sign_bits(packed >> shift) | (sign_bits(packed >> (shift + 7u)) << 8u);
    let q = unpack4xU8(word_at(block + 2u + 4u * part));
    return signed_fours(q + vec4<u32>(IQ3XXS_AT), signs, scale);
}
