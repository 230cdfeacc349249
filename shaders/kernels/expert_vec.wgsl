// The chosen expert's matrix times the input of one pair.

#include "common/experts.wgsl"

var<private> input: u32;

fn x_place(n: u32) -> u32 {
    return input;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let pair = group.y;
    let expert = expert_of(pair);
    let slot = slot_of(expert);
    // An expert that is not here is computed as if it were the first slot's, and not stored.
    held_slot = select(slot, 0u, slot == NONE);
    first_output = group.x * TILE_OUTS;
    input = input_place(pair);
    add_products(thread, args.cols);
    if (thread % LANES != 0u || slot == NONE) {
        return;
    }
#repeat o OUTS
    let output$o = first_output + output_in_tile(thread, $ou);
    if (output$o < args.outs) {
        store(pair, expert, output$o, sums[$o], second_sums[$o]);
    }
#end
}
