// Products for prompts: a block makes a tile of 64 outputs for 32 rows of activations, 32 columns at a time. Weights are unpacked
// once for all rows of the tile. With tensor cores or without them, sums of 16 columns are the same whole numbers and are added
// up in the same order, so all cards give the same bits.
#pragma once
#include "dot.h"

constexpr u32 TILE_OUTS = 64, TILE_ROWS = 32, TILE_COLS = 32;
/// Words of a row in shared memory: odd strides spread the rows over the banks.
constexpr u32 WEIGHT_STRIDE = TILE_COLS / 4 + 1, ROUNDED_STRIDE = ROUNDED_WORDS + 1, FLOAT_STRIDE = TILE_COLS + 1;
/// Results of a thread.
constexpr u32 RESULTS = TILE_OUTS * TILE_ROWS / THREADS;

/// Which of the tile's results a thread has.
struct Place {
    u32 out, row;
};

/// Quantised weights of a tile, unpacked: signed bytes, scale and offset of each 16.
struct WeightTile {
    u32 q[TILE_OUTS * WEIGHT_STRIDE];
    float scale[TILE_OUTS * 2], offset[TILE_OUTS * 2];
};

template <class F>
DEVICE void load_weights(WeightTile* tile, const u8* rows, u32 row_bytes, u32 outs, u32 column_group) {
    for (u32 i = thread_index(); i < TILE_OUTS * 4; i += THREADS) {
        const u32 out = i / 4, part = i % 4, row = out < outs ? out : outs - 1;
        const Octet w = F::octet(rows + static_cast<u64>(row) * row_bytes, column_group * 4 + part);
        tile->q[out * WEIGHT_STRIDE + 2 * part] = w.q[0];
        tile->q[out * WEIGHT_STRIDE + 2 * part + 1] = w.q[1];
        if (part % 2 == 0) {
            tile->scale[out * 2 + part / 2] = w.scale;
            tile->offset[out * 2 + part / 2] = w.offset;
        }
    }
}

/// Rounded activations of a tile.
struct RoundedTile {
    u32 words[TILE_ROWS * ROUNDED_STRIDE];
};

DEVICE void load_rounded(RoundedTile* tile, const u64* rows, u32 column_group) {
    for (u32 i = thread_index(); i < TILE_ROWS * ROUNDED_WORDS; i += THREADS) {
        const u32 row = i / ROUNDED_WORDS, word = i % ROUNDED_WORDS;
        tile->words[row * ROUNDED_STRIDE + word] = global_pointer<const u32>(rows[row])[column_group * ROUNDED_WORDS + word];
    }
}

#if HAS_MMA

/// Each group of lanes has 16 outputs; result `i` is element `i % 4` of the tensor-core tile `i / 4`.
DEVICE Place place_of(u32 i) { return {group() * 16 + lane() / 4 + i % 4 / 2 * 8, i / 4 * 8 + 2 * (lane() % 4) + i % 2}; }

/// Sums of 16 columns, in steps.
DEVICE void sums_of_16(const WeightTile& w, const RoundedTile& x, u32 half, int sums[RESULTS]) {
    const u32 column = half * 4 + lane() % 4, out = group() * 16 + lane() / 4;
    const u32 a[2] = {w.q[out * WEIGHT_STRIDE + column], w.q[(out + 8) * WEIGHT_STRIDE + column]};
    UNROLL
    for (u32 n = 0; n < TILE_ROWS / 8; n++) {
        const u32* b = x.words + (n * 8 + lane() / 4) * ROUNDED_STRIDE + column;
        int high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
        mma_bytes(high, a, b[0]);
        mma_bytes(low, a, b[8]);
        UNROLL
        for (u32 i = 0; i < 4; i++) sums[n * 4 + i] = 128 * high[i] + low[i];
    }
}

#else

/// Four outputs, 16 apart, times four rows, 8 apart.
DEVICE Place place_of(u32 i) { return {thread_index() % 16 + i / 4 * 16, thread_index() / 16 + i % 4 * 8}; }

