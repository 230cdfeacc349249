//! The functions, as the body of a macro: a level defines the operations and then has them expanded.

/// `float_kernels!(#[attribute] ...)`: the attribute (the features of the level) goes on every function. In scope must be
/// `V` (a vector of [`LANES`] floats) and the operations used below; `*_part` take the number of elements, below `LANES`,
/// and treat the others as 0.
macro_rules! float_kernels {
    ($(#[$feature:meta])?) => {
        /// Elements that can be loaded as floats.
        ///
        /// # Safety
        /// `load` reads `LANES` elements and `load_part` `n`, no more; the machine has the level.
        pub(super) unsafe trait Element {
            const BYTES: usize;
            unsafe fn load(p: *const u8) -> V;
            unsafe fn load_part(p: *const u8, n: usize) -> V;
        }

        float_kernels!(@element F32, 4, load, load_part, f32, $(#[$feature])?);
        float_kernels!(@element F16, 2, load_half, load_half_part, u16, $(#[$feature])?);
        float_kernels!(@element BF16, 2, load_bfloat, load_bfloat_part, u16, $(#[$feature])?);

        #[inline]
        $(#[$feature])?
        unsafe fn dot_of<E: Element>(a: *const u8, b: &[f32]) -> f32 {
            // SAFETY: `a` has as many elements as `b`; no load goes past `b.len()`.
            unsafe {
                let (n, mut i) = (b.len(), 0);
                let mut sums = [zero(); 4];
                while i + 4 * LANES <= n {
                    for (s, sum) in sums.iter_mut().enumerate() {
                        let at = i + s * LANES;
                        *sum = fma(E::load(a.add(at * E::BYTES)), load(b.as_ptr().add(at)), *sum);
                    }
                    i += 4 * LANES;
                }
                while i + LANES <= n {
                    sums[0] = fma(E::load(a.add(i * E::BYTES)), load(b.as_ptr().add(i)), sums[0]);
                    i += LANES;
                }
                if i < n {
                    let (x, y) = (E::load_part(a.add(i * E::BYTES), n - i), load_part(b.as_ptr().add(i), n - i));
                    sums[1] = fma(x, y, sums[1]);
                }
                sum(add_v(add_v(sums[0], sums[1]), add_v(sums[2], sums[3])))
            }
        }

        #[inline]
        $(#[$feature])?
        unsafe fn axpy_of<E: Element>(factor: f32, x: *const u8, out: &mut [f32]) {
            let factor = set(factor);
            // SAFETY: `x` has as many elements as `out`; no access goes past `out.len()`.
            unsafe {
                let (n, mut i) = (out.len(), 0);
                let out = out.as_mut_ptr();
                while i + LANES <= n {
                    store(out.add(i), fma(factor, E::load(x.add(i * E::BYTES)), load(out.add(i))));
                    i += LANES;
                }
                if i < n {
                    let (x, y) = (E::load_part(x.add(i * E::BYTES), n - i), load_part(out.add(i), n - i));
                    store_part(out.add(i), fma(factor, x, y), n - i);
                }
            }
        }

        $(#[$feature])?
        pub(super) unsafe fn dot(a: &[f32], b: &[f32]) -> f32 {
            // SAFETY: lengths are equal.
            unsafe { dot_of::<F32>(a.as_ptr().cast(), b) }
        }

        $(#[$feature])?
        pub(super) unsafe fn dot_f16(a: &[half::f16], b: &[f32]) -> f32 {
            // SAFETY: lengths are equal.
            unsafe { dot_of::<F16>(a.as_ptr().cast(), b) }
        }

        $(#[$feature])?
        pub(super) unsafe fn axpy(factor: f32, x: &[f32], out: &mut [f32]) {
            // SAFETY: lengths are equal.
            unsafe { axpy_of::<F32>(factor, x.as_ptr().cast(), out) }
        }

        $(#[$feature])?
        pub(super) unsafe fn axpy_f16(factor: f32, x: &[half::f16], out: &mut [f32]) {
            // SAFETY: lengths are equal.
            unsafe { axpy_of::<F16>(factor, x.as_ptr().cast(), out) }
        }

        float_kernels!(@map $(#[$feature])? scale(x, factor: f32) (let f = set(factor)) => mul_v(x, f));
        float_kernels!(@map $(#[$feature])? exp(x,) () => exp_v(x));
        float_kernels!(@map $(#[$feature])? sigmoid(x,) () => sigmoid_v(x));
        float_kernels!(@map $(#[$feature])? silu(x,) () => mul_v(x, sigmoid_v(x)));
        float_kernels!(@zip $(#[$feature])? add(x, y) => add_v(x, y));
        float_kernels!(@zip $(#[$feature])? mul(x, y) => mul_v(x, y));
        float_kernels!(@zip $(#[$feature])? silu_mul(x, y) => mul_v(mul_v(x, sigmoid_v(x)), y));
        float_kernels!(@map $(#[$feature])? gelu(x,) () => gelu_v(x));
        float_kernels!(@zip $(#[$feature])? gelu_mul(x, y) => mul_v(gelu_v(x), y));

        $(#[$feature])?
        pub(super) unsafe fn scale_mul(x: &[f32], weight: &[f32], factor: f32, out: &mut [f32]) {
            let factor = set(factor);
            // SAFETY: lengths are equal.
            unsafe {
                let (n, mut i) = (out.len(), 0);
                while i + LANES <= n {
                    let (x, w) = (load(x.as_ptr().add(i)), load(weight.as_ptr().add(i)));
                    store(out.as_mut_ptr().add(i), mul_v(mul_v(x, factor), w));
                    i += LANES;
                }
                if i < n {
                    let (x, w) = (load_part(x.as_ptr().add(i), n - i), load_part(weight.as_ptr().add(i), n - i));
                    store_part(out.as_mut_ptr().add(i), mul_v(mul_v(x, factor), w), n - i);
                }
            }
        }

        $(#[$feature])?
        pub(super) unsafe fn sum_squares(x: &[f32]) -> f32 {
            // SAFETY: a slice has as many elements as itself.
            unsafe { dot_of::<F32>(x.as_ptr().cast(), x) }
        }

        $(#[$feature])?
        pub(super) unsafe fn max(x: &[f32]) -> f32 {
            // SAFETY: loads stay inside the slice.
            unsafe {
                let (n, mut i) = (x.len(), 0);
                let mut best = set(f32::NEG_INFINITY);
                while i + LANES <= n {
                    best = max_v(best, load(x.as_ptr().add(i)));
                    i += LANES;
                }
                x[i..].iter().fold(max_of(best), |best, &x| if x > best { x } else { best })
            }
        }

        $(#[$feature])?
        pub(super) unsafe fn softmax(x: &mut [f32]) {
            // SAFETY: accesses stay inside the slice.
            unsafe {
                let highest = max(x);
                if highest == f32::NEG_INFINITY {
                    x.fill(0.0);
                    return;
                }
                let (n, mut i) = (x.len(), 0);
                let (p, shift, mut total) = (x.as_mut_ptr(), set(-highest), zero());
                while i + LANES <= n {
                    let e = exp_v(add_v(load(p.add(i)), shift));
                    total = add_v(total, e);
                    store(p.add(i), e);
                    i += LANES;
                }
                let mut rest = 0.0;
                if i < n {
                    store_part(p.add(i), exp_v(add_v(load_part(p.add(i), n - i), shift)), n - i);
                    rest = x[i..].iter().sum::<f32>();
                }
                scale(x, 1.0 / (sum(total) + rest));
            }
        }

        $(#[$feature])?
        pub(super) unsafe fn from_f16(x: &[half::f16], out: &mut [f32]) {
            // SAFETY: lengths are equal.
            unsafe {
                let (n, mut i) = (x.len(), 0);
                let (p, out) = (x.as_ptr().cast::<u16>(), out.as_mut_ptr());
                while i + LANES <= n {
                    store(out.add(i), load_half(p.add(i)));
                    i += LANES;
                }
                if i < n {
                    store_part(out.add(i), load_half_part(p.add(i), n - i), n - i);
                }
            }
        }

        $(#[$feature])?
        pub(super) unsafe fn to_f16(x: &[f32], out: &mut [half::f16]) {
            // SAFETY: lengths are equal.
            unsafe {
                let (n, mut i) = (x.len(), 0);
                let (p, out) = (x.as_ptr(), out.as_mut_ptr().cast::<u16>());
                while i + LANES <= n {
                    store_half(out.add(i), load(p.add(i)));
                    i += LANES;
                }
                if i < n {
                    store_half_part(out.add(i), load_part(p.add(i), n - i), n - i);
                }
            }
        }

        /// `exp(x)`: `2^n * exp(r)` with `|r| <= ln(2) / 2` and a polynomial for `exp(r)`.
        #[inline]
        $(#[$feature])?
        fn exp_v(x: V) -> V {
            let x = clamp_v(x, -104.0, 89.0);
            let n = round_v(mul_v(x, set(std::f32::consts::LOG2_E)));
            // ln(2) in two parts, the first with few bits, so that the first product is exact.
            let r = fma(n, set(-0.693_359_4), x);
            let r = fma(n, set(2.121_944_4e-4), r);
            let p = fma(r, set(1.987_569_1e-4), set(1.398_199_9e-3));
            let p = fma(p, r, set(8.333_452e-3));
            let p = fma(p, r, set(4.166_579_6e-2));
            let p = fma(p, r, set(1.666_666_5e-1));
            let p = fma(p, r, set(0.5));
            let p = add_v(fma(p, mul_v(r, r), r), set(1.0));
            // In two steps, since 2^n alone may be too large or too small for a float.
            let half = round_v(mul_v(n, set(0.5)));
            mul_v(mul_v(p, pow2_v(half)), pow2_v(sub_v(n, half)))
        }

        #[inline]
        $(#[$feature])?
        fn sigmoid_v(x: V) -> V {
            div_v(set(1.0), add_v(set(1.0), exp_v(sub_v(zero(), x))))
        }

        /// `x / 2 * (1 + tanh(u)) = x * sigmoid(2 * u)` with `u = sqrt(2 / pi) * (x + 0.044715 * x^3)`.
        #[inline]
        $(#[$feature])?
        fn gelu_v(x: V) -> V {
            let cubic = mul_v(mul_v(x, x), set(0.044715 * 1.595_769));
            let u2 = mul_v(x, add_v(cubic, set(1.595_769)));
            mul_v(x, sigmoid_v(u2))
        }

        /// Dot products of `R` rows of weights with `T` rows of `x`, over `n` values; `out[t * stride + r]` is written,
        /// or added to.
        ///
        /// # Safety
        /// Rows of weights are `row_bytes` apart and have `n` elements, rows of `x` `x_stride` floats apart have `n`, and
        /// results have a place.
        #[inline]
        $(#[$feature])?
        pub(super) unsafe fn tile<E: Element, const R: usize, const T: usize>(
            w: *const u8,
            row_bytes: usize,
            x: *const f32,
            x_stride: usize,
            n: usize,
            out: [*mut f32; T],
            add: bool,
        ) {
            let mut sums = [[zero(); T]; R];
            // SAFETY: see above.
            unsafe {
                let mut i = 0;
                while i + LANES <= n {
                    let mut weights = [zero(); R];
                    for r in 0..R {
                        weights[r] = E::load(w.add(r * row_bytes + i * E::BYTES));
                    }
                    for t in 0..T {
                        let x = load(x.add(t * x_stride + i));
                        for r in 0..R {
                            sums[r][t] = fma(weights[r], x, sums[r][t]);
                        }
                    }
                    i += LANES;
                }
                for r in 0..R {
                    for t in 0..T {
                        if i < n {
                            let w = E::load_part(w.add(r * row_bytes + i * E::BYTES), n - i);
                            sums[r][t] = fma(w, load_part(x.add(t * x_stride + i), n - i), sums[r][t]);
                        }
                        let (at, total) = (out[t].add(r), sum(sums[r][t]));
                        *at = if add { *at + total } else { total };
                    }
                }
            }
        }

        /// [`super::product::Block`] for a format.
        ///
        /// # Safety
        /// The block is checked; the machine has the level.
        $(#[$feature])?
        pub(super) unsafe fn block(b: &super::product::Block) {
            use crate::quant::Format;
            // SAFETY: passed on.
            unsafe {
                match b.format {
                    Format::F16 => block_of::<F16>(b),
                    Format::BF16 => block_of::<BF16>(b),
                    _ => block_of::<F32>(b),
                }
            }
        }

        /// # Safety
        /// As for [`block`].
        $(#[$feature])?
        unsafe fn block_of<E: Element>(b: &super::product::Block) {
            let mut row = b.rows.start;
            // SAFETY: rows and tokens stay in their ranges.
            unsafe {
                while row < b.rows.end {
                    let four = row + 4 <= b.rows.end;
                    let mut token = 0;
                    while token < b.tokens {
                        token += match (four, b.tokens - token) {
                            (true, 6..) => one::<E, 4, 6>(b, row, token),
                            (true, 3..) => one::<E, 4, 3>(b, row, token),
                            (true, _) => one::<E, 4, 1>(b, row, token),
                            (false, 6..) => one::<E, 1, 6>(b, row, token),
                            (false, _) => one::<E, 1, 1>(b, row, token),
                        };
                    }
                    row += if four { 4 } else { 1 };
                }
            }
        }

        /// # Safety
        /// `R` rows from `row` and `T` tokens from `token` are in the block.
        #[inline]
        $(#[$feature])?
        unsafe fn one<E: Element, const R: usize, const T: usize>(
            b: &super::product::Block,
            row: usize,
            token: usize,
        ) -> usize {
            let mut out = [std::ptr::null_mut(); T];
            // SAFETY: passed on.
            unsafe {
                for (t, out) in out.iter_mut().enumerate() {
                    *out = b.out.at(b.first_token + token + t, row);
                }
                let w = b.weights.add(row * b.row_bytes + b.start * E::BYTES);
                let x = b.x.add((b.first_token + token) * b.x_stride + b.start);
                tile::<E, R, T>(w, b.row_bytes, x, b.x_stride, b.len, out, b.start > 0);
            }
            T
        }
    };

    (@element $name:ident, $bytes:literal, $load:ident, $load_part:ident, $type:ty, $(#[$feature:meta])?) => {
        pub(super) struct $name;

        // SAFETY: the operations of the level read what they say.
        unsafe impl Element for $name {
            const BYTES: usize = $bytes;

            #[inline]
            $(#[$feature])?
            unsafe fn load(p: *const u8) -> V {
                // SAFETY: see the trait.
                unsafe { $load(p.cast::<$type>()) }
            }

            #[inline]
            $(#[$feature])?
            unsafe fn load_part(p: *const u8, n: usize) -> V {
                // SAFETY: see the trait.
                unsafe { $load_part(p.cast::<$type>(), n) }
            }
        }
    };

    (@map $(#[$feature:meta])? $name:ident($x:ident, $($arg:ident: $type:ty)?) ($($prepare:stmt)?) => $e:expr) => {
        $(#[$feature])?
        pub(super) unsafe fn $name(values: &mut [f32] $(, $arg: $type)?) {
            $($prepare)?
            // SAFETY: accesses stay inside the slice.
            unsafe {
                let (n, mut i) = (values.len(), 0);
                let p = values.as_mut_ptr();
                while i + LANES <= n {
                    let $x = load(p.add(i));
                    store(p.add(i), $e);
                    i += LANES;
                }
                if i < n {
                    let $x = load_part(p.add(i), n - i);
                    store_part(p.add(i), $e, n - i);
                }
            }
        }
    };

    (@zip $(#[$feature:meta])? $name:ident($x:ident, $y:ident) => $e:expr) => {
        $(#[$feature])?
        pub(super) unsafe fn $name(values: &mut [f32], others: &[f32]) {
            // SAFETY: lengths are equal; accesses stay inside the slices.
            unsafe {
                let (n, mut i) = (values.len(), 0);
                let (p, q) = (values.as_mut_ptr(), others.as_ptr());
                while i + LANES <= n {
                    let ($x, $y) = (load(p.add(i)), load(q.add(i)));
                    store(p.add(i), $e);
                    i += LANES;
                }
                if i < n {
                    let ($x, $y) = (load_part(p.add(i), n - i), load_part(q.add(i), n - i));
                    store_part(p.add(i), $e, n - i);
                }
            }
        }
    };
}
pub(super) use float_kernels;
