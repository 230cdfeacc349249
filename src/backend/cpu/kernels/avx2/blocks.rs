//! The formats with short blocks, the ternary ones, and the helpers that others share.

use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::quant::fp4::{E2M1_DOUBLED, ue4m3_half_to_f32};
use std::arch::x86_64::*;

/// From natural order to the two halves of the layout.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transpose(x: [__m256i; 8]) -> [[__m256i; 4]; 2] {
    each!(2 of [0, 4], |i| {
        let ab_low = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        let ab_high = _mm256_unpackhi_epi32(x[i], x[i + 1]);
        let cd_low = _mm256_unpacklo_epi32(x[i + 2], x[i + 3]);
        let cd_high = _mm256_unpackhi_epi32(x[i + 2], x[i + 3]);
        [
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    })
}

/// Values of the eight groups of 32 to lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn spread(by_32: __m256) -> [__m256; 2] {
    [_mm256_permute2f128_ps::<0x00>(by_32, by_32), _mm256_permute2f128_ps::<0x11>(by_32, by_32)]
}

/// Values of the sixteen groups of 16 to lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn spread16(by_16: [__m256; 2]) -> [__m256; 2] {
    each!(2 of by_16, |x| _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)))
}

/// Sixteen bytes, one for each group of 16, widened with their sign (`SIGNED`) and multiplied by `d`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn scales16<const SIGNED: bool>(bytes: __m128i, d: f32) -> [__m256; 2] {
    spread16(each!(2 of [bytes, _mm_unpackhi_epi64(bytes, bytes)], |bytes| {
        let wide = if SIGNED { _mm256_cvtepi8_epi32(bytes) } else { _mm256_cvtepu8_epi32(bytes) };
        _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(d))
    }))
}

/// Eight bytes, one for each group of 32, times `d`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn scales8(bytes: u64, d: f32) -> [__m256; 2] {
    let wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64));
    spread(_mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(d)))
}

/// # Safety
/// Two bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn half(p: *const u8) -> f32 {
    // SAFETY: see above.
    let bits = unsafe { p.cast::<u16>().read_unaligned() };
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// The half precision numbers at `p + i * stride` for the eight groups of 32, in lanes.
///
/// # Safety
/// They are readable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn halves(p: *const u8, stride: usize) -> [__m256; 2] {
    // SAFETY: see above.
    let at = |i: usize| unsafe { u64::from(p.add(i * stride).cast::<u16>().read_unaligned()) };
    let low = at(0) | at(1) << 16 | at(2) << 32 | at(3) << 48;
    let high = at(4) | at(5) << 16 | at(6) << 32 | at(7) << 48;
    spread(_mm256_cvtph_ps(_mm_set_epi64x(high as i64, low as i64)))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn zeros() -> [__m256; 2] {
    [_mm256_setzero_ps(); 2]
}

/// The low nibbles of 16 bytes, then the high ones.
///
/// # Safety
/// 16 bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: see above.
    let x = unsafe { _mm_loadu_si128(p.cast()) };
    _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(x), x), _mm256_set1_epi8(0x0f))
}

/// A byte of ones for every bit that is set.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn bits_to_bytes(bits: i32) -> __m256i {
    let x = _mm256_shuffle_epi8(
        _mm256_set1_epi32(bits),
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303),
    );
    let select = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    _mm256_cmpeq_epi8(_mm256_and_si256(x, select), select)
}

/// Nibbles at `p` with 16 added where a bit of the dword at `bits` is set.
///
/// # Safety
/// 16 bytes at `p` and 4 at `bits` are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn five_bits(p: *const u8, bits: *const u8) -> __m256i {
    // SAFETY: see above.
    let (low, bits) = unsafe { (nibbles(p), bits.cast::<i32>().read_unaligned()) };
    _mm256_or_si256(low, _mm256_and_si256(bits_to_bytes(bits), _mm256_set1_epi8(16)))
}

/// Looks nibbles up in a table of 16 values, and adds an offset.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn look_up16(nibbles: __m256i, table: &[i8; 16], offset: i8) -> __m256i {
    // SAFETY: the table is 16 bytes.
    let table = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) };
    _mm256_add_epi8(_mm256_shuffle_epi8(table, nibbles), _mm256_set1_epi8(offset))
}

unpack! { Q4_0, 8 * 18, shift: Some(3), mins: false, max: 15, |p| {
    Super { q: each!(8, |n| nibbles(p.add(18 * n + 2))), scale: halves(p, 18), min: zeros() }
}}

unpack! { Q4_1, 8 * 20, shift: None, mins: true, max: 15, |p| {
    Super {
        q: each!(8, |n| nibbles(p.add(20 * n + 4))),
        scale: halves(p, 20),
        min: halves(p.add(2), 20),
    }
}}

unpack! { Q5_0, 8 * 22, shift: Some(4), mins: false, max: 31, |p| {
    Super {
        q: each!(8, |n| five_bits(p.add(22 * n + 6), p.add(22 * n + 2))),
        scale: halves(p, 22),
        min: zeros(),
    }
}}

unpack! { Q5_1, 8 * 24, shift: None, mins: true, max: 31, |p| {
    Super {
        q: each!(8, |n| five_bits(p.add(24 * n + 8), p.add(24 * n + 4))),
        scale: halves(p, 24),
        min: halves(p.add(2), 24),
    }
}}

