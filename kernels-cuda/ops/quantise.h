// Rounds rows of activations; see rounded.h.
#pragma once
#include "../rounded.h"

KERNEL(quantise, QuantiseArgs) {
    const float* x = work_floats(at) + row_at(a.x_at, block_y(), a.x_stride);
    u32* row = scratch_words(at) + row_at(a.q_at, block_y(), a.q_stride);
    const u32 groups = (a.width + 31) / 32;
    for (u32 i = group(); i < COLUMNS / 32; i += GROUPS) {
        const u32 g = block_x() * (COLUMNS / 32) + i;
        if (g >= groups) return;
        const u32 column = g * 32 + lane();
        const float value = column < a.width ? x[column] : 0.0f;
        const float most = max_lanes(abs_float(value));
        const float inverse = ROUNDED_STEPS / most;
        // Values too small to invert their scale count as zeros.
        const float steps = inverse < bits_to_float(0x7f800000u) ? round_to_even(value * inverse) : 0.0f;
        const int whole = static_cast<int>(max_float(-ROUNDED_STEPS, min_float(steps, ROUNDED_STEPS)));
        const int high = (whole + 64) >> 7;
        u32* words = row + g * ROUNDED_WORDS;
        i8* octet = reinterpret_cast<i8*>(words + lane() / 8 * 4) + lane() % 8;
        octet[0] = static_cast<i8>(high);
        octet[8] = static_cast<i8>(whole - (high << 7));
        const int sum = sum_half_lanes(whole);
        if (lane() == 0) words[16] = float_to_bits(most / ROUNDED_STEPS);
        if (lane() % 16 == 0) words[17 + lane() / 16] = float_to_bits(static_cast<float>(sum));
    }
}
