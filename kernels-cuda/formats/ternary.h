// TQ1_0 and TQ2_0 (src/quant/ternary.rs).
#pragma once
#include "octet.h"

struct TQ1_0 {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;

    /// Weights `first` to `first + 3`: digit `n` of four bytes.
    DEVICE static u32 four(const u8* block, u32 first) {
        u32 byte, n;
        if (first < 160) {
            byte = first % 32;
            n = first / 32;
        } else if (first < 240) {
            byte = 32 + first % 16;
            n = (first - 160) / 16;
        } else {
            byte = 48;
            n = (first - 240) / 4;
        }
        const u32 power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
        u32 digits = 0;
        for (u32 j = 0; j < 4; j++) digits |= ((block[byte + j] * power & 0xff) * 3 >> 8) << (8 * j);
        return minus_bytes(digits, 0x01010101u);
    }
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 54;
        const u32 first = i % 32 * 8;
        return {{four(block, first), four(block, first + 4)}, half_to_float(load_half_word(block + 52)), 0.0f};
    }
};

struct TQ2_0 {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 66;
        const u32 octet = i % 32, shift = octet % 16 / 4 * 2;
        const Words2 codes = load_words_at_halves(block + octet / 16 * 32 + octet % 4 * 8);
        const u32 low = codes.x >> shift & 0x03030303u, high = codes.y >> shift & 0x03030303u;
        return {{minus_bytes(low, 0x01010101u), minus_bytes(high, 0x01010101u)}, half_to_float(load_half_word(block + 64)), 0.0f};
    }
};
