// IQ1_S to IQ4_XS (src/quant/iquants.rs): codebooks of 4 or 8 weights, and a table of 16 values.
#pragma once
#include "iq_grids.h"
#include "legacy.h"

/// An entry of a grid of eight weights, in one load.
DEVICE Words2 grid_entry(const u32* grid, u32 index) { return reinterpret_cast<const Words2*>(grid)[index]; }

/// Eight magnitudes of a grid with the signs of `signs`.
DEVICE void signed_eight(Words2 entry, u32 signs, u32 q[2]) {
    q[0] = negate_bytes(entry.x, signs);
    q[1] = negate_bytes(entry.y, signs >> 4);
}

DEVICE float iq2_scale(const u8* block, u32 code) {
    return half_to_float(load_half_word(block)) * (0.5f + static_cast<float>(code)) * 0.25f;
}

struct IQ2_XXS {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 66;
        const u8* group = block + 2 + i % 32 / 4 * 8;
        const u32 l = i % 4, signs_and_scale = load_word<2>(group + 4);
        Octet o;
        signed_eight(grid_entry(IQ2XXS_GRID, group[l]), even_signs(signs_and_scale >> (7 * l) & 127), o.q);
        o.scale = iq2_scale(block, signs_and_scale >> 28);
        o.offset = 0.0f;
        return o;
    }
};

struct IQ2_XS {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 16;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 74;
        const u32 octet = i % 32, code = load_half_word(block + 2 + 2 * octet);
        Octet o;
        signed_eight(grid_entry(IQ2XS_GRID, code & 511), even_signs(code >> 9), o.q);
        o.scale = iq2_scale(block, block[66 + octet / 4] >> (octet / 2 % 2 * 4) & 15);
        o.offset = 0.0f;
        return o;
    }
};

struct IQ2_S {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 16;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 82;
        const u32 octet = i % 32;
        const u32 index = block[2 + octet] | (block[66 + octet / 4] >> (octet % 4 * 2) & 3u) << 8;
        Octet o;
        signed_eight(grid_entry(IQ2S_GRID, index), block[34 + octet], o.q);
        o.scale = iq2_scale(block, block[74 + octet / 4] >> (octet / 2 % 2 * 4) & 15);
        o.offset = 0.0f;
        return o;
    }
};

struct IQ3_XXS {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 98;
        const u32 octet = i % 32, group = octet / 4, signs_and_scale = load_word<2>(block + 66 + 4 * group);
        const u32 signs = even_signs(signs_and_scale >> (7 * (octet % 4)) & 127);
        Octet o;
        const u32 indices = load_half_word(block + 2 + 2 * octet);
        for (u32 w = 0; w < 2; w++) o.q[w] = negate_bytes(IQ3XXS_GRID[indices >> (8 * w) & 255], signs >> (4 * w));
        o.scale = half_to_float(load_half_word(block)) * (0.5f + static_cast<float>(signs_and_scale >> 28)) * 0.5f;
        o.offset = 0.0f;
        return o;
    }
};

struct IQ3_S {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 110;
        const u32 octet = i % 32, group = octet / 4, signs = block[74 + octet];
        const u32 low = load_half_word(block + 2 + 2 * octet), high = block[66 + group];
        Octet o;
        for (u32 w = 0; w < 2; w++) {
            const u32 index = (low >> (8 * w) & 255) | (high >> ((2 * octet + w) % 8) & 1u) << 8;
            o.q[w] = negate_bytes(IQ3S_GRID[index], signs >> (4 * w));
        }
        const u32 code = block[106 + group / 2] >> (group % 2 * 4) & 15;
        o.scale = half_to_float(load_half_word(block)) * static_cast<float>(1 + 2 * code);
        o.offset = 0.0f;
        return o;
    }
};

/// Eight weights `scale * (g ± 0.125)`, `g` in -1, 0, 1, as `scale / 8 * (8 g ± 1)`: exact, since 8 is a power of two.
DEVICE Octet shifted_eight(u32 index, float scale, bool minus) {
    const Words2 entry = grid_entry(IQ1S_GRID, index);
    auto four = [&](u32 g) {
        // From -1, 0, 1 to 0, 1, 2, without a carry between bytes.
        const u32 raised = ((g & 0x7f7f7f7fu) + 0x01010101u) ^ (g & 0x80808080u);
        return minus_bytes(raised << 3, minus ? 0x09090909u : 0x07070707u);
    };
    return {{four(entry.x), four(entry.y)}, scale * 0.125f, 0.0f};
}

struct IQ1_S {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 50;
        const u32 octet = i % 32, high = load_half_word(block + 34 + octet / 4 * 2);
        const float scale = half_to_float(load_half_word(block)) * static_cast<float>(2 * (high >> 12 & 7) + 1);
        return shifted_eight(block[2 + octet] | (high >> (3 * (octet % 4)) & 7) << 8, scale, high & 0x8000);
    }
};

struct IQ1_M {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 16;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 56;
        const u32 octet = i % 32, sixteen = octet / 2;
        const u32 low = load_word<4>(block + 48), top = load_word<4>(block + 52);
        const u32 d = (low >> 12 & 0xf) | (low >> 28) << 4 | (top >> 12 & 0xf) << 8 | (top >> 28) << 12;
        const u32 code = load_half_word(block + 48 + sixteen / 4 * 2) >> (3 * (sixteen % 4)) & 7;
        const u32 high = block[32 + sixteen] >> (octet % 2 * 4) & 15;
        return shifted_eight(block[octet] | (high & 7) << 8, half_to_float(d) * static_cast<float>(2 * code + 1), high & 8);
    }
};

/// The sixteen values of IQ4: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113.
DEVICE u32 iq4_bytes(u32 codes) {
    const u32 table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    return table_bytes(table, codes);
}

struct IQ4_NL {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 4 * 18;
        u32 codes[2];
        nibble_codes<2>(block + 2, i % 4, codes);
        return {{iq4_bytes(codes[0]), iq4_bytes(codes[1])}, half_to_float(load_half_word(block)), 0.0f};
    }
};

struct IQ4_XS {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 136;
        const u32 group = i % 32 / 4;
        u32 codes[2];
        nibble_codes<8>(block + 8 + 16 * group, i % 4, codes);
        const u32 scale = (block[4 + group / 2] >> (group % 2 * 4) & 15u) | (load_half_word(block + 2) >> (2 * group) & 3) << 4;
        const float d = half_to_float(load_half_word(block));
        return {{iq4_bytes(codes[0]), iq4_bytes(codes[1])}, d * static_cast<float>(static_cast<int>(scale) - 32), 0.0f};
    }
};
