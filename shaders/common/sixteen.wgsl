// Sixteen weights or inputs at a time.

const PARTS_OF_BLOCK: u32 = BLOCK_LEN / 16u;

fn dot16(w: Sixteen, x: Sixteen) -> f32 {
    return (dot(w.a, x.a) + dot(w.b, x.b)) + (dot(w.c, x.c) + dot(w.d, x.d));
}

fn inputs16(at: u32) -> Sixteen {
    return Sixteen(work4(at), work4(at + 4u), work4(at + 8u), work4(at + 12u));
}

fn weights16(row: u32, part: u32) -> Sixteen {
    return decode16(row + part / PARTS_OF_BLOCK * BLOCK_BYTES, part % PARTS_OF_BLOCK);
}
