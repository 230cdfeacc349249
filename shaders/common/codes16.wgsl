// Sixteen weights of a row as codes.
fn codes16(row: u32, part: u32) -> Coded {
    return coded16(row + part / PARTS_OF_BLOCK * BLOCK_BYTES, part % PARTS_OF_BLOCK);
}
