//! The operations with AVX2.

use super::kernels::float_kernels;
use std::arch::x86_64::*;

type V = __m256;
const LANES: usize = 8;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn zero() -> V {
    _mm256_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn set(x: f32) -> V {
    _mm256_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_v(x: V, y: V) -> V {
    _mm256_add_ps(x, y)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sub_v(x: V, y: V) -> V {
    _mm256_sub_ps(x, y)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn mul_v(x: V, y: V) -> V {
    _mm256_mul_ps(x, y)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn div_v(x: V, y: V) -> V {
    _mm256_div_ps(x, y)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn max_v(x: V, y: V) -> V {
    _mm256_max_ps(x, y)
}

/// NaN stays NaN: the second operand is returned if one is.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn clamp_v(x: V, low: f32, high: f32) -> V {
    _mm256_min_ps(set(high), _mm256_max_ps(set(low), x))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fma(x: V, y: V, z: V) -> V {
    _mm256_fmadd_ps(x, y, z)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn round_v(x: V) -> V {
    _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
}

/// `2^x` for whole `x` of magnitude at most 126.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pow2_v(x: V) -> V {
    let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum(x: V) -> f32 {
    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn max_of(x: V) -> f32 {
    let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
}

/// The first `n` lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn first(n: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// The first `n` of the elements at `p`, then zeros.
///
/// # Safety
/// `n` elements at `p` are readable, and `n` is at most 8.
#[inline]
unsafe fn padded(p: *const u16, n: usize) -> [u16; 8] {
    let mut x = [0; 8];
    // SAFETY: see above.
    unsafe { std::ptr::copy_nonoverlapping(p.cast::<u8>(), x.as_mut_ptr().cast::<u8>(), 2 * n) };
    x
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load(p: *const f32) -> V {
    // SAFETY: see above.
    unsafe { _mm256_loadu_ps(p) }
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_part(p: *const f32, n: usize) -> V {
    // SAFETY: see above.
    unsafe { _mm256_maskload_ps(p, first(n)) }
}

/// # Safety
/// `LANES` elements at `p` are writable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(p: *mut f32, x: V) {
    // SAFETY: see above.
    unsafe { _mm256_storeu_ps(p, x) };
}

/// # Safety
/// `n` elements at `p` are writable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_part(p: *mut f32, x: V, n: usize) {
    // SAFETY: see above.
    unsafe { _mm256_maskstore_ps(p, first(n), x) };
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_half(p: *const u16) -> V {
    // SAFETY: see above.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_half_part(p: *const u16, n: usize) -> V {
    // SAFETY: see above.
    unsafe { load_half(padded(p, n).as_ptr()) }
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_bfloat(p: *const u16) -> V {
    // SAFETY: see above.
    let bits = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_bfloat_part(p: *const u16, n: usize) -> V {
    // SAFETY: see above.
    unsafe { load_bfloat(padded(p, n).as_ptr()) }
}

/// # Safety
/// `LANES` elements at `p` are writable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_half(p: *mut u16, x: V) {
    // SAFETY: see above.
    unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) };
}

/// # Safety
/// `n` elements at `p` are writable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_half_part(p: *mut u16, x: V, n: usize) {
    let mut all = [0u16; LANES];
    // SAFETY: see above.
    unsafe {
        store_half(all.as_mut_ptr(), x);
        std::ptr::copy_nonoverlapping(all.as_ptr(), p, n);
    }
}

float_kernels!(#[target_feature(enable = "avx2,fma,f16c")]);
