const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 56u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/grids.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let scales = vec4<u32>(
        half_word_at(block + 48u),
        half_word_at(block + 50u),
        half_word_at(block + 52u),
        half_word_at(block + 54u),
    );
    let tops = scales >> vec4<u32>(12u);
    let d = unpack2x16float(tops.x | (tops.y << 4u) | (tops.z << 8u) | (tops.w << 12u)).x;
    let code = (half_word_at(block + 48u + 2u * (part / 4u)) >> (3u * (part % 4u))) & 7u;
    let scale = d * f32(2u * code + 1u);
    let high = byte_at(block + 32u + part);
    let low = half_word_at(block + 2u * part);
    let indices = vec2<u32>((low & 255u) | ((high & 7u) << 8u), (low >> 8u) | ((high & 0x70u) << 4u));
    return shifted_grid16(indices, scale, vec2<bool>((high & 8u) != 0u, (high & 0x80u) != 0u));
}
