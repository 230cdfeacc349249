// Keys and values in the cache: `[kv_head][cell][dim]`, keys first, in the formats of KvFormat (src/program/decl.rs). Blocks run
// along a head; the last one of a cell is filled up with zeros.
#pragma once

// What a cell consists of: `cell_bytes`, and `load` of the four elements from `i`, a multiple of 4, below `dim`. Elements past
// `dim` come out as zeros. `BLOCK` elements are stored at once: one by one lane, or 32 by a group of lanes.

struct CellsF32 {
    static constexpr u32 BLOCK = 1;
    DEVICE static u32 cell_bytes(u32 dim) { return 4 * dim; }
    DEVICE static Quad load(const u8* cell, u32 i, u32 dim) {
        const float* at = reinterpret_cast<const float*>(cell) + i;
        if (dim % 4 == 0) return *reinterpret_cast<const Quad*>(at);
        Quad quad;
        for (u32 j = 0; j < 4; j++) quad.v[j] = i + j < dim ? at[j] : 0.0f;
        return quad;
    }
    DEVICE static void store(u8* cell, u32 i, float value) { reinterpret_cast<float*>(cell)[i] = value; }
};

struct CellsF16 {
    static constexpr u32 BLOCK = 1;
    DEVICE static u32 cell_bytes(u32 dim) { return 2 * dim; }
    DEVICE static Quad load(const u8* cell, u32 i, u32 dim) {
        const u8* at = cell + 2 * i;
        if (dim % 4 == 0) {
            const Words2 two = load_words<8>(at);
            return {{half_to_float(two.x & 0xffff), half_to_float(two.x >> 16), half_to_float(two.y & 0xffff), half_to_float(two.y >> 16)}};
        }
        Quad quad;
        for (u32 j = 0; j < 4; j++) quad.v[j] = i + j < dim ? half_to_float(load_half_word(at + 2 * j)) : 0.0f;
        return quad;
    }
    DEVICE static void store(u8* cell, u32 i, float value) { reinterpret_cast<u16*>(cell)[i] = float_to_half(value); }
};

/// `1 / value`, or 0 where that is infinite: a block of zeros, or of numbers too small to count, gets the codes of zero.
DEVICE float finite_inverse(float value) {
    const float inverse = 1.0f / value;
    return abs_float(inverse) < bits_to_float(0x7f800000u) ? inverse : 0.0f;
}

DEVICE void store_scale(u8* block, float scale) { *reinterpret_cast<u16*>(block) = float_to_half(scale); }

/// Blocks of Q8_0, encoded as in src/quant/legacy.rs.
struct CellsQ8_0 {
    static constexpr u32 BLOCK = 32, BLOCK_BYTES = 34;
    DEVICE static u32 cell_bytes(u32 dim) { return (dim + BLOCK - 1) / BLOCK * BLOCK_BYTES; }
    DEVICE static Quad load(const u8* cell, u32 i, u32) {
        const u8* block = cell + i / BLOCK * BLOCK_BYTES;
        const u32 codes = load_word<2>(block + 2 + i % BLOCK);
        const float scale = half_to_float(load_half_word(block));
        Quad quad;
        UNROLL
        for (u32 j = 0; j < 4; j++) quad.v[j] = scale * static_cast<float>(static_cast<i8>(codes >> (8 * j)));
        return quad;
    }
    /// To the nearest whole number, halves away from 0; NaN to 0.
    DEVICE static int round(float value) {
        if (value != value) return 0;
        const int whole = static_cast<int>(value);
        const float rest = value - static_cast<float>(whole);
        return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
    }
    /// Element `lane()` of a block.
    DEVICE static void store_block(u8* block, float value) {
        const float scale = max_lanes(max_float(abs_float(value), 0.0f)) / 127.0f;
        block[2 + lane()] = static_cast<u8>(round(value * finite_inverse(scale)));
        if (lane() == 0) store_scale(block, scale);
    }
};

