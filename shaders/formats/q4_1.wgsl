const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 20u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = true;

fn decode32(block: u32, pair: u32) -> ThirtyTwo {
    let i = block >> 2u;
    let scale = unpack2x16float(weight_word(i));
    let codes = aligned4(i + 1u);
    return ThirtyTwo(decoded(affine16(nibbles4(codes, 0u), scale.x, scale.y)), decoded(affine16(nibbles4(codes, 1u), scale.x, scale.y)));
}

fn coded16(block: u32, part: u32) -> Coded {
    return affine16(nibbles4(words4_at(block + 4u), part), half_at(block), half_at(block + 2u));
}
