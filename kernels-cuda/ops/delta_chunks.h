// The delta rule for prompts: a block works through the rows of a sequence in chunks, for 32 value channels of a head. What a row
// adds to the state depends on what the rows before it in its chunk added; that triangular system is solved for a chunk at
// once, and the state is read and written once a chunk instead of once a row:
//
//   A[i][j] = beta[i] (k[i] . k[j]) e^(G[i] - G[j]), j < i        G[i]: sum of the decays of the chunk up to row i
//   (I + A) u = beta (v - e^G (K S))                              S: the state before the chunk
//   out[i] = e^G[i] (q[i] S) + sum over j <= i of (q[i] . k[j]) e^(G[i] - G[j]) u[j]
//   S = e^G[last] S + sum over j of e^(G[last] - G[j]) k[j] u[j]
//
// (Yang et al., Parallelizing Linear Transformers with the Delta Rule, 2024; with the decay of Gated Delta Networks.)
#pragma once

constexpr u32 CHUNK = 16;
/// Most key channels of a head, of which there are a multiple of 4: each group of lanes holds its share of them for all value
/// channels of the block.
constexpr u32 MAX_CHUNK_KEYS = 128;
constexpr u32 GROUP_KEYS = MAX_CHUNK_KEYS / GROUPS, GROUP_QUADS = GROUP_KEYS / 4, KEY_STRIDE = MAX_CHUNK_KEYS + 4;

/// A chunk in shared memory. Rows past its end, and keys past those of a head, are zeros.
struct ChunkRows {
    alignas(16) float q[CHUNK * KEY_STRIDE], k[CHUNK * KEY_STRIDE];
    /// Products of the rows with each group's keys of the state.
    float partial[GROUPS * CHUNK * LANES];
    /// Values; then the right side of the system; then u, what each row adds.
    float v[CHUNK * LANES];
    float among_keys[CHUNK * CHUNK], among_queries[CHUNK * CHUNK];
    float decay_sum[CHUNK], beta[CHUNK];
};

/// Rows `first` to `first + count` of a span, which go on from one state.
struct Chunk {
    u32 first, count, read, write;
    /// The rows after it go on from what is in registers, and nobody needs the state between.
    bool superseded;
};

DEVICE Chunk next_chunk(const u32* run, const Span& span, u32 first) {
    const Row start = run_row(run, span.first_row + first);
    Chunk chunk = {first, 0, start.state_read, start.state_write, true};
    for (u32 version = start.state_write; chunk.superseded && chunk.count < CHUNK; version = chunk.write) {
        chunk.count++;
        chunk.write = version;
        const u32 next = first + chunk.count;
        if (next >= span.rows) {
            chunk.superseded = false;
        } else {
            const Row row = run_row(run, span.first_row + next);
            chunk.superseded = row.state_read == version && row.state_write == version;
        }
    }
    return chunk;
}

/// This block's head, and its first value channel.
struct ChunkPlace {
    u32 head, key_head, channel;
    /// Whether this lane's channel exists.
    bool mine;
};

DEVICE void load_chunk(const Operands& at, const DeltaRuleArgs& a, const ChunkPlace& place, u32 first_row, u32 count, ChunkRows* rows) {
    const float root = 1.0f / square_root(static_cast<float>(a.key_dim));
    for (u32 i = group(); i < CHUNK; i += GROUPS) {
        float q[MAX_CHUNK_KEYS / LANES] = {}, k[MAX_CHUNK_KEYS / LANES] = {};
        const u32 number = first_row + i;
        float v = 0.0f;
        if (i < count) {
            load_normalised(work_floats(at) + row_at(a.q_at, number, a.q_stride) + place.key_head * a.q_head_stride, a.key_dim, root, q);
            load_normalised(work_floats(at) + row_at(a.k_at, number, a.k_stride) + place.key_head * a.k_head_stride, a.key_dim, 1.0f, k);
            if (place.mine) v = work_floats(at)[row_at(a.v_at, number, a.v_stride) + place.head * a.v_head_stride + place.channel + lane()];
        }
        UNROLL
        for (u32 e = 0; e < MAX_CHUNK_KEYS / LANES; e++) {
            rows->q[i * KEY_STRIDE + lane() + e * LANES] = q[e];
            rows->k[i * KEY_STRIDE + lane() + e * LANES] = k[e];
        }
        rows->v[i * LANES + lane()] = v;
    }
    if (thread_index() < CHUNK) {
        float sum = 0.0f;
        for (u32 i = 0; i <= thread_index() && i < count; i++)
            sum += work_floats(at)[row_at(a.decay_at, first_row + i, a.decay_stride) + place.head];
        rows->decay_sum[thread_index()] = sum;
        const bool there = thread_index() < count;
        rows->beta[thread_index()] = there ? work_floats(at)[row_at(a.beta_at, first_row + thread_index(), a.beta_stride) + place.head] : 0.0f;
    }
    barrier();
}

