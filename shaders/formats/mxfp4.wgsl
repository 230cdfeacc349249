const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 17u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;
#include "common/codes.wgsl"

fn coded16(block: u32, part: u32) -> Coded {
    let e = byte_at(block);
    let d = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u));
    return table16(E2M1_VALUES, nibbles4(words4_at(block + 1u), part), d);
}
