// Kernels of the simulated drivers' own test. Three are wrong on purpose: the drivers must notice.
#include "../../kernels-cuda/prelude.h"

struct SelftestArgs {
    u32 count;
};

/// work[block] = sum of 128 numbers of `state`.
KERNEL(selftest_sum, SelftestArgs) {
    const u32 i = block_x() * THREADS + thread_index();
    const float sum = sum_block(i < a.count ? state_floats(at)[i] : 0.0f);
    if (thread_index() == 0) work_floats(at)[block_x()] = sum;
}

/// Half of the block never reaches the barrier.
KERNEL(selftest_divergent, SelftestArgs) {
    if (thread_index() < a.count) barrier();
    else sum_lanes(1.0f);
}

/// A barrier is missing: another order of threads gives another answer.
KERNEL(selftest_race, SelftestArgs) {
    SHARED(float, values, THREADS);
    values[thread_index()] = static_cast<float>(thread_index());
    work_floats(at)[thread_index()] = values[THREADS - 1 - thread_index()];
}

/// One tile of `mma_bytes`: a (16 x 16), b (8 x 16, by columns) in state, c (16 x 8) in work.
KERNEL(selftest_mma, SelftestArgs) {
    const u32* words = reinterpret_cast<const u32*>(at.state);
    const u32 l = lane(), row = l / 4, k = l % 4;
    const u32 tile[2] = {words[row * 4 + k], words[(row + 8) * 4 + k]};
    int c[4] = {static_cast<int>(a.count), 0, 0, 0};
    mma_bytes(c, tile, words[64 + row * 4 + k]);
    if (group() == 0)
        for (u32 i = 0; i < 4; i++) work_floats(at)[(row + i / 2 * 8) * 8 + 2 * k + i % 2] = static_cast<float>(c[i]);
}
