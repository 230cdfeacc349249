// Keys and values, and softmax attention over them.
#pragma once

/// Elements of a cache.
struct CacheF32 {
    using Element = float;
    DEVICE static float load(const float* at) { return *at; }
    DEVICE static void store(float* at, float value) { *at = value; }
};
struct CacheF16 {
    using Element = u16;
    DEVICE static float load(const u16* at) { return half_to_float(*at); }
    DEVICE static void store(u16* at, float value) { *at = float_to_half(value); }
};

/// Cell 0 of a head's keys (`side` 0) or values (1) in `[K|V][kv_head][cell][dim]`.
template <class C, class ARGS>
DEVICE typename C::Element* cache_cells(const Operands& at, const ARGS& a, u32 slot, u32 side, u32 kv_head) {
    float* state = state_floats(at) + row_at(a.state_at, slot, a.slot_stride);
    const u64 cells = static_cast<u64>(side * a.kv_heads + kv_head) * a.cells;
    return reinterpret_cast<typename C::Element*>(state) + cells * a.dim;
}

template <class C>
DEVICE void kv_append(const Operands& at, const KvAppendArgs& a) {
    const Row row = run_row(run_words(at), block_y());
    const float* k = work_floats(at) + row_at(a.k_at, block_y(), a.k_stride);
    const float* v = work_floats(at) + row_at(a.v_at, block_y(), a.v_stride);
    each_column(a.kv_heads * a.dim, [&](u32 c) {
        const u32 head = c / a.dim;
        const u64 element = static_cast<u64>(row.index) * a.dim + c % a.dim;
        C::store(cache_cells<C>(at, a, row.slot, 0, head) + element, k[c]);
        C::store(cache_cells<C>(at, a, row.slot, 1, head) + element, v[c]);
    });
}

KERNEL(kv_append_f32, KvAppendArgs) { kv_append<CacheF32>(at, a); }
KERNEL(kv_append_f16, KvAppendArgs) { kv_append<CacheF16>(at, a); }

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
/// Elements of a head that a lane holds.
constexpr u32 LANE_ELEMENTS = MAX_HEAD_DIM / LANES;

/// Softmax under way: values are weighted by e^(score - max).
struct Softmax {
    float max, sum;
};

/// What remains of `value`s that were weighted with another maximum.
DEVICE float shrink(float old_max, float new_max) { return old_max == new_max ? 1.0f : exp_float(old_max - new_max); }

/// Joins the groups' results through shared memory; thread `i` gets elements `i`, `i + THREADS`, ... of the sum.
struct GroupResults {
    float max[GROUPS], sum[GROUPS], values[GROUPS * MAX_HEAD_DIM];
};

