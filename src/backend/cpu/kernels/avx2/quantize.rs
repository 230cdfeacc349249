//! Activations to 8 bits.

use super::super::activations::{ActBlock, inverse_scale};
use super::super::layout::SUPER;
use super::blocks::{spread, transpose};
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// The same bytes as the scalar version.
///
/// # Safety
/// The machine has the features of the level.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn quantize_block(x: &[f32; SUPER], out: &mut ActBlock) {
    // SAFETY: all pointers stay inside `x` and the arrays of `out`, which is aligned to 64.
    unsafe {
        let mut scales = [0.0f32; 8];
        let natural: [__m256i; 8] = each!(8, |g| {
            let x: [__m256; 4] = each!(4, |i| _mm256_loadu_ps(x.as_ptr().add(32 * g + 8 * i)));
            let abs = each!(4 of x, |x| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x));
            let max = _mm256_max_ps(_mm256_max_ps(abs[0], abs[1]), _mm256_max_ps(abs[2], abs[3]));
            let max = horizontal_max(max);
            scales[g] = max / 127.0;
            let inverse = _mm256_set1_ps(inverse_scale(max));
            let q = each!(4 of x, |x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)));
            // Packing works within 128 bits; the permutation puts the dwords in order again.
            let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
            let bytes = _mm256_packs_epi16(words[0], words[1]);
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_max_epi8(bytes, _mm256_set1_epi8(-127))
        });
        let q = transpose(natural);
        let scale = spread(_mm256_loadu_ps(scales.as_ptr()));
        let ones = _mm256_set1_epi8(1);
        for half in 0..2 {
            let mut sums = _mm256_setzero_si256();
            for (j, &q) in q[half].iter().enumerate() {
                _mm256_store_si256(out.q.as_mut_ptr().add(64 * j + 32 * half).cast(), q);
                let pairs = _mm256_maddubs_epi16(ones, q);
                sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
            _mm256_store_ps(out.scale.as_mut_ptr().add(8 * half), scale[half]);
            let neg_sums = _mm256_sub_epi32(_mm256_setzero_si256(), sums);
            _mm256_store_si256(out.neg_sum.as_mut_ptr().add(8 * half).cast(), neg_sums);
            let scaled = _mm256_mul_ps(scale[half], _mm256_cvtepi32_ps(sums));
            _mm256_store_ps(out.scaled_sum.as_mut_ptr().add(8 * half), scaled);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn horizontal_max(x: __m256) -> f32 {
    let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
}
