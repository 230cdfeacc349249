// A matrix times BATCH rows of the window: LANES threads an output. `mat_mul` is the same with more rows and one thread.

#include "format"
#include "common/products.wgsl"
#include "common/functions.wgsl"

var<private> first_row: u32;
// Of the window. Rows past it are computed as if they were this one, and not stored.
var<private> last_row: u32;

fn weight_word(i: u32) -> u32 {
    if (GATED && from_second) {
        return w1[i];
    }
    return w0[i];
}

fn x_place(n: u32) -> u32 {
    return args.x_at + min(first_row + n, last_row) * args.x_stride;
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

fn epilogue(value: f32, output: u32, held: f32) -> f32 {
    switch args.epilogue {
        case EPILOGUE_SILU: {
            return silu(value * args.epilogue_scale);
        }
        case EPILOGUE_SIGMOID: {
            return args.epilogue_factor * sigmoid(value * args.epilogue_scale);
        }
        case EPILOGUE_DECAY: {
            return vector_at(args.a_at + output) * softplus(value + vector_at(args.dt_at + output));
        }
        case EPILOGUE_ACCUMULATE: {
            return held + value;
        }
        default: {
            return value;
        }
    }
}

fn store(row: u32, output: u32, product: f32, second: f32) {
    var value = product * factor(args.scale_at);
    if (GATED) {
        value = activate(args.activation, value, second * factor(args.up_scale_at));
    } else if (args.up_at != NONE) {
        value = activate(args.activation, value, bitcast<f32>(scratch[args.up_at + row * args.up_stride + output]));
    }
    if (args.bias_at != NONE) {
        value += vector_at(args.bias_at + output);
    }
    let place = args.out_at + row * args.out_stride + output;
    if (args.out_in_scratch == 1u) {
        scratch[place] = bitcast<u32>(value);
    } else {
        set_work(place, epilogue(value, output, work_f32(place)));
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % LANES;
    let output = group.x * (THREADS / LANES) + thread / LANES;
    // Nothing is launched for no rows.
    let rows = run[args.rows_at];
    first_row = group.y * BATCH;
    last_row = rows - 1u;
    // The last workgroup's spare threads repeat the last output and store nothing.
    let place = min(output, args.outs - 1u) * args.row_bytes;
    add_products(args.w0_at_bytes + place, args.w1_at_bytes + place, args.cols, lane);
    add_lanes(thread, lane);
    if (lane != 0u || output >= args.outs) {
        return;
    }
    for (var n = 0u; n < BATCH; n++) {
        if (first_row + n < rows) {
            store(first_row + n, output, sums[n], second_sums[n]);
        }
    }
}
