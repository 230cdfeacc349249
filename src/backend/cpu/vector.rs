//! Float loops of the fast mode. Each is written once in plain Rust and compiled for every level of vector instructions; the
//! compiler vectorises it. Levels may differ in the last bits (fused products), thread counts do not.

use super::kernels::Simd;

/// A level that the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(Simd);

impl Level {
    /// The wanted level or the best that the machine has.
    pub fn new(wanted: Option<Simd>) -> Level {
        let best = Simd::detect();
        Level(wanted.map_or(best, |wanted| wanted.min(best)))
    }

    pub fn simd(self) -> Simd {
        self.0
    }
}

/// Compiles a body for all levels. Bodies are generic over whether products and sums may be fused: without the instruction that
/// would be a slow call.
macro_rules! for_each_level {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident = $body:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        $vis fn $name(level: $crate::backend::cpu::vector::Level, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                match level.simd() {
                    $crate::backend::cpu::kernels::Simd::Scalar => $body::<false>($($arg),*),
                    // SAFETY: a `Level` is one that the machine has.
                    $crate::backend::cpu::kernels::Simd::Avx2 => unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    $crate::backend::cpu::kernels::Simd::Avx512 => unsafe { avx512($($arg),*) },
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                let _ = level;
                $body::<false>($($arg),*)
            }
        }
    )*};
}
pub(super) use for_each_level;

