//! Sixteen floats, held the way each level of vector instructions likes them.
//!
//! **Contract**: the x86 kinds use instructions without asking whether the processor has them. They are used in functions
//! that `for_each_level` compiles for their level, and those run only for a [`super::Level`] that the machine has.

/// Floats of one [`Lanes`].
pub const LANES: usize = 16;

pub type Group = [f32; LANES];

/// Sixteen floats; all operations work on each.
pub trait Lanes: Copy {
    fn splat(value: f32) -> Self;
    fn load(from: &Group) -> Self;
    fn store(self, to: &mut Group);
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The larger; `self` where either is NaN.
    fn larger(self, other: Self) -> Self;
    /// `self * 2^n` where `n` is a whole number from -126 to 127.
    fn scale_by_power(self, n: Self) -> Self;
    /// Zero where `self < limit` in `of`, else `self`.
    fn zero_below(self, of: Self, limit: Self) -> Self;
    /// Adds the halves, then the halves of that, and so on.
    fn sum(self) -> f32;
    /// The sums of eight, with the bits of `sum`.
    fn sums(eight: [Self; 8]) -> [f32; 8];
    fn largest(self) -> f32;
}

impl Lanes for Group {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    fn load(from: &Group) -> Self {
        *from
    }

    #[inline(always)]
    fn store(self, to: &mut Group) {
        *to = self;
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] + other[i])
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] * other[i])
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] / other[i])
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        std::array::from_fn(|i| self[i] * factor[i] + addend[i])
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        std::array::from_fn(|i| if other[i] > self[i] { other[i] } else { self[i] })
    }

    #[inline(always)]
    fn scale_by_power(self, n: Self) -> Self {
        std::array::from_fn(|i| self[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn zero_below(self, of: Self, limit: Self) -> Self {
        std::array::from_fn(|i| if of[i] < limit[i] { 0.0 } else { self[i] })
    }

    #[inline(always)]
    fn sum(mut self) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                self[i] += self[i + half];
            }
            half /= 2;
        }
        self[0]
    }

    #[inline(always)]
    fn sums(eight: [Self; 8]) -> [f32; 8] {
        eight.map(Lanes::sum)
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self.iter().fold(f32::NEG_INFINITY, |max, x| if *x > max { *x } else { max })
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Group, Lanes};

    /// AVX2 with FMA.
    #[derive(Clone, Copy)]
    pub struct Avx2(__m256, __m256);

    /// AVX-512 F and DQ.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    /// Does an operation on both halves (no closure, see `map!`). SAFETY of all: the machine has the level (contract of the module).
    macro_rules! both {
        ($a:ident, $b:ident, |$x:ident, $y:ident| $op:expr) => {{
            let low = {
                let ($x, $y) = ($a.0, $b.0);
                unsafe { $op }
            };
            let high = {
                let ($x, $y) = ($a.1, $b.1);
                unsafe { $op }
            };
            Avx2(low, high)
        }};
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: contract of the module.
            let half = unsafe { _mm256_set1_ps(value) };
            Avx2(half, half)
        }

        #[inline(always)]
        fn load(from: &Group) -> Self {
            // SAFETY: contract of the module; the group has 16 floats.
            unsafe { Avx2(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))) }
        }

        #[inline(always)]
        fn store(self, to: &mut Group) {
            // SAFETY: contract of the module; the group has 16 floats.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), self.0);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), self.1);
            }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            both!(self, other, |a, b| _mm256_add_ps(a, b))
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            both!(self, other, |a, b| _mm256_mul_ps(a, b))
        }

        #[inline(always)]
        fn div(self, other: Self) -> Self {
            both!(self, other, |a, b| _mm256_div_ps(a, b))
        }

        #[inline(always)]
        fn mul_add(self, factor: Self, addend: Self) -> Self {
            // SAFETY: contract of the module.
            unsafe { Avx2(_mm256_fmadd_ps(self.0, factor.0, addend.0), _mm256_fmadd_ps(self.1, factor.1, addend.1)) }
        }

        #[inline(always)]
        fn larger(self, other: Self) -> Self {
            // The instruction gives its second operand where either is NaN.
            both!(self, other, |a, b| _mm256_max_ps(b, a))
        }

        #[inline(always)]
        fn scale_by_power(self, n: Self) -> Self {
            both!(self, n, |a, n| {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
            })
        }

        #[inline(always)]
        fn zero_below(self, of: Self, limit: Self) -> Self {
            let low = both!(of, limit, |a, b| _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
            both!(low, self, |low, a| _mm256_andnot_ps(low, a))
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: contract of the module.
            unsafe {
                let eight = _mm256_add_ps(self.0, self.1);
                let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
            }
        }

        #[inline(always)]
        fn sums(eight: [Self; 8]) -> [f32; 8] {
            // SAFETY: contract of the module.
            unsafe {
                // Two vectors at a time to one that holds four numbers of each ...
                let mut fours = [_mm256_setzero_ps(); 4];
                for i in 0..4 {
                    let [a, b] = [eight[2 * i], eight[2 * i + 1]];
                    let (a, b) = (_mm256_add_ps(a.0, a.1), _mm256_add_ps(b.0, b.1));
                    fours[i] = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
                }
                // ... two of these to one with two of each, and so on.
                let mut twos = [_mm256_setzero_ps(); 2];
                for i in 0..2 {
                    let (a, b) = (fours[2 * i], fours[2 * i + 1]);
                    twos[i] = _mm256_add_ps(_mm256_shuffle_ps::<0b01_00_01_00>(a, b), _mm256_shuffle_ps::<0b11_10_11_10>(a, b));
                }
                let (a, b) = (twos[0], twos[1]);
                let ones = _mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b));
                let mut even_odd = [0.0; 8];
                _mm256_storeu_ps(even_odd.as_mut_ptr(), ones);
                let [a, c, e, g, b, d, f, h] = even_odd;
                [a, b, c, d, e, f, g, h]
            }
        }

        #[inline(always)]
        fn largest(self) -> f32 {
            let mut values = [0.0; 16];
            self.store(&mut values);
            values.largest()
        }
    }

    impl Lanes for Avx512 {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: contract of the module.
            Avx512(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        fn load(from: &Group) -> Self {
            // SAFETY: contract of the module; the group has 16 floats.
            Avx512(unsafe { _mm512_loadu_ps(from.as_ptr()) })
        }

        #[inline(always)]
        fn store(self, to: &mut Group) {
            // SAFETY: contract of the module; the group has 16 floats.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: contract of the module.
            Avx512(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: contract of the module.
            Avx512(unsafe { _mm512_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: contract of the module.
            Avx512(unsafe { _mm512_div_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul_add(self, factor: Self, addend: Self) -> Self {
            // SAFETY: contract of the module.
            Avx512(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
        }

        #[inline(always)]
        fn larger(self, other: Self) -> Self {
            // SAFETY: contract of the module. The instruction gives its second operand where either is NaN.
            Avx512(unsafe { _mm512_max_ps(other.0, self.0) })
        }

        #[inline(always)]
        fn scale_by_power(self, n: Self) -> Self {
            // SAFETY: contract of the module.
            Avx512(unsafe { _mm512_scalef_ps(self.0, n.0) })
        }

        #[inline(always)]
        fn zero_below(self, of: Self, limit: Self) -> Self {
            // SAFETY: contract of the module.
            Avx512(unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(of.0, limit.0), self.0) })
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: contract of the module.
            unsafe {
                let (low, high) = (_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
                Avx2(low, high).sum()
            }
        }

        #[inline(always)]
        fn sums(eight: [Self; 8]) -> [f32; 8] {
            const LOW: i32 = 0b01_00_01_00;
            const HIGH: i32 = 0b11_10_11_10;
            // SAFETY: contract of the module.
            unsafe {
                // Two vectors at a time to one that holds eight numbers of each, two of these to one with four of each ...
                let mut fours = [_mm512_setzero_ps(); 2];
                for i in 0..2 {
                    let [a, b, c, d] = [eight[4 * i].0, eight[4 * i + 1].0, eight[4 * i + 2].0, eight[4 * i + 3].0];
                    let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<LOW>(a, b), _mm512_shuffle_f32x4::<HIGH>(a, b));
                    let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<LOW>(c, d), _mm512_shuffle_f32x4::<HIGH>(c, d));
                    let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
                    fours[i] = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
                }
                let (a, b) = (fours[0], fours[1]);
                let twos = _mm512_add_ps(_mm512_shuffle_ps::<LOW>(a, b), _mm512_shuffle_ps::<HIGH>(a, b));
                let ones = _mm512_add_ps(twos, _mm512_movehdup_ps(twos));
                // The sums of the first four are in the first lanes of the quarters, the others in the third.
                let order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
                let mut sums = [0.0; 8];
                _mm256_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps256(_mm512_permutexvar_ps(order, ones)));
                sums
            }
        }

        #[inline(always)]
        fn largest(self) -> f32 {
            // SAFETY: contract of the module.
            unsafe { _mm512_reduce_max_ps(self.0) }
        }
    }
}
