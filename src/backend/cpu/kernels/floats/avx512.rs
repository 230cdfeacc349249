//! The operations with AVX-512.

use super::kernels::float_kernels;
use std::arch::x86_64::*;

type V = __m512;
const LANES: usize = 16;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn zero() -> V {
    _mm512_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn set(x: f32) -> V {
    _mm512_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn add_v(x: V, y: V) -> V {
    _mm512_add_ps(x, y)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn sub_v(x: V, y: V) -> V {
    _mm512_sub_ps(x, y)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn mul_v(x: V, y: V) -> V {
    _mm512_mul_ps(x, y)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn div_v(x: V, y: V) -> V {
    _mm512_div_ps(x, y)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn max_v(x: V, y: V) -> V {
    _mm512_max_ps(x, y)
}

/// NaN stays NaN: the second operand is returned if one is.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn clamp_v(x: V, low: f32, high: f32) -> V {
    _mm512_min_ps(set(high), _mm512_max_ps(set(low), x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn fma(x: V, y: V, z: V) -> V {
    _mm512_fmadd_ps(x, y, z)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn round_v(x: V) -> V {
    _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
}

/// `2^x` for whole `x` of magnitude at most 126.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn pow2_v(x: V) -> V {
    let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(127));
    _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn sum(x: V) -> f32 {
    _mm512_reduce_add_ps(x)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
fn max_of(x: V) -> f32 {
    _mm512_reduce_max_ps(x)
}

/// The first `n` lanes.
#[inline]
fn first(n: usize) -> __mmask16 {
    (1u32 << n) as u16 - 1
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn load(p: *const f32) -> V {
    // SAFETY: see above.
    unsafe { _mm512_loadu_ps(p) }
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn load_part(p: *const f32, n: usize) -> V {
    // SAFETY: see above.
    unsafe { _mm512_maskz_loadu_ps(first(n), p) }
}

/// # Safety
/// `LANES` elements at `p` are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn store(p: *mut f32, x: V) {
    // SAFETY: see above.
    unsafe { _mm512_storeu_ps(p, x) };
}

/// # Safety
/// `n` elements at `p` are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn store_part(p: *mut f32, x: V, n: usize) {
    // SAFETY: see above.
    unsafe { _mm512_mask_storeu_ps(p, first(n), x) };
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn load_half(p: *const u16) -> V {
    // SAFETY: see above.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn load_half_part(p: *const u16, n: usize) -> V {
    // SAFETY: see above.
    unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p.cast())) }
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn load_bfloat(p: *const u16) -> V {
    // SAFETY: see above.
    let bits = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn load_bfloat_part(p: *const u16, n: usize) -> V {
    // SAFETY: see above.
    let bits = unsafe { _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p.cast())) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
}

/// # Safety
/// `LANES` elements at `p` are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn store_half(p: *mut u16, x: V) {
    // SAFETY: see above.
    unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) };
}

/// # Safety
/// `n` elements at `p` are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn store_half_part(p: *mut u16, x: V, n: usize) {
    // SAFETY: see above.
    unsafe { _mm256_mask_storeu_epi16(p.cast(), first(n), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) };
}

float_kernels!(#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]);
