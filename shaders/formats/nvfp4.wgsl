const BLOCK_LEN: u32 = 64u;
const BLOCK_BYTES: u32 = 36u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/codes.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let scale = byte_at(block + part);
    let exponent = (scale >> 3u) & 15u;
    let mantissa = scale & 7u;
    let normal = bitcast<f32>(((exponent + 119u) << 23u) | (mantissa << 20u));
    let d = select(select(normal, f32(mantissa) / 1024.0, exponent == 0u), 0.0, scale == 0x7fu);
    let q = words2_at(block + 4u + 8u * part);
    let codes = vec4<u32>(q, q >> vec2<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    return table16(E2M1_VALUES, codes, d);
}
