// A thread, or the LANES threads that share one, has outputs of its own and all rows of the tile.

const OUTPUT_STEP: u32 = THREADS / LANES;
const TILE_OUTS: u32 = OUTPUT_STEP * OUTS;
const TILE_ROWS: u32 = BATCH;

fn output_in_tile(thread: u32, o: u32) -> u32 {
    return thread / LANES + o * OUTPUT_STEP;
}

fn row_in_tile(thread: u32, n: u32) -> u32 {
    return n;
}
