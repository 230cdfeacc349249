const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 54u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;

const POWERS_OF_3 = array<u32, 5>(1u, 3u, 9u, 27u, 81u);

// The base-3 digits of four bytes that a power of 3 brings to the front.
fn digits(word: u32, power: u32) -> u32 {
    let front = (unpack4xU8(word) * vec4<u32>(power)) & vec4<u32>(255u);
    let digit = (front * vec4<u32>(3u)) >> vec4<u32>(8u);
    return digit.x | (digit.y << 8u) | (digit.z << 16u) | (digit.w << 24u);
}

fn coded16(block: u32, part: u32) -> Coded {
    let d = half_at(block + 52u);
    if (part < 15u) {
        let digit = select(part - 10u, part / 2u, part < 10u);
        let words = words4_at(block + select(32u, 16u * (part % 2u), part < 10u));
        let power = POWERS_OF_3[digit];
        let codes = vec4<u32>(digits(words.x, power), digits(words.y, power), digits(words.z, power), digits(words.w, power));
        return centred16(codes, d, 0x01010101u);
    }
    let word = word_at(block + 48u);
    return centred16(vec4<u32>(digits(word, 1u), digits(word, 3u), digits(word, 9u), digits(word, 27u)), d, 0x01010101u);
}
