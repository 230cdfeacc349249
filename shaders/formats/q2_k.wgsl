const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 84u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = true;

fn coded16(block: u32, part: u32) -> Coded {
    let packed = byte_at(block + part);
    let scale = half_at(block + 80u) * f32(packed & 15u);
    let low = half_at(block + 82u) * f32(packed >> 4u);
    let words = words4_at(block + 16u + 32u * (part / 8u) + 16u * (part % 2u));
    let shift = 2u * (part % 8u / 2u);
    return affine16((words >> vec4<u32>(shift)) & vec4<u32>(0x03030303u), scale, -low);
}