DEVICE void sums_of_16(const WeightTile& w, const RoundedTile& x, u32 half, int sums[RESULTS]) {
    UNROLL
    for (u32 i = 0; i < RESULTS; i++) {
        const Place p = place_of(i);
        const u32 *a = w.q + p.out * WEIGHT_STRIDE + half * 4, *b = x.words + p.row * ROUNDED_STRIDE + half * 4;
        int high = 0, low = 0;
        UNROLL
        for (u32 k = 0; k < 4; k++) {
            high = dot_bytes(a[k], b[k], high);
            low = dot_bytes(a[k], b[k + 8], low);
        }
        sums[i] = 128 * high + low;
    }
}

#endif

template <class F>
DEVICE void add_products(const WeightTile& w, const RoundedTile& x, float results[RESULTS]) {
    UNROLL
    for (u32 half = 0; half < 2; half++) {
        int sums[RESULTS];
        sums_of_16(w, x, half, sums);
        UNROLL
        for (u32 i = 0; i < RESULTS; i++) {
            const Place p = place_of(i);
            float term = w.scale[p.out * 2 + half] * static_cast<float>(sums[i]);
            const u32* words = x.words + p.row * ROUNDED_STRIDE;
            if constexpr (F::OFFSET) term = fma(w.offset[p.out * 2 + half], static_cast<float>(static_cast<int>(words[17 + half])), term);
            results[i] = fma(term, bits_to_float(words[16]), results[i]);
        }
    }
}

/// Products of `outs` matrix rows with the activations at the addresses `x`; `ups` those of a second matrix, if there is one.
template <class F, bool GATED>
DEVICE void rounded_tile(const u8* gate, const u8* up, u32 row_bytes, u32 outs, u32 cols, const u64* x, float* results, float* ups) {
    SHARED(WeightTile, weights, GATED ? 2 : 1);
    SHARED(RoundedTile, rounded, 1);
    for (u32 g = 0; g < cols / TILE_COLS; g++) {
        barrier();
        load_weights<F>(&weights[0], gate, row_bytes, outs, g);
        if constexpr (GATED) load_weights<F>(&weights[1], up, row_bytes, outs, g);
        load_rounded(&rounded[0], x, g);
        barrier();
        add_products<F>(weights[0], rounded[0], results);
        if constexpr (GATED) add_products<F>(weights[1], rounded[0], ups);
    }
}

/// As `rounded_tile` for plain numbers.
template <class F>
DEVICE void float_tile(const u8* matrix, u32 row_bytes, u32 outs, u32 cols, const u64* x, float* results) {
    SHARED(float, weights, TILE_OUTS * FLOAT_STRIDE);
    SHARED(float, inputs, TILE_ROWS * FLOAT_STRIDE);
    for (u32 first = 0; first < cols; first += TILE_COLS) {
        const u32 column = first + lane();
        barrier();
        for (u32 out = group(); out < TILE_OUTS; out += GROUPS) {
            const u8* row = matrix + static_cast<u64>(out < outs ? out : outs - 1) * row_bytes;
            weights[out * FLOAT_STRIDE + lane()] = column < cols ? F::weight(row, column) : 0.0f;
        }
        for (u32 row = group(); row < TILE_ROWS; row += GROUPS)
            inputs[row * FLOAT_STRIDE + lane()] = column < cols ? global_pointer<const float>(x[row])[column] : 0.0f;
        barrier();
        for (u32 k = 0; k < TILE_COLS; k++) {
            UNROLL
            for (u32 i = 0; i < RESULTS; i++) {
                const Place p = place_of(i);
                results[i] = fma(weights[p.out * FLOAT_STRIDE + k], inputs[p.row * FLOAT_STRIDE + k], results[i]);
            }
        }
    }
}

/// Products of a tile, to be finished by anyone.
struct ResultTile {
    float values[TILE_ROWS * TILE_OUTS];
};

DEVICE void keep_results(ResultTile* tile, const float* results) {
    UNROLL
    for (u32 i = 0; i < RESULTS; i++) tile->values[place_of(i).row * TILE_OUTS + place_of(i).out] = results[i];
}

