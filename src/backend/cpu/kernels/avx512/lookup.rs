//! Codebooks in registers. An entry of an IQ codebook has eight weights out of four magnitudes, or four out of eight:
//! 16 bits. A table of such words is looked up with `vpermi2w`, 64 entries at a time.

use super::blocks::load_bytes;
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// `vpternlog` of `a`, `b`, `mask`: the bits of `a` where the mask has ones, else those of `b`.
pub(super) const SELECT: i32 = 0xe4;

/// A codebook of 16-bit words, aligned like the vectors that read it.
#[repr(C, align(64))]
pub(super) struct Words<const N: usize>(pub [u16; N]);

/// Entry `i` of `grid` (8 weights, one a byte) with each weight replaced by its place in `values`, two bits each.
pub(super) const fn codes8<const N: usize>(grid: &[u64; N], values: [u8; 3]) -> Words<N> {
    let mut words = [0u16; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 8 {
            let byte = (grid[i] >> (8 * j)) as u8;
            let code = if byte == values[0] {
                0
            } else if byte == values[1] {
                1
            } else {
                assert!(byte == values[2]);
                2
            };
            words[i] |= code << (2 * j);
            j += 1;
        }
        i += 1;
    }
    Words(words)
}

/// The same for entries of 4 weights, three bits each.
pub(super) const fn codes4<const N: usize>(grid: &[u32; N], values: [u8; 8]) -> Words<N> {
    let mut words = [0u16; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 4 {
            let byte = (grid[i] >> (8 * j)) as u8;
            let mut code = 0;
            while values[code] != byte {
                code += 1;
            }
            words[i] |= (code as u16) << (3 * j);
            j += 1;
        }
        i += 1;
    }
    Words(words)
}

/// The entries at `from + (index & 63)`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn look_up_64<const N: usize>(table: &Words<N>, from: usize, index: __m512i) -> __m512i {
    assert!(from + 64 <= N);
    // SAFETY: 64 words from `from` are inside the table.
    let (low, high) = unsafe {
        let p = table.0.as_ptr().add(from);
        (_mm512_load_si512(p.cast()), _mm512_load_si512(p.add(32).cast()))
    };
    _mm512_permutex2var_epi16(low, index, high)
}

/// The entries at `from + (index & 255)`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn look_up_256<const N: usize>(table: &Words<N>, from: usize, index: __m512i) -> __m512i {
    let bit_6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
    let bit_7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
    let pair = |at: usize| {
        let (a, b) = (look_up_64(table, from + at, index), look_up_64(table, from + at + 64, index));
        _mm512_mask_blend_epi16(bit_6, a, b)
    };
    _mm512_mask_blend_epi16(bit_7, pair(0), pair(128))
}

/// The entries at `index & 255`, plus 256 where `bit_8` is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn look_up_512(table: &Words<512>, index: __m512i, bit_8: __mmask32) -> __m512i {
    _mm512_mask_blend_epi16(bit_8, look_up_256(table, 0, index), look_up_256(table, 256, index))
}

/// The entries at `index & 255`, plus 256 and 512 where the bits are set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn look_up_1024(table: &Words<1024>, index: __m512i, bit_8: __mmask32, bit_9: __mmask32) -> __m512i {
    let pair = |at: usize| {
        let (a, b) = (look_up_256(table, at, index), look_up_256(table, at + 256, index));
        _mm512_mask_blend_epi16(bit_8, a, b)
    };
    _mm512_mask_blend_epi16(bit_9, pair(0), pair(512))
}

/// What makes a signed weight unsigned: `128 ± magnitude` would do, but 64 keeps pairs of products in 16 bits on AVX2.
pub(super) const OFFSET: u8 = 64;

/// A table of `N` signed magnitudes plus [`OFFSET`]: the index is a code, and above it a bit that means minus. It is
/// repeated to fill the 64 entries that `vpermb` looks at.
pub(super) const fn signed<const N: usize>(values: [u8; N]) -> [u8; 64] {
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        let value = values[i % N];
        table[i] = if (i / N).is_multiple_of(2) { OFFSET + value } else { OFFSET - value };
        i += 1;
    }
    table
}

/// Controls of `vpmultishiftqb` that bring the sign of each weight to bit `bit` of its byte. A lane has the signs of its
/// first eight weights in byte 0, of the others in byte `last`.
pub(super) const fn sign_fields(last: usize, bit: usize) -> [[u8; 64]; 4] {
    let mut fields = [[0; 64]; 4];
    let mut i = 0;
    while i < 256 {
        let (j, byte) = (i / 64, i % 64);
        let sign = 8 * last * (j / 2) + 4 * (j % 2) + byte % 4;
        fields[j][byte] = ((32 * (byte / 4 % 2) + sign + 64 - bit) % 64) as u8;
        i += 1;
    }
    fields
}

/// Codes with junk above them, and signs at the bit above a code with junk around them, to weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn decode(
    codes: [__m512i; 4],
    signs: __m512i,
    sign_fields: &[[u8; 64]; 4],
    code_mask: i8,
    table: &[u8; 64],
) -> [__m512i; 4] {
    let table = load_bytes(table);
    let mask = _mm512_set1_epi8(code_mask);
    each!(4, |j| {
        let sign = _mm512_multishift_epi64_epi8(load_bytes(&sign_fields[j]), signs);
        let index = _mm512_ternarylogic_epi32::<SELECT>(codes[j], sign, mask);
        _mm512_permutexvar_epi8(index, table)
    })
}

/// Puts into bit 7 of every byte the parity of the other bits, which are kept.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
pub(super) fn add_parity(x: __m512i) -> __m512i {
    // Row `i` of the matrix (byte 7 - i) selects the input bits whose sum is output bit `i`.
    const MATRIX: i64 = i64::from_le_bytes([0x7f, 0x40, 0x20, 0x10, 0x08, 0x04, 0x02, 0x01]);
    _mm512_gf2p8affine_epi64_epi8::<0>(x, _mm512_set1_epi64(MATRIX))
}
