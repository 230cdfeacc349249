// Elements of cached keys and values, `[K|V][kv_head][cell][dim]`: CACHE_F16 says whether two share a word.

fn cell_place(slot: u32, side: u32, kv_head: u32, cell: u32) -> u32 {
    let element = ((side * args.kv_heads + kv_head) * args.cells + cell) * args.dim;
    return args.state_at + slot * args.slot_stride + select(element, element / 2u, CACHE_F16);
}

fn cached(place: u32, i: u32) -> f32 {
    if (CACHE_F16) {
        let pair = unpack2x16float(state[place + i / 2u]);
        return select(pair.x, pair.y, i % 2u == 1u);
    }
    return bitcast<f32>(state[place + i]);
}
