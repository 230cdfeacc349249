const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 18u;
const HAS_TAIL: bool = false;

fn decode16(block: u32, part: u32) -> Sixteen {
    return centred16(nibbles4(words4_at(block + 2u), part), half_at(block), 8.0);
}
