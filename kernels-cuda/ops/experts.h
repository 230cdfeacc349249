// The router, the sorting of choices by expert, and the weighted sum of the experts' results.
#pragma once

/// Most experts of a layer.
constexpr u32 MAX_EXPERTS = 4096;
/// Smallest divisor of expert weights.
constexpr float MIN_SUM = 1.0f / 16384.0f;

struct Best {
    float value;
    u32 expert;
};
/// The larger; of equals the lower number. NaN loses to everything.
DEVICE Best better(Best x, Best y) {
    const bool second = y.value > x.value || (x.value != x.value && y.value == y.value) || (x.value == y.value && y.expert < x.expert);
    return second ? y : x;
}

/// The best of all threads' candidates.
DEVICE Best best_of_block(Best mine) {
    SHARED(Best, candidates, GROUPS);
    for (u32 o = 16; o; o /= 2) {
        const Best other = {shuffle_xor(mine.value, o), shuffle_xor(mine.expert, o)};
        mine = better(mine, other);
    }
    barrier();
    if (lane() == 0) candidates[group()] = mine;
    barrier();
    Best best = candidates[0];
    for (u32 g = 1; g < GROUPS; g++) best = better(best, candidates[g]);
    return best;
}

KERNEL(router, RouterArgs) {
    SHARED(float, p, MAX_EXPERTS);
    const float* logits = work_floats(at) + row_at(a.logits_at, block_y(), a.logits_stride);
    u32* ids = work_words(at) + row_at(a.ids_at, block_y(), a.ids_stride);
    float* weights = work_floats(at) + row_at(a.weights_at, block_y(), a.weights_stride);
    const float least = bits_to_float(0xff800000u);
    float max = least, sum = 0.0f;
    for (u32 i = thread_index(); i < a.experts; i += THREADS) max = max_float(max, logits[i]);
    max = max_block(max);
    for (u32 i = thread_index(); i < a.experts; i += THREADS) {
        p[i] = exp_float(logits[i] - max);
        sum += p[i];
    }
    sum = sum_block(sum);
    for (u32 i = thread_index(); i < a.experts; i += THREADS) p[i] /= sum;
    float chosen_sum = 0.0f;
    for (u32 j = 0; j < a.used; j++) {
        Best mine = {least, MAX_EXPERTS};
        for (u32 i = thread_index(); i < a.experts; i += THREADS) mine = better(mine, {p[i], i});
        const Best best = best_of_block(mine);
        const u32 expert = best.expert < a.experts ? best.expert : 0;
        chosen_sum += best.value;
        if (thread_index() == 0) {
            ids[j] = expert;
            weights[j] = best.value;
        }
        // Only the owner of the element looks at it again.
        if (expert % THREADS == thread_index()) p[expert] = least;
    }
    if (a.normalise && thread_index() == 0)
        for (u32 j = 0; j < a.used; j++) weights[j] /= max_float(chosen_sum, MIN_SUM);
}

/// Sorts by counting; choices of an expert stay in their order.
KERNEL(expert_group, ExpertGroupArgs) {
    SHARED(u32, next, MAX_EXPERTS);
    SHARED(u32, batch, THREADS);
    const u32 rows = run_words(at)[RUN_ROWS], pairs = rows * a.used;
    u32 *choices = scratch_words(at) + a.choices_at, *tiles = scratch_words(at) + a.tiles_at;
    auto expert_of = [&](u32 pair) {
        const u32 id = work_words(at)[row_at(a.ids_at, pair / a.used, a.ids_stride) + pair % a.used];
        return id < a.experts ? id : a.experts - 1;
    };
    for (u32 e = thread_index(); e < a.experts; e += THREADS) next[e] = 0;
    barrier();
    for (u32 pair = thread_index(); pair < pairs; pair += THREADS) add_shared(&next[expert_of(pair)], 1);
    barrier();
    if (thread_index() == 0) {
        u32 first = 0, count = 0;
        for (u32 e = 0; e < a.experts; e++) {
            const u32 mine = next[e];
            next[e] = first;
            for (u32 done = 0; done < mine; done += a.tile, count++) {
                u32* tile = tiles + 1 + 3 * count;
                tile[0] = e;
                tile[1] = first + done;
                tile[2] = mine - done < a.tile ? mine - done : a.tile;
            }
            first += mine;
        }
        tiles[0] = count;
    }
    for (u32 first = 0; first < pairs; first += THREADS) {
        const u32 pair = first + thread_index(), expert = pair < pairs ? expert_of(pair) : NONE;
        barrier();
        batch[thread_index()] = expert;
        barrier();
        u32 before = 0, all = 0;
        for (u32 i = 0; i < THREADS; i++) {
            const u32 same = batch[i] == expert;
            before += i < thread_index() ? same : 0;
            all += same;
        }
        const u32 start = expert == NONE ? 0 : next[expert];
        barrier();
        if (expert == NONE) continue;
        choices[start + before] = pair;
        if (before == 0) next[expert] = start + all;
    }
}

KERNEL(expert_sum, ExpertSumArgs) {
    const u32 row = block_y();
    const u32* ids = work_words(at) + row_at(a.ids_at, row, a.ids_stride);
    const float* weights = work_floats(at) + row_at(a.weights_at, row, a.weights_stride);
    const float* products = (a.products_in_scratch ? scratch_floats(at) : work_floats(at)) + row_at(a.products_at, row, a.products_stride);
    float* out = work_floats(at) + row_at(a.out_at, row, a.out_stride);
    each_column(a.width, [&](u32 c) {
        float sum = 0.0f;
        for (u32 j = 0; j < a.used; j++) {
            const u32 expert = ids[j] < a.experts ? ids[j] : a.experts - 1;
            const float scale = a.scale_at == NONE ? 1.0f : w2_floats(at)[a.scale_at + expert];
            sum += products[j * a.width + c] * scale * weights[j];
        }
        out[c] = sum;
    });
}
