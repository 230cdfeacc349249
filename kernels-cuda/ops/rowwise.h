// Ops on single columns, and norms. A block of the column kernels has 256 columns of one row.
#pragma once

constexpr u32 COLUMNS = 256;

/// Calls `see` with the columns of this thread's block that are below `width`.
template <class F>
DEVICE void each_column(u32 width, F see) {
    const u32 first = block_x() * COLUMNS, last = first + COLUMNS < width ? first + COLUMNS : width;
    for (u32 c = first + thread_index(); c < last; c += THREADS) see(c);
}

KERNEL(repeat, RepeatArgs) {
    const float* x = work_floats(at) + row_at(a.x_at, block_y(), a.x_stride);
    float* out = work_floats(at) + row_at(a.out_at, block_y(), a.out_stride);
    each_column(a.width, [&](u32 c) { out[c] = x[c % a.x_width]; });
}

KERNEL(add, AddArgs) {
    float* x = work_floats(at) + row_at(a.x_at, block_y(), a.x_stride);
    const float* y = work_floats(at) + row_at(a.y_at, block_y(), a.y_stride);
    const float scale = a.scale_at == NONE ? 1.0f : work_floats(at)[row_at(a.scale_at, block_y(), a.scale_stride)];
    each_column(a.width, [&](u32 c) { x[c] += scale * y[c]; });
}

KERNEL(gather, GatherArgs) {
    const u32 row = run_output(run_words(at), block_y());
    const float* x = work_floats(at) + row_at(a.x_at, row, a.x_stride);
    float* out = work_floats(at) + row_at(a.out_at, block_y(), a.out_stride);
    each_column(a.width, [&](u32 c) { out[c] = x[c]; });
}

/// 1 / sqrt(mean of squares + eps) of `x` over the block.
DEVICE float rms_scale(const float* x, u32 len, float eps) {
    float sum = 0.0f;
    for (u32 i = thread_index(); i < len; i += THREADS) sum = fma(x[i], x[i], sum);
    return 1.0f / square_root(sum_block(sum) / static_cast<float>(len) + eps);
}

KERNEL(rms_norm, RmsNormArgs) {
    const u32 first = block_x() * a.group;
    const float* x = work_floats(at) + row_at(a.x_at, block_y(), a.x_stride) + first;
    float* out = work_floats(at) + row_at(a.out_at, block_y(), a.out_stride) + first;
    const float scale = rms_scale(x, a.group, a.eps);
    for (u32 i = thread_index(); i < a.group; i += THREADS) {
        const float weight = a.weight_at == NONE ? 1.0f : w2_floats(at)[a.weight_at + (first + i) % a.weight_len];
        out[i] = x[i] * scale * weight;
    }
}

/// Turns pair `i` of a head; `turns` are cosines, then sines.
DEVICE void rotate_pair(float* head, u32 i, u32 pairs, u32 pairing, const float* turns) {
    float* low = head + (pairing == PAIRING_HALF ? i : 2 * i);
    float* high = head + (pairing == PAIRING_HALF ? i + pairs : 2 * i + 1);
    const float p = *low, q = *high, cosine = turns[i], sine = turns[pairs + i];
    *low = p * cosine - q * sine;
    *high = q * cosine + p * sine;
}

KERNEL(head_norm_rope, HeadNormRopeArgs) {
    float* head = work_floats(at) + row_at(a.x_at, block_y(), a.x_stride) + block_x() * a.head_stride;
    if (a.weight_at != NONE) {
        const float scale = rms_scale(head, a.dim, a.eps);
        for (u32 i = thread_index(); i < a.dim; i += THREADS) head[i] = head[i] * scale * w2_floats(at)[a.weight_at + i];
        barrier();
    }
    if (a.angles_at == NONE) return;
    const float* turns = run_angles(run_words(at), a.angles_at, a.pairs, block_y());
    for (u32 i = thread_index(); i < a.pairs; i += THREADS) rotate_pair(head, i, a.pairs, a.pairing, turns);
}

KERNEL(hc_gate, HcGateArgs) {
    const float* gates = work_floats(at) + row_at(a.gates_at, block_y(), a.gates_stride);
    const float* normed = work_floats(at) + row_at(a.normed_at, block_y(), a.normed_stride);
    float* out = work_floats(at) + row_at(a.out_at, block_y(), a.out_stride);
    const float share = 1.0f / static_cast<float>(a.streams);
    each_column(a.width, [&](u32 d) {
        float sum = 0.0f;
        for (u32 s = 0; s < a.streams; s++) sum += gates[s * a.width + d] * normed[s * a.width + d];
        out[d] = sum * share;
    });
}

KERNEL(hc_combine, HcCombineArgs) {
    float* x = work_floats(at) + row_at(a.x_at, block_y(), a.x_stride);
    const float* weights = work_floats(at) + row_at(a.weights_at, block_y(), a.weights_stride);
    const float* y = work_floats(at) + row_at(a.y_at, block_y(), a.y_stride);
    each_column(a.width * a.streams, [&](u32 c) { x[c] += weights[c / a.width] * y[c % a.width]; });
}

/// How far the value is let through: `sigmoid(signed root of the match of x and key)`.
DEVICE float ngram_gate_of(const float* x, const float* key, const float* norm_query, const float* norm_key, u32 width, float eps) {
    const float x_scale = rms_scale(x, width, eps), key_scale = rms_scale(key, width, eps);
    float sum = 0.0f;
    for (u32 i = thread_index(); i < width; i += THREADS)
        sum += (x[i] * x_scale * norm_query[i]) * (key[i] * key_scale * norm_key[i]);
    const float score = sum_block(sum) / square_root(static_cast<float>(width));
    const float root = square_root(max_float(abs_float(score), 1e-6f));
    return sigmoid(score > 0.0f ? root : score < 0.0f ? -root : score * 0.0f);
}

KERNEL(ngram_gate, NgramGateArgs) {
    const u32 first = block_x() * a.width, row = block_y();
    const float* x = work_floats(at) + row_at(a.x_at, row, a.x_stride) + first;
    const float* key = work_floats(at) + row_at(a.key_at, row, a.key_stride) + first;
    const float* value = work_floats(at) + row_at(a.value_at, row, a.value_stride);
    float* gated = work_floats(at) + row_at(a.gated_at, row, a.gated_stride) + first;
    float* normed = work_floats(at) + row_at(a.normed_at, row, a.normed_stride) + first;
    const float* vectors = w2_floats(at) + first;
    const float gate = ngram_gate_of(x, key, vectors + a.norm_query_at, vectors + a.norm_key_at, a.width, a.eps);
    for (u32 i = thread_index(); i < a.width; i += THREADS) gated[i] = gate * value[i];
    const float scale = rms_scale(gated, a.width, a.eps);
    for (u32 i = thread_index(); i < a.width; i += THREADS) normed[i] = gated[i] * scale * vectors[a.norm_conv_at + i];
}
