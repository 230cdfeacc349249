// Products for windows of a few rows: a group of 32 lanes makes one output for all of them, and reads its matrix row once.
#pragma once
#include "dot.h"

/// With a second matrix in the arguments the product is a gated one.
template <class F, u32 BATCH>
DEVICE void mat_vec(const Operands& at, const MatArgs& a) {
    const u32 o = block_x() * GROUPS + group();
    if (o >= a.outs) return;
    const u32 rows = run_words(at)[a.rows_at];
    const bool gated = a.w1_at_bytes != NONE;
    InputOf<F> x[BATCH];
    float sums[BATCH], ups[BATCH];
    UNROLL
    for (u32 b = 0; b < BATCH; b++) {
        x[b] = input_row<F>(at, a, b < rows ? b : rows - 1);
        sums[b] = ups[b] = 0.0f;
    }
    const u64 first = static_cast<u64>(o) * a.row_bytes;
    multiply_row<F>(w0_bytes(at) + a.w0_at_bytes + first, a.cols, x, sums);
    if (gated) multiply_row<F>(w1_bytes(at) + a.w1_at_bytes + first, a.cols, x, ups);
    // Lane `b` finishes row `b`.
    float sum = 0.0f, up = 0.0f;
    UNROLL
    for (u32 b = 0; b < BATCH; b++) {
        const float of_row = sum_lanes(sums[b]), up_of_row = gated ? sum_lanes(ups[b]) : 0.0f;
        if (lane() == b) {
            sum = of_row;
            up = up_of_row;
        }
    }
    if (lane() < BATCH && lane() < rows) finish_product(at, a, lane(), o, sum, gated, up);
}

template <class F>
DEVICE void expert_vec(const Operands& at, const ExpertArgs& a) {
    const u32 o = block_x() * GROUPS + group();
    const Pair pair = {block_y() / a.used, block_y() % a.used};
    const u32 expert = work_words(at)[row_at(a.ids_at, pair.row, a.ids_stride) + pair.choice];
    const u32 slot = slot_of(at, a, expert);
    if (o >= a.outs || slot == NONE) return;
    const bool gated = a.w1_at_units != NONE;
    const InputOf<F> x[1] = {input_pair<F>(at, a, pair)};
    float sums[1] = {0.0f}, ups[1] = {0.0f};
    const u64 first = static_cast<u64>(o) * a.row_bytes;
    multiply_row<F>(slot_rows(at, a, a.w0_at_units, slot, a.row_offset) + first, a.cols, x, sums);
    if (gated) multiply_row<F>(slot_rows(at, a, a.w1_at_units, slot, a.up_row_offset) + first, a.cols, x, ups);
    const float sum = sum_lanes(sums[0]), up = gated ? sum_lanes(ups[0]) : 0.0f;
    if (lane() == 0) finish_pair(at, a, expert, pair, o, sum, gated, up);
}
