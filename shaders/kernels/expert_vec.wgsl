// The chosen expert's matrix times the input of one pair.

#include "common/experts.wgsl"

var<private> input: u32;

fn x_place(n: u32) -> u32 {
    return input;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % LANES;
    let output = group.x * (THREADS / LANES) + thread / LANES;
    let pair = group.y;
    let expert = expert_of(pair);
    // An expert that is not here is computed as if it were the first slot's, and not stored.
    let slot = slot_of(expert);
    let held = select(slot, 0u, slot == NONE);
    let row = min(output, args.outs - 1u);
    input = input_place(pair);
    let second_place = matrix_place(args.w1_at_units, held, args.up_row_offset + row);
    add_products(matrix_place(args.w0_at_units, held, args.row_offset + row), second_place, args.cols, lane);
    add_lanes(thread, lane);
    if (lane == 0u && output < args.outs && slot != NONE) {
        store(pair, expert, output, sums[0], second_sums[0]);
    }
}
