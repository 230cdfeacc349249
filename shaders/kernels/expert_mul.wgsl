// One expert's matrix times a tile of its choices: one thread an output.

#include "common/experts.wgsl"

var<workgroup> pairs: array<u32, BATCH>;

fn x_place(n: u32) -> u32 {
    return input_place(pairs[n]);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let entry = args.tiles_at + 1u + 3u * group.y;
    let known = group.y < scratch[args.tiles_at];
    let expert = select(0u, scratch[entry], known);
    let first = select(0u, scratch[entry + 1u], known);
    let count = select(0u, scratch[entry + 2u], known);
    for (var n = thread; n < BATCH; n += THREADS) {
        pairs[n] = select(0u, scratch[args.choices_at + first + min(n, max(count, 1u) - 1u)], known);
    }
    workgroupBarrier();
    let slot = slot_of(expert);
    let output = group.x * THREADS + thread;
    if (count == 0u || slot == NONE || output >= args.outs) {
        return;
    }
    let second_place = matrix_place(args.w1_at_units, slot, args.up_row_offset + output);
    add_products(matrix_place(args.w0_at_units, slot, args.row_offset + output), second_place, args.cols, 0u);
    for (var n = 0u; n < BATCH; n++) {
        if (n < count) {
            store(pairs[n], expert, output, sums[n], second_sums[n]);
        }
    }
}
