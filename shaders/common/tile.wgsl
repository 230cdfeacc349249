// A workgroup of 64 threads takes 32 outputs and 32 rows, 32 columns at a time: what it needs of them lies in workgroup memory, where
// each thread finds the weights and inputs of its 4 x 4 products.
#include "common/sixteen.wgsl"

const TILE_OUTS: u32 = 32u;
const TILE_ROWS: u32 = 32u;
const TILE_COLUMNS: u32 = 32u;
// Columns that share a scale, and how many such groups a tile has: half of the threads fetch one, half the other.
const GROUP: u32 = 16u;
const GROUPS: u32 = TILE_COLUMNS / GROUP;
// Threads that share the outputs of a row of threads; their outputs lie as far apart, so that they read neighbouring words.
const ACROSS: u32 = 8u;

fn output_in_tile(thread: u32, o: u32) -> u32 {
    return thread % ACROSS + o * ACROSS;
}

fn row_in_tile(thread: u32, n: u32) -> u32 {
    return thread / ACROSS + n * ACROSS;
}

fn clear_sums() {
    for (var i = 0u; i < BATCH * OUTS; i++) {
        sums[i] = 0.0;
        second_sums[i] = 0.0;
    }
}
