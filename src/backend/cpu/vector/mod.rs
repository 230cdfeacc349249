//! Float loops of the fast mode that are not in [`super::kernels::floats`]. Each is written once, generic over [`Lanes`], and compiled for every level of vector
//! instructions. Levels may differ in the last bits (fused products), thread counts do not.

mod lanes;

#[cfg(target_arch = "x86_64")]
pub use lanes::{Avx2, Avx512};
pub use lanes::{Group, LANES, Lanes};

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

/// Compiles a body for all levels. Bodies are generic over the kind of [`Lanes`] and inlined into functions that may use the
/// level's instructions.
macro_rules! for_each_level {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident = $body:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        $vis fn $name(level: $crate::backend::cpu::vector::Level, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::backend::cpu::{kernels::Simd, vector};
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body::<vector::Avx2>($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body::<vector::Avx512>($($arg),*)
                }
                match level.simd() {
                    Simd::Scalar => $body::<vector::Group>($($arg),*),
                    // SAFETY: a `Level` is one that the machine has.
                    Simd::Avx2 => unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    Simd::Avx512 => unsafe { avx512($($arg),*) },
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                let _ = level;
                $body::<$crate::backend::cpu::vector::Group>($($arg),*)
            }
        }
    )*};
}
pub(super) use for_each_level;

/// Reads up to 16 floats; zeros fill up.
#[inline(always)]
pub fn load_part<L: Lanes>(from: &[f32]) -> L {
    let mut group = [0.0; LANES];
    group[..from.len()].copy_from_slice(from);
    L::load(&group)
}

/// Replaces each 16 elements of `x` by an expression of them and the elements of `y` beside them. A macro because a closure
/// would be compiled for the instructions that every processor has.
macro_rules! map {
    ($x:ident, $y:ident, |$a:ident, $b:ident| $value:expr) => {
        let len = $x.len().min($y.len());
        let (groups, rest) = $x[..len].as_chunks_mut::<LANES>();
        let (y_groups, y_rest) = $y[..len].as_chunks::<LANES>();
        for (group, y_group) in groups.iter_mut().zip(y_groups) {
            let ($a, $b) = (L::load(group), L::load(y_group));
            $value.store(group);
        }
        if !rest.is_empty() {
            let mut group = [0.0; LANES];
            let ($a, $b): (L, L) = (load_part(rest), load_part(y_rest));
            $value.store(&mut group);
            rest.copy_from_slice(&group[..rest.len()]);
        }
    };
}

/// `e^x` to about 2e-7; 0 below -87, where the result is no normal float. NaN stays NaN.
#[inline(always)]
fn exp<L: Lanes>(x: L) -> L {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Adding it rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    let negate = L::splat(-1.0);
    let limited = x.mul(negate).larger(L::splat(-88.0)).mul(negate).larger(L::splat(-87.0));
    let n = limited.mul_add(L::splat(std::f32::consts::LOG2_E), L::splat(ROUND)).add(L::splat(-ROUND));
    let r = n.mul_add(L::splat(-LN2_LOW), n.mul_add(L::splat(-LN2_HIGH), limited));
    let mut p = L::splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, L::splat(c));
    }
    p.scale_by_power(n).zero_below(x, L::splat(-87.0))
}

#[inline(always)]
fn logistic<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    one.div(one.add(exp(x.mul(L::splat(-1.0)))))
}

#[inline(always)]
fn times_sigmoid_body<L: Lanes>(x: &mut [f32], gate: &[f32]) {
    map!(x, gate, |x, gate| x.mul(logistic(gate)));
}

#[inline(always)]
fn exponentials_body<L: Lanes>(x: &mut [f32], max: f32) -> f32 {
    let minus = L::splat(-max);
    let mut sums = L::splat(0.0);
    let (groups, rest) = x.as_chunks_mut::<LANES>();
    for x in groups {
        let value = exp(L::load(x).add(minus));
        sums = sums.add(value);
        value.store(x);
    }
    let mut sum = sums.sum();
    if !rest.is_empty() {
        let mut group = [0.0; LANES];
        exp(load_part::<L>(rest).add(minus)).store(&mut group);
        rest.copy_from_slice(&group[..rest.len()]);
        sum += rest.iter().sum::<f32>();
    }
    sum
}

#[inline(always)]
fn max_body<L: Lanes>(x: &[f32]) -> f32 {
    let (groups, rest) = x.as_chunks::<LANES>();
    let mut lanes = L::splat(f32::NEG_INFINITY);
    for x in groups {
        lanes = lanes.larger(L::load(x));
    }
    rest.iter().fold(lanes.largest(), |max, x| if *x > max { *x } else { max })
}

for_each_level! {
    /// `x *= sigmoid(gate)`
    pub fn times_sigmoid = times_sigmoid_body(x: &mut [f32], gate: &[f32]);
    /// Replaces `x` by `exp(x - max)` and returns the sum.
    pub fn exponentials = exponentials_body(x: &mut [f32], max: f32) -> f32;
    /// The largest element.
    pub fn max = max_body(x: &[f32]) -> f32;
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
    fn gates_are_close_at_all_levels() {
        let xs: Vec<f32> = (-300..=300).map(|i| i as f32 * 0.1).collect();
        for level in levels() {
            let mut found = vec![3.0; xs.len()];
            times_sigmoid(level, &mut found, &xs);
            for (found, x) in found.iter().zip(&xs) {
                let expected = 3.0 / (1.0 + f64::from(-x).exp());
                assert!((f64::from(*found) - expected).abs() <= 1e-6 * expected, "3 * sigmoid({x}) = {found}");
            }
        }
    }

    #[test]
    fn the_largest_is_found() {
        for level in levels() {
            for len in [1, 7, 16, 40, 257] {
                let a: Vec<f32> = (0..len).map(|i| ((i * 37) % 19) as f32 - 19.0).collect();
                assert_eq!(max(level, &a), a.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            }
        }
    }
}
