#include "common/lanes.wgsl"

// Adds what the LANES threads of an output have: a whole subgroup.
fn add_lanes(thread: u32) {
    for (var i = 0u; i < BATCH * OUTS; i++) {
        sums[i] = subgroupAdd(sums[i]);
        if (GATED) {
            second_sums[i] = subgroupAdd(second_sums[i]);
        }
    }
}
