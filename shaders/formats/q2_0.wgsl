const BLOCK_LEN: u32 = 64u;
const BLOCK_BYTES: u32 = 18u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;

fn coded16(block: u32, part: u32) -> Coded {
    let word = word_at(block + 2u + 4u * part);
    let bytes = unpack4xU8(word);
    // Four neighbours share a byte: bring each to a byte of its own.
    let codes = (bytes & vec4<u32>(3u)) | ((bytes & vec4<u32>(12u)) << vec4<u32>(6u)) | ((bytes & vec4<u32>(48u)) << vec4<u32>(12u))
        | ((bytes & vec4<u32>(192u)) << vec4<u32>(18u));
    return centred16(codes, half_at(block), 0x01010101u);
}