/// Rows of a chunk that a thread compares with one other, `ROW_STEP` apart.
constexpr u32 ROW_STEP = THREADS / CHUNK, PAIRS = CHUNK / ROW_STEP;

/// How much of each earlier row a row sees, in its key (A) and in its query.
DEVICE void weigh_pairs(ChunkRows* rows, u32 keys) {
    const u32 j = thread_index() % CHUNK, first = thread_index() / CHUNK;
    float of_key[PAIRS] = {}, of_query[PAIRS] = {};
    for (u32 e = 0; e < keys; e += 4) {
        const Quad seen = *reinterpret_cast<const Quad*>(rows->k + j * KEY_STRIDE + e);
        UNROLL
        for (u32 p = 0; p < PAIRS; p++) {
            const u32 at = (first + p * ROW_STEP) * KEY_STRIDE + e;
            const Quad k = *reinterpret_cast<const Quad*>(rows->k + at), q = *reinterpret_cast<const Quad*>(rows->q + at);
            UNROLL
            for (u32 n = 0; n < 4; n++) {
                of_key[p] = fma(k.v[n], seen.v[n], of_key[p]);
                of_query[p] = fma(q.v[n], seen.v[n], of_query[p]);
            }
        }
    }
    UNROLL
    for (u32 p = 0; p < PAIRS; p++) {
        // Only what fades is raised to a power; later rows are not seen.
        const u32 i = first + p * ROW_STEP;
        const float faded = j <= i ? exp_float(rows->decay_sum[i] - rows->decay_sum[j]) : 0.0f;
        rows->among_keys[i * CHUNK + j] = j < i ? rows->beta[i] * of_key[p] * faded : 0.0f;
        rows->among_queries[i * CHUNK + j] = j <= i ? of_query[p] * faded : 0.0f;
    }
}

/// Rows whose products are made side by side.
constexpr u32 ROWS_AT_ONCE = 4;

/// Products of `x`'s rows with this group's keys of the state.
DEVICE void multiply_state(ChunkRows* rows, const float* x, const Quad (&state)[GROUP_QUADS]) {
    NO_UNROLL
    for (u32 first = 0; first < CHUNK; first += ROWS_AT_ONCE) {
        float sums[ROWS_AT_ONCE] = {};
        UNROLL
        for (u32 e = 0; e < GROUP_QUADS; e++) {
            UNROLL
            for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
                const Quad keys = reinterpret_cast<const Quad*>(x + (first + r) * KEY_STRIDE + group() * GROUP_KEYS)[e];
                UNROLL
                for (u32 j = 0; j < 4; j++) sums[r] = fma(keys.v[j], state[e].v[j], sums[r]);
            }
        }
        UNROLL
        for (u32 r = 0; r < ROWS_AT_ONCE; r++) rows->partial[(group() * CHUNK + first + r) * LANES + lane()] = sums[r];
    }
}

/// A row's product with the whole state.
DEVICE float state_product(const ChunkRows* rows, u32 i) {
    float sum = 0.0f;
    UNROLL
    for (u32 g = 0; g < GROUPS; g++) sum += rows->partial[(g * CHUNK + i) * LANES + lane()];
    return sum;
}

/// The right side of the triangular system, in place of the values.
DEVICE void correct_values(ChunkRows* rows) {
    for (u32 i = group(); i < CHUNK; i += GROUPS) {
        float* v = rows->v + i * LANES + lane();
        *v = rows->beta[i] * (*v - exp_float(rows->decay_sum[i]) * state_product(rows, i));
    }
}

/// Solves the system for this lane's channel.
DEVICE void solve_chunk(ChunkRows* rows) {
    float u[CHUNK];
    UNROLL
    for (u32 i = 0; i < CHUNK; i++) {
        float sum = rows->v[i * LANES + lane()];
        UNROLL
        for (u32 j = 0; j < i; j++) sum = fma(-rows->among_keys[i * CHUNK + j], u[j], sum);
        u[i] = sum;
    }
    UNROLL
    for (u32 i = 1; i < CHUNK; i++) rows->v[i * LANES + lane()] = u[i];
}

