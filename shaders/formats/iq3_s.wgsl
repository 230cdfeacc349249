const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 110u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/grids.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let packed = byte_at(block + 106u + part / 4u) >> (4u * (part / 2u % 2u));
    let scale = half_at(block) * f32(1u + 2u * (packed & 15u));
    let high = byte_at(block + 66u + part / 2u) >> (4u * (part % 2u));
    let ninth = ((vec4<u32>(high) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) << vec4<u32>(8u);
    let q = unpack4xU8(word_at(block + 2u + 4u * part)) | ninth;
    return signed_fours(q + vec4<u32>(IQ3S_AT), half_word_at(block + 74u + 2u * part), scale);
}
