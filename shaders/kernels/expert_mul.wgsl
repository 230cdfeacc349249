// One expert's matrix times a tile of its choices.

#include "common/experts.wgsl"

var<workgroup> pairs: array<u32, TILE_ROWS>;

fn x_place(n: u32) -> u32 {
    return input_place(pairs[n]);
}

// Of the 20 words for 32 inputs.
fn rounded_place(n: u32) -> u32 {
    let pair = pairs[n];
    return args.q_at + pair / args.used * args.q_stride + pair % args.used * args.x_pair_stride / 32u * 20u;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let entry = args.tiles_at + 1u + 3u * group.y;
    let known = group.y < scratch[args.tiles_at];
    let expert = select(0u, scratch[entry], known);
    let first = select(0u, scratch[entry + 1u], known);
    let count = select(0u, scratch[entry + 2u], known);
    for (var n = thread; n < TILE_ROWS; n += THREADS) {
        pairs[n] = select(0u, scratch[args.choices_at + first + min(n, max(count, 1u) - 1u)], known);
    }
    workgroupBarrier();
    let slot = slot_of(expert);
    // An expert that is not here is computed as if it were the first slot's, and not stored.
    held_slot = select(slot, 0u, slot == NONE);
    first_output = group.x * TILE_OUTS;
    if (known) {
        add_products(thread, args.cols);
    }
    if (slot == NONE) {
        return;
    }
#repeat n BATCH
    let row$n = row_in_tile(thread, $nu);
#repeat o OUTS
    let output$n_$o = first_output + output_in_tile(thread, $ou);
    if (row$n < count && output$n_$o < args.outs) {
        store(pairs[row$n], expert, output$n_$o, sums[$nu * OUTS + $ou], second_sums[$nu * OUTS + $ou]);
    }
#end
#end
}
