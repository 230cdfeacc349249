//! IQ3_XXS and IQ3_S: four weights are an entry of a codebook of eight magnitudes, and four signs.

use super::blocks::{fields, half, lane, load_bytes, spread};
use super::iq2::seven_bit_signs;
use super::lookup::{Words, codes4, decode, look_up_256, look_up_512, sign_fields, signed};
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::quant::iq_grids::{IQ3S_GRID, IQ3XXS_GRID};
use std::arch::x86_64::*;

const XXS_VALUES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const S_VALUES: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
static XXS: Words<256> = codes4(&IQ3XXS_GRID, XXS_VALUES);
static S: Words<512> = codes4(&IQ3S_GRID, S_VALUES);

const XXS_TABLE: [u8; 64] = signed(XXS_VALUES);
const S_TABLE: [u8; 64] = signed(S_VALUES);
const CODE_FIELDS: [[u8; 64]; 2] = [fields(3, 0), fields(3, 16)];
const SIGN_FIELDS: [[u8; 64]; 4] = sign_fields(1, 3);

/// From the codebook words of the first and of the last eight weights of every lane, and its signs, to weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn expand(words: [__m512i; 2], signs: __m512i, table: &[u8; 64]) -> [__m512i; 4] {
    let codes = each!(4, |j| _mm512_multishift_epi64_epi8(load_bytes(&CODE_FIELDS[j % 2]), words[j / 2]));
    decode(codes, signs, &SIGN_FIELDS, 0x07, table)
}

/// The codebook indices of a lane in the low bytes of words, those of the first eight weights and of the others: 64
/// bytes at `p` are four for each group.
///
/// # Safety
/// 64 bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn indices(p: *const u8) -> [__m512i; 2] {
    const BYTES: [u8; 64] = {
        let mut index = [0; 64];
        let mut i = 0;
        while i < 64 {
            let (hh, n, l) = lane(i / 4);
            index[i] = (4 * (8 * hh + 2 * n + l) + [0, 2, 1, 3][i % 4]) as u8;
            i += 1;
        }
        index
    };
    // SAFETY: see above.
    let x = unsafe { _mm512_loadu_si512(p.cast()) };
    let first = _mm512_permutexvar_epi8(load_bytes(&BYTES), x);
    [first, _mm512_srli_epi16::<8>(first)]
}

unpack! { IQ3XXS, 98, shift: Some(6), mins: false, by_16: false, |p| {
    let words = each!(2 of indices(p.add(2)), |index| look_up_256(&XXS, 0, index));
    let by_32 = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(66).cast()));
    let signs_and_scale = _mm512_shuffle_i32x4::<0b01_01_00_00>(by_32, by_32);
    let code = _mm512_cvtepi32_ps(_mm512_srli_epi32::<28>(signs_and_scale));
    let code = _mm512_fmadd_ps(code, _mm512_set1_ps(0.5), _mm512_set1_ps(0.25));
    Super {
        q: expand(words, seven_bit_signs(signs_and_scale), &XXS_TABLE),
        scale: _mm512_mul_ps(code, half(p)),
        min: _mm512_setzero_ps(),
    }
}}

unpack! { IQ3S, 110, shift: Some(6), mins: false, by_16: false, |p| {
    // `what`: 0 the byte of high index bits, 1 the bytes of signs, counted from byte 46.
    const fn bytes(what: usize) -> [u8; 64] {
        let mut index = [0; 64];
        let mut i = 0;
        while i < 64 {
            let (hh, n, l) = lane(i / 4);
            let b = 4 * hh + n;
            index[i] = match what {
                0 => 20 + b,
                _ => 28 + 4 * b + 2 * l + i % 2,
            } as u8;
            i += 1;
        }
        index
    }
    const BYTES: [[u8; 64]; 2] = [bytes(0), bytes(1)];
    /// The high bit of the two indices in the words of a lane; two places up for the other two.
    const HIGH: [[i32; 16]; 2] = {
        let mut bits = [[0; 16]; 2];
        let mut i = 0;
        while i < 16 {
            let (_, _, l) = lane(i);
            bits[0][i] = 0x0002_0001 << (4 * l);
            bits[1][i] = 0x0008_0004 << (4 * l);
            i += 1;
        }
        bits
    };
    let tail = _mm512_loadu_si512(p.add(46).cast());
    let high = _mm512_permutexvar_epi8(load_bytes(&BYTES[0]), tail);
    let index = indices(p.add(2));
    let words = each!(2 of [0, 1], |i| {
        let bit_8 = _mm512_test_epi16_mask(high, super::blocks::load(&HIGH[i]));
        look_up_512(&S, index[i], bit_8)
    });
    let signs = _mm512_permutexvar_epi8(load_bytes(&BYTES[1]), tail);
    let nibbles = _mm256_set1_epi32(p.add(106).cast::<i32>().read_unaligned());
    let nibbles = _mm256_srlv_epi32(nibbles, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi32(0x0f));
    let odd = _mm256_add_epi32(_mm256_add_epi32(nibbles, nibbles), _mm256_set1_epi32(1));
    Super {
        q: expand(words, signs, &S_TABLE),
        scale: _mm512_mul_ps(spread(_mm256_cvtepi32_ps(odd)), half(p)),
        min: _mm512_setzero_ps(),
    }
}}
