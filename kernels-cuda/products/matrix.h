// Products for prompts: a block makes a tile of 64 outputs for 32 rows of activations, 32 columns at a time. Weights are unpacked
// once for all rows of the tile. Sums of the columns that share a scale are whole numbers, and all units of cards add them up in
// the same order, so all cards give the same bits. While a tile is multiplied the next one is on its way.
#pragma once
#include "halves.h"
#include "tiles.h"

/// Sum of the activations of `COLS` columns, in steps.
template <u32 COLS>
DEVICE float sum_of_steps(const u32* words, u32 first) {
    if constexpr (COLS == 32) return bits_to_float(words[17]) + bits_to_float(words[18]);
    else return bits_to_float(words[17 + first / 16]);
}

/// Adds the products of the columns that share a scale.
template <class F, class UNIT>
DEVICE void add_products(const WeightTile& w, const RoundedTile& x, float results[RESULTS]) {
    NO_UNROLL
    for (u32 first = 0; first < TILE_COLS; first += F::SCALE_COLS) {
        int sums[RESULTS];
        UNIT::template sum_columns<F::SCALE_COLS>(w, x, first, sums);
        UNROLL
        for (u32 i = 0; i < RESULTS; i++) {
            const Place p = UNIT::place_of(i);
            const u32 *words = x.words + p.row * ROUNDED_STRIDE, scale = p.out * 2 + first / 16;
            float term = w.scale[scale] * static_cast<float>(sums[i]);
            if constexpr (F::OFFSET) term = fma(w.offset[scale], sum_of_steps<F::SCALE_COLS>(words, first), term);
            results[i] = fma(term, bits_to_float(words[16]), results[i]);
        }
    }
}

/// Tiles of `MATRICES` matrices: those at hand and the next ones.
template <u32 MATRICES>
struct RoundedTiles {
    WeightTile weights[2][MATRICES];
    RoundedTile rounded[2];
};

/// Products of `outs` rows of the matrices at `matrices` with the activations at the addresses `x`.
template <class F, u32 MATRICES, class UNIT>
DEVICE void rounded_tile(RoundedTiles<MATRICES>* tiles, const u8* const (&matrices)[MATRICES], u32 row_bytes, u32 outs, u32 cols, const u64* x,
                         float (&results)[MATRICES][RESULTS]) {
    WeightPieces<F> weights[MATRICES];
    RoundedPieces<UNIT::COPIES_ASYNC> rounded;
    auto fetch = [&](u32 g) {
        UNROLL
        for (u32 m = 0; m < MATRICES; m++) weights[m].fetch(matrices[m], row_bytes, outs, g);
        rounded.fetch(&tiles->rounded[g % 2], x, g);
    };
    auto keep = [&](u32 g) {
        UNROLL
        for (u32 m = 0; m < MATRICES; m++) weights[m].keep(&tiles->weights[g % 2][m]);
        rounded.keep(&tiles->rounded[g % 2]);
        barrier();
    };
    const u32 groups = cols / TILE_COLS;
    fetch(0);
    keep(0);
    NO_UNROLL
    for (u32 g = 0; g < groups; g++) {
        const bool more = g + 1 < groups;
        if (more) fetch(g + 1);
        UNROLL
        for (u32 m = 0; m < MATRICES; m++) add_products<F, UNIT>(tiles->weights[g % 2][m], tiles->rounded[g % 2], results[m]);
        if (more) keep(g + 1);
    }
}

/// Words of a row of floats: rows begin at multiples of 16 bytes and are spread over the banks.
constexpr u32 FLOAT_STRIDE = TILE_COLS + 4;

struct FloatTile {
    alignas(16) float weights[TILE_OUTS * FLOAT_STRIDE], inputs[TILE_ROWS * FLOAT_STRIDE];
};

/// Adds the products of four columns, one after the other: each thread has four outputs and four rows.
DEVICE void add_four_columns(const FloatTile* tile, u32 first, float (&results)[RESULTS]) {
    Quad w[4], x[4];
    UNROLL
    for (u32 i = 0; i < 4; i++) {
        w[i] = *reinterpret_cast<const Quad*>(tile->weights + DotUnit::place_of(4 * i).out * FLOAT_STRIDE + first);
        x[i] = *reinterpret_cast<const Quad*>(tile->inputs + DotUnit::place_of(i).row * FLOAT_STRIDE + first);
    }
    UNROLL
    for (u32 k = 0; k < 4; k++) {
        UNROLL
        for (u32 i = 0; i < RESULTS; i++) results[i] = fma(w[i / 4].v[k], x[i % 4].v[k], results[i]);
    }
}

/// As `rounded_tile` for one matrix of plain numbers.
template <class F>
DEVICE void float_tile(FloatTile* tile, const u8* matrix, u32 row_bytes, u32 outs, u32 cols, const u64* x, float (&results)[RESULTS]) {
    for (u32 first = 0; first < cols; first += TILE_COLS) {
        const u32 column = first + lane();
        barrier();
        for (u32 out = group(); out < TILE_OUTS; out += GROUPS) {
            const u8* row = matrix + static_cast<u64>(out < outs ? out : outs - 1) * row_bytes;
            tile->weights[out * FLOAT_STRIDE + lane()] = column < cols ? F::weight(row, column) : 0.0f;
        }
        for (u32 row = group(); row < TILE_ROWS; row += GROUPS)
            tile->inputs[row * FLOAT_STRIDE + lane()] = column < cols ? global_pointer<const float>(x[row])[column] : 0.0f;
        barrier();
        NO_UNROLL
        for (u32 k = 0; k < TILE_COLS; k += 4) add_four_columns(tile, k, results);
    }
}

