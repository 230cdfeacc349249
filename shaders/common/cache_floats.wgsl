// Cached keys and values, `[K|V][kv_head][cell][dim]`: CACHE_F16 says whether two elements share a word. A place is a word.
fn cell_words() -> u32 {
    return select(args.dim, args.dim / 2u, CACHE_F16);
}

fn key_place(slot: u32, kv_head: u32, cell: u32) -> u32 {
    return args.state_at + slot * args.slot_stride + (kv_head * args.cells + cell) * cell_words();
}

fn value_place(slot: u32, kv_head: u32, cell: u32) -> u32 {
    return key_place(slot, args.kv_heads + kv_head, cell);
}

// From one cell to the next.
fn key_step() -> u32 {
    return cell_words();
}

fn value_step() -> u32 {
    return cell_words();
}
