// The window's rows and spans in the run block.

fn row_word(row: u32, word: u32) -> u32 {
    return run[RUN_ROWS_AT + row * ROW_WORDS + word];
}
