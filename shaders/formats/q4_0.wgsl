const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 18u;
const HAS_TAIL: bool = false;

fn decode32(block: u32, pair: u32) -> ThirtyTwo {
    let d = half_at(block);
    let codes = words4_at(block + 2u);
    return ThirtyTwo(centred16(nibbles4(codes, 0u), d, 8.0), centred16(nibbles4(codes, 1u), d, 8.0));
}

fn decode16(block: u32, part: u32) -> Sixteen {
    return centred16(nibbles4(words4_at(block + 2u), part), half_at(block), 8.0);
}
