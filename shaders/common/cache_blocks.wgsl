// Cached keys and values in blocks of Q8_0 or Q4_0, `[K|V][kv_head][cell]`: blocks run along a head, and the last of a cell is filled up
// with zeros. A place is a byte; blocks begin at even bytes.
const CACHE_BLOCK: u32 = 32u;
const KEY_BLOCK_BYTES: u32 = select(34u, 18u, KEYS_HAVE_4_BITS);
const VALUE_BLOCK_BYTES: u32 = select(34u, 18u, VALUES_HAVE_4_BITS);

fn blocks_of_head() -> u32 {
    return (args.dim + CACHE_BLOCK - 1u) / CACHE_BLOCK;
}

// From one cell to the next.
fn key_step() -> u32 {
    return blocks_of_head() * KEY_BLOCK_BYTES;
}

fn value_step() -> u32 {
    return blocks_of_head() * VALUE_BLOCK_BYTES;
}

fn key_place(slot: u32, kv_head: u32, cell: u32) -> u32 {
    return 4u * (args.state_at + slot * args.slot_stride) + (kv_head * args.cells + cell) * key_step();
}

fn value_place(slot: u32, kv_head: u32, cell: u32) -> u32 {
    return key_place(slot, args.kv_heads, 0u) + (kv_head * args.cells + cell) * value_step();
}
