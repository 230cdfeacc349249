const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 136u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/codes.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let group = part / 2u;
    let low = (byte_at(block + 4u + group / 2u) >> (4u * (group % 2u))) & 15u;
    let high = (half_word_at(block + 2u) >> (2u * group)) & 3u;
    let scale = half_at(block) * (f32(low | (high << 4u)) - 32.0);
    return table16(IQ4_VALUES, nibbles4(words4_at(block + 8u + 16u * group), part % 2u), scale);
}
