//! Q2_K to Q6_K.

use super::blocks::{half, scales8, scales16, zeros};
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// Two-bit fields: 128 weights are 32 bytes, field by field.
///
/// # Safety
/// 64 bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn two_bits(p: *const u8) -> [__m256i; 8] {
    // SAFETY: see above.
    let x = each!(2 of [0, 32], |at| unsafe { _mm256_loadu_si256(p.add(at).cast()) });
    let mask = _mm256_set1_epi8(3);
    let fields = |x| {
        [
            _mm256_and_si256(x, mask),
            _mm256_and_si256(_mm256_srli_epi16::<2>(x), mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(x), mask),
            _mm256_and_si256(_mm256_srli_epi16::<6>(x), mask),
        ]
    };
    let (a, b) = (fields(x[0]), fields(x[1]));
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

/// Nibbles: 64 weights are 32 bytes.
///
/// # Safety
/// 128 bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn k_nibbles(p: *const u8) -> [__m256i; 8] {
    let mask = _mm256_set1_epi8(0x0f);
    each!(8, |n| {
        // SAFETY: see above.
        let x = unsafe { _mm256_loadu_si256(p.add(32 * (n / 2)).cast()) };
        _mm256_and_si256(if n % 2 == 0 { x } else { _mm256_srli_epi16::<4>(x) }, mask)
    })
}

/// The 6-bit scales and minimums of Q4_K and Q5_K, times `d` and `-dmin`.
///
/// # Safety
/// 16 bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn scales_and_mins(p: *const u8) -> ([__m256; 2], [__m256; 2]) {
    // SAFETY: see above.
    let at = |i: usize| unsafe { u64::from(p.add(4 * i).cast::<u32>().read_unaligned()) };
    // SAFETY: see above.
    let (d, dmin) = unsafe { (half(p), half(p.add(2))) };
    let (a, b, c) = (at(1), at(2), at(3));
    let join = |low: u64, high: u64| low & 0x3f3f_3f3f | (high & 0x0f0f_0f0f | (low >> 2) & 0x3030_3030) << 32;
    (scales8(join(a, c), d), scales8(join(b, c >> 4), -dmin))
}

unpack! { Q2K, 84, shift: None, mins: true, max: 3, |p| {
    let packed = _mm_loadu_si128(p.cast());
    let mask = _mm_set1_epi8(0x0f);
    Super {
        q: two_bits(p.add(16)),
        scale: scales16::<false>(_mm_and_si128(packed, mask), half(p.add(80))),
        min: scales16::<false>(_mm_and_si128(_mm_srli_epi16::<4>(packed), mask), -half(p.add(82))),
    }
}}

unpack! { Q3K, 110, shift: Some(2), mins: false, max: 7, |p| {
    let high = _mm256_loadu_si256(p.cast());
    let low = two_bits(p.add(32));
    let q = each!(8, |n| {
        let bit = _mm256_set1_epi8(1u8.wrapping_shl(n as u32) as i8);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
        _mm256_or_si256(low[n], _mm256_and_si256(set, _mm256_set1_epi8(4)))
    });
    // Low nibbles of bytes 0..8, then high ones; two more bits each are the fields of bytes 8..12.
    let low = p.add(96).cast::<u64>().read_unaligned();
    let low = _mm_and_si128(_mm_set_epi64x((low >> 4) as i64, low as i64), _mm_set1_epi8(0x0f));
    let high = _mm_set1_epi32(p.add(104).cast::<i32>().read_unaligned());
    let high = _mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6));
    let high = _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
    let scale = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
    Super { q, scale: scales16::<true>(scale, half(p.add(108))), min: zeros() }
}}

unpack! { Q4K, 144, shift: None, mins: true, max: 15, |p| {
    let (scale, min) = scales_and_mins(p);
    Super { q: k_nibbles(p.add(16)), scale, min }
}}

unpack! { Q5K, 176, shift: None, mins: true, max: 31, |p| {
    let (scale, min) = scales_and_mins(p);
    let high = _mm256_loadu_si256(p.add(16).cast());
    let low = k_nibbles(p.add(48));
    let q = each!(8, |n| {
        let bit = _mm256_set1_epi8(1u8.wrapping_shl(n as u32) as i8);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
        _mm256_or_si256(low[n], _mm256_and_si256(set, _mm256_set1_epi8(16)))
    });
    Super { q, scale, min }
}}

unpack! { Q6K, 210, shift: Some(5), mins: false, max: 63, |p| {
    let high = two_bits(p.add(128));
    let mask = _mm256_set1_epi8(0x0f);
    // Of 128 weights the first 64 are the low nibbles of 64 bytes, the others the high ones.
    let q = each!(8, |n| {
        let x = _mm256_loadu_si256(p.add(64 * (n / 4) + 32 * (n % 2)).cast());
        let low = _mm256_and_si256(if n % 4 < 2 { x } else { _mm256_srli_epi16::<4>(x) }, mask);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high[n]))
    });
    Super { q, scale: scales16::<true>(_mm_loadu_si128(p.add(192).cast()), half(p.add(208))), min: zeros() }
}}
