const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 110u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;

fn coded16(block: u32, part: u32) -> Coded {
    let low = (byte_at(block + 96u + part % 8u) >> (4u * (part / 8u))) & 15u;
    let high = (byte_at(block + 104u + part % 4u) >> (2u * (part / 4u))) & 3u;
    let scale = half_at(block + 108u) * (f32(low | (high << 4u)) - 32.0);
    let words = words4_at(block + 32u + 32u * (part / 8u) + 16u * (part % 2u));
    let codes = (words >> vec4<u32>(2u * (part % 8u / 2u))) & vec4<u32>(0x03030303u);
    let mask = (words4_at(block + 16u * (part % 2u)) >> vec4<u32>(part / 2u)) & vec4<u32>(0x01010101u);
    return centred16(codes | (mask << vec4<u32>(2u)), scale, 0x04040404u);
}
