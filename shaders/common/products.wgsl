// Products of decoded weights with float32 activations, BATCH window rows at once. A kernel that includes this defines
// `x_place(n)`, the word of row n's first input in the work arena.

#include "common/work.wgsl"
#include "common/bytes.wgsl"

// Which of two weight operands bytes come from.
var<private> from_second: bool = false;

const PARTS_OF_BLOCK: u32 = BLOCK_LEN / 16u;

fn dot16(w: Sixteen, x: Sixteen) -> f32 {
    return (dot(w.a, x.a) + dot(w.b, x.b)) + (dot(w.c, x.c) + dot(w.d, x.d));
}

fn work4(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(work[i], work[i + 1u], work[i + 2u], work[i + 3u]));
}

fn kept4(v: vec4<f32>, left: u32) -> vec4<f32> {
    return select(vec4<f32>(0.0), v, vec4<u32>(left) > vec4<u32>(0u, 1u, 2u, 3u));
}

// The first `left` of sixteen values, then zeros.
fn kept16(v: Sixteen, left: u32) -> Sixteen {
    return Sixteen(kept4(v.a, left), kept4(v.b, max(left, 4u) - 4u), kept4(v.c, max(left, 8u) - 8u), kept4(v.d, max(left, 12u) - 12u));
}

fn inputs16(at: u32) -> Sixteen {
    return Sixteen(work4(at), work4(at + 4u), work4(at + 8u), work4(at + 12u));
}

fn weights16(row: u32, part: u32) -> Sixteen {
    return decode16(row + part / PARTS_OF_BLOCK * BLOCK_BYTES, part % PARTS_OF_BLOCK);
}

// Partial products of one output: of its row of weights, and of the second matrix's.
var<private> sums: array<f32, BATCH>;
var<private> second_sums: array<f32, BATCH>;

// Adds the products of every LANES-th part of the rows at two byte addresses, from part `lane`.
fn add_products(row: u32, second_row: u32, cols: u32, lane: u32) {
    for (var n = 0u; n < BATCH; n++) {
        sums[n] = 0.0;
        second_sums[n] = 0.0;
    }
    let parts = (cols + 15u) / 16u;
    for (var part = lane; part < parts; part += LANES) {
        let left = cols - 16u * part;
        from_second = false;
        var w = weights16(row, part);
        var second = w;
        if (GATED) {
            from_second = true;
            second = weights16(second_row, part);
        }
        if (HAS_TAIL) {
            w = kept16(w, left);
            second = kept16(second, left);
        }
        for (var n = 0u; n < BATCH; n++) {
            var x = inputs16(x_place(n) + 16u * part);
            if (HAS_TAIL) {
                x = kept16(x, left);
            }
            sums[n] += dot16(w, x);
            if (GATED) {
                second_sums[n] += dot16(second, x);
            }
        }
    }
}

var<workgroup> lane_sums: array<f32, THREADS * BATCH * LANE_SLOTS>;

// Adds what the LANES threads of an output have; the first of them holds the sums afterwards.
fn add_lanes(thread: u32, lane: u32) {
    if (LANES == 1u) {
        return;
    }
    for (var n = 0u; n < BATCH; n++) {
        lane_sums[n * THREADS + thread] = sums[n];
        if (GATED) {
            lane_sums[(BATCH + n) * THREADS + thread] = second_sums[n];
        }
    }
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            for (var n = 0u; n < BATCH * LANE_SLOTS; n++) {
                lane_sums[n * THREADS + thread] += lane_sums[n * THREADS + thread + half];
            }
        }
        workgroupBarrier();
    }
    for (var n = 0u; n < BATCH; n++) {
        sums[n] = lane_sums[n * THREADS + thread];
        if (GATED) {
            second_sums[n] = lane_sums[(BATCH + n) * THREADS + thread];
        }
    }
}
