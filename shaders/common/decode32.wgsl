// Two neighbouring sixteens, for formats where a pair costs as much as two.

fn decode32(block: u32, pair: u32) -> ThirtyTwo {
    return ThirtyTwo(decode16(block, 2u * pair), decode16(block, 2u * pair + 1u));
}
