// Softmax attention over cached keys and values.
#pragma once

#include "kv_cache.h"

/// The cells that a row sees, numbered 0, 1, ... in ascending order.
struct SeenCells {
    /// Chosen blocks, or null where all cells from `start` are seen.
    const u32* blocks;
    u32 chosen, ratio, start, tail, count;

    DEVICE u32 cell(u32 i) const {
        if (!blocks) return start + i;
        return i < chosen ? blocks[i / ratio] * ratio + i % ratio : tail + (i - chosen);
    }
    /// A chosen block may reach out of the window, or be none.
    DEVICE bool sees(u32 cell, u32 end) const { return cell >= start && cell < end; }
};

DEVICE SeenCells seen_cells(const Operands& at, const AttentionArgs& a, const Row& row, u32 number) {
    const u32 end = row.index + 1, start = a.window == NONE || a.window >= end ? 0 : end - a.window;
    if (a.selection_at == NONE) return {nullptr, 0, 1, start, end, end - start};
    const u32* selection = work_words(at) + row_at(a.selection_at, number, a.selection_stride);
    const u32 chosen = selection[0] * a.ratio, tail = end / a.ratio * a.ratio;
    return {selection + 1, chosen, a.ratio, start, tail, chosen + (end - tail)};
}

/// Most elements of a head.
constexpr u32 MAX_HEAD_DIM = 512;
/// A lane holds quads of neighbours: elements `4 * lane()` and up of each 128 of a head.
constexpr u32 QUAD_STEP = 4 * LANES, LANE_QUADS = MAX_HEAD_DIM / QUAD_STEP;

/// The first element of a lane's quad `n`.
DEVICE u32 quad_at(u32 n) { return 4 * lane() + n * QUAD_STEP; }

/// What remains of values that were weighted by e^(score - old_max).
DEVICE float shrink(float old_max, float new_max) { return old_max == new_max ? 1.0f : exp_float(old_max - new_max); }

/// Softmax under way: a group's cells so far, their values weighted by e^(score - max); each lane has some elements of the head.
struct Attended {
    float max, sum;
    Quad values[LANE_QUADS];
};

/// A lane's elements of a query; zeros past its end.
DEVICE void load_query(const float* q, u32 dim, Quad (&query)[LANE_QUADS]) {
    UNROLL
    for (u32 n = 0; n < LANE_QUADS; n++) {
        UNROLL
        for (u32 j = 0; j < 4; j++) query[n].v[j] = quad_at(n) + j < dim ? q[quad_at(n) + j] : 0.0f;
    }
}

/// This lane's share of `query . key`.
template <class T>
DEVICE float multiply_key(const Quad (&query)[LANE_QUADS], const u8* key, u32 dim) {
    float dot = 0.0f;
    UNROLL
    for (u32 n = 0; n < LANE_QUADS; n++) {
        if (quad_at(n) >= dim) continue;
        const Quad k = T::load(key, quad_at(n), dim);
        UNROLL
        for (u32 j = 0; j < 4; j++) dot = fma(query[n].v[j], k.v[j], dot);
    }
    return dot;
}

/// `sums = sums * old + weight * value` for this lane's elements.
template <class T>
DEVICE void add_value(Quad (&sums)[LANE_QUADS], float old, float weight, const u8* value, u32 dim) {
    UNROLL
    for (u32 n = 0; n < LANE_QUADS; n++) {
        if (quad_at(n) >= dim) continue;
        const Quad v = T::load(value, quad_at(n), dim);
        UNROLL
        for (u32 j = 0; j < 4; j++) sums[n].v[j] = fma(weight, v.v[j], sums[n].v[j] * old);
    }
}

/// Works through cells `first + group()`, `first + group() + GROUPS`, ... below `last` of those that are seen.
template <class C>
DEVICE Attended attend(const Operands& at, const AttentionArgs& a, const Row& row, const SeenCells& seen, const float* q, u32 first, u32 last) {
    const u32 kv_head = block_x() / (a.heads / a.kv_heads);
    const Cells keys = key_cells<C>(at, a, row.slot, kv_head), values = value_cells<C>(at, a, row.slot, kv_head);
    Quad query[LANE_QUADS];
    load_query(q, a.dim, query);
    Attended result = {bits_to_float(0xff800000u), 0.0f, {}};
    for (u32 i = first + group(); i < last; i += GROUPS) {
        const u32 cell = seen.cell(i);
        if (!seen.sees(cell, row.index + 1)) continue;
        const float score = sum_lanes(multiply_key<typename C::Keys>(query, keys.cell(cell), a.dim)) * a.scale;
        const float max = max_float(result.max, score);
        const float old = shrink(result.max, max), weight = exp_float(score - max);
        result.max = max;
        result.sum = fma(result.sum, old, weight);
        add_value<typename C::Values>(result.values, old, weight, values.cell(cell), a.dim);
    }
    return result;
}

