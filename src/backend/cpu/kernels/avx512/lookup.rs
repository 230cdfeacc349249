//! Codebooks in registers. An entry of an IQ codebook has eight weights out of four magnitudes, or four out of eight:
//! 16 bits. A table of such words is looked up with `vpermi2w`, 64 entries at a time.

use super::blocks::load_bytes;
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

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

/// A table of `N` magnitudes plus [`OFFSET`], repeated to fill the 64 entries that `vpermb` looks at.
pub(super) const fn magnitudes<const N: usize>(values: [u8; N]) -> [u8; 64] {
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        table[i] = OFFSET + values[i % N];
        i += 1;
    }
    table
}

/// Takes vectors of codes to magnitudes plus offset.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn decode(codes: [__m512i; 4], table: &[u8; 64]) -> [__m512i; 4] {
    let table = load_bytes(table);
    each!(4 of codes, |codes| _mm512_permutexvar_epi8(codes, table))
}

/// Negates (about the offset) the weights whose sign bit is set. `first` has, four times in every lane, the byte of
/// signs of the lane's first eight weights, `last` that of its last eight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn apply_signs(q: [__m512i; 4], first: __m512i, last: __m512i) -> [__m512i; 4] {
    let twice_offset = _mm512_set1_epi8((2 * OFFSET) as i8);
    let select = [_mm512_set1_epi32(0x0804_0201), _mm512_set1_epi32(0x8040_2010u32 as i32)];
    each!(4, |j| {
        let signs = if j < 2 { first } else { last };
        let minus = _mm512_test_epi8_mask(signs, select[j % 2]);
        _mm512_mask_sub_epi8(q[j], minus, twice_offset, q[j])
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
