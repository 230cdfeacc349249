//! Activations to 8 bits.

use super::super::activations::{ActBlock, inverse_scale};
use super::super::layout::SUPER;
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// The same bytes as the scalar version.
///
/// # Safety
/// The machine has the features of the level.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(in super::super) unsafe fn quantize_block(x: &[f32; SUPER], out: &mut ActBlock) {
    // SAFETY: all pointers stay inside `x` (16 vectors of 16) and the arrays of `out`, which is aligned to 64.
    unsafe {
        let mut scales = [0.0f32; 8];
        let mut bytes = [_mm256_setzero_si256(); 8];
        for g in 0..8 {
            let a = _mm512_loadu_ps(x.as_ptr().add(32 * g));
            let b = _mm512_loadu_ps(x.as_ptr().add(32 * g + 16));
            let max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
            scales[g] = max / 127.0;
            let inverse = _mm512_set1_ps(inverse_scale(max));
            let a = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)));
            let b = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(b, inverse)));
            // The rounding of 1 / max may give 128 where the scalar version clamps.
            bytes[g] = _mm256_max_epi8(_mm256_set_m128i(b, a), _mm256_set1_epi8(-127));
        }
        let natural: [__m512i; 4] = each!(4, |n| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bytes[n]), bytes[n + 4]));
        let q = super::blocks::transpose(natural);
        let ones = _mm512_set1_epi8(1);
        let mut sums = _mm512_setzero_si512();
        for (j, &q) in q.iter().enumerate() {
            _mm512_store_si512(out.q.as_mut_ptr().add(64 * j).cast(), q);
            sums = _mm512_dpbusd_epi32(sums, ones, q);
        }
        let low = _mm512_broadcast_f32x4(_mm_loadu_ps(scales.as_ptr()));
        let high = _mm512_broadcast_f32x4(_mm_loadu_ps(scales.as_ptr().add(4)));
        let scale = _mm512_mask_mov_ps(low, 0xff00, high);
        _mm512_store_ps(out.scale.as_mut_ptr(), scale);
        _mm512_store_si512(out.neg_sum.as_mut_ptr().cast(), _mm512_sub_epi32(_mm512_setzero_si512(), sums));
        _mm512_store_ps(out.scaled_sum.as_mut_ptr(), _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sums)));
    }
}
