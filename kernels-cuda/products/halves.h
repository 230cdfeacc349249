// Products of prompts with weights of 16 bits on tensor cores. A float of the activations is split into as many parts of 16 bits
// as it takes: three of BF16 are the number itself; two of F16, in steps of a power of two for 32 columns of a row, have its first 22
// bits. So nothing of a weight is lost and next to nothing of an activation, but the card adds up in an order of its own: these
// products differ in their last bits from those without tensor cores.
#pragma once
#include "tiles.h"

#if HAS_MMA
constexpr bool CARD_MULTIPLIES_HALVES = true;
#else
constexpr bool CARD_MULTIPLIES_HALVES = false;
#endif

/// Whether tensor cores of this card multiply a format's weights.
template <class F>
constexpr bool MULTIPLIES_HALVES = CARD_MULTIPLIES_HALVES && (F::PARTS == 2 || (F::PARTS == 3 && HAS_MMA_BF16));

#if HAS_MMA

/// Words of a row of halves in shared memory, as those of bytes.
constexpr u32 HALF_STRIDE = TILE_COLS / 2 + 4;

template <u32 PARTS>
struct HalfTile {
    alignas(16) u32 weights[TILE_OUTS * HALF_STRIDE], inputs[PARTS][TILE_ROWS * HALF_STRIDE];
    /// What a step of a row's parts stands for.
    float step[TILE_ROWS];
};

/// The parts of two neighbouring numbers, the first in the low halves: F16 to the nearest, or BF16 cut off.
DEVICE void split_pair(float x, float y, u32 (&parts)[2]) {
    UNROLL
    for (u32 p = 0; p < 2; p++) {
        const u32 low = float_to_half(x), high = float_to_half(y);
        parts[p] = low | high << 16;
        x -= half_to_float(low);
        y -= half_to_float(high);
    }
}
DEVICE void split_pair(float x, float y, u32 (&parts)[3]) {
    UNROLL
    for (u32 p = 0; p < 3; p++) {
        const u32 low = float_to_bits(x) & 0xffff0000u, high = float_to_bits(y) & 0xffff0000u;
        parts[p] = low >> 16 | high;
        x -= bits_to_float(low);
        y -= bits_to_float(high);
    }
}

/// A thread's share of a tile on its way to shared memory: a half of a row of weights, a quarter of a row of activations.
template <class F>
struct HalfPieces {
    static constexpr u32 WEIGHTS = TILE_COLS / 2, INPUTS = TILE_COLS / 4;
    static_assert(TILE_OUTS * 2 == THREADS && TILE_ROWS * 4 == THREADS, "pieces of a thread");
    u32 weights[WEIGHTS / 2];
    float inputs[INPUTS];

    DEVICE void fetch(const u8* matrix, u32 row_bytes, u32 outs, u32 cols, const u64* x, u32 first) {
        const u32 out = thread_index() / 2, column = first + thread_index() % 2 * WEIGHTS;
        const u8* row = matrix + static_cast<u64>(out < outs ? out : outs - 1) * row_bytes;
        // Rows of whole tiles lie aligned.
        if (cols % TILE_COLS == 0) {
            UNROLL
            for (u32 i = 0; i < WEIGHTS / 2; i += 4) {
                const Words4 four = reinterpret_cast<const Words4*>(row + 2 * column)[i / 4];
                weights[i] = four.x, weights[i + 1] = four.y, weights[i + 2] = four.z, weights[i + 3] = four.w;
            }
        } else {
            auto half = [&](u32 i) { return column + i < cols ? load_half_word(row + 2 * (column + i)) : 0; };
            UNROLL
            for (u32 i = 0; i < WEIGHTS / 2; i++) weights[i] = half(2 * i) | half(2 * i + 1) << 16;
        }
        const float* input = global_pointer<const float>(x[thread_index() / 4]);
        const u32 start = first + thread_index() % 4 * INPUTS;
        UNROLL
        for (u32 i = 0; i < INPUTS; i++) inputs[i] = start + i < cols ? input[start + i] : 0.0f;
    }

