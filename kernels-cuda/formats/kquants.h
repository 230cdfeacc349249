// Q2_K to Q6_K (src/quant/kquants.rs): super-blocks of 256 weights, 32 octets.
#pragma once
#include "octet.h"

/// Where the two-bit codes of an octet lie in Q2_K and Q3_K: first byte and shift.
DEVICE u32 two_bit_byte(u32 octet) { return 32 * (octet / 16) + 8 * (octet % 4); }
DEVICE u32 two_bit_shift(u32 octet) { return octet % 16 / 4 * 2; }

struct Q2_K {
    static constexpr bool FLOATS = false, OFFSET = true;
    static constexpr u32 SCALE_COLS = 16;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 84;
        const u32 octet = i % 32, scale = block[octet / 2], both = load_word<4>(block + 80);
        const u8* at = block + 16 + two_bit_byte(octet);
        const u32 shift = two_bit_shift(octet);
        Octet o;
        for (u32 w = 0; w < 2; w++) o.q[w] = load_word<4>(at + 4 * w) >> shift & 0x03030303u;
        o.scale = half_to_float(both & 0xffff) * static_cast<float>(scale & 15);
        o.offset = -(half_to_float(both >> 16) * static_cast<float>(scale >> 4));
        return o;
    }
};

struct Q3_K {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 16;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 110;
        const u32 octet = i % 32, sixteen = octet / 2, shift = two_bit_shift(octet);
        const Words2 low = load_words_at_halves(block + 32 + two_bit_byte(octet)), high = load_words_at_halves(block + octet % 4 * 8);
        const u8* scales = block + 96;
        auto four = [&](u32 two, u32 third) {
            return minus_bytes((two >> shift & 0x03030303u) | (third >> (octet / 4) & 0x01010101u) << 2, 0x04040404u);
        };
        Octet o = {{four(low.x, high.x), four(low.y, high.y)}, 0.0f, 0.0f};
        const u32 code = (scales[sixteen % 8] >> (4 * (sixteen / 8)) & 15) | (scales[8 + sixteen % 4] >> (2 * (sixteen / 4)) & 3) << 4;
        o.scale = half_to_float(load_half_word(block + 108)) * static_cast<float>(static_cast<int>(code) - 32);
        return o;
    }
};

/// Scale and offset of a group of 32 in Q4_K and Q5_K, from the 16 bytes that a block begins with.
DEVICE void six_bit_scale(const u8* block, u32 group, float* scale, float* offset) {
    const Words4 head = *reinterpret_cast<const Words4*>(block);
    const u32 shift = group % 4 * 8;
    u32 s, m;
    if (group < 4) {
        s = head.y >> shift & 63;
        m = head.z >> shift & 63;
    } else {
        const u32 low = head.w >> shift & 255;
        s = (low & 15) | (head.y >> (shift + 6) & 3) << 4;
        m = low >> 4 | (head.z >> (shift + 6) & 3) << 4;
    }
    *scale = half_to_float(head.x & 0xffff) * static_cast<float>(s);
    *offset = -(half_to_float(head.x >> 16) * static_cast<float>(m));
}

struct Q4_K {
    static constexpr bool FLOATS = false, OFFSET = true;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 144;
        const u32 octet = i % 32, group = octet / 4, shift = group % 2 * 4;
        const Words2 bytes = load_words<8>(block + 16 + group / 2 * 32 + octet % 4 * 8);
        Octet o = {{bytes.x >> shift & 0x0f0f0f0fu, bytes.y >> shift & 0x0f0f0f0fu}, 0.0f, 0.0f};
        six_bit_scale(block, group, &o.scale, &o.offset);
        return o;
    }
};

struct Q5_K {
    static constexpr bool FLOATS = false, OFFSET = true;
    static constexpr u32 SCALE_COLS = 32;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 176;
        const u32 octet = i % 32, group = octet / 4, shift = group % 2 * 4;
        const Words2 low = load_words<8>(block + 48 + group / 2 * 32 + octet % 4 * 8), high = load_words<8>(block + 16 + octet % 4 * 8);
        Octet o;
        o.q[0] = (low.x >> shift & 0x0f0f0f0fu) | (high.x >> group & 0x01010101u) << 4;
        o.q[1] = (low.y >> shift & 0x0f0f0f0fu) | (high.y >> group & 0x01010101u) << 4;
        six_bit_scale(block, group, &o.scale, &o.offset);
        return o;
    }
};

struct Q6_K {
    static constexpr bool FLOATS = false, OFFSET = false;
    static constexpr u32 SCALE_COLS = 16;
    DEVICE static Octet octet(const u8* row, u32 i) {
        const u8* block = row + i / 32 * 210;
        const u32 octet = i % 32, half = octet / 16, quarter = octet % 16 / 4, start = octet % 4 * 8;
        const Words2 low = load_words_at_halves(block + 64 * half + quarter % 2 * 32 + start), high = load_words_at_halves(block + 128 + 32 * half + start);
        auto four = [&](u32 bits, u32 two) {
            return minus_bytes((bits >> (quarter / 2 * 4) & 0x0f0f0f0fu) | (two >> (2 * quarter) & 0x03030303u) << 4, 0x20202020u);
        };
        const int code = static_cast<i8>(block[192 + octet / 2]);
        const float scale = half_to_float(load_half_word(block + 208)) * static_cast<float>(code);
        return {{four(low.x, high.x), four(low.y, high.y)}, scale, 0.0f};
    }
};
