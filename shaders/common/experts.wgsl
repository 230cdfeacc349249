// What the kernels of experts share: places of a pair's input, weights and results.

#include "format"
#include "common/products.wgsl"
#include "common/functions.wgsl"

fn weight_word(i: u32) -> u32 {
    return w0[i];
}

// The weights' slot, and the first output of the workgroup.
var<private> held_slot: u32;
var<private> first_output: u32;

// Threads past the last output repeat it and store nothing.
fn row_of(o: u32) -> u32 {
    return min(first_output + o, args.outs - 1u);
}

fn row_place(o: u32) -> u32 {
    return matrix_place(args.w0_at_units, held_slot, args.row_offset + row_of(o));
}

fn second_place(o: u32) -> u32 {
    return matrix_place(args.w1_at_units, held_slot, args.up_row_offset + row_of(o));
}

fn expert_of(pair: u32) -> u32 {
    return min(work[args.ids_at + pair / args.used * args.ids_stride + pair % args.used], args.experts - 1u);
}

// The expert's slot among those of this launch; NONE if it lies in another one or in none.
fn slot_of(expert: u32) -> u32 {
    var slot = expert;
    if (args.table_at != NONE) {
        slot = state[args.table_at + expert];
    }
    if (slot == NONE || slot < args.first_slot || slot - args.first_slot >= args.slots) {
        return NONE;
    }
    return slot - args.first_slot;
}

fn input_place(pair: u32) -> u32 {
    return args.x_at + pair / args.used * args.x_stride + pair % args.used * args.x_pair_stride;
}

fn matrix_place(units: u32, slot: u32, row: u32) -> u32 {
    return (units + slot * args.slot_stride_units) * 256u + row * args.row_bytes;
}

fn expert_factor(at: u32, expert: u32) -> f32 {
    if (at == NONE) {
        return 1.0;
    }
    return bitcast<f32>(w2[at + expert]);
}

fn store(pair: u32, expert: u32, column: u32, product: f32, second: f32) {
    var value = product * expert_factor(args.scale_at, expert);
    if (GATED) {
        value = activate(args.activation, value, second * expert_factor(args.up_scale_at, expert));
    } else if (args.up_at != NONE) {
        value = activate(args.activation, value, bitcast<f32>(scratch[args.up_at + pair * args.outs + column]));
    }
    let place = args.out_at + pair / args.used * args.out_stride + pair % args.used * args.out_pair_stride + column;
    if (args.out_in_scratch == 1u) {
        scratch[place] = bitcast<u32>(value);
    } else {
        set_work(place, value);
    }
}
