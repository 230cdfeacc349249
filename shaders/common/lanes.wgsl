// LANES threads share an output: each takes every LANES-th part of sixteen inputs.

#include "common/each_own.wgsl"
#include "common/sixteen.wgsl"

fn add_products(thread: u32, cols: u32) {
    for (var i = 0u; i < BATCH * OUTS; i++) {
        sums[i] = 0.0;
        second_sums[i] = 0.0;
    }
    let parts = (cols + 15u) / 16u;
    for (var part = thread % LANES; part < parts; part += LANES) {
        let left = cols - 16u * part;
        for (var o = 0u; o < OUTS; o++) {
            from_second = false;
            var w = weights16(row_place(output_in_tile(thread, o)), part);
            var second = w;
            if (GATED) {
                from_second = true;
                second = weights16(second_place(output_in_tile(thread, o)), part);
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
                sums[n * OUTS + o] += dot16(w, x);
                if (GATED) {
                    second_sums[n * OUTS + o] += dot16(second, x);
                }
            }
        }
    }
    add_lanes(thread);
}