/// A tile of either kind; calls `finish(row, out, product, up)` for all its results, neighbouring outputs in neighbouring threads.
template <class F, bool GATED, class FINISH>
DEVICE void product_tile(const u8* gate, const u8* up, u32 row_bytes, u32 outs, u32 cols, const u64* x, FINISH finish) {
    SHARED(ResultTile, tiles, GATED ? 2 : 1);
    float results[RESULTS], ups[RESULTS];
    UNROLL
    for (u32 i = 0; i < RESULTS; i++) results[i] = ups[i] = 0.0f;
    if constexpr (F::FLOATS) {
        float_tile<F>(gate, row_bytes, outs, cols, x, results);
        if constexpr (GATED) float_tile<F>(up, row_bytes, outs, cols, x, ups);
    } else {
        rounded_tile<F, GATED>(gate, up, row_bytes, outs, cols, x, results, ups);
    }
    keep_results(&tiles[0], results);
    if constexpr (GATED) keep_results(&tiles[1], ups);
    barrier();
    NO_UNROLL
    for (u32 i = thread_index(); i < TILE_ROWS * TILE_OUTS; i += THREADS) {
        const u32 row = i / TILE_OUTS, out = i % TILE_OUTS;
        if (out < outs) finish(row, out, tiles[0].values[i], GATED ? tiles[GATED ? 1 : 0].values[i] : 0.0f);
    }
}

template <class F, bool GATED>
DEVICE void mat_mul(const Operands& at, const MatArgs& a) {
    SHARED(u64, x, TILE_ROWS);
    const u32 first_out = block_x() * TILE_OUTS, first_row = block_y() * TILE_ROWS, rows = run_words(at)[a.rows_at];
    if (thread_index() < TILE_ROWS) {
        const u32 row = first_row + thread_index();
        x[thread_index()] = reinterpret_cast<u64>(input_row<F>(at, a, row < rows ? row : rows - 1));
    }
    barrier();
    const u64 first = static_cast<u64>(first_out) * a.row_bytes;
    const u8* gate = w0_bytes(at) + a.w0_at_bytes + first;
    const u8* up = GATED ? w1_bytes(at) + a.w1_at_bytes + first : nullptr;
    product_tile<F, GATED>(gate, up, a.row_bytes, a.outs - first_out, a.cols, x, [&](u32 row, u32 out, float product, float up_product) {
        if (first_row + row < rows) finish_product(at, a, first_row + row, first_out + out, product, GATED, up_product);
    });
}

template <class F, bool GATED>
DEVICE void expert_mul(const Operands& at, const ExpertArgs& a) {
    SHARED(u64, x, TILE_ROWS);
    const u32* tiles = scratch_words(at) + a.tiles_at;
    if (block_y() >= tiles[0]) return;
    const u32* tile = tiles + 1 + 3 * block_y();
    const u32 expert = tile[0], count = tile[2], first_out = block_x() * TILE_OUTS, slot = slot_of(at, a, expert);
    const u32* choices = scratch_words(at) + a.choices_at + tile[1];
    if (slot == NONE) return;
    auto pair_of = [&](u32 choice) { return Pair{choices[choice] / a.used, choices[choice] % a.used}; };
    if (thread_index() < TILE_ROWS)
        x[thread_index()] = reinterpret_cast<u64>(input_pair<F>(at, a, pair_of(thread_index() < count ? thread_index() : count - 1)));
    barrier();
    const u64 first = static_cast<u64>(first_out) * a.row_bytes;
    const u8* gate = slot_rows(at, a, a.w0_at_units, slot, a.row_offset) + first;
    const u8* up = GATED ? slot_rows(at, a, a.w1_at_units, slot, a.up_row_offset) + first : nullptr;
    product_tile<F, GATED>(gate, up, a.row_bytes, a.outs - first_out, a.cols, x, [&](u32 row, u32 out, float product, float up_product) {
        if (row < count) finish_pair(at, a, expert, pair_of(row), first_out + out, product, GATED, up_product);
    });
}
