//! IQ2_XXS, IQ2_XS and IQ2_S: eight weights are an entry of a codebook of three magnitudes, and eight signs.

use super::blocks::{fields, half, lane, load, load_bytes};
use super::lookup::{Words, add_parity, codes8, decode, look_up_256, look_up_512, look_up_1024, sign_fields, signed};
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::quant::iq_grids::{IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID};
use std::arch::x86_64::*;

const VALUES: [u8; 3] = [8, 25, 43];
static XXS: Words<256> = codes8(&IQ2XXS_GRID, VALUES);
static XS: Words<512> = codes8(&IQ2XS_GRID, VALUES);
static S: Words<1024> = codes8(&IQ2S_GRID, VALUES);

/// The three magnitudes and their negatives; the fourth is never used.
const TABLE: [u8; 64] = signed([VALUES[0], VALUES[1], VALUES[2], 0]);
const CODE_FIELDS: [[u8; 64]; 4] = [fields(2, 0), fields(2, 8), fields(2, 16), fields(2, 24)];
const SIGN_FIELDS: [[u8; 64]; 4] = sign_fields(1, 2);

/// From two codebook words in every lane, and its signs, to its 16 weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn expand(words: __m512i, signs: __m512i, sign_fields: &[[u8; 64]; 4]) -> [__m512i; 4] {
    let codes = each!(4, |j| _mm512_multishift_epi64_epi8(load_bytes(&CODE_FIELDS[j]), words));
    decode(codes, signs, sign_fields, 0x03, &TABLE)
}

/// Scales of IQ2_XS and IQ2_S: a nibble for each group at `p`; `d * (0.5 + nibble) * 0.25`.
///
/// # Safety
/// Eight bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn nibble_scales(p: *const u8, d: __m512) -> __m512 {
    // SAFETY: see above.
    let x = unsafe { _mm_loadl_epi64(p.cast()) };
    let x = _mm_srlv_epi32(_mm_shuffle_epi32::<0b01_01_00_00>(x), _mm_setr_epi32(0, 4, 0, 4));
    let x = _mm_and_si128(x, _mm_set1_epi8(0x0f));
    quarter_scale(d, _mm512_cvtepu8_epi32(x))
}

/// `d * (0.5 + code) * 0.25`, rounded like the scalar decode (only the product with `d` rounds).
#[inline]
#[target_feature(enable = "avx512f")]
fn quarter_scale(d: __m512, code: __m512i) -> __m512 {
    let quarter = _mm512_set1_ps(0.25);
    let code = _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), quarter, _mm512_set1_ps(0.125));
    _mm512_mul_ps(code, d)
}

/// The signs of IQ2_XXS and IQ3_XXS, in bytes 0 and 1 of every lane. `dword` holds in every lane the dword of its 32
/// weights: four codes of 7 bits, and a scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(super) fn seven_bit_signs(dword: __m512i) -> __m512i {
    const FIELDS: [u8; 64] = {
        let mut index = [0; 64];
        let mut i = 0;
        while i < 64 {
            let (_, _, l) = lane(i / 4);
            index[i] = (32 * (i / 4 % 2) + 14 * l + 7 * (i % 2)) as u8;
            i += 1;
        }
        index
    };
    add_parity(_mm512_multishift_epi64_epi8(load_bytes(&FIELDS), dword))
}

unpack! { IQ2XXS, 66, shift: Some(6), mins: false, by_16: false, |p| {
    // Two codebook indices for every lane, each in the low byte of a word.
    const INDEX: [u8; 64] = {
        let mut index = [0; 64];
        let mut i = 0;
        while i < 64 {
            let (hh, n, l) = lane(i / 4);
            index[i] = (8 * (4 * hh + n) + 2 * l + i % 4 / 2) as u8;
            i += 1;
        }
        index
    };
    const SIGN_DWORD: [i32; 16] = {
        let mut index = [0; 16];
        let mut i = 0;
        while i < 16 {
            let (hh, n, _) = lane(i);
            index[i] = (2 * (4 * hh + n) + 1) as i32;
            i += 1;
        }
        index
    };
    let x = _mm512_loadu_si512(p.add(2).cast());
    let index = _mm512_permutexvar_epi8(load_bytes(&INDEX), x);
    let signs_and_scale = _mm512_permutexvar_epi32(load(&SIGN_DWORD), x);
    Super {
        q: expand(look_up_256(&XXS, 0, index), seven_bit_signs(signs_and_scale), &SIGN_FIELDS),
        scale: quarter_scale(half(p), _mm512_srli_epi32::<28>(signs_and_scale)),
        min: _mm512_setzero_ps(),
    }
}}

unpack! { IQ2XS, 74, shift: Some(6), mins: false, by_16: true, |p| {
    const LANES: [i32; 16] = {
        let mut index = [0; 16];
        let mut i = 0;
        while i < 16 {
            index[i] = crate::backend::cpu::kernels::layout::GROUP_OF_LANE[i] as i32;
            i += 1;
        }
        index
    };
    // Nine bits of index, seven of signs.
    let words = _mm512_permutexvar_epi32(load(&LANES), _mm512_loadu_si512(p.add(2).cast()));
    let bit_8 = _mm512_test_epi16_mask(words, _mm512_set1_epi16(256));
    // The signs of the last weights of a lane are in byte 2.
    const FIELDS: [[u8; 64]; 4] = sign_fields(2, 2);
    let signs = add_parity(_mm512_srli_epi16::<9>(words));
    Super {
        q: expand(look_up_512(&XS, words, bit_8), signs, &FIELDS),
        scale: nibble_scales(p.add(66), half(p)),
        min: _mm512_setzero_ps(),
    }
}}

unpack! { IQ2S, 82, shift: Some(6), mins: false, by_16: true, |p| {
    // `what`: 0 the low index bytes of a lane in words, 1 the byte of high index bits, 2 the bytes of signs.
    const fn bytes(what: usize) -> [u8; 64] {
        let mut index = [0; 64];
        let mut i = 0;
        while i < 64 {
            let (hh, n, l) = lane(i / 4);
            let b = 4 * hh + n;
            index[i] = match what {
                0 => 4 * b + 2 * l + i % 4 / 2,
                1 => 48 + b,
                _ => 16 + 4 * b + 2 * l + i % 2,
            } as u8;
            i += 1;
        }
        index
    }
    const BYTES: [[u8; 64]; 3] = [bytes(0), bytes(1), bytes(2)];
    /// The two bits of each index in the byte of high bits: bit 8, and one above it bit 9.
    const BIT_8: [i32; 16] = {
        let mut bits = [0; 16];
        let mut i = 0;
        while i < 16 {
            let (_, _, l) = lane(i);
            bits[i] = 0x0004_0001 << (4 * l);
            i += 1;
        }
        bits
    };
    let a = _mm512_loadu_si512(p.add(2).cast());
    let b = _mm512_loadu_si512(p.add(18).cast());
    let index = _mm512_permutexvar_epi8(load_bytes(&BYTES[0]), a);
    let high = _mm512_permutexvar_epi8(load_bytes(&BYTES[1]), b);
    let bit_8 = load(&BIT_8);
    let words = look_up_1024(
        &S,
        index,
        _mm512_test_epi16_mask(high, bit_8),
        _mm512_test_epi16_mask(high, _mm512_add_epi16(bit_8, bit_8)),
    );
    let signs = _mm512_permutexvar_epi8(load_bytes(&BYTES[2]), b);
    Super {
        q: expand(words, signs, &SIGN_FIELDS),
        scale: nibble_scales(p.add(74), half(p)),
        min: _mm512_setzero_ps(),
    }
}}
