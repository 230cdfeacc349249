const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 66u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;

fn coded16(block: u32, part: u32) -> Coded {
    let words = words4_at(block + 32u * (part / 8u) + 16u * (part % 2u));
    let codes = (words >> vec4<u32>(2u * (part % 8u / 2u))) & vec4<u32>(0x03030303u);
    return centred16(codes, half_at(block + 64u), 0x01010101u);
}
