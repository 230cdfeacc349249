// Tiles of prompt products in shared memory, and the units of the cards that multiply them. A unit says which results of a tile a
// thread has, and gives sums over 16 or 32 columns; these are whole numbers, so all units give the same bits.
#pragma once
#include "dot.h"

constexpr u32 TILE_OUTS = 64, TILE_ROWS = 32, TILE_COLS = 32;
/// Words of a row in shared memory. Rows begin at multiples of 16 bytes and are spread over the banks.
constexpr u32 WEIGHT_STRIDE = TILE_COLS / 4 + 4, ROUNDED_STRIDE = ROUNDED_WORDS;
/// Results of a thread.
constexpr u32 RESULTS = TILE_OUTS * TILE_ROWS / THREADS;

/// Which of the tile's results a thread has.
struct Place {
    u32 out, row;
};

/// Quantised weights of a tile, unpacked: signed bytes, scale and offset of each 16.
struct WeightTile {
    alignas(16) u32 q[TILE_OUTS * WEIGHT_STRIDE];
    float scale[TILE_OUTS * 2], offset[TILE_OUTS * 2];
};

/// Rounded activations of a tile: for each row eight words of high bytes, eight of low bytes, scale and sums.
struct RoundedTile {
    alignas(16) u32 words[TILE_ROWS * ROUNDED_STRIDE];
};

/// Products of bytes four at a time: four outputs, 16 apart, times four rows, 8 apart.
struct DotUnit {
    static constexpr bool COPIES_ASYNC = false;
    DEVICE static Place place_of(u32 i) { return {thread_index() % 16 + i / 4 * 16, thread_index() / 16 + i % 4 * 8}; }
    template <u32 COLS>
    DEVICE static void sum_columns(const WeightTile& w, const RoundedTile& x, u32 first, int sums[RESULTS]) {
        UNROLL
        for (u32 i = 0; i < RESULTS; i++) sums[i] = 0;
        NO_UNROLL
        for (u32 word = first / 4; word < (first + COLS) / 4; word += 4) {
            UNROLL
            for (u32 i = 0; i < RESULTS; i++) {
                const Place p = place_of(i);
                const u32 *a = w.q + p.out * WEIGHT_STRIDE + word, *b = x.words + p.row * ROUNDED_STRIDE + word;
                int high = 0, low = 0;
                UNROLL
                for (u32 k = 0; k < 4; k++) {
                    high = dot_bytes(a[k], b[k], high);
                    low = dot_bytes(a[k], b[k + 8], low);
                }
                sums[i] += 128 * high + low;
            }
        }
    }
};

#if HAS_MMA
/// Tensor cores of NVIDIA. Each group of lanes has 16 outputs; result `i` is element `i % 4` of the product of rows `i / 4 * 8` and up.
struct MmaUnit {
    static constexpr bool COPIES_ASYNC = HAS_COPY_ASYNC;
    DEVICE static Place place_of(u32 i) { return {group() * 16 + lane() / 4 + i % 4 / 2 * 8, i / 4 * 8 + 2 * (lane() % 4) + i % 2}; }
    template <u32 COLS>
    DEVICE static void sum_columns(const WeightTile& w, const RoundedTile& x, u32 first, int sums[RESULTS]) {
        const u32 word = first / 4 + lane() % 4;
        const u32* rows = w.q + (group() * 16 + lane() / 4) * WEIGHT_STRIDE + word;
        u32 a[COLS / 16][2];
        UNROLL
        for (u32 k = 0; k < COLS / 16; k++) a[k][0] = rows[4 * k], a[k][1] = rows[4 * k + 8 * WEIGHT_STRIDE];
        UNROLL
        for (u32 n = 0; n < TILE_ROWS / 8; n++) {
            const u32* b = x.words + (n * 8 + lane() / 4) * ROUNDED_STRIDE + word;
            int high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
            if constexpr (COLS == 32) {
                mma_bytes_32(high, a[0], a[1], b[0], b[4]);
                mma_bytes_32(low, a[0], a[1], b[8], b[12]);
            } else {
                mma_bytes(high, a[0], b[0]);
                mma_bytes(low, a[0], b[8]);
            }
            UNROLL
            for (u32 i = 0; i < 4; i++) sums[n * 4 + i] = 128 * high[i] + low[i];
        }
    }
};
#endif

