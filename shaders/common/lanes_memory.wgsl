#include "common/lanes.wgsl"

var<workgroup> lane_sums: array<f32, THREADS * BATCH * OUTS * LANE_SLOTS>;

// Adds what the LANES threads of an output have, through workgroup memory; the first of them holds the sums afterwards.
fn add_lanes(thread: u32) {
    if (LANES == 1u) {
        return;
    }
    for (var i = 0u; i < BATCH * OUTS; i++) {
        lane_sums[i * THREADS + thread] = sums[i];
        if (GATED) {
            lane_sums[(BATCH * OUTS + i) * THREADS + thread] = second_sums[i];
        }
    }
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (thread % LANES < half) {
            for (var i = 0u; i < BATCH * OUTS * LANE_SLOTS; i++) {
                lane_sums[i * THREADS + thread] += lane_sums[i * THREADS + thread + half];
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < BATCH * OUTS; i++) {
        sums[i] = lane_sums[i * THREADS + thread];
        if (GATED) {
            second_sums[i] = lane_sums[(BATCH * OUTS + i) * THREADS + thread];
        }
    }
}
