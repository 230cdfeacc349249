//! Q2_K to Q6_K.

use super::blocks::{Index, half, lane, load};
use super::lookup::SELECT;
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// For formats that keep 128 weights as 32 bytes of four two-bit fields: the bytes of a lane.
const TWO_BIT_DWORD: Index = {
    let mut index = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        let (hh, _, l) = lane(i % 16);
        index[i / 16][i % 16] = (8 * hh + 4 * l + i / 16) as i32;
        i += 1;
    }
    index
};

/// Bytes shared by all groups of 32: one bit (or field) for each.
const SHARED_DWORD: Index = {
    let mut index = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        let (_, _, l) = lane(i % 16);
        index[i / 16][i % 16] = (4 * l + i / 16) as i32;
        i += 1;
    }
    index
};

/// For formats that keep 64 weights as 32 bytes of two nibbles.
const NIBBLE_DWORD: Index = {
    let mut index = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        let (hh, n, l) = lane(i % 16);
        index[i / 16][i % 16] = (16 * hh + 8 * (n / 2) + 4 * l + i / 16) as i32;
        i += 1;
    }
    index
};

/// For Q6_K, whose low nibbles of weight `i` and `i + 64` share a byte.
const Q6_LOW_DWORD: Index = {
    let mut index = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        let (hh, n, l) = lane(i % 16);
        index[i / 16][i % 16] = (16 * hh + 8 * (n % 2) + 4 * l + i / 16) as i32;
        i += 1;
    }
    index
};

/// `(base + step * n) % 32` for every lane, plus `half * hh`: shift counts.
const fn counts(base: usize, step: usize, half: usize) -> [i32; 16] {
    let mut counts = [0; 16];
    let mut i = 0;
    while i < 16 {
        let (hh, n, _) = lane(i);
        counts[i] = ((base + step * n + half * hh) % 32) as i32;
        i += 1;
    }
    counts
}

/// Two-bit fields of 64 bytes at `p`; the upper bits of each byte are junk.
///
/// # Safety
/// 64 bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn two_bits(p: *const u8) -> [__m512i; 4] {
    const SHIFTS: [i32; 16] = counts(0, 2, 0);
    // SAFETY: see above.
    let x = unsafe { _mm512_loadu_si512(p.cast()) };
    each!(4, |j| _mm512_srlv_epi32(_mm512_permutexvar_epi32(load(&TWO_BIT_DWORD[j]), x), load(&SHIFTS)))
}

/// Sixteen bytes in the order of groups to the order of lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn to_lanes(by_group: __m128i) -> __m128i {
    _mm_shuffle_epi8(by_group, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15))
}

/// The 6-bit scales and minimums of Q4_K and Q5_K, times `d` and `-dmin`.
///
/// # Safety
/// 20 bytes at `p` are readable: `d`, `dmin`, 12 bytes of scales and what follows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn scales_and_mins(p: *const u8) -> (__m512, __m512) {
    // SAFETY: see above.
    let (d, x) = unsafe { (p.cast::<i32>().read_unaligned(), _mm_loadu_si128(p.add(4).cast())) };
    // The first four groups have six bits in one byte; the others four bits in dword 2, and two on top of the first's.
    let shift = _mm_setr_epi32(0, 0, 2, 2);
    let six = _mm_setr_epi32(0x3f3f_3f3f, 0x3f3f_3f3f, 0x3030_3030, 0x3030_3030);
    let four = _mm_setr_epi32(0, 0, 0x0f0f_0f0f, 0x0f0f_0f0f);
    let rest = _mm_shuffle_epi32::<0b10_10_10_10>(x);
    let scale =
        _mm_or_si128(_mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32::<0b00_00_00_00>(x), shift), six), _mm_and_si128(rest, four));
    let min = _mm_or_si128(
        _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32::<0b01_01_01_01>(x), shift), six),
        _mm_and_si128(_mm_srli_epi32::<4>(rest), four),
    );
    let d = _mm_cvtph_ps(_mm_cvtsi32_si128(d));
    let minus_dmin = _mm_xor_ps(_mm_movehdup_ps(d), _mm_set1_ps(-0.0));
    (
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scale)), _mm512_broadcastss_ps(d)),
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(min)), _mm512_broadcastss_ps(minus_dmin)),
    )
}

/// The low four bits of 64 bytes at `p` twice, for Q4_K and Q5_K.
///
/// # Safety
/// 128 bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn k_nibbles(p: *const u8) -> [__m512i; 4] {
    const ODD: __mmask16 = 0xaaaa;
    // SAFETY: see above.
    let (a, b) = unsafe { (_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(64).cast())) };
    let mask = _mm512_set1_epi8(0x0f);
    each!(4, |j| {
        let x = _mm512_permutex2var_epi32(a, load(&NIBBLE_DWORD[j]), b);
        _mm512_and_si512(_mm512_mask_srli_epi32::<4>(x, ODD, x), mask)
    })
}

