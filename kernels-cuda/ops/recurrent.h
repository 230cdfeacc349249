// The causal convolution and the delta rule: a block works through all rows of a sequence for its channels.
#pragma once

/// Channels of a block of `causal_conv`; two threads share one.
constexpr u32 CONV_CHANNELS = 64;

KERNEL(causal_conv, CausalConvArgs) {
    const Span span = run_span(run_words(at), block_y());
    const u32 channel = block_x() * CONV_CHANNELS + thread_index() % CONV_CHANNELS;
    const u32 part = thread_index() / CONV_CHANNELS, parts = THREADS / CONV_CHANNELS;
    const bool mine = channel < a.channels;
    float* ring = state_floats(at) + row_at(a.state_at, span.slot, a.slot_stride) + channel;
    const float* x = work_floats(at) + row_at(a.x_at, span.first_row, a.x_stride) + channel;
    float* out = work_floats(at) + row_at(a.out_at, span.first_row, a.out_stride) + channel;
    const float* weights = w2_floats(at) + a.weight_at + static_cast<u64>(channel) * a.taps;
    for (u32 i = part; mine && i < span.rows; i += parts) {
        float sum = 0.0f;
        for (u32 tap = 0; tap < a.taps; tap++) {
            const u32 back = (a.taps - 1 - tap) * a.dilation;
            if (back <= i) {
                sum += weights[tap] * x[static_cast<u64>(i - back) * a.x_stride];
            } else if (back <= span.index + i) {
                const u32 token = span.index + i - back;
                sum += weights[tap] * ring[static_cast<u64>(token % a.ring_rows) * a.channels];
            }
        }
        out[static_cast<u64>(i) * a.out_stride] = silu(sum);
    }
    // All of the block have read the ring before any brings it up to date.
    barrier();
    const u32 kept = span.rows < a.ring_rows ? span.rows : a.ring_rows;
    for (u32 i = span.rows - kept + part; mine && i < span.rows; i += parts)
        ring[static_cast<u64>((span.index + i) % a.ring_rows) * a.channels] = x[static_cast<u64>(i) * a.x_stride];
}

/// Added to the sum of squares before q and k are normalised.
constexpr float L2_EPS = 1e-6f;
/// Most key channels of a head in `delta_rule`, and those that a lane holds.
constexpr u32 MAX_DELTA_KEYS = 256, LANE_KEYS = MAX_DELTA_KEYS / LANES;

/// A lane's share of a vector, normalised to length `factor`.
template <u32 N>
DEVICE void load_normalised(const float* x, u32 dim, float factor, float (&out)[N]) {
    float sum = 0.0f;
    UNROLL
    for (u32 e = 0; e < N; e++) {
        const u32 i = lane() + e * LANES;
        out[e] = i < dim ? x[i] : 0.0f;
        sum = fma(out[e], out[e], sum);
    }
    const float scale = 1.0f / square_root(sum_lanes(sum) + L2_EPS) * factor;
    UNROLL
    for (u32 e = 0; e < N; e++) out[e] *= scale;
}

/// A group of lanes holds one value channel's row of the state, `[key channel]`, while it works through the rows.
KERNEL(delta_rule, DeltaRuleArgs) {
    const u32* run = run_words(at);
    const Span span = run_span(run, block_y());
    const u32 blocks_of_head = (a.value_dim + a.channels - 1) / a.channels, head = block_x() / blocks_of_head;
    const u32 key_head = head % a.key_heads;
    for (u32 c = group(); c < a.channels; c += GROUPS) {
        const u32 channel = block_x() % blocks_of_head * a.channels + c;
        if (channel >= a.value_dim) return;
        float* slot = state_floats(at) + row_at(a.state_at, span.slot, a.slot_stride);
        auto state_row = [&](u32 version) {
            const u64 row = (static_cast<u64>(version) * a.heads + head) * a.value_dim + channel;
            return slot + row * a.key_dim;
        };
        float state[LANE_KEYS];
        u32 held = NONE;
        for (u32 i = 0; i < span.rows; i++) {
            const u32 number = span.first_row + i;
            const Row row = run_row(run, number);
            if (row.state_read != held) {
                const float* from = state_row(row.state_read);
                UNROLL
                for (u32 e = 0; e < LANE_KEYS; e++) state[e] = lane() + e * LANES < a.key_dim ? from[lane() + e * LANES] : 0.0f;
            }
            float q[LANE_KEYS], k[LANE_KEYS];
            const float root = 1.0f / square_root(static_cast<float>(a.key_dim));
            load_normalised(work_floats(at) + row_at(a.q_at, number, a.q_stride) + key_head * a.q_head_stride, a.key_dim, root, q);
            load_normalised(work_floats(at) + row_at(a.k_at, number, a.k_stride) + key_head * a.k_head_stride, a.key_dim, 1.0f, k);
            const float decay = exp_float(work_floats(at)[row_at(a.decay_at, number, a.decay_stride) + head]);
            const float beta = work_floats(at)[row_at(a.beta_at, number, a.beta_stride) + head];
            const float v = work_floats(at)[row_at(a.v_at, number, a.v_stride) + head * a.v_head_stride + channel];
            float memory = 0.0f;
            UNROLL
            for (u32 e = 0; e < LANE_KEYS; e++) {
                state[e] *= decay;
                memory = fma(state[e], k[e], memory);
            }
            const float correction = (v - sum_lanes(memory)) * beta;
            float read = 0.0f;
            UNROLL
            for (u32 e = 0; e < LANE_KEYS; e++) {
                state[e] = fma(k[e], correction, state[e]);
                read = fma(state[e], q[e], read);
            }
            const float result = sum_lanes(read);
            if (lane() == 0) work_floats(at)[row_at(a.out_at, number, a.out_stride) + head * a.value_dim + channel] = result;
            held = row.state_write;
            // The next row may go on with what is in registers; then nobody needs this version.
            const bool superseded = i + 1 < span.rows && run_row(run, number + 1).state_read == held &&
                                    run_row(run, number + 1).state_write == held;
            if (superseded) continue;
            float* to = state_row(held);
            UNROLL
            for (u32 e = 0; e < LANE_KEYS; e++)
                if (lane() + e * LANES < a.key_dim) to[lane() + e * LANES] = state[e];
        }
    }
}

/// Norm and gate of a head's output.
KERNEL(delta_finish, DeltaFinishArgs) {
    const u32 first = block_x() * a.value_dim;
    float* out = work_floats(at) + row_at(a.out_at, block_y(), a.out_stride) + first;
    const float* gate = work_floats(at) + row_at(a.gate_at, block_y(), a.gate_stride) + first;
    const float scale = rms_scale(out, a.value_dim, a.eps);
    for (u32 i = thread_index(); i < a.value_dim; i += THREADS) out[i] = out[i] * scale * w2_floats(at)[a.norm_at + i] * gate[i];
}