#if HAS_WMMA_GFX11
/// Matrix instructions of RDNA 3. Each group of lanes has 16 outputs, each lane one of them; result `i` is element `i % 8` of the product
/// of rows `i / 8 * 16` and up.
struct WmmaGfx11Unit {
    static constexpr bool COPIES_ASYNC = false;
    DEVICE static Place place_of(u32 i) { return {group() * 16 + lane() % 16, i / 8 * 16 + 2 * (i % 8) + lane() / 16}; }
    template <u32 COLS>
    DEVICE static void sum_columns(const WeightTile& w, const RoundedTile& x, u32 first, int sums[RESULTS]) {
        const u32* b = w.q + (group() * 16 + lane() % 16) * WEIGHT_STRIDE + first / 4;
        UNROLL
        for (u32 n = 0; n < TILE_ROWS / 16; n++) {
            const u32* a = x.words + (n * 16 + lane() % 16) * ROUNDED_STRIDE + first / 4;
            int high[8] = {0, 0, 0, 0, 0, 0, 0, 0}, low[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            UNROLL
            for (u32 k = 0; k < COLS / 4; k += 4) {
                wmma_bytes_gfx11(high, a + k, b + k);
                wmma_bytes_gfx11(low, a + k + 8, b + k);
            }
            UNROLL
            for (u32 i = 0; i < 8; i++) sums[n * 8 + i] = 128 * high[i] + low[i];
        }
    }
};
#endif

#if HAS_WMMA_GFX12
/// Matrix instructions of RDNA 4: as those of RDNA 3 with the operands spread over all lanes.
struct WmmaGfx12Unit {
    static constexpr bool COPIES_ASYNC = false;
    DEVICE static Place place_of(u32 i) { return {group() * 16 + lane() % 16, i / 8 * 16 + i % 8 + 8 * (lane() / 16)}; }
    template <u32 COLS>
    DEVICE static void sum_columns(const WeightTile& w, const RoundedTile& x, u32 first, int sums[RESULTS]) {
        const u32 word = first / 4 + lane() / 16 * 2;
        const u32* b = w.q + (group() * 16 + lane() % 16) * WEIGHT_STRIDE + word;
        UNROLL
        for (u32 n = 0; n < TILE_ROWS / 16; n++) {
            const u32* a = x.words + (n * 16 + lane() % 16) * ROUNDED_STRIDE + word;
            int high[8] = {0, 0, 0, 0, 0, 0, 0, 0}, low[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            UNROLL
            for (u32 k = 0; k < COLS / 4; k += 4) {
                wmma_bytes_gfx12(high, a + k, b + k);
                wmma_bytes_gfx12(low, a + k + 8, b + k);
            }
            UNROLL
            for (u32 i = 0; i < 8; i++) sums[n * 8 + i] = 128 * high[i] + low[i];
        }
    }
};
#endif

/// The unit that kernels of this card use.
#if HAS_MMA
using CardUnit = MmaUnit;
#elif HAS_WMMA_GFX11
using CardUnit = WmmaGfx11Unit;
#elif HAS_WMMA_GFX12
using CardUnit = WmmaGfx12Unit;
#else
using CardUnit = DotUnit;
#endif

/// A thread's weights of a tile on their way to shared memory.
template <class F>
struct WeightPieces {
    static constexpr u32 COUNT = TILE_OUTS * 4 / THREADS;
    Octet octets[COUNT];

    DEVICE void fetch(const u8* rows, u32 row_bytes, u32 outs, u32 column_group) {
        UNROLL
        for (u32 n = 0; n < COUNT; n++) {
            const u32 i = thread_index() + n * THREADS, out = i / 4, row = out < outs ? out : outs - 1;
            octets[n] = F::octet(rows + static_cast<u64>(row) * row_bytes, column_group * 4 + i % 4);
        }
    }
    DEVICE void keep(WeightTile* tile) const {
        UNROLL
        for (u32 n = 0; n < COUNT; n++) {
            const u32 i = thread_index() + n * THREADS, out = i / 4, part = i % 4;
            *reinterpret_cast<Words2*>(tile->q + out * WEIGHT_STRIDE + 2 * part) = {octets[n].q[0], octets[n].q[1]};
            if (part % 2 == 0) {
                tile->scale[out * 2 + part / 2] = octets[n].scale;
                if constexpr (F::OFFSET) tile->offset[out * 2 + part / 2] = octets[n].offset;
            }
        }
    }
};

/// A thread's share of the rounded activations of a tile, in pieces of four words.
constexpr u32 ROW_PIECES = ROUNDED_WORDS / 4, TILE_PIECES = TILE_ROWS * ROW_PIECES, PIECES = (TILE_PIECES + THREADS - 1) / THREADS;

/// Piece `i` of a tile in global memory.
DEVICE const u32* piece_at(const u64* rows, u32 i, u32 column_group) {
    return global_pointer<const u32>(rows[i / ROW_PIECES]) + column_group * ROUNDED_WORDS + i % ROW_PIECES * 4;
}
/// Where half a piece goes: high and low bytes lie apart in the tile.
DEVICE Words2* half_piece(RoundedTile* tile, u32 i, u32 half) {
    const u32 piece = i % ROW_PIECES, word = piece < 4 ? 2 * piece + 8 * half : 16 + 2 * half;
    return reinterpret_cast<Words2*>(tile->words + i / ROW_PIECES * ROUNDED_STRIDE + word);
}

/// Rounded activations of a tile on their way to shared memory, through registers.
template <bool ASYNC>
struct RoundedPieces {
    Words4 pieces[PIECES];

    DEVICE void fetch(RoundedTile*, const u64* rows, u32 column_group) {
        UNROLL
        for (u32 n = 0; n < PIECES; n++) {
            const u32 i = thread_index() + n * THREADS;
            if (i < TILE_PIECES) pieces[n] = *reinterpret_cast<const Words4*>(piece_at(rows, i, column_group));
        }
    }
    DEVICE void keep(RoundedTile* tile) const {
        UNROLL
        for (u32 n = 0; n < PIECES; n++) {
            const u32 i = thread_index() + n * THREADS;
            if (i >= TILE_PIECES) continue;
            *half_piece(tile, i, 0) = {pieces[n].x, pieces[n].y};
            *half_piece(tile, i, 1) = {pieces[n].z, pieces[n].w};
        }
    }
};

#if HAS_COPY_ASYNC
/// The same by copies that the card makes by itself.
template <>
struct RoundedPieces<true> {
    DEVICE void fetch(RoundedTile* tile, const u64* rows, u32 column_group) {
        for (u32 i = thread_index(); i < TILE_PIECES; i += THREADS) {
            const u32* from = piece_at(rows, i, column_group);
            copy_async(half_piece(tile, i, 0), from);
            copy_async(half_piece(tile, i, 1), from + 2);
        }
    }
    DEVICE void keep(RoundedTile*) const { wait_copies(); }
};
#endif