/// Blocks of Q4_0, encoded as in src/quant/legacy.rs.
struct CellsQ4_0 {
    static constexpr u32 BLOCK = 32, BLOCK_BYTES = 18;
    DEVICE static u32 cell_bytes(u32 dim) { return (dim + BLOCK - 1) / BLOCK * BLOCK_BYTES; }
    DEVICE static Quad load(const u8* cell, u32 i, u32) {
        const u8* block = cell + i / BLOCK * BLOCK_BYTES;
        const u32 codes = load_word<2>(block + 2 + i % 16) >> (i % BLOCK / 16 * 4);
        const float scale = half_to_float(load_half_word(block));
        Quad quad;
        UNROLL
        for (u32 j = 0; j < 4; j++) quad.v[j] = scale * static_cast<float>(static_cast<int>(codes >> (8 * j) & 15) - 8);
        return quad;
    }
    /// The value of the largest magnitude in the group of lanes, with its sign; the first of equals. NaN counts as nothing.
    DEVICE static float extreme(float value) {
        const float most = max_lanes(max_float(abs_float(value), 0.0f));
        const float place = max_lanes(abs_float(value) == most ? static_cast<float>(LANES - lane()) : 0.0f);
        const float found = shuffle(value, LANES - static_cast<u32>(place));
        return place > 0.0f ? found : 0.0f;
    }
    DEVICE static void store_block(u8* block, float value) {
        const float scale = extreme(value) / -8.0f, steps = value * finite_inverse(scale) + 8.5f;
        const u32 code = steps >= 15.0f ? 15 : steps > 0.0f ? static_cast<u32>(steps) : 0;
        const u32 second = shuffle(code, lane() + 16);
        if (lane() < 16) block[2 + lane()] = static_cast<u8>(code | second << 4);
        if (lane() == 0) store_scale(block, scale);
    }
};

template <class KEYS, class VALUES>
struct Cache {
    using Keys = KEYS;
    using Values = VALUES;
};
using CacheF32 = Cache<CellsF32, CellsF32>;
using CacheF16 = Cache<CellsF16, CellsF16>;
using CacheInt8 = Cache<CellsQ8_0, CellsQ8_0>;
using CacheK8V4 = Cache<CellsQ8_0, CellsQ4_0>;
using CacheQ4_0 = Cache<CellsQ4_0, CellsQ4_0>;

/// The one list of caches: entry point suffix, type. In the order of KvFormat::ALL.
#define CACHES(X)      \
    X(f32, CacheF32)   \
    X(f16, CacheF16)   \
    X(int8, CacheInt8) \
    X(k8v4, CacheK8V4) \
    X(q4_0, CacheQ4_0)

/// Keys or values of a head.
struct Cells {
    u8* first;
    u32 bytes;
    DEVICE u8* cell(u32 number) const { return first + static_cast<u64>(number) * bytes; }
};

template <class C, class ARGS>
DEVICE Cells key_cells(const Operands& at, const ARGS& a, u32 slot, u32 kv_head) {
    u8* state = reinterpret_cast<u8*>(state_floats(at) + row_at(a.state_at, slot, a.slot_stride));
    const u32 bytes = C::Keys::cell_bytes(a.dim);
    return {state + static_cast<u64>(kv_head) * a.cells * bytes, bytes};
}
template <class C, class ARGS>
DEVICE Cells value_cells(const Operands& at, const ARGS& a, u32 slot, u32 kv_head) {
    u8* after_keys = key_cells<C>(at, a, slot, a.kv_heads).first;
    const u32 bytes = C::Values::cell_bytes(a.dim);
    return {after_keys + static_cast<u64>(kv_head) * a.cells * bytes, bytes};
}

/// Stores a row's keys or values of all heads; `cells(head)` says where they belong.
template <class T, class CELLS>
DEVICE void append_side(const float* x, u32 heads, u32 dim, u32 index, CELLS cells) {
    if constexpr (T::BLOCK == 1) {
        each_column(heads * dim, [&](u32 c) { T::store(cells(c / dim).cell(index), c % dim, x[c]); });
    } else {
        const u32 blocks_of_head = (dim + LANES - 1) / LANES;
        for (u32 i = group(); i < COLUMNS / LANES; i += GROUPS) {
            const u32 block = block_x() * (COLUMNS / LANES) + i, head = block / blocks_of_head, column = block % blocks_of_head * LANES + lane();
            if (head >= heads) return;
            const float value = column < dim ? x[head * dim + column] : 0.0f;
            T::store_block(cells(head).cell(index) + block % blocks_of_head * T::BLOCK_BYTES, value);
        }
    }
}

template <class C>
DEVICE void kv_append(const Operands& at, const KvAppendArgs& a) {
    const Row row = run_row(run_words(at), block_y());
    const float* k = work_floats(at) + row_at(a.k_at, block_y(), a.k_stride);
    const float* v = work_floats(at) + row_at(a.v_at, block_y(), a.v_stride);
    append_side<typename C::Keys>(k, a.kv_heads, a.dim, row.index, [&](u32 head) { return key_cells<C>(at, a, row.slot, head); });
    append_side<typename C::Values>(v, a.kv_heads, a.dim, row.index, [&](u32 head) { return value_cells<C>(at, a, row.slot, head); });
}

#define KV_APPEND(suffix, C) KERNEL(kv_append_##suffix, KvAppendArgs) { kv_append<C>(at, a); }
CACHES(KV_APPEND)
