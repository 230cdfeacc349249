//! IQ1_S and IQ1_M: eight weights are an entry of a codebook of -1, 0, 1, all moved by an eighth up or down. Eight
//! times that are integers.

use super::blocks::{fields, half, lane, load, load_bytes, spread};
use super::kquants::to_lanes;
use super::lookup::{Words, codes8};
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::quant::iq_grids::IQ1S_GRID;
use std::arch::x86_64::*;

static CODES: Words<2048> = codes8(&IQ1S_GRID, [0xff, 0, 1]);

/// Codes 0, 1, 2 to eight times -1, 0, 1, plus the offset of 16.
const VALUES: [u8; 64] = super::iq4::table16(&[8, 16, 24, 0, 8, 16, 24, 0, 8, 16, 24, 0, 8, 16, 24, 0], 0);
const CODE_FIELDS: [[u8; 64]; 4] = [fields(2, 0), fields(2, 8), fields(2, 16), fields(2, 24)];

/// Entries of the codebook. It is too large for registers, and a gather costs more than a load for each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn look_up(index: __m512i) -> __m512i {
    let mut at = [0u16; 32];
    // SAFETY: the array is 64 bytes.
    unsafe { _mm512_storeu_si512(at.as_mut_ptr().cast(), _mm512_and_si512(index, _mm512_set1_epi16(2047))) };
    // SAFETY: indices are below 2048.
    let code = |i: usize| unsafe { *CODES.0.get_unchecked(usize::from(at[i])) } as i16;
    let [a, b, c, d] = each!(4 of [0, 8, 16, 24], |i| {
        let (low, high) = ([code(i), code(i + 1), code(i + 2), code(i + 3)], [code(i + 4), code(i + 5), code(i + 6), code(i + 7)]);
        _mm_setr_epi16(low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3])
    });
    let low = _mm512_castsi256_si512(_mm256_set_m128i(b, a));
    _mm512_inserti64x4::<1>(low, _mm256_set_m128i(d, c))
}

/// From the codebook indices of a lane's first and last eight weights, and whether each is moved down.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn expand(first: __m512i, last: __m512i, down: [__mmask16; 2]) -> [__m512i; 4] {
    let words = look_up(_mm512_mask_blend_epi16(0xaaaa_aaaa, first, _mm512_slli_epi32::<16>(last)));
    let values = load_bytes(&VALUES);
    let move_by = each!(2 of down, |down| _mm512_mask_mov_epi32(_mm512_set1_epi8(1), down, _mm512_set1_epi8(-1)));
    each!(4, |j| {
        let codes = _mm512_multishift_epi64_epi8(load_bytes(&CODE_FIELDS[j]), words);
        _mm512_add_epi8(_mm512_permutexvar_epi8(codes, values), move_by[j / 2])
    })
}

/// The low index bytes of every lane: 32 bytes at `p` are two for each group.
///
/// # Safety
/// 32 bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
unsafe fn low_bytes(p: *const u8) -> [__m512i; 2] {
    // SAFETY: see above.
    let x = unsafe { _mm256_loadu_si256(p.cast()) };
    let words = _mm512_cvtepu16_epi32(x);
    let lanes = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15), words);
    [_mm512_and_si512(lanes, _mm512_set1_epi32(0xff)), _mm512_srli_epi32::<8>(lanes)]
}

unpack! { IQ1S, 50, shift: Some(4), mins: false, by_16: false, |p| {
    const SHIFT: [[i32; 16]; 2] = {
        let mut shift = [[0; 16]; 2];
        let mut i = 0;
        while i < 16 {
            let (_, _, l) = lane(i);
            shift[0][i] = 6 * l as i32;
            shift[1][i] = 6 * l as i32 + 3;
            i += 1;
        }
        shift
    };
    let low = low_bytes(p.add(2));
    let by_32 = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(34).cast()));
    let wide = _mm512_castsi256_si512(by_32);
    let high = _mm512_shuffle_i32x4::<0b01_01_00_00>(wide, wide);
    let [first, last] = each!(2 of [0, 1], |i| {
        let bits = _mm512_and_si512(_mm512_srlv_epi32(high, load(&SHIFT[i])), _mm512_set1_epi32(7));
        _mm512_or_si512(low[i], _mm512_slli_epi32::<8>(bits))
    });
    let down = _mm512_test_epi32_mask(high, _mm512_set1_epi32(0x8000));
    let code = _mm256_and_si256(_mm256_srli_epi32::<11>(by_32), _mm256_set1_epi32(14));
    let code = _mm256_cvtepi32_ps(_mm256_add_epi32(code, _mm256_set1_epi32(1)));
    let eighth = _mm512_mul_ps(half(p), _mm512_set1_ps(0.125));
    Super { q: expand(first, last, [down; 2]), scale: _mm512_mul_ps(spread(code), eighth), min: _mm512_setzero_ps() }
}}

unpack! { IQ1M, 56, shift: Some(4), mins: false, by_16: true, |p| {
    let low = low_bytes(p);
    // A byte for each group: three bits and a direction, twice.
    let high = _mm512_cvtepu8_epi32(to_lanes(_mm_loadu_si128(p.add(32).cast())));
    let bits = |x: __m512i| _mm512_slli_epi32::<8>(_mm512_and_si512(x, _mm512_set1_epi32(7)));
    let first = _mm512_or_si512(low[0], bits(high));
    let last = _mm512_or_si512(low[1], bits(_mm512_srli_epi32::<4>(high)));
    let down = each!(2 of [8, 128], |bit| _mm512_test_epi32_mask(high, _mm512_set1_epi32(bit)));
    // Four words of four scales of three bits; their top nibbles are a half precision number.
    let packed = p.add(48).cast::<u64>().read_unaligned();
    let d = (packed >> 12 & 0x000f) | (packed >> 24 & 0x00f0) | (packed >> 36 & 0x0f00) | (packed >> 48 & 0xf000);
    let word = _mm512_cvtepu16_epi32(_mm256_permutexvar_epi16(
        _mm256_setr_epi16(0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3),
        _mm256_castsi128_si256(_mm_cvtsi64_si128(packed as i64)),
    ));
    let shift = _mm512_setr_epi32(0, 6, 0, 6, 3, 9, 3, 9, 0, 6, 0, 6, 3, 9, 3, 9);
    let code = _mm512_and_si512(_mm512_srlv_epi32(word, shift), _mm512_set1_epi32(7));
    let code = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_add_epi32(code, code), _mm512_set1_epi32(1)));
    let d = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(d as i32)));
    let eighth = _mm512_mul_ps(d, _mm512_set1_ps(0.125));
    Super { q: expand(first, last, down), scale: _mm512_mul_ps(code, eighth), min: _mm512_setzero_ps() }
}}
