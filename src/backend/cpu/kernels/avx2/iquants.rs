//! The IQ formats: codebooks are loaded entry by entry.

use super::blocks::{bits_to_bytes, half, look_up16, nibbles, scales8, scales16, spread, spread16, zeros};
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::quant::iq_grids::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, IQ4_VALUES, KSIGNS};
use std::arch::x86_64::*;

/// `64 + value`, or `64 - value` where the sign bit is set.
#[inline]
#[target_feature(enable = "avx2")]
fn apply_signs(magnitudes: __m256i, signs: i32) -> __m256i {
    let minus = bits_to_bytes(signs);
    let signed = _mm256_sub_epi8(_mm256_xor_si256(magnitudes, minus), minus);
    _mm256_add_epi8(signed, _mm256_set1_epi8(64))
}

/// 32 weights from four entries of eight.
#[inline]
#[target_feature(enable = "avx2")]
fn eights(entry: impl Fn(usize) -> u64) -> __m256i {
    _mm256_setr_epi64x(entry(0) as i64, entry(1) as i64, entry(2) as i64, entry(3) as i64)
}

/// 32 weights from eight entries of four.
#[inline]
#[target_feature(enable = "avx2")]
fn fours(entry: impl Fn(usize) -> u32) -> __m256i {
    eights(|i| u64::from(entry(2 * i)) | u64::from(entry(2 * i + 1)) << 32)
}

/// The 32 signs in the four 7-bit codes of a dword.
#[inline]
fn ksigns(code: u32) -> i32 {
    let byte = |i: u32| KSIGNS[(code >> (7 * i)) as usize & 127];
    i32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
}

/// # Safety
/// The bytes are readable.
#[inline]
unsafe fn read<T: Copy>(p: *const u8) -> T {
    // SAFETY: see above.
    unsafe { p.cast::<T>().read_unaligned() }
}

/// `d * (0.5 + code) * factor` for the top four bits of the dwords at `p + i * stride`.
///
/// # Safety
/// They are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn top_scales(p: *const u8, stride: usize, d: f32, factor: f32) -> [__m256; 2] {
    // SAFETY: see above.
    let code: [f32; 8] = each!(8, |n| unsafe { (read::<u32>(p.add(n * stride)) >> 28) as f32 + 0.5 });
    // SAFETY: eight floats.
    let code = unsafe { _mm256_loadu_ps(code.as_ptr()) };
    spread(_mm256_mul_ps(code, _mm256_set1_ps(d * factor)))
}

/// Nibbles at `p` for each group of 16: `d * (0.5 + nibble) * 0.25`, exactly `(2 * nibble + 1) * (d / 8)`.
///
/// # Safety
/// Eight bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibble_scales(p: *const u8, d: f32) -> [__m256; 2] {
    // SAFETY: see above.
    let x = unsafe { _mm_loadl_epi64(p.cast()) };
    let x = _mm_and_si128(_mm_unpacklo_epi8(x, _mm_srli_epi16::<4>(x)), _mm_set1_epi8(0x0f));
    let odd = _mm_add_epi8(_mm_add_epi8(x, x), _mm_set1_epi8(1));
    scales16::<false>(odd, d * 0.125)
}

unpack! { IQ2XXS, 66, shift: Some(6), mins: false, max: 107, |p| {
    let q = each!(8, |n| {
        let at = p.add(2 + 8 * n);
        let magnitudes = eights(|i| IQ2XXS_GRID[usize::from(*at.add(i))]);
        apply_signs(magnitudes, ksigns(read(at.add(4))))
    });
    Super { q, scale: top_scales(p.add(6), 8, half(p), 0.25), min: zeros() }
}}

unpack! { IQ2XS, 74, shift: Some(6), mins: false, max: 107, |p| {
    let q = each!(8, |n| {
        let word: [u16; 4] = each!(4, |i| read(p.add(2 + 8 * n + 2 * i)));
        let signs = each!(4 of word, |word| KSIGNS[usize::from(word >> 9)]);
        apply_signs(eights(|i| IQ2XS_GRID[usize::from(word[i] & 511)]), i32::from_le_bytes(signs))
    });
    Super { q, scale: nibble_scales(p.add(66), half(p)), min: zeros() }
}}

unpack! { IQ2S, 82, shift: Some(6), mins: false, max: 107, |p| {
    let q = each!(8, |n| {
        let high = usize::from(*p.add(66 + n));
        let magnitudes = eights(|i| {
            IQ2S_GRID[usize::from(*p.add(2 + 4 * n + i)) | (high << (8 - 2 * i)) & 0x300]
        });
        apply_signs(magnitudes, read(p.add(34 + 4 * n)))
    });
    Super { q, scale: nibble_scales(p.add(74), half(p)), min: zeros() }
}}

