//! TQ1_0 and TQ2_0: weights of -1, 0, 1.

use super::blocks::{Index, half, load, load_bytes};
use super::kquants::two_bits;
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::backend::cpu::kernels::layout::GROUP_OF_LANE;
use crate::quant::ternary::POWERS_OF_3;
use std::arch::x86_64::*;

unpack! { TQ2_0, 66, shift: Some(0), mins: false, by_16: false, |p| {
    let three = _mm512_set1_epi8(3);
    Super {
        q: each!(4 of two_bits(p), |q| _mm512_and_si512(q, three)),
        scale: half(p.add(64)),
        min: _mm512_setzero_ps(),
    }
}}

/// The base-3 digits of a byte of TQ1_0, two bits each: the first four, and the fifth.
const DIGITS: [[u8; 256]; 2] = {
    let mut digits = [[0; 256]; 2];
    let mut byte = 0;
    while byte < 256 {
        let mut n = 0;
        while n < POWERS_OF_3.len() {
            let fraction = byte * POWERS_OF_3[n] as usize % 256;
            digits[n / 4][byte] |= ((fraction * 3 / 256) << (2 * (n % 4))) as u8;
            n += 1;
        }
        byte += 1;
    }
    digits
};

/// Where dword `j` of every lane's group stands in the 32 dwords that [`DIGITS`] makes of a block, and its bit there.
/// Groups 0..10 are five digits of 32 bytes, groups 10..15 five digits of 16 bytes; group 15 is four digits of four bytes.
const DWORD: Index = tq1(false);
const SHIFT: Index = tq1(true);

const fn tq1(shift: bool) -> Index {
    let mut index = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        let (j, group) = (i / 16, GROUP_OF_LANE[i % 16]);
        let (dword, digit) = match group {
            0..10 => (4 * (group % 2) + j, group / 2),
            10..15 => (8 + j, group - 10),
            _ => (12, j),
        };
        index[j][i % 16] = if shift { 2 * (digit % 4) } else { dword + 16 * (digit / 4) } as i32;
        i += 1;
    }
    index
}

/// The entries of a table for every byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn look_up(table: &[u8; 256], bytes: __m512i) -> __m512i {
    let (parts, _) = table.as_chunks::<64>();
    let low = _mm512_permutex2var_epi8(load_bytes(&parts[0]), bytes, load_bytes(&parts[1]));
    let high = _mm512_permutex2var_epi8(load_bytes(&parts[2]), bytes, load_bytes(&parts[3]));
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high)
}

unpack! { TQ1_0, 54, shift: Some(0), mins: false, by_16: false, |p| {
    let x = _mm512_maskz_loadu_epi16((1 << 26) - 1, p.cast());
    let [four, fifth] = each!(2, |i| look_up(&DIGITS[i], x));
    let three = _mm512_set1_epi8(3);
    let q = each!(4, |j| {
        let x = _mm512_permutex2var_epi32(four, load(&DWORD[j]), fifth);
        _mm512_and_si512(_mm512_srlv_epi32(x, load(&SHIFT[j])), three)
    });
    Super { q, scale: half(p.add(52)), min: _mm512_setzero_ps() }
}}
