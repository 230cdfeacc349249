//! TQ1_0 and TQ2_0: weights of -1, 0, 1.

use super::blocks::{Index, half, load};
use super::kquants::two_bits;
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::backend::cpu::kernels::layout::GROUP_OF_LANE;
use std::arch::x86_64::*;

unpack! { TQ2_0, 66, shift: Some(0), mins: false, by_16: false, |p| {
    let three = _mm512_set1_epi8(3);
    Super {
        q: each!(4 of two_bits(p), |q| _mm512_and_si512(q, three)),
        scale: half(p.add(64)),
        min: _mm512_setzero_ps(),
    }
}}

/// A byte of TQ1_0 holds five base-3 digits of five groups, as a fraction of 256: multiplied by a power of 3 the wanted
/// digit is the integer part of three times the rest. Groups 0..10 are five digits of 32 bytes, groups 10..15 five
/// digits of 16 bytes; group 15 is four digits of four bytes.
const DWORD: Index = tq1(false);
const POWER: Index = tq1(true);

const fn tq1(power: bool) -> Index {
    let mut index = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        let (j, group) = (i / 16, GROUP_OF_LANE[i % 16]);
        let (dword, digit) = match group {
            0..10 => (4 * (group % 2) + j, group / 2),
            10..15 => (8 + j, group - 10),
            _ => (12, j),
        };
        let power_of_3 = [1, 3, 9, 27, 81][digit];
        index[j][i % 16] = if power { power_of_3 * 0x0001_0001 } else { dword as i32 };
        i += 1;
    }
    index
}

unpack! { TQ1_0, 54, shift: Some(0), mins: false, by_16: false, |p| {
    let x = _mm512_maskz_loadu_epi16((1 << 26) - 1, p.cast());
    let low_byte = _mm512_set1_epi16(0x00ff);
    let digit = |x: __m512i, power: __m512i| {
        let rest = _mm512_and_si512(_mm512_mullo_epi16(x, power), low_byte);
        _mm512_srli_epi16::<8>(_mm512_mullo_epi16(rest, _mm512_set1_epi16(3)))
    };
    let q = each!(4, |j| {
        let x = _mm512_permutexvar_epi32(load(&DWORD[j]), x);
        let power = load(&POWER[j]);
        let even = digit(_mm512_and_si512(x, low_byte), power);
        let odd = digit(_mm512_srli_epi16::<8>(x), power);
        _mm512_or_si512(even, _mm512_slli_epi16::<8>(odd))
    });
    Super { q, scale: half(p.add(52)), min: _mm512_setzero_ps() }
}}
