const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 210u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;

fn coded16(block: u32, part: u32) -> Coded {
    let half = part / 8u;
    let quarter = part % 8u / 2u;
    let start = 16u * (part % 2u);
    let scale = half_at(block + 208u) * signed_bytes_f32(byte_at(block + 192u + part)).x;
    let low = nibbles4(words4_at(block + 64u * half + 32u * (quarter % 2u) + start), quarter / 2u);
    let high = (words4_at(block + 128u + 32u * half + start) >> vec4<u32>(2u * quarter)) & vec4<u32>(0x03030303u);
    return centred16(low | (high << vec4<u32>(4u)), scale, 0x20202020u);
}