    DEVICE void keep(HalfTile<F::PARTS>* tile) const {
        u32* to = tile->weights + thread_index() / 2 * HALF_STRIDE + thread_index() % 2 * (WEIGHTS / 2);
        UNROLL
        for (u32 i = 0; i < WEIGHTS / 2; i += 4) reinterpret_cast<Words4*>(to)[i / 4] = {weights[i], weights[i + 1], weights[i + 2], weights[i + 3]};
        float most = 0.0f;
        UNROLL
        for (u32 i = 0; i < INPUTS; i++) most = max_float(most, abs_float(inputs[i]));
        most = max_float(most, shuffle_xor(most, 1));
        most = max_float(most, shuffle_xor(most, 2));
        // Steps such that the largest of the row becomes 2^14 to 2^15.
        const u32 exponent = float_to_bits(most) >> 23, bounded = exponent > 15 ? exponent : 15;
        const float steps = F::PARTS == 2 ? bits_to_float((268 - bounded) << 23) : 1.0f;
        const u32 row = thread_index() / 4, word = thread_index() % 4 * (INPUTS / 2);
        UNROLL
        for (u32 i = 0; i < INPUTS / 2; i++) {
            u32 parts[F::PARTS];
            split_pair(inputs[2 * i] * steps, inputs[2 * i + 1] * steps, parts);
            UNROLL
            for (u32 p = 0; p < F::PARTS; p++) tile->inputs[p][row * HALF_STRIDE + word + i] = parts[p];
        }
        if (thread_index() % 4 == 0) tile->step[row] = F::PARTS == 2 ? bits_to_float((bounded - 14) << 23) : 1.0f;
    }
};

/// Products of parts with weights of their kind.
template <u32 PARTS>
DEVICE void multiply_parts(float* c, const u32 a[4], u32 b0, u32 b1) {
    mma_f16(c, a, b0, b1);
}
#if HAS_MMA_BF16
template <>
DEVICE void multiply_parts<3>(float* c, const u32 a[4], u32 b0, u32 b1) {
    mma_bf16(c, a, b0, b1);
}
#endif

/// Adds the products of a tile; a thread has the results of `MmaUnit`.
template <class F>
DEVICE void add_halves(const HalfTile<F::PARTS>& tile, float (&results)[RESULTS]) {
    float sums[RESULTS] = {};
    NO_UNROLL
    for (u32 first = 0; first < TILE_COLS / 2; first += 8) {
        const u32 word = first + lane() % 4;
        const u32* w = tile.weights + (group() * 16 + lane() / 4) * HALF_STRIDE + word;
        const u32 a[4] = {w[0], w[8 * HALF_STRIDE], w[4], w[8 * HALF_STRIDE + 4]};
        UNROLL
        for (u32 n = 0; n < TILE_ROWS / 8; n++) {
            UNROLL
            for (u32 p = 0; p < F::PARTS; p++) {
                const u32* b = tile.inputs[p] + (n * 8 + lane() / 4) * HALF_STRIDE + word;
                multiply_parts<F::PARTS>(sums + 4 * n, a, b[0], b[4]);
            }
        }
    }
    UNROLL
    for (u32 i = 0; i < RESULTS; i++) results[i] = fma(sums[i], tile.step[MmaUnit::place_of(i).row], results[i]);
}

/// As `float_tile` on tensor cores; the next tile is on its way while one is multiplied.
template <class F>
DEVICE void half_tile(HalfTile<F::PARTS>* tile, const u8* matrix, u32 row_bytes, u32 outs, u32 cols, const u64* x, float (&results)[RESULTS]) {
    HalfPieces<F> pieces;
    pieces.fetch(matrix, row_bytes, outs, cols, x, 0);
    NO_UNROLL
    for (u32 first = 0; first < cols; first += TILE_COLS) {
        barrier();
        pieces.keep(tile);
        barrier();
        if (first + TILE_COLS < cols) pieces.fetch(matrix, row_bytes, outs, cols, x, first + TILE_COLS);
        add_halves<F>(*tile, results);
    }
}

#endif
