const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 20u;
const HAS_TAIL: bool = false;

fn decode16(block: u32, part: u32) -> Sixteen {
    return affine16(nibbles4(words4_at(block + 4u), part), half_at(block), half_at(block + 2u));
}