/// Products of a tile, to be finished by anyone.
struct ResultTile {
    float values[TILE_ROWS * TILE_OUTS];
};

template <class UNIT>
DEVICE void keep_results(ResultTile* tile, const float (&results)[RESULTS]) {
    UNROLL
    for (u32 i = 0; i < RESULTS; i++) tile->values[UNIT::place_of(i).row * TILE_OUTS + UNIT::place_of(i).out] = results[i];
}

/// Shared memory of a product: tiles, and afterwards its results.
template <u32 MATRICES>
union ProductMemory {
    RoundedTiles<MATRICES> rounded;
    FloatTile floats;
#if HAS_MMA
    HalfTile<2> f16;
    HalfTile<3> bf16;
#endif
    ResultTile results[MATRICES];
};

/// As `rounded_tile` for plain numbers, in the units of `FloatUnit`.
template <class F, u32 MATRICES>
DEVICE void plain_tile(ProductMemory<MATRICES>* memory, const u8* matrix, u32 row_bytes, u32 outs, u32 cols, const u64* x, float (&results)[RESULTS]) {
#if HAS_MMA
    if constexpr (MULTIPLIES_HALVES<F>) {
        if constexpr (F::PARTS == 2) half_tile<F>(&memory->f16, matrix, row_bytes, outs, cols, x, results);
        else half_tile<F>(&memory->bf16, matrix, row_bytes, outs, cols, x, results);
        return;
    }
#endif
    float_tile<F>(&memory->floats, matrix, row_bytes, outs, cols, x, results);
}

/// Which results a thread has of a product with plain numbers.
#if HAS_MMA
template <class F>
using FloatUnit = typename Pick<MULTIPLIES_HALVES<F>, MmaUnit, DotUnit>::Type;
#else
template <class F>
using FloatUnit = DotUnit;
#endif

template <class F, class CARD_UNIT, bool FLOATS = F::FLOATS>
struct ResultUnit {
    using Type = CARD_UNIT;
};
template <class F, class CARD_UNIT>
struct ResultUnit<F, CARD_UNIT, true> {
    using Type = FloatUnit<F>;
};

/// A tile of either kind; calls `finish(row, out, product, up)` for all its results, neighbouring outputs in neighbouring threads. The second
/// matrix is that of gated products.
template <class F, class CARD_UNIT, u32 MATRICES, class FINISH>
DEVICE void product_tile(const u8* const (&matrices)[MATRICES], u32 row_bytes, u32 outs, u32 cols, const u64* x, FINISH finish) {
    SHARED(ProductMemory<MATRICES>, memory, 1);
    float results[MATRICES][RESULTS];
    UNROLL
    for (u32 i = 0; i < MATRICES * RESULTS; i++) results[i / RESULTS][i % RESULTS] = 0.0f;
    if constexpr (F::FLOATS) {
        UNROLL
        for (u32 m = 0; m < MATRICES; m++) plain_tile<F, MATRICES>(&memory[0], matrices[m], row_bytes, outs, cols, x, results[m]);
    } else {
        rounded_tile<F, MATRICES, CARD_UNIT>(&memory[0].rounded, matrices, row_bytes, outs, cols, x, results);
    }
    using Unit = typename ResultUnit<F, CARD_UNIT>::Type;
    barrier();
    UNROLL
    for (u32 m = 0; m < MATRICES; m++) keep_results<Unit>(&memory[0].results[m], results[m]);
    barrier();
    NO_UNROLL
    for (u32 i = thread_index(); i < TILE_ROWS * TILE_OUTS; i += THREADS) {
        const u32 row = i / TILE_OUTS, out = i % TILE_OUTS;
        if (out < outs) finish(row, out, memory[0].results[0].values[i], memory[0].results[MATRICES - 1].values[i]);
    }
}

/// With two matrices a gated product.
template <class F, u32 MATRICES, class UNIT = CardUnit>
DEVICE void mat_mul(const Operands& at, const MatArgs& a) {
    SHARED(u64, x, TILE_ROWS);
    const u32 first_out = block_x() * TILE_OUTS, first_row = block_y() * TILE_ROWS, rows = run_words(at)[a.rows_at];
    if (thread_index() < TILE_ROWS) {
        const u32 row = first_row + thread_index();
        x[thread_index()] = reinterpret_cast<u64>(input_row<F>(at, a, row < rows ? row : rows - 1));
    }
    barrier();
    const u64 first = static_cast<u64>(first_out) * a.row_bytes;
    const u8* matrices[MATRICES] = {w0_bytes(at) + a.w0_at_bytes + first};
    if constexpr (MATRICES == 2) matrices[1] = w1_bytes(at) + a.w1_at_bytes + first;
    product_tile<F, UNIT>(matrices, a.row_bytes, a.outs - first_out, a.cols, x, [&](u32 row, u32 out, float product, float up) {
        if (first_row + row < rows) finish_product(at, a, first_row + row, first_out + out, product, MATRICES == 2, up);
    });
}

template <class F, u32 MATRICES, class UNIT = CardUnit>
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
    const u8* matrices[MATRICES] = {slot_rows(at, a, a.w0_at_units, slot, a.row_offset) + first};
    if constexpr (MATRICES == 2) matrices[1] = slot_rows(at, a, a.w1_at_units, slot, a.up_row_offset) + first;
    product_tile<F, UNIT>(matrices, a.row_bytes, a.outs - first_out, a.cols, x, [&](u32 row, u32 out, float product, float up) {
        if (row < count) finish_pair(at, a, expert, pair_of(row), first_out + out, product, MATRICES == 2, up);
    });
}
