//! Activations to whole numbers.

use super::super::activations::{ActBlock, FINE_BITS, Rounding, inverse_scale};
use super::super::layout::SUPER;
use super::blocks::{spread, transpose};
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// The same bytes as the scalar version.
///
/// # Safety
/// The machine has the features of the level.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn quantize_block(x: &[f32; SUPER], rounding: Rounding, out: &mut ActBlock) {
    // SAFETY: all pointers stay inside `x` and the arrays of `out`, which is aligned to 64.
    unsafe {
        let steps = rounding.steps();
        let (most, least) = (_mm256_set1_epi32(steps as i32), _mm256_set1_epi32(-(steps as i32)));
        let mut scales = [0.0f32; 8];
        let mut values = [[_mm256_setzero_si256(); 4]; 8];
        for (g, values) in values.iter_mut().enumerate() {
            let x: [__m256; 4] = each!(4, |i| _mm256_loadu_ps(x.as_ptr().add(32 * g + 8 * i)));
            let abs = each!(4 of x, |x| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x));
            let max = _mm256_max_ps(_mm256_max_ps(abs[0], abs[1]), _mm256_max_ps(abs[2], abs[3]));
            let max = horizontal_max(max);
            scales[g] = max / steps;
            let inverse = _mm256_set1_ps(inverse_scale(steps, max));
            // The rounding of the inverse may give a step too many.
            *values =
                each!(4 of x, |x| _mm256_max_epi32(_mm256_min_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)), most), least));
        }
        let mut coarse = values;
        if rounding.is_fine() {
            let half = _mm256_set1_epi32(1 << (FINE_BITS - 1));
            for value in coarse.as_flattened_mut() {
                *value = _mm256_srai_epi32::<{ FINE_BITS as i32 }>(_mm256_add_epi32(*value, half));
            }
        }
        let mut sums = store(&coarse, out.q.as_mut_ptr());
        if rounding.is_fine() {
            for (value, coarse) in values.as_flattened_mut().iter_mut().zip(coarse.as_flattened()) {
                *value = _mm256_sub_epi32(*value, _mm256_slli_epi32::<{ FINE_BITS as i32 }>(*coarse));
            }
            let fine = store(&values, out.fine.as_mut_ptr());
            for (sum, fine) in sums.iter_mut().zip(fine) {
                *sum = _mm256_add_epi32(_mm256_slli_epi32::<{ FINE_BITS as i32 }>(*sum), fine);
            }
        }
        let scale = spread(_mm256_loadu_ps(scales.as_ptr()));
        for half in 0..2 {
            _mm256_store_ps(out.scale.as_mut_ptr().add(8 * half), scale[half]);
            let neg_sums = _mm256_sub_epi32(_mm256_setzero_si256(), sums[half]);
            _mm256_store_si256(out.neg_sum.as_mut_ptr().add(8 * half).cast(), neg_sums);
            let scaled = _mm256_mul_ps(scale[half], _mm256_cvtepi32_ps(sums[half]));
            _mm256_store_ps(out.scaled_sum.as_mut_ptr().add(8 * half), scaled);
        }
    }
}

/// Stores 256 small numbers as bytes in the order of the layout; gives the sums of the lanes.
///
/// # Safety
/// `out` has room for 256 bytes and is aligned to 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(values: &[[__m256i; 4]; 8], out: *mut i8) -> [__m256i; 2] {
    let natural: [__m256i; 8] = each!(8, |g| {
        let q = values[g];
        // Packing works within 128 bits; the permutation puts the dwords in order again.
        let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
        let bytes = _mm256_packs_epi16(words[0], words[1]);
        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    });
    let q = transpose(natural);
    let ones = _mm256_set1_epi8(1);
    let mut sums = [_mm256_setzero_si256(); 2];
    for (half, sums) in sums.iter_mut().enumerate() {
        for (j, &q) in q[half].iter().enumerate() {
            // SAFETY: inside the 256 bytes.
            unsafe { _mm256_store_si256(out.add(64 * j + 32 * half).cast(), q) };
            let pairs = _mm256_maddubs_epi16(ones, q);
            *sums = _mm256_add_epi32(*sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx2")]
fn horizontal_max(x: __m256) -> f32 {
    let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
}
