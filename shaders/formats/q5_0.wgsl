const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 22u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;

// Bit 4 of sixteen codes from sixteen bits.
fn fifth_bits(bits: u32) -> vec4<u32> {
    return vec4<u32>(spread4(bits), spread4(bits >> 4u), spread4(bits >> 8u), spread4(bits >> 12u)) << vec4<u32>(4u);
}

fn coded16(block: u32, part: u32) -> Coded {
    let high = fifth_bits(word_at(block + 2u) >> (16u * part));
    return centred16(nibbles4(words4_at(block + 6u), part) | high, half_at(block), 0x10101010u);
}
