// F32, F16, BF16: plain numbers; `FLOATS` weights are not multiplied as bytes.
#pragma once

struct F32 {
    static constexpr bool FLOATS = true;
    DEVICE static float weight(const u8* row, u32 i) { return reinterpret_cast<const float*>(row)[i]; }
};

struct F16 {
    static constexpr bool FLOATS = true;
    DEVICE static float weight(const u8* row, u32 i) { return half_to_float(load_half_word(row + 2 * i)); }
};

struct BF16 {
    static constexpr bool FLOATS = true;
    DEVICE static float weight(const u8* row, u32 i) { return bits_to_float(load_half_word(row + 2 * i) << 16); }
};