/// `a * b + c`
#[inline(always)]
pub fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` to about 2e-7; 0 below -87, where the result is no normal float. NaN stays NaN.
#[inline(always)]
pub fn exp<const FUSED: bool>(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Adding it rounds to a whole number, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > 88.0 { 88.0 } else { x };
    let low = x < -87.0;
    let x = if low { -87.0 } else { x };
    let shifted = multiply_add::<FUSED>(x, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<FUSED>(n, -LN2_LOW, multiply_add::<FUSED>(n, -LN2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = multiply_add::<FUSED>(p, r, c);
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if low { 0.0 } else { p * f32::from_bits(exponent) }
}

#[inline(always)]
fn logistic<const FUSED: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FUSED>(-x))
}

#[inline(always)]
fn silu_body<const FUSED: bool>(x: &mut [f32], scale: f32) {
    for x in x {
        let scaled = *x * scale;
        *x = scaled * logistic::<FUSED>(scaled);
    }
}

#[inline(always)]
fn sigmoid_body<const FUSED: bool>(x: &mut [f32], scale: f32, factor: f32) {
    for x in x {
        *x = factor * logistic::<FUSED>(*x * scale);
    }
}

#[inline(always)]
fn times_sigmoid_body<const FUSED: bool>(x: &mut [f32], gate: &[f32]) {
    for (x, gate) in x.iter_mut().zip(gate) {
        *x *= logistic::<FUSED>(*gate);
    }
}

#[inline(always)]
fn silu_times_body<const FUSED: bool>(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate *= logistic::<FUSED>(*gate) * up;
    }
}

/// `tanh(u) = 1 - 2 / (e^(2u) + 1)`
#[inline(always)]
fn gelu_times_body<const FUSED: bool>(gate: &mut [f32], up: &[f32]) {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769_1;
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let u = TWICE_SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x);
        *gate = x * logistic::<FUSED>(u) * up;
    }
}

/// Replaces `x` by `exp(x - max)` and returns the sum.
#[inline(always)]
fn exponentials_body<const FUSED: bool>(x: &mut [f32], max: f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (groups, rest) = x.as_chunks_mut::<LANES>();
    for group in groups {
        for lane in 0..LANES {
            group[lane] = exp::<FUSED>(group[lane] - max);
            sums[lane] += group[lane];
        }
    }
    for (x, sum) in rest.iter_mut().zip(&mut sums) {
        *x = exp::<FUSED>(*x - max);
        *sum += *x;
    }
    sum_lanes(sums)
}

#[inline(always)]
fn max_body<const FUSED: bool>(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], group[lane]);
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |max, x| larger(max, *x))
}

/// Partial sums of the reductions.
pub const LANES: usize = 16;

#[inline(always)]
pub fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
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
pub fn dot_inline<const FUSED: bool, const N: usize>(a: &[f32], b: [&[f32]; N]) -> [f32; N] {
    let (a_groups, a_rest) = a.as_chunks::<LANES>();
    let b = b.map(|b| b.as_chunks::<LANES>());
    let mut lanes = [[0.0; LANES]; N];
    for (i, a) in a_groups.iter().enumerate() {
        for n in 0..N {
            let b = &b[n].0[i];
            for lane in 0..LANES {
                lanes[n][lane] = multiply_add::<FUSED>(a[lane], b[lane], lanes[n][lane]);
            }
        }
    }
    for n in 0..N {
        for ((lane, a), b) in lanes[n].iter_mut().zip(a_rest).zip(b[n].1) {
            *lane = multiply_add::<FUSED>(*a, *b, *lane);
        }
    }
    lanes.map(sum_lanes)
}

#[inline(always)]
fn dot_body<const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
    dot_inline::<FUSED, 1>(a, [b])[0]
}

#[inline(always)]
fn dot4_body<const FUSED: bool>(a: &[f32], b: [&[f32]; 4]) -> [f32; 4] {
    dot_inline::<FUSED, 4>(a, b)
}

#[inline(always)]
fn axpy_body<const FUSED: bool>(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = multiply_add::<FUSED>(a, *x, *y);
    }
}

for_each_level! {
    /// `x = silu(x * scale)`
    pub fn silu = silu_body(x: &mut [f32], scale: f32);
    /// `x = factor * sigmoid(x * scale)`
    pub fn sigmoid = sigmoid_body(x: &mut [f32], scale: f32, factor: f32);
    /// `x *= sigmoid(gate)`
    pub fn times_sigmoid = times_sigmoid_body(x: &mut [f32], gate: &[f32]);
    /// `gate = silu(gate) * up`
    pub fn silu_times = silu_times_body(gate: &mut [f32], up: &[f32]);
    /// `gate = gelu(gate) * up`, the tanh form
    pub fn gelu_times = gelu_times_body(gate: &mut [f32], up: &[f32]);
    /// Replaces `x` by `exp(x - max)` and returns the sum.
    pub fn exponentials = exponentials_body(x: &mut [f32], max: f32) -> f32;
    /// The largest element.
    pub fn max = max_body(x: &[f32]) -> f32;
    pub fn dot = dot_body(a: &[f32], b: &[f32]) -> f32;
    /// Dot products of `a` with four vectors.
    pub fn dot4 = dot4_body(a: &[f32], b: [&[f32]; 4]) -> [f32; 4];
    /// `y += a * x`
    pub fn axpy = axpy_body(y: &mut [f32], a: f32, x: &[f32]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels() -> Vec<Level> {
        Simd::available().iter().map(|simd| Level::new(Some(*simd))).collect()
    }

    #[test]
    fn exponentials_are_close_at_all_levels() {
        let xs: Vec<f32> = (-1740..=1759).map(|i| i as f32 * 0.05).collect();
        for level in levels() {
            let mut values = xs.clone();
            exponentials(level, &mut values, 0.0);
            for (x, value) in xs.iter().zip(&values) {
                let expected = f64::from(*x).exp();
                assert!((f64::from(*value) - expected).abs() <= expected * 3e-7, "exp({x}) = {value}, not {expected}");
            }
            let mut special = [f32::NEG_INFINITY, -1e30, -88.0, f32::NAN, 0.0];
            exponentials(level, &mut special, 0.0);
            assert_eq!(special[..3], [0.0; 3]);
            assert!(special[3].is_nan());
            assert_eq!(special[4], 1.0);
        }
    }

    #[test]
    fn activations_are_close_at_all_levels() {
        let xs: Vec<f32> = (-300..=300).map(|i| i as f32 * 0.1).collect();
        let up: Vec<f32> = xs.iter().map(|x| 1.0 + x * 0.01).collect();
        let close = |found: f32, expected: f64| (f64::from(found) - expected).abs() <= 1e-6 * (1.0 + expected.abs());
        for level in levels() {
            let [mut a, mut b, mut c, mut d] = [0; 4].map(|_| xs.clone());
            silu(level, &mut a, 0.5);
            sigmoid(level, &mut b, 0.5, 2.0);
            silu_times(level, &mut c, &up);
            gelu_times(level, &mut d, &up);
            for (i, x) in xs.iter().map(|x| f64::from(*x)).enumerate() {
                let s = |x: f64| 1.0 / (1.0 + (-x).exp());
                let gelu = 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
                assert!(close(a[i], 0.5 * x * s(0.5 * x)));
                assert!(close(b[i], 2.0 * s(0.5 * x)));
                assert!(close(c[i], x * s(x) * f64::from(up[i])));
                assert!(close(d[i], gelu * f64::from(up[i])), "gelu {x}: {} {}", d[i], gelu * f64::from(up[i]));
            }
        }
    }

    #[test]
    fn reductions() {
        for level in levels() {
            for len in [1, 7, 16, 40, 257] {
                let a: Vec<f32> = (0..len).map(|i| ((i * 37) % 19) as f32 - 9.0).collect();
                let b: Vec<f32> = (0..len).map(|i| ((i * 11) % 7) as f32).collect();
                let expected: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
                assert_eq!(dot(level, &a, &b), expected);
                assert_eq!(max(level, &a), a.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                let mut y = b.clone();
                axpy(level, &mut y, 2.0, &a);
                assert!(y.iter().zip(a.iter().zip(&b)).all(|(y, (a, b))| *y == 2.0 * a + b));
            }
        }
    }
}