unpack! { Q2K, 84, shift: None, mins: true, by_16: true, |p| {
    let three = _mm512_set1_epi8(3);
    let packed = to_lanes(_mm_loadu_si128(p.cast()));
    let low = _mm_and_si128(packed, _mm_set1_epi8(0x0f));
    let high = _mm_and_si128(_mm_srli_epi16::<4>(packed), _mm_set1_epi8(0x0f));
    Super {
        q: each!(4 of two_bits(p.add(16)), |q| _mm512_and_si512(q, three)),
        scale: _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(low)), half(p.add(80))),
        min: _mm512_mul_ps(
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(high)),
            _mm512_xor_ps(half(p.add(82)), _mm512_set1_ps(-0.0)),
        ),
    }
}}

unpack! { Q3K, 110, shift: Some(2), mins: false, by_16: true, |p| {
    // Bit `4 * hh + n` of the mask bytes goes to bit 2.
    const ROTATE: [i32; 16] = counts(30, 1, 4);
    let high = _mm512_castsi256_si512(_mm256_loadu_si256(p.cast()));
    let two = two_bits(p.add(32));
    let q = each!(4, |j| {
        let high = _mm512_rorv_epi32(_mm512_permutexvar_epi32(load(&SHARED_DWORD[j]), high), load(&ROTATE));
        let mixed = _mm512_ternarylogic_epi32::<SELECT>(two[j], high, _mm512_set1_epi8(3));
        _mm512_and_si512(mixed, _mm512_set1_epi8(7))
    });
    // Groups 0..8 have the low nibble of bytes 0..8, groups 8..16 the high one; two more bits are in bytes 8..12.
    let packed = _mm_loadu_si128(p.add(94).cast());
    let low = _mm_shuffle_epi8(packed, _mm_setr_epi8(2, 4, 6, 8, 3, 5, 7, 9, 2, 4, 6, 8, 3, 5, 7, 9));
    let low = _mm_and_si128(_mm_srlv_epi64(low, _mm_set_epi64x(4, 0)), _mm_set1_epi8(0x0f));
    let high = _mm_shuffle_epi8(packed, _mm_setr_epi8(10, 12, 10, 12, 11, 13, 11, 13, 10, 12, 10, 12, 11, 13, 11, 13));
    let high = _mm_srlv_epi16(high, _mm_setr_epi16(0, 2, 0, 2, 4, 6, 4, 6));
    let high = _mm_and_si128(_mm_slli_epi16::<4>(high), _mm_set1_epi8(0x30));
    let scale = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
    Super {
        q,
        scale: _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scale)), half(p.add(108))),
        min: _mm512_setzero_ps(),
    }
}}

unpack! { Q4K, 144, shift: None, mins: true, by_16: false, |p| {
    let (scale, min) = scales_and_mins(p);
    Super { q: k_nibbles(p.add(16)), scale, min }
}}

unpack! { Q5K, 176, shift: None, mins: true, by_16: false, |p| {
    const BIT: [i32; 16] = {
        let mut bits = [0; 16];
        let mut i = 0;
        while i < 16 {
            let (hh, n, _) = lane(i);
            bits[i] = 0x0101_0101 << (4 * hh + n);
            i += 1;
        }
        bits
    };
    let (scale, min) = scales_and_mins(p);
    let high = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(16).cast()));
    let low = k_nibbles(p.add(48));
    let q = each!(4, |j| {
        let high = _mm512_permutexvar_epi32(load(&SHARED_DWORD[j]), high);
        let set = _mm512_test_epi8_mask(high, load(&BIT));
        _mm512_mask_add_epi8(low[j], set, low[j], _mm512_set1_epi8(16))
    });
    Super { q, scale, min }
}}

unpack! { Q6K, 210, shift: Some(5), mins: false, by_16: true, |p| {
    const LAST_TWO: __mmask16 = 0xcccc;
    // Field `n` of the high bits goes to bits 4 and 5.
    const ROTATE: [i32; 16] = counts(28, 2, 0);
    let (a, b) = (_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(64).cast()));
    let high = _mm512_loadu_si512(p.add(128).cast());
    let q = each!(4, |j| {
        let low = _mm512_permutex2var_epi32(a, load(&Q6_LOW_DWORD[j]), b);
        let low = _mm512_mask_srli_epi32::<4>(low, LAST_TWO, low);
        let high = _mm512_rorv_epi32(_mm512_permutexvar_epi32(load(&TWO_BIT_DWORD[j]), high), load(&ROTATE));
        let mixed = _mm512_ternarylogic_epi32::<SELECT>(low, high, _mm512_set1_epi8(0x0f));
        _mm512_and_si512(mixed, _mm512_set1_epi8(0x3f))
    });
    let scale = to_lanes(_mm_loadu_si128(p.add(192).cast()));
    Super {
        q,
        scale: _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scale)), half(p.add(208))),
        min: _mm512_setzero_ps(),
    }
}}