/// One head of one row: cells are dealt to the groups of lanes in turn.
template <class C>
DEVICE void attention(const Operands& at, const AttentionArgs& a) {
    SHARED(GroupResults, shared, 1);
    const u32 head = block_x(), number = block_y(), split = block_z();
    const Row row = run_row(run_words(at), number);
    const u32 kv_head = head / (a.heads / a.kv_heads);
    const float* q = work_floats(at) + row_at(a.q_at, number, a.q_stride) + head * a.q_head_stride;
    const auto* keys = cache_cells<C>(at, a, row.slot, 0, kv_head);
    const auto* values = cache_cells<C>(at, a, row.slot, 1, kv_head);
    const SeenCells seen = seen_cells(at, a, row, number);
    const u32 share = (seen.count + a.splits - 1) / a.splits, first = split * share;
    const u32 last = first + share < seen.count ? first + share : seen.count;

    float query[LANE_ELEMENTS], sum[LANE_ELEMENTS];
    UNROLL
    for (u32 e = 0; e < LANE_ELEMENTS; e++) {
        const u32 i = lane() + e * LANES;
        query[e] = i < a.dim ? q[i] : 0.0f;
        sum[e] = 0.0f;
    }
    Softmax softmax = {bits_to_float(0xff800000u), 0.0f};
    for (u32 i = first + group(); i < last; i += GROUPS) {
        const u32 cell = seen.cell(i);
        if (!seen.sees(cell, row.index + 1)) continue;
        const auto* key = keys + static_cast<u64>(cell) * a.dim;
        const auto* value = values + static_cast<u64>(cell) * a.dim;
        float dot = 0.0f;
        UNROLL
        for (u32 e = 0; e < LANE_ELEMENTS; e++) {
            const u32 k = lane() + e * LANES;
            if (k < a.dim) dot = fma(query[e], C::load(key + k), dot);
        }
        const float score = sum_lanes(dot) * a.scale, max = max_float(softmax.max, score);
        const float old = shrink(softmax.max, max), weight = exp_float(score - max);
        softmax = {max, fma(softmax.sum, old, weight)};
        UNROLL
        for (u32 e = 0; e < LANE_ELEMENTS; e++) {
            const u32 k = lane() + e * LANES;
            if (k < a.dim) sum[e] = fma(weight, C::load(value + k), sum[e] * old);
        }
    }
    if (lane() == 0) {
        shared->max[group()] = softmax.max;
        shared->sum[group()] = softmax.sum;
    }
    for (u32 e = 0; e < LANE_ELEMENTS; e++)
        if (lane() + e * LANES < a.dim) shared->values[group() * MAX_HEAD_DIM + lane() + e * LANES] = sum[e];
    barrier();

    float max = shared->max[0];
    for (u32 g = 1; g < GROUPS; g++) max = max_float(max, shared->max[g]);
    float weights[GROUPS], total = 0.0f;
    UNROLL
    for (u32 g = 0; g < GROUPS; g++) {
        weights[g] = shared->sum[g] > 0.0f ? shrink(shared->max[g], max) : 0.0f;
        total = fma(shared->sum[g], weights[g], total);
    }
    float* partial = nullptr;
    if (a.splits > 1) {
        const u64 place = (static_cast<u64>(number) * a.heads + head) * a.splits + split;
        partial = scratch_floats(at) + a.partial_at + place * (a.dim + 2);
        if (thread_index() == 0) {
            partial[0] = max;
            partial[1] = total;
        }
    }
    float* out = work_floats(at) + row_at(a.out_at, number, a.out_stride) + head * a.out_head_stride;
    const float* gate = a.gate_at == NONE ? nullptr : work_floats(at) + row_at(a.gate_at, number, a.gate_stride) + head * a.gate_head_stride;
    for (u32 i = thread_index(); i < a.dim; i += THREADS) {
        float value = 0.0f;
        UNROLL
        for (u32 g = 0; g < GROUPS; g++) value = fma(shared->values[g * MAX_HEAD_DIM + i], weights[g], value);
        if (partial) partial[2 + i] = value;
        else out[i] = value / total * (gate ? sigmoid(gate[i]) : 1.0f);
    }
}

KERNEL(attention_f32, AttentionArgs) { attention<CacheF32>(at, a); }
KERNEL(attention_f16, AttentionArgs) { attention<CacheF16>(at, a); }

/// Joins the splits of a head.
KERNEL(attention_merge, AttentionArgs) {
    const u32 head = block_x(), row = block_y();
    const u64 place = (static_cast<u64>(row) * a.heads + head) * a.splits;
    const float* partial = scratch_floats(at) + a.partial_at + place * (a.dim + 2);
    const u32 stride = a.dim + 2;
    float max = partial[0];
    for (u32 s = 1; s < a.splits; s++) max = max_float(max, partial[s * stride]);
    float total = 0.0f;
    for (u32 s = 0; s < a.splits; s++) {
        const float* part = partial + s * stride;
        if (part[1] > 0.0f) total = fma(part[1], shrink(part[0], max), total);
    }
    float* out = work_floats(at) + row_at(a.out_at, row, a.out_stride) + head * a.out_head_stride;
    for (u32 i = thread_index(); i < a.dim; i += THREADS) {
        float value = 0.0f;
        for (u32 s = 0; s < a.splits; s++) {
            const float* part = partial + s * stride;
            if (part[1] > 0.0f) value = fma(part[2 + i], shrink(part[0], max), value);
        }
        float gate = 1.0f;
        if (a.gate_at != NONE) gate = sigmoid(work_floats(at)[row_at(a.gate_at, row, a.gate_stride) + head * a.gate_head_stride + i]);
        out[i] = value / total * gate;
    }
}