unpack! { Q8_0, 8 * 34, shift: Some(7), mins: false, max: 255, |p| {
    let sign = _mm256_set1_epi8(-128);
    Super {
        q: each!(8, |n| _mm256_xor_si256(_mm256_loadu_si256(p.add(34 * n + 2).cast()), sign)),
        scale: halves(p, 34),
        min: zeros(),
    }
}}

unpack! { Q2_0, 4 * 18, shift: Some(0), mins: false, max: 3, |p| {
    // Byte `i` holds weights `4 * i..4 * i + 4`: each byte four times, each time another field.
    let q = each!(8, |n| {
        let x = p.add(18 * (n / 2) + 2 + 8 * (n % 2)).cast::<i64>().read_unaligned();
        let x = _mm256_shuffle_epi8(
            _mm256_set1_epi64x(x),
            _mm256_setr_epi32(
                0x0000_0000, 0x0101_0101, 0x0202_0202, 0x0303_0303, 0x0404_0404, 0x0505_0505, 0x0606_0606, 0x0707_0707,
            ),
        );
        let even = _mm256_and_si256(x, _mm256_set1_epi32(0x0000_0003));
        let second = _mm256_and_si256(_mm256_srli_epi32::<2>(x), _mm256_set1_epi32(0x0000_0300));
        let third = _mm256_and_si256(_mm256_srli_epi32::<4>(x), _mm256_set1_epi32(0x0003_0000));
        let fourth = _mm256_and_si256(_mm256_srli_epi32::<6>(x), _mm256_set1_epi32(0x0300_0000));
        _mm256_or_si256(_mm256_or_si256(even, second), _mm256_or_si256(third, fourth))
    });
    let d: [f32; 4] = each!(4, |b| half(p.add(18 * b)));
    let scale = spread(_mm256_setr_ps(d[0], d[0], d[1], d[1], d[2], d[2], d[3], d[3]));
    Super { q, scale, min: zeros() }
}}

unpack! { MXFP4, 8 * 17, shift: Some(4), mins: false, max: 28, |p| {
    let at = |i: usize| u64::from(*p.add(17 * i)) << (8 * i);
    let e = at(0) | at(1) | at(2) | at(3) | at(4) | at(5) | at(6) | at(7);
    let e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(e as i64));
    // Half of 2^(e - 127): exponent e - 1, or a subnormal number.
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    let scale = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
    Super {
        q: each!(8, |n| look_up16(nibbles(p.add(17 * n + 1)), &E2M1_DOUBLED, 16)),
        scale: spread(scale),
        min: zeros(),
    }
}}

unpack! { NVFP4, 4 * 36, shift: Some(4), mins: false, max: 28, |p| {
    // Eight bytes hold 16 weights: the low nibbles, then the high ones.
    let q = each!(8, |n| {
        let x = nibbles(p.add(36 * (n / 2) + 4 + 16 * (n % 2)));
        let x = _mm256_permute4x64_epi64::<0b11_01_10_00>(x);
        look_up16(x, &E2M1_DOUBLED, 16)
    });
    let d: [f32; 16] = std::array::from_fn(|g| ue4m3_half_to_f32(*p.add(36 * (g / 4) + g % 4)));
    let scale = spread16([_mm256_loadu_ps(d.as_ptr()), _mm256_loadu_ps(d.as_ptr().add(8))]);
    Super { q, scale, min: zeros() }
}}

unpack! { TQ2_0, 66, shift: Some(0), mins: false, max: 3, |p| {
    let q = super::kquants::two_bits(p);
    Super { q, scale: [_mm256_set1_ps(half(p.add(64))); 2], min: zeros() }
}}

unpack! { TQ1_0, 54, shift: Some(0), mins: false, max: 2, |p| {
    // Digit `n` of a byte: multiply by 3^n, keep a byte, and take the integer part of three 256ths of it.
    let digits = |x: __m256i, power: __m256i| {
        let low_byte = _mm256_set1_epi16(0x00ff);
        let digit = |x: __m256i| {
            let rest = _mm256_and_si256(_mm256_mullo_epi16(x, power), low_byte);
            _mm256_srli_epi16::<8>(_mm256_mullo_epi16(rest, _mm256_set1_epi16(3)))
        };
        let even = digit(_mm256_and_si256(x, low_byte));
        _mm256_or_si256(even, _mm256_slli_epi16::<8>(digit(_mm256_srli_epi16::<8>(x))))
    };
    let first = _mm256_loadu_si256(p.cast());
    let second = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.add(32).cast()));
    let last = _mm256_set1_epi32(p.add(48).cast::<i32>().read_unaligned());
    let two = |low: i16, high: i16| _mm256_set_m128i(_mm_set1_epi16(high), _mm_set1_epi16(low));
    // The last 16 weights are four digits of four bytes.
    let by_four = _mm256_set_m128i(_mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27), _mm_set1_epi16(81));
    let second_and_last = _mm256_blend_epi32::<0xf0>(second, last);
    let q = [
        digits(first, _mm256_set1_epi16(1)),
        digits(first, _mm256_set1_epi16(3)),
        digits(first, _mm256_set1_epi16(9)),
        digits(first, _mm256_set1_epi16(27)),
        digits(first, _mm256_set1_epi16(81)),
        digits(second, two(1, 3)),
        digits(second, two(9, 27)),
        digits(second_and_last, by_four),
    ];
    Super { q, scale: [_mm256_set1_ps(half(p.add(52))); 2], min: zeros() }
}}
