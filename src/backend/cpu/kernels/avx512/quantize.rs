//! Activations to whole numbers.

use super::super::activations::{ActBlock, FINE_BITS, Rounding, inverse_scale};
use super::super::layout::SUPER;
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// The same bytes as the scalar version.
///
/// # Safety
/// The machine has the features of the level.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(in super::super) unsafe fn quantize_block(x: &[f32; SUPER], rounding: Rounding, out: &mut ActBlock) {
    // SAFETY: all pointers stay inside `x` (16 vectors of 16) and the arrays of `out`, which is aligned to 64.
    unsafe {
        let steps = rounding.steps();
        let (most, least) = (_mm512_set1_epi32(steps as i32), _mm512_set1_epi32(-(steps as i32)));
        let mut scales = [0.0f32; 8];
        let mut values = [_mm512_setzero_si512(); 16];
        for g in 0..8 {
            let a = _mm512_loadu_ps(x.as_ptr().add(32 * g));
            let b = _mm512_loadu_ps(x.as_ptr().add(32 * g + 16));
            let max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
            scales[g] = max / steps;
            let inverse = _mm512_set1_ps(inverse_scale(steps, max));
            for (half, x) in [a, b].into_iter().enumerate() {
                let value = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
                // The rounding of the inverse may give a step too many.
                values[2 * g + half] = _mm512_max_epi32(_mm512_min_epi32(value, most), least);
            }
        }
        let mut coarse = values;
        if rounding.is_fine() {
            let half = _mm512_set1_epi32(1 << (FINE_BITS - 1));
            for value in &mut coarse {
                *value = _mm512_srai_epi32::<FINE_BITS>(_mm512_add_epi32(*value, half));
            }
        }
        let q = pack(&coarse);
        let ones = _mm512_set1_epi8(1);
        let mut sums = _mm512_setzero_si512();
        for (j, &q) in q.iter().enumerate() {
            _mm512_store_si512(out.q.as_mut_ptr().add(64 * j).cast(), q);
            sums = _mm512_dpbusd_epi32(sums, ones, q);
        }
        if rounding.is_fine() {
            for (value, coarse) in values.iter_mut().zip(coarse) {
                *value = _mm512_sub_epi32(*value, _mm512_slli_epi32::<FINE_BITS>(coarse));
            }
            sums = _mm512_slli_epi32::<FINE_BITS>(sums);
            for (j, &q) in pack(&values).iter().enumerate() {
                _mm512_store_si512(out.fine.as_mut_ptr().add(64 * j).cast(), q);
                sums = _mm512_dpbusd_epi32(sums, ones, q);
            }
        }
        let low = _mm512_broadcast_f32x4(_mm_loadu_ps(scales.as_ptr()));
        let high = _mm512_broadcast_f32x4(_mm_loadu_ps(scales.as_ptr().add(4)));
        let scale = _mm512_mask_mov_ps(low, 0xff00, high);
        _mm512_store_ps(out.scale.as_mut_ptr(), scale);
        _mm512_store_si512(out.neg_sum.as_mut_ptr().cast(), _mm512_sub_epi32(_mm512_setzero_si512(), sums));
        _mm512_store_ps(out.scaled_sum.as_mut_ptr(), _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sums)));
    }
}

/// 256 small numbers to bytes in the order of the layout.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn pack(values: &[__m512i; 16]) -> [__m512i; 4] {
    let bytes: [__m256i; 8] =
        each!(8, |g| _mm256_set_m128i(_mm512_cvtepi32_epi8(values[2 * g + 1]), _mm512_cvtepi32_epi8(values[2 * g])));
    let natural: [__m512i; 4] = each!(4, |n| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bytes[n]), bytes[n + 4]));
    super::blocks::transpose(natural)
}