unpack! { IQ3XXS, 98, shift: Some(6), mins: false, max: 126, |p| {
    let q = each!(8, |n| {
        let magnitudes = fours(|i| IQ3XXS_GRID[usize::from(*p.add(2 + 8 * n + i))]);
        apply_signs(magnitudes, ksigns(read(p.add(66 + 4 * n))))
    });
    Super { q, scale: top_scales(p.add(66), 4, half(p), 0.5), min: zeros() }
}}

unpack! { IQ3S, 110, shift: Some(6), mins: false, max: 79, |p| {
    let q = each!(8, |n| {
        let high = usize::from(*p.add(66 + n));
        let magnitudes = fours(|i| IQ3S_GRID[usize::from(*p.add(2 + 8 * n + i)) | (high << (8 - i)) & 0x100]);
        apply_signs(magnitudes, read(p.add(74 + 4 * n)))
    });
    let packed = u64::from(read::<u32>(p.add(106)));
    let spaced: u64 = (0..8).map(|i| (2 * (packed >> (4 * i) & 15) + 1) << (8 * i)).sum();
    Super { q, scale: scales8(spaced, half(p)), min: zeros() }
}}

/// Eight times an entry of IQ1 plus or minus one, plus the offset of 16.
#[inline]
#[target_feature(enable = "avx2")]
fn iq1(entries: __m256i, down: __m256i) -> __m256i {
    // Three bits up: entries are -1, 0, 1 and bits that leave a byte are cleared.
    let eightfold = _mm256_and_si256(_mm256_slli_epi16::<3>(entries), _mm256_set1_epi8(-8));
    // 17, or 15 where moved down.
    let base = _mm256_sub_epi8(_mm256_set1_epi8(17), _mm256_and_si256(down, _mm256_set1_epi8(2)));
    _mm256_add_epi8(eightfold, base)
}

unpack! { IQ1S, 50, shift: Some(4), mins: false, max: 25, |p| {
    let qh: [u16; 8] = each!(8, |n| read(p.add(34 + 2 * n)));
    let q = each!(8, |n| {
        let high = usize::from(qh[n]) << 8;
        let entries = eights(|i| IQ1S_GRID[usize::from(*p.add(2 + 4 * n + i)) | (high >> (3 * i)) & 0x700]);
        iq1(entries, _mm256_set1_epi8(-i8::from(qh[n] & 0x8000 != 0)))
    });
    let code = each!(8 of qh, |qh| f32::from(2 * ((qh >> 12) & 7) + 1));
    let scale = _mm256_mul_ps(_mm256_loadu_ps(code.as_ptr()), _mm256_set1_ps(half(p) * 0.125));
    Super { q, scale: spread(scale), min: zeros() }
}}

unpack! { IQ1M, 56, shift: Some(4), mins: false, max: 25, |p| {
    let q = each!(8, |n| {
        let nibble = |i: usize| usize::from(*p.add(32 + 2 * n + i / 2) >> (4 * (i % 2)));
        let entries = eights(|i| IQ1S_GRID[usize::from(*p.add(4 * n + i)) | (nibble(i) & 7) << 8]);
        iq1(entries, eights(|i| (nibble(i) as u64 >> 3 & 1) * u64::MAX))
    });
    let packed: u64 = read(p.add(48));
    let d = (packed >> 12 & 0x000f) | (packed >> 24 & 0x00f0) | (packed >> 36 & 0x0f00) | (packed >> 48 & 0xf000);
    let d = crate::quant::f16_bits_to_f32(d as u16) * 0.125;
    let code: [f32; 16] =
        std::array::from_fn(|g| (2 * (packed >> (16 * (g / 4) + 3 * (g % 4)) & 7) + 1) as f32 * d);
    let scale = spread16([_mm256_loadu_ps(code.as_ptr()), _mm256_loadu_ps(code.as_ptr().add(8))]);
    Super { q, scale, min: zeros() }
}}

unpack! { IQ4NL, 8 * 18, shift: Some(7), mins: false, max: 255, |p| {
    let d: [f32; 8] = each!(8, |n| half(p.add(18 * n)));
    Super {
        q: each!(8, |n| look_up16(nibbles(p.add(18 * n + 2)), &IQ4_VALUES, -128)),
        scale: spread(_mm256_loadu_ps(d.as_ptr())),
        min: zeros(),
    }
}}

unpack! { IQ4XS, 136, shift: Some(7), mins: false, max: 255, |p| {
    let high = _mm256_set1_epi32(i32::from(read::<u16>(p.add(2))));
    let low = _mm256_srlv_epi32(_mm256_set1_epi32(read(p.add(4))), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    let scale = _mm256_or_si256(
        _mm256_and_si256(low, _mm256_set1_epi32(0x0f)),
        _mm256_and_si256(_mm256_slli_epi32::<4>(high), _mm256_set1_epi32(0x30)),
    );
    let scale = _mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32)));
    Super {
        q: each!(8, |n| look_up16(nibbles(p.add(8 + 16 * n)), &IQ4_VALUES, -128)),
        scale: spread(_mm256_mul_ps(scale, _mm256_set1_ps(half(p)))),
        min: zeros(),
    }
}}
