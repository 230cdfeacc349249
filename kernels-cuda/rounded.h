// Activations rounded to 15 bits: 32 neighbours share a scale, `x = (128 * high + low) * scale`, both signed bytes. So products with
// the bytes of a weight group are exact integers.
//
// 20 words for 32 values: for each eight of them two words of high bytes and two of low bytes, then the scale, the sums of the first
// and the last 16 values in steps (as floats, which they fit exactly), one unused (rows stay aligned to 16 bytes).
#pragma once

constexpr u32 ROUNDED_WORDS = 20;
constexpr float ROUNDED_STEPS = 16256.0f;
