// The indexer of sparse attention: its keys, scores of blocks, and the choice of blocks.
#pragma once

/// Most elements of an indexer key.
constexpr u32 MAX_KEY_DIM = 1024;

/// Raw keys by cell, then pooled keys by block.
template <class ARGS>
DEVICE float* index_keys(const Operands& at, const ARGS& a, u32 slot) {
    return state_floats(at) + row_at(a.state_at, slot, a.slot_stride);
}

/// The raw key of the token `back` tokens before a row: from the window, or from the cache where it is older.
DEVICE const float* raw_key(const Operands& at, const IndexAppendArgs& a, const Row& row, u32 number, u32 back) {
    if (back <= row.in_span) return work_floats(at) + row_at(a.key_at, number - back, a.key_stride);
    return index_keys(at, a, row.slot) + static_cast<u64>(row.index - back) * a.dim;
}

KERNEL(index_append, IndexAppendArgs) {
    SHARED(float, pooled, MAX_KEY_DIM);
    const u32 number = block_y();
    const Row row = run_row(run_words(at), number);
    float* keys = index_keys(at, a, row.slot);
    const float* key = raw_key(at, a, row, number, 0);
    for (u32 i = thread_index(); i < a.dim; i += THREADS) keys[static_cast<u64>(row.index) * a.dim + i] = key[i];
    if ((row.index + 1) % a.ratio != 0) return;
    for (u32 i = thread_index(); i < a.dim; i += THREADS) {
        float sum = 0.0f;
        for (u32 back = a.ratio; back-- > 0;) sum += raw_key(at, a, row, number, back)[i];
        pooled[i] = sum / static_cast<float>(a.ratio);
    }
    const float scale = rms_scale(pooled, a.dim, a.eps);
    for (u32 i = thread_index(); i < a.dim; i += THREADS) pooled[i] = pooled[i] * scale * w2_floats(at)[a.weight_at + i];
    barrier();
    const float* turns = run_angles(run_words(at), a.angles_at, a.pairs, number);
    for (u32 i = thread_index(); i < a.pairs; i += THREADS) rotate_pair(pooled, i, a.pairs, a.pairing, turns);
    barrier();
    float* out = keys + (static_cast<u64>(a.cells) + row.index / a.ratio) * a.dim;
    for (u32 i = thread_index(); i < a.dim; i += THREADS) out[i] = pooled[i];
}

/// Blocks that a workgroup of `index_scores` scores.
constexpr u32 SCORE_BLOCKS = 64;

KERNEL(index_scores, IndexScoresArgs) {
    const u32 number = a.first_row + block_y();
    const Row row = run_row(run_words(at), number);
    const u32 complete = (row.index + 1) / a.ratio;
    if (complete <= a.budget) return;
    const float* query = work_floats(at) + row_at(a.query_at, number, a.query_stride);
    const float* pooled = index_keys(at, a, row.slot) + static_cast<u64>(a.cells) * a.dim;
    float* scores = scratch_floats(at) + row_at(a.scores_at, block_y(), a.scores_stride);
    for (u32 i = group(); i < SCORE_BLOCKS; i += GROUPS) {
        const u32 block = block_x() * SCORE_BLOCKS + i;
        if (block >= complete) return;
        const float* key = pooled + static_cast<u64>(block) * a.dim;
        float score = 0.0f;
        for (u32 head = 0; head < a.heads; head++) {
            float dot = 0.0f;
            for (u32 k = lane(); k < a.dim; k += LANES) dot = fma(query[head * a.head_stride + k], key[k], dot);
            score += max_float(sum_lanes(dot), 0.0f);
        }
        if (lane() == 0) scores[block] = score;
    }
}

/// Numbers in the order of the floats.
DEVICE u32 ordered_bits(float value) {
    const u32 bits = float_to_bits(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

constexpr u32 DIGITS = 256;

/// The `rank`-th largest (from 1) of the numbers: digit by digit from the top, counting how many have each next digit. `above` is
/// how many are larger than it.
DEVICE u32 select_bits(const float* scores, u32 count, u32 rank, u32* above) {
    SHARED(u32, counts, DIGITS);
    SHARED(u32, found, 2);
    u32 prefix = 0, larger = 0;
    for (u32 shift = 32; shift > 0;) {
        shift -= 8;
        barrier();
        for (u32 i = thread_index(); i < DIGITS; i += THREADS) counts[i] = 0;
        barrier();
        for (u32 i = thread_index(); i < count; i += THREADS) {
            const u32 bits = ordered_bits(scores[i]);
            if (shift == 24 || bits >> (shift + 8) == prefix >> (shift + 8)) add_shared(&counts[bits >> shift & 255], 1);
        }
        barrier();
        if (thread_index() == 0) {
            u32 digit = DIGITS, seen = larger;
            while (digit-- > 0) {
                if (seen + counts[digit] >= rank) break;
                seen += counts[digit];
            }
            found[0] = digit;
            found[1] = seen;
        }
        barrier();
        prefix |= found[0] << shift;
        larger = found[1];
    }
    *above = larger;
    return prefix;
}

/// Number of earlier threads of the block whose `flag` is set; `all` counts those of the whole block.
DEVICE u32 count_before(u32 flag, u32* all) {
    SHARED(u32, flags, THREADS);
    barrier();
    flags[thread_index()] = flag;
    barrier();
    u32 before = 0, total = 0;
    for (u32 i = 0; i < THREADS; i++) {
        before += i < thread_index() ? flags[i] : 0;
        total += flags[i];
    }
    *all = total;
    return before;
}

KERNEL(block_select, BlockSelectArgs) {
    const u32 number = a.first_row + block_y();
    const u32 complete = (run_row(run_words(at), number).index + 1) / a.ratio;
    const u32 chosen = complete < a.budget ? complete : a.budget;
    u32* out = work_words(at) + row_at(a.out_at, number, a.out_stride);
    if (thread_index() == 0) out[0] = chosen;
    for (u32 i = chosen + thread_index(); i < a.budget; i += THREADS) out[1 + i] = 0;
    if (complete <= a.budget) {
        for (u32 i = thread_index(); i < chosen; i += THREADS) out[1 + i] = i;
        return;
    }
    const float* scores = scratch_floats(at) + row_at(a.scores_at, block_y(), a.scores_stride);
    u32 above;
    const u32 bar = select_bits(scores, complete, chosen, &above);
    // Of those at the bar the first few are taken.
    u32 equals_left = chosen - above, written = 0;
    for (u32 first = 0; first < complete; first += THREADS) {
        const u32 block = first + thread_index();
        const u32 bits = block < complete ? ordered_bits(scores[block]) : 0;
        u32 equals, taken;
        const u32 equal = block < complete && bits == bar, rank = count_before(equal, &equals);
        const u32 take = block < complete && (bits > bar || (equal && rank < equals_left));
        const u32 place = count_before(take, &taken);
        if (take) out[1 + written + place] = block;
        written += taken;
        equals_left -= equals < equals_left ? equals : equals_left;
    }
}
