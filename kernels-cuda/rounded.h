// Activations rounded to 15 bits: 32 neighbours share a scale, `x = (128 * high + low) * scale`, both signed bytes. So products with
// the bytes of a weight group are exact integers.
//
// 18 words for 32 values: eight of high bytes, eight of low bytes, the scale, one unused (rows stay aligned to 8 bytes).
#pragma once

constexpr u32 ROUNDED_WORDS = 18;
/// What the host counts for 32 values; not less than is used here.
constexpr u32 HOST_ROUNDED_WORDS = 19;
constexpr float ROUNDED_STEPS = 16256.0f;

DEVICE u32* rounded_row(u32* scratch, u32 q_at, u32 q_stride, u32 row) {
    return scratch + q_at + static_cast<u64>(row) * (q_stride / HOST_ROUNDED_WORDS * ROUNDED_WORDS);
}
