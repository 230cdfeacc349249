// MXFP4 and NVFP4 (src/quant/fp4.rs).
#pragma once
#include "legacy.h"

/// Twice the values of the sixteen E2M1 codes: 0 1 2 3 4 6 8 12 and their negatives.
DEVICE u32 e2m1_bytes(u32 codes) {
    const u32 table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
    return table_bytes(table, codes);
}

struct MXFP4 {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 4 * 17;
        const u32 e = block[0];
        u32 codes[2];
        nibble_codes<1>(block + 1, i % 4, codes);
        return {{e2m1_bytes(codes[0]), e2m1_bytes(codes[1])}, bits_to_float(e < 2 ? 0x00200000u << e : (e - 1) << 23), 0.0f};
    }
};

/// Half of an E4M3 number without sign; 0x7f is 0.
DEVICE float half_of_e4m3(u32 bits) {
    const u32 exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (bits == 0x7f) return 0.0f;
    if (exponent == 0) return static_cast<float>(mantissa) * (1.0f / 1024.0f);
    return bits_to_float((exponent + 127 - 8) << 23 | mantissa << 20);
}

struct NVFP4 {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 16;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 8 * 36;
        const u32 sixteen = i % 8 / 2, shift = i % 2 * 4;
        const u8* at = block + 4 + 8 * sixteen;
        const u32 low = load_word<4>(at) >> shift & 0x0f0f0f0fu, high = load_word<4>(at + 4) >> shift & 0x0f0f0f0fu;
        return {{e2m1_bytes(low), e2m1_bytes(high)}, half_of_e4m3(block[sixteen]), 0.0f};
    }
};
