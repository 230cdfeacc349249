// F32, F16, BF16: plain numbers; `FLOATS` weights are not multiplied as bytes. `PARTS` of 16 bits make an activation that is multiplied
// with them on tensor cores (products/halves.h); 0 where it is not.
#pragma once

struct F32 {
    static constexpr bool FLOATS = true;
    static constexpr u32 PARTS = 0;
    DEVICE static float weight(const u8* row, u32 i) { return reinterpret_cast<const float*>(row)[i]; }
};

struct F16 {
    static constexpr bool FLOATS = true;
    static constexpr u32 PARTS = 2;
    DEVICE static float weight(const u8* row, u32 i) { return half_to_float(load_half_word(row + 2 * i)); }
};

struct BF16 {
    static constexpr bool FLOATS = true;
    static constexpr u32 PARTS = 3;
    DEVICE static float weight(const u8* row, u32 i) { return bits_to_float(load_half_word(row + 2 * i) << 16); }
};
