//! The operations in plain Rust, on arrays that compilers vectorise.

use super::kernels::float_kernels;
use crate::quant::f16_bits_to_f32;

type V = [f32; LANES];
const LANES: usize = 8;

#[inline]
fn map(x: V, f: impl Fn(f32) -> f32) -> V {
    x.map(f)
}

#[inline]
fn zip(x: V, y: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(x[i], y[i]))
}

#[inline]
fn zero() -> V {
    [0.0; LANES]
}

#[inline]
fn set(x: f32) -> V {
    [x; LANES]
}

#[inline]
fn add_v(x: V, y: V) -> V {
    zip(x, y, |x, y| x + y)
}

#[inline]
fn sub_v(x: V, y: V) -> V {
    zip(x, y, |x, y| x - y)
}

#[inline]
fn mul_v(x: V, y: V) -> V {
    zip(x, y, |x, y| x * y)
}

#[inline]
fn div_v(x: V, y: V) -> V {
    zip(x, y, |x, y| x / y)
}

#[inline]
fn max_v(x: V, y: V) -> V {
    zip(x, y, |x, y| if x > y { x } else { y })
}

/// NaN stays NaN.
#[inline]
fn clamp_v(x: V, low: f32, high: f32) -> V {
    map(x, |x| x.clamp(low, high))
}

/// Not fused: that would be a call of a function on processors without the instruction.
#[inline]
fn fma(x: V, y: V, z: V) -> V {
    std::array::from_fn(|i| x[i] * y[i] + z[i])
}

#[inline]
fn round_v(x: V) -> V {
    // Adding 1.5 * 2^23 leaves no bits for a fraction; magnitudes here are below 2^22.
    const SHIFT: f32 = 12_582_912.0;
    map(x, |x| (x + SHIFT) - SHIFT)
}

/// `2^x` for whole `x` of magnitude at most 126.
#[inline]
fn pow2_v(x: V) -> V {
    map(x, |x| f32::from_bits(((x as i32 + 127) << 23) as u32))
}

#[inline]
fn sum(x: V) -> f32 {
    ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
}

#[inline]
fn max_of(x: V) -> f32 {
    x.into_iter().fold(f32::NEG_INFINITY, |best, x| if x > best { x } else { best })
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
unsafe fn load(p: *const f32) -> V {
    // SAFETY: see above.
    unsafe { p.cast::<V>().read_unaligned() }
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
unsafe fn load_part(p: *const f32, n: usize) -> V {
    let mut x = zero();
    for (i, x) in x.iter_mut().enumerate().take(n) {
        // SAFETY: see above.
        *x = unsafe { p.add(i).read_unaligned() };
    }
    x
}

/// # Safety
/// `LANES` elements at `p` are writable.
#[inline]
unsafe fn store(p: *mut f32, x: V) {
    // SAFETY: see above.
    unsafe { p.cast::<V>().write_unaligned(x) };
}

/// # Safety
/// `n` elements at `p` are writable.
#[inline]
unsafe fn store_part(p: *mut f32, x: V, n: usize) {
    for (i, &x) in x.iter().enumerate().take(n) {
        // SAFETY: see above.
        unsafe { p.add(i).write(x) };
    }
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
unsafe fn load_half(p: *const u16) -> V {
    // SAFETY: see above.
    unsafe { load_half_part(p, LANES) }
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
unsafe fn load_half_part(p: *const u16, n: usize) -> V {
    // SAFETY: see above.
    std::array::from_fn(|i| if i < n { f16_bits_to_f32(unsafe { p.add(i).read_unaligned() }) } else { 0.0 })
}

/// # Safety
/// `LANES` elements at `p` are readable.
#[inline]
unsafe fn load_bfloat(p: *const u16) -> V {
    // SAFETY: see above.
    unsafe { load_bfloat_part(p, LANES) }
}

/// # Safety
/// `n` elements at `p` are readable.
#[inline]
unsafe fn load_bfloat_part(p: *const u16, n: usize) -> V {
    // SAFETY: see above.
    let bits = |i: usize| u32::from(unsafe { p.add(i).read_unaligned() }) << 16;
    std::array::from_fn(|i| if i < n { f32::from_bits(bits(i)) } else { 0.0 })
}

/// # Safety
/// `LANES` elements at `p` are writable.
#[inline]
unsafe fn store_half(p: *mut u16, x: V) {
    // SAFETY: see above.
    unsafe { store_half_part(p, x, LANES) };
}

/// # Safety
/// `n` elements at `p` are writable.
#[inline]
unsafe fn store_half_part(p: *mut u16, x: V, n: usize) {
    for (i, &x) in x.iter().enumerate().take(n) {
        // SAFETY: see above.
        unsafe { p.add(i).write(half::f16::from_f32(x).to_bits()) };
    }
}

float_kernels!();
