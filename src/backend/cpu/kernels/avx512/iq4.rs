//! IQ4_NL and IQ4_XS: nibbles that are looked up in a table of 16 values.

use super::blocks::{Index, SECOND, half, halves, lane, load, load_8x16, load_bytes, nibbles, spread};
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::quant::iq_grids::IQ4_VALUES;
use std::arch::x86_64::*;

/// A table of 16 values plus an offset, four times: `vpermb` looks at six bits of the index, so the junk above a
/// nibble does not matter.
pub(super) const fn table16(values: &[i8; 16], offset: u8) -> [u8; 64] {
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        table[i] = (values[i % 16] as u8).wrapping_add(offset);
        i += 1;
    }
    table
}

const VALUES: [u8; 64] = table16(&IQ4_VALUES, 128);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn look_up(x: [__m512i; 4], table: &[u8; 64]) -> [__m512i; 4] {
    let table = load_bytes(table);
    each!(4 of x, |x| _mm512_permutexvar_epi8(x, table))
}

unpack! { IQ4NL, 8 * 18, shift: Some(7), mins: false, by_16: false, |p| {
    let q = look_up(nibbles(load_8x16(p.add(2), 18)), &VALUES);
    Super { q, scale: halves(p, 18), min: _mm512_setzero_ps() }
}}

unpack! { IQ4XS, 136, shift: Some(7), mins: false, by_16: false, |p| {
    const DWORD: Index = {
        let mut index = [[0; 16]; 4];
        let mut i = 0;
        while i < 64 {
            let (hh, n, _) = lane(i % 16);
            index[i / 16][i % 16] = (16 * hh + 4 * n + i / 16) as i32;
            i += 1;
        }
        index
    };
    let (a, b) = (_mm512_loadu_si512(p.add(8).cast()), _mm512_loadu_si512(p.add(72).cast()));
    let x = each!(4, |j| {
        let x = _mm512_permutex2var_epi32(a, load(&DWORD[j]), b);
        _mm512_mask_srli_epi32::<4>(x, SECOND, x)
    });
    // Eight scales of six bits: two from a 16-bit number, four from the nibbles of a 32-bit one.
    let high = _mm256_set1_epi32(i32::from(p.add(2).cast::<u16>().read_unaligned()));
    let low = _mm256_set1_epi32(p.add(4).cast::<i32>().read_unaligned());
    let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    let scale = _mm256_or_si256(
        _mm256_and_si256(low, _mm256_set1_epi32(0x0f)),
        _mm256_and_si256(_mm256_slli_epi32::<4>(high), _mm256_set1_epi32(0x30)),
    );
    let scale = _mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32)));
    Super {
        q: look_up(x, &VALUES),
        scale: _mm512_mul_ps(spread(scale), half(p)),
        min: _mm512_setzero_ps(),
    }
}}
