const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 18u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;

fn decode32(block: u32, pair: u32) -> ThirtyTwo {
    let d = half_at(block);
    let codes = words4_at(block + 2u);
    return ThirtyTwo(decoded(centred16(nibbles4(codes, 0u), d, 0x08080808u)), decoded(centred16(nibbles4(codes, 1u), d, 0x08080808u)));
}

fn coded16(block: u32, part: u32) -> Coded {
    return centred16(nibbles4(words4_at(block + 2u), part), half_at(block), 0x08080808u);
}
