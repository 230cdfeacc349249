// What the formats of quantised weights share. A format gives its weights in octets: eight neighbours as signed bytes that
// share a scale and an offset, `weight = scale * q + offset`. `SCALE_COLS` neighbours share them at least: 16 or 32. The operations and their order are those of the scalar decode in
// src/quant, so the values are equal bit for bit.
#pragma once

struct Octet {
    u32 q[2];
    float scale, offset;
};

/// Bytewise `v - c`, for bytes of `v` below 128 and equal bytes in `c`.
DEVICE u32 minus_bytes(u32 v, u32 c) { return ((v | 0x80808080u) - c) ^ 0x80808080u; }

/// Bit `i` of the low four to bit 0 of byte `i`.
DEVICE u32 spread_bits(u32 bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

/// Changes the sign of the bytes whose bit in the low four of `signs` is set. No byte of `v` may be 0.
DEVICE u32 negate_bytes(u32 v, u32 signs) {
    const u32 ones = spread_bits(signs);
    return (v ^ ones * 0xff) + ones;
}

/// Signs of eight weights from seven bits: the number of minus signs is even.
DEVICE u32 even_signs(u32 seven) { return seven | (count_bits(seven) & 1) << 7; }

/// Bytes of a table of 16 by codes of four bits, one in each byte of `codes`.
DEVICE u32 table_bytes(const u32 table[4], u32 codes) {
    const u32 low = pick_bytes(table[0], table[1], codes & 0x07070707u);
    const u32 high = pick_bytes(table[2], table[3], codes & 0x07070707u);
    const u32 mask = (codes >> 3 & 0x01010101u) * 0xff;
    return (low & ~mask) | (high & mask);
}
