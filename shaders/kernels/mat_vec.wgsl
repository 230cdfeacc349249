// A matrix times a few rows of the window; `mat_mul` is the same for tiles of many.

#include "format"
#include "common/products.wgsl"
#include "common/functions.wgsl"

var<private> first_row: u32;
// Of the window. Rows past it are computed as if they were this one, and not stored.
var<private> last_row: u32;
var<private> first_output: u32;

fn weight_word(i: u32) -> u32 {
    if (GATED && from_second) {
        return w1[i];
    }
    return w0[i];
}

fn x_place(n: u32) -> u32 {
    return args.x_at + min(first_row + n, last_row) * args.x_stride;
}

fn rounded_place(n: u32) -> u32 {
    return args.q_at + min(first_row + n, last_row) * args.q_stride;
}

// Threads past the last output repeat it and store nothing.
fn row_of(o: u32) -> u32 {
    return min(first_output + o, args.outs - 1u) * args.row_bytes;
}

fn row_place(o: u32) -> u32 {
    return args.w0_at_bytes + row_of(o);
}

fn second_place(o: u32) -> u32 {
    return args.w1_at_bytes + row_of(o);
}

fn vector_at(at: u32) -> f32 {
    return bitcast<f32>(w2[at]);
}

fn factor(at: u32) -> f32 {
    if (at == NONE) {
        return 1.0;
    }
    return vector_at(at);
}

fn epilogue(value: f32, column: u32, held: f32) -> f32 {
    switch args.epilogue {
        case EPILOGUE_SILU: {
            return silu(value * args.epilogue_scale);
        }
        case EPILOGUE_SIGMOID: {
            return args.epilogue_factor * sigmoid(value * args.epilogue_scale);
        }
        case EPILOGUE_DECAY: {
            return vector_at(args.a_at + column) * softplus(value + vector_at(args.dt_at + column));
        }
        case EPILOGUE_ACCUMULATE: {
            return held + value;
        }
        default: {
            return value;
        }
    }
}

fn store(row: u32, column: u32, product: f32, second: f32) {
    var value = product * factor(args.scale_at);
    if (GATED) {
        value = activate(args.activation, value, second * factor(args.up_scale_at));
    } else if (args.up_at != NONE) {
        value = activate(args.activation, value, bitcast<f32>(scratch[args.up_at + row * args.up_stride + column]));
    }
    if (args.bias_at != NONE) {
        value += vector_at(args.bias_at + column);
    }
    let place = args.out_at + row * args.out_stride + column;
    if (args.out_in_scratch == 1u) {
        scratch[place] = bitcast<u32>(value);
    } else {
        set_work(place, epilogue(value, column, work_f32(place)));
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    // Workgroups of the parts follow one another.
    var part = 0u;
    var mine = group.x;
    for (var p = 0u; p + 1u < PARTS; p++) {
        let groups = (parts[p].outs + TILE_OUTS - 1u) / TILE_OUTS;
        if (part == p && mine >= groups) {
            mine -= groups;
            part++;
        }
    }
    args = parts[part];
    // Nothing is launched for no rows.
    let rows = run[args.rows_at];
    first_row = group.y * TILE_ROWS;
    last_row = rows - 1u;
    first_output = mine * TILE_OUTS;
    add_products(thread, args.cols);
    if (thread % LANES != 0u) {
        return;
    }
#repeat n BATCH
    let row$n = first_row + row_in_tile(thread, $nu);
#repeat o OUTS
    let output$n_$o = first_output + output_in_tile(thread, $ou);
    if (row$n < rows && output$n_$o < args.outs) {
        store(row$n, output$n_$o, sums[$nu * OUTS + $ou], second_sums[$nu * OUTS + $ou]);
    }
#end
#end
}
