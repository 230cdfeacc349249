const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 54u;
const HAS_TAIL: bool = false;

const POWERS_OF_3 = array<u32, 5>(1u, 3u, 9u, 27u, 81u);

// The base-3 digits of four bytes that a power of 3 brings to the front, less 1.
fn digits(word: u32, power: u32) -> vec4<f32> {
    let front = (unpack4xU8(word) * vec4<u32>(power)) & vec4<u32>(255u);
    return vec4<f32>((front * vec4<u32>(3u)) >> vec4<u32>(8u)) - vec4<f32>(1.0);
}

fn decode16(block: u32, part: u32) -> Sixteen {
    let d = half_at(block + 52u);
    if (part < 15u) {
        let digit = select(part - 10u, part / 2u, part < 10u);
        let words = words4_at(block + select(32u, 16u * (part % 2u), part < 10u));
        let power = POWERS_OF_3[digit];
        return Sixteen(
            d * digits(words.x, power),
            d * digits(words.y, power),
            d * digits(words.z, power),
            d * digits(words.w, power),
        );
    }
    let word = word_at(block + 48u);
    return Sixteen(d * digits(word, 1u), d * digits(word, 3u), d * digits(word, 9u), d * digits(word, 27u));
}
