//! Scalar functions and the few loops over vectors that all ops share.
//!
//! The loops exist once, in plain Rust, and are compiled for each vector width the processor may have. They never fuse a
//! product and a sum, so every width gives the same bits.

use super::super::view::Mat;

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

pub fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh())
}

/// `x * P(X <= x)` of a standard normal `X`.
pub fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `1 / sqrt(mean(x^2) + eps)`, summed in double precision.
pub fn rms_scale(x: &[f32], eps: f32) -> f32 {
    (1.0 / (sum_squares(x) / x.len() as f64 + f64::from(eps)).sqrt()) as f32
}

/// Mean and `1 / sqrt(variance + eps)`, summed in double precision.
pub fn mean_and_scale(x: &[f32], eps: f32) -> (f32, f32) {
    let mean = total(x) / x.len() as f64;
    let variance = spread(x, mean) / x.len() as f64;
    (mean as f32, (1.0 / (variance + f64::from(eps)).sqrt()) as f32)
}

/// Partial sums of a dot product: the order of [`crate::quant::Format::dot_row`].
const LANES: usize = 16;

#[inline(always)]
fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn add_products(lanes: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for lane in 0..LANES {
        lanes[lane] += a[lane] * b[lane];
    }
}

/// Dot products of `a` with several vectors of the same length.
#[inline(always)]
fn dot_group<const N: usize>(a: &[f32], b: [&[f32]; N]) -> [f32; N] {
    let (a_groups, a_rest) = a.as_chunks::<LANES>();
    let b = b.map(|b| b.as_chunks::<LANES>());
    let mut lanes = [[0.0; LANES]; N];
    for (i, a) in a_groups.iter().enumerate() {
        for n in 0..N {
            add_products(&mut lanes[n], a, &b[n].0[i]);
        }
    }
    for n in 0..N {
        for ((lane, a), b) in lanes[n].iter_mut().zip(a_rest).zip(b[n].1) {
            *lane += a * b;
        }
    }
    lanes.map(sum_lanes)
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_group(a, [b])[0]
}

#[inline(always)]
fn dot_rows_body(w: &[f32], x: &Mat<'_, f32>, out: &mut [f32]) {
    const GROUP: usize = 4;
    assert_eq!(w.len(), x.width());
    let whole = x.rows() / GROUP * GROUP;
    for first in (0..whole).step_by(GROUP) {
        let sums = dot_group::<GROUP>(w, std::array::from_fn(|i| x.row(first + i)));
        out[first..first + GROUP].copy_from_slice(&sums);
    }
    for (row, out) in out.iter_mut().enumerate().take(x.rows()).skip(whole) {
        *out = dot_group(w, [x.row(row)])[0];
    }
}

/// `y += a * x`
#[inline(always)]
fn axpy_body(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// Compiles a loop for AVX2 and AVX-512 too and picks the widest that the processor has.
macro_rules! for_each_width {
    ($(#[$doc:meta])* $name:ident = $body:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        $(#[$doc])*
        pub fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx512f")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx512f") {
                    // SAFETY: the processor has the feature.
                    return unsafe { avx512($($arg),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the feature.
                    return unsafe { avx2($($arg),*) };
                }
            }
            $body($($arg),*)
        }
    };
}

for_each_width! {
    /// Dot products of `w` with every row of `x`.
    dot_rows = dot_rows_body(w: &[f32], x: &Mat<'_, f32>, out: &mut [f32])
}
/// `sum term(x)` in double precision.
#[inline(always)]
fn sum_of(x: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for lane in 0..LANES {
            lanes[lane] += term(f64::from(group[lane]));
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += term(f64::from(*x));
    }
    lanes.iter().sum()
}

#[inline(always)]
fn sum_squares_body(x: &[f32]) -> f64 {
    sum_of(x, |x| x * x)
}

#[inline(always)]
fn total_body(x: &[f32]) -> f64 {
    sum_of(x, |x| x)
}

#[inline(always)]
fn spread_body(x: &[f32], mean: f64) -> f64 {
    sum_of(x, |x| (x - mean) * (x - mean))
}

#[inline(always)]
fn scaled_body(x: &[f32], scale: f32, weight: &[f32], out: &mut [f32]) {
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * w;
    }
}

#[inline(always)]
fn add_products_of_body(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out += a * b;
    }
}

for_each_width! {
    /// Sum of squares in double precision.
    sum_squares = sum_squares_body(x: &[f32]) -> f64
}
for_each_width! {
    /// Sum in double precision.
    total = total_body(x: &[f32]) -> f64
}
for_each_width! {
    /// Sum of squared distances from `mean` in double precision.
    spread = spread_body(x: &[f32], mean: f64) -> f64
}
for_each_width! {
    /// `out = x * scale * weight`
    scaled = scaled_body(x: &[f32], scale: f32, weight: &[f32], out: &mut [f32])
}
for_each_width! {
    /// `out += a * b`, element by element.
    add_products_of = add_products_of_body(out: &mut [f32], a: &[f32], b: &[f32])
}
for_each_width! {
    /// `y += a * x`
    axpy = axpy_body(y: &mut [f32], a: f32, x: &[f32])
}

#[cfg(test)]
mod tests {
    use super::super::super::view::Memory;
    use super::*;
    use crate::quant::Format;

    #[test]
    fn dots_have_the_bits_of_dot_row() {
        for len in [1, 15, 16, 33, 256, 300] {
            let value = |i: usize| ((i * 7919) % 1013) as f32 * 0.37 - 150.0;
            let w: Vec<f32> = (0..len).map(value).collect();
            let mut x: Vec<f32> = (0..len * 6).map(|i| value(i + 5)).collect();
            let expected: Vec<f32> = x.chunks(len).map(|x| Format::F32.dot_row(bytemuck::cast_slice(&w), x)).collect();
            let singles: Vec<f32> = x.chunks(len).map(|x| dot(&w, x)).collect();
            assert_eq!(singles, expected);
            let memory = Memory::new(bytemuck::cast_slice_mut(&mut x));
            // SAFETY: nothing writes.
            let mat = unsafe { Mat::new(memory, 0, 6, len, len) };
            let mut sums = [0.0; 6];
            dot_rows(&w, &mat, &mut sums);
            assert_eq!(&sums[..], &expected[..]);
        }
    }

    #[test]
    fn functions_at_known_points() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!(silu(0.0), 0.0);
        assert_eq!(silu(-200.0), -0.0);
        assert_eq!(sigmoid(-200.0), 0.0);
        assert!((gelu_tanh(1.0) - 0.841_192).abs() < 1e-6);
        assert!((gelu_erf(1.0) - 0.841_344_7).abs() < 1e-6);
        assert!((gelu_erf(-2.0) + 0.045_500_3).abs() < 1e-6);
        let (mean, scale) = mean_and_scale(&[1.0, 2.0, 3.0, 6.0], 0.5);
        assert_eq!((mean, scale), (3.0, 0.5));
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-7);
        assert_eq!(softplus(30.0), 30.0);
    }
}
