// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 (src/quant/legacy.rs) and Q2_0 (src/quant/q2_0.rs).
#pragma once
#include "octet.h"

/// The four-bit codes of octet `part` of a block: byte `j` holds weights `j` and `j + 16`.
template <u32 ALIGN>
DEVICE void nibble_codes(const u8* bytes, u32 part, u32 codes[2]) {
    const u32 shift = part / 2 * 4;
    const Words2 both = load_words<ALIGN>(bytes + 8 * (part % 2));
    codes[0] = both.x >> shift & 0x0f0f0f0fu;
    codes[1] = both.y >> shift & 0x0f0f0f0fu;
}

/// As `nibble_codes`, with fifth bits from `high`.
template <u32 ALIGN>
DEVICE void five_bit_codes(const u8* bytes, u32 high, u32 part, u32 codes[2]) {
    nibble_codes<ALIGN>(bytes, part, codes);
    codes[0] |= spread_bits(high >> (8 * part)) << 4;
    codes[1] |= spread_bits(high >> (8 * part + 4)) << 4;
}

struct Q4_0 {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 4 * 18;
        u32 codes[2];
        nibble_codes<2>(block + 2, i % 4, codes);
        return {{minus_bytes(codes[0], 0x08080808u), minus_bytes(codes[1], 0x08080808u)}, half_to_float(load_half_word(block)), 0.0f};
    }
};

struct Q4_1 {
    static constexpr bool FLOATS = false, OFFSET = true;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 4 * 20;
        Octet o;
        nibble_codes<4>(block + 4, i % 4, o.q);
        const u32 both = load_word<4>(block);
        o.scale = half_to_float(both & 0xffff);
        o.offset = half_to_float(both >> 16);
        return o;
    }
};

struct Q5_0 {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 4 * 22;
        u32 codes[2];
        five_bit_codes<2>(block + 6, load_word<2>(block + 2), i % 4, codes);
        return {{minus_bytes(codes[0], 0x10101010u), minus_bytes(codes[1], 0x10101010u)}, half_to_float(load_half_word(block)), 0.0f};
    }
};

struct Q5_1 {
    static constexpr bool FLOATS = false, OFFSET = true;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 4 * 24;
        Octet o;
        five_bit_codes<8>(block + 8, load_word<4>(block + 4), i % 4, o.q);
        const u32 both = load_word<4>(block);
        o.scale = half_to_float(both & 0xffff);
        o.offset = half_to_float(both >> 16);
        return o;
    }
};

struct Q8_0 {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 4 * 34;
        const Words2 codes = load_words_at_halves(block + 2 + i % 4 * 8);
        return {{codes.x, codes.y}, half_to_float(load_half_word(block)), 0.0f};
    }
};

/// Four neighbours share a byte.
struct Q2_0 {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static u32 four(u32 byte) {
        const u32 codes = (byte & 3) | (byte & 12) << 6 | (byte & 48) << 12 | (byte & 192) << 18;
        return minus_bytes(codes, 0x01010101u);
    }
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 8 * 18;
        const u32 both = load_half_word(block + 2 + i % 8 * 2);
        return {{four(both & 0xff), four(both >> 8)}, half_to_float(load_half_word(block)), 0.0f};
    }
};