DEVICE void store_outputs(const Operands& at, const DeltaRuleArgs& a, const ChunkPlace& place, u32 first_row, u32 count, const ChunkRows* rows) {
    for (u32 i = group(); i < count; i += GROUPS) {
        float sum = exp_float(rows->decay_sum[i]) * state_product(rows, i);
        for (u32 j = 0; j <= i; j++) sum = fma(rows->among_queries[i * CHUNK + j], rows->v[j * LANES + lane()], sum);
        float* out = work_floats(at) + row_at(a.out_at, first_row + i, a.out_stride) + place.head * a.value_dim + place.channel;
        if (place.mine) out[lane()] = sum;
    }
}

DEVICE void update_state(const ChunkRows* rows, u32 count, Quad (&state)[GROUP_QUADS]) {
    const float end = rows->decay_sum[count - 1], kept = exp_float(end);
    UNROLL
    for (u32 i = 0; i < GROUP_KEYS; i++) state[i / 4].v[i % 4] *= kept;
    NO_UNROLL
    for (u32 i = 0; i < count; i++) {
        const float added = exp_float(end - rows->decay_sum[i]) * rows->v[i * LANES + lane()];
        const Quad* key = reinterpret_cast<const Quad*>(rows->k + i * KEY_STRIDE + group() * GROUP_KEYS);
        UNROLL
        for (u32 e = 0; e < GROUP_QUADS; e++) {
            const Quad k = key[e];
            UNROLL
            for (u32 j = 0; j < 4; j++) state[e].v[j] = fma(k.v[j], added, state[e].v[j]);
        }
    }
}

/// This lane's channel of a version of the state, this group's keys of it.
DEVICE Quad* state_keys(const Operands& at, const DeltaRuleArgs& a, const ChunkPlace& place, u32 slot, u32 version) {
    const u64 row = (static_cast<u64>(version) * a.heads + place.head) * a.value_dim + place.channel + lane();
    return reinterpret_cast<Quad*>(state_floats(at) + row_at(a.state_at, slot, a.slot_stride) + row * a.key_dim + group() * GROUP_KEYS);
}

KERNEL(delta_chunks, DeltaRuleArgs) {
    SHARED(ChunkRows, rows, 1);
    const u32* run = run_words(at);
    const Span span = run_span(run, block_y());
    const u32 blocks_of_head = (a.value_dim + LANES - 1) / LANES, head = block_x() / blocks_of_head;
    const u32 channel = block_x() % blocks_of_head * LANES;
    const ChunkPlace place = {head, head % a.key_heads, channel, channel + lane() < a.value_dim};
    // Of this group's keys, those that exist.
    const u32 before = group() * GROUP_KEYS, quads = place.mine && before < a.key_dim ? (a.key_dim - before) / 4 : 0;
    Quad state[GROUP_QUADS];
    u32 held = NONE;
    for (u32 first = 0; first < span.rows;) {
        const Chunk chunk = next_chunk(run, span, first);
        const u32 first_row = span.first_row + first;
        if (chunk.read != held) {
            const Quad* from = state_keys(at, a, place, span.slot, chunk.read);
            UNROLL
            for (u32 e = 0; e < GROUP_QUADS; e++) state[e] = e < quads ? from[e] : Quad{};
        }
        load_chunk(at, a, place, first_row, chunk.count, &rows[0]);
        weigh_pairs(&rows[0], a.key_dim);
        multiply_state(&rows[0], rows[0].k, state);
        barrier();
        correct_values(&rows[0]);
        barrier();
        if (group() == 0) solve_chunk(&rows[0]);
        multiply_state(&rows[0], rows[0].q, state);
        barrier();
        store_outputs(at, a, place, first_row, chunk.count, &rows[0]);
        update_state(&rows[0], chunk.count, state);
        if (!chunk.superseded) {
            Quad* to = state_keys(at, a, place, span.slot, chunk.write);
            UNROLL
            for (u32 e = 0; e < GROUP_QUADS; e++)
                if (e < quads) to[e] = state[e];
        }
        held = chunk.write;
        first += chunk.count;
        // The next chunk takes the place of this one.
        barrier();
    }
}