/// What the groups of a block have attended to, in shared memory.
struct GroupResults {
    alignas(16) float values[GROUPS * MAX_HEAD_DIM];
    float max[GROUPS], sum[GROUPS];
};

DEVICE void keep_group(GroupResults* shared, const Attended& mine, u32 dim) {
    if (lane() == 0) {
        shared->max[group()] = mine.max;
        shared->sum[group()] = mine.sum;
    }
    UNROLL
    for (u32 n = 0; n < LANE_QUADS; n++)
        if (quad_at(n) < dim) reinterpret_cast<Quad*>(shared->values)[(group() * MAX_HEAD_DIM + quad_at(n)) / 4] = mine.values[n];
    barrier();
}

/// The factor on element `i` of a head's result.
DEVICE float head_gate(const Operands& at, const AttentionArgs& a, u32 row, u32 head, u32 i) {
    if (a.gate_at == NONE) return 1.0f;
    return sigmoid(work_floats(at)[row_at(a.gate_at, row, a.gate_stride) + head * a.gate_head_stride + i]);
}

DEVICE float* head_out(const Operands& at, const AttentionArgs& a, u32 row, u32 head) {
    return work_floats(at) + row_at(a.out_at, row, a.out_stride) + head * a.out_head_stride;
}

/// Maximum, sum and values of a split of a head.
DEVICE float* split_partial(const Operands& at, const AttentionArgs& a, u32 row, u32 head, u32 split) {
    const u64 place = (static_cast<u64>(row) * a.heads + head) * a.splits + split;
    return scratch_floats(at) + a.partial_at + place * (a.dim + 2);
}

/// One head of one row, or one split of it: cells are dealt to the groups of lanes in turn.
template <class C>
DEVICE void attention(const Operands& at, const AttentionArgs& a) {
    SHARED(GroupResults, shared, 1);
    const u32 head = block_x(), number = block_y(), split = block_z();
    const Row row = run_row(run_words(at), number);
    const float* q = work_floats(at) + row_at(a.q_at, number, a.q_stride) + head * a.q_head_stride;
    const SeenCells seen = seen_cells(at, a, row, number);
    const u32 share = (seen.count + a.splits - 1) / a.splits, first = split * share;
    const u32 last = first + share < seen.count ? first + share : seen.count;
    keep_group(shared, attend<C>(at, a, row, seen, q, first, last), a.dim);

    float max = shared->max[0];
    for (u32 g = 1; g < GROUPS; g++) max = max_float(max, shared->max[g]);
    float weights[GROUPS], total = 0.0f;
    UNROLL
    for (u32 g = 0; g < GROUPS; g++) {
        weights[g] = shared->sum[g] > 0.0f ? shrink(shared->max[g], max) : 0.0f;
        total = fma(shared->sum[g], weights[g], total);
    }
    float* partial = a.splits > 1 ? split_partial(at, a, number, head, split) : nullptr;
    if (partial && thread_index() == 0) {
        partial[0] = max;
        partial[1] = total;
    }
    float* out = head_out(at, a, number, head);
    for (u32 i = thread_index(); i < a.dim; i += THREADS) {
        float value = 0.0f;
        UNROLL
        for (u32 g = 0; g < GROUPS; g++) value = fma(shared->values[g * MAX_HEAD_DIM + i], weights[g], value);
        if (partial) partial[2 + i] = value;
        else out[i] = value / total * head_gate(at, a, number, head, i);
    }
}

#define ATTENTION(suffix, C) KERNEL(attention_##suffix, AttentionArgs) { attention<C>(at, a); }
CACHES(ATTENTION)

/// Joins the splits of a head. A split may have seen no cell.
KERNEL(attention_merge, AttentionArgs) {
    const u32 head = block_x(), row = block_y(), stride = a.dim + 2;
    const float* partial = split_partial(at, a, row, head, 0);
    float max = partial[0], total = 0.0f;
    for (u32 s = 1; s < a.splits; s++) max = max_float(max, partial[s * stride]);
    for (u32 s = 0; s < a.splits; s++)
        if (partial[s * stride + 1] > 0.0f) total = fma(partial[s * stride + 1], shrink(partial[s * stride], max), total);
    float* out = head_out(at, a, row, head);
    for (u32 i = thread_index(); i < a.dim; i += THREADS) {
        float value = 0.0f;
        for (u32 s = 0; s < a.splits; s++) {
            const float* part = partial + s * stride;
            if (part[1] > 0.0f) value = fma(part[2 + i], shrink(part[0], max), value);
        }
        out[i] = value / total * head_gate(at, a, row, head, i);
    }
}
