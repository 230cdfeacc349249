//! Vectors of floats: what attention, norms and gates are made of, and products with float weights.
//!
//! Each function is written once, in `kernels.rs`, over the few operations of a level (`scalar.rs`, `avx2.rs`,
//! `avx512.rs`), and chosen here by [`Simd`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernels;
mod product;
mod scalar;

pub use product::product_f32;

use super::simd::Simd;
use half::f16;

/// Defines `pub fn name(simd, args)`, which checks its slices and calls the function of the same name of a level.
macro_rules! dispatch {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? { $check:expr })*) => {$(
        $(#[$doc])*
        pub fn $name(simd: Simd, $($arg: $type),*) $(-> $result)? {
            assert!($check, concat!(stringify!($name), ": slices of different lengths"));
            match simd.clamp_to_machine() {
                // SAFETY: the machine has the level, and lengths are checked.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx512 => unsafe { avx512::$name($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => unsafe { avx2::$name($($arg),*) },
                // SAFETY: as above; this level needs nothing.
                _ => unsafe { scalar::$name($($arg),*) },
            }
        }
    )*};
}

dispatch! {
    /// Sum of products.
    fn dot(a: &[f32], b: &[f32]) -> f32 { a.len() == b.len() }
    /// Sum of products with a row of half precision numbers.
    fn dot_f16(a: &[f16], b: &[f32]) -> f32 { a.len() == b.len() }
    /// `out += scale * x`.
    fn axpy(scale: f32, x: &[f32], out: &mut [f32]) { x.len() == out.len() }
    /// `out += scale * x` for a row of half precision numbers.
    fn axpy_f16(scale: f32, x: &[f16], out: &mut [f32]) { x.len() == out.len() }
    /// `x *= scale`.
    fn scale(x: &mut [f32], scale: f32) { true }
    /// `out += x`.
    fn add(out: &mut [f32], x: &[f32]) { x.len() == out.len() }
    /// `out *= x`.
    fn mul(out: &mut [f32], x: &[f32]) { x.len() == out.len() }
    /// `out = x * weight * scale`: the second half of an RMS norm.
    fn scale_mul(x: &[f32], weight: &[f32], scale: f32, out: &mut [f32]) {
        x.len() == weight.len() && x.len() == out.len()
    }
    /// Sum of squares.
    fn sum_squares(x: &[f32]) -> f32 { true }
    /// The largest value; minus infinity if there is none.
    fn max(x: &[f32]) -> f32 { true }
    /// `x = exp(x)`, within 2 units in the last place.
    fn exp(x: &mut [f32]) { true }
    /// `x = 1 / (1 + exp(-x))`.
    fn sigmoid(x: &mut [f32]) { true }
    /// `x = x * sigmoid(x)`.
    fn silu(x: &mut [f32]) { true }
    /// `x = gelu(x)`, with the tanh approximation of gelu.
    fn gelu(x: &mut [f32]) { true }
    /// `gate = silu(gate) * up`.
    fn silu_mul(gate: &mut [f32], up: &[f32]) { gate.len() == up.len() }
    /// `gate = gelu(gate) * up`, with the tanh approximation of gelu.
    fn gelu_mul(gate: &mut [f32], up: &[f32]) { gate.len() == up.len() }
    /// `x = exp(x - max) / sum`. If all values are minus infinity they become 0.
    fn softmax(x: &mut [f32]) { true }
    /// Half to single precision.
    fn from_f16(x: &[f16], out: &mut [f32]) { x.len() == out.len() }
    /// Single to half precision, to the nearest, ties to even.
    fn to_f16(x: &[f32], out: &mut [f16]) { x.len() == out.len() }
}

#[cfg(test)]
mod tests;
