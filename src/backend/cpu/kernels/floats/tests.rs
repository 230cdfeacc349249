use super::*;

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn halves(x: &[f32]) -> Vec<f16> {
    x.iter().map(|&x| f16::from_f32(x)).collect()
}

const LENGTHS: [usize; 9] = [0, 1, 7, 8, 15, 17, 64, 100, 263];

fn for_all(test: impl Fn(Simd, usize)) {
    for &simd in Simd::available() {
        for n in LENGTHS {
            test(simd, n);
        }
    }
}

#[track_caller]
fn close(got: &[f32], want: impl IntoIterator<Item = f64>, bound: f64) {
    for (i, (&got, want)) in got.iter().zip(want).enumerate() {
        let got = f64::from(got);
        let fits = (got - want).abs() <= bound * want.abs().max(1e-30) || got == want;
        assert!(fits, "{i}: {got}, not {want}");
    }
}

#[test]
fn sums_agree_with_f64() {
    for_all(|simd, n| {
        let (a, b) = (values(n, 1), values(n, 2));
        let size: f64 = a.iter().zip(&b).map(|(a, b)| f64::from((a * b).abs())).sum();
        let exact = |a: &[f32]| a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let half = halves(&a);
        let rounded: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
        assert!((f64::from(dot(simd, &a, &b)) - exact(&a)).abs() <= 1e-6 * size);
        assert!((f64::from(dot_f16(simd, &half, &b)) - exact(&rounded)).abs() <= 1e-6 * size);
        let squares: f64 = a.iter().map(|a| f64::from(*a).powi(2)).sum();
        close(&[sum_squares(simd, &a)], [squares], 1e-6);
        let largest = a.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(max(simd, &a), largest);
    });
}

#[test]
fn elementwise_functions_agree_with_f64() {
    for_all(|simd, n| {
        let (x, y) = (values(n, 3), values(n, 4));
        let run = |f: &dyn Fn(&mut [f32])| {
            let mut out = x.clone();
            f(&mut out);
            out
        };
        let both = || x.iter().zip(&y).map(|(x, y)| (f64::from(*x), f64::from(*y)));
        let sums = run(&|x| axpy(simd, 0.3, &y, x));
        sums.iter().zip(both()).for_each(|(got, (x, y))| {
            assert!((f64::from(*got) - (x + y * f64::from(0.3f32))).abs() < 2e-7);
        });
        let half = halves(&y);
        let sums = run(&|x| axpy_f16(simd, 0.3, &half, x));
        sums.iter().zip(x.iter().zip(&half)).for_each(|(got, (x, y))| {
            assert!((got - (x + y.to_f32() * 0.3)).abs() < 2e-7);
        });
        assert_eq!(run(&|x| scale(simd, x, 0.7)), x.iter().map(|x| x * 0.7).collect::<Vec<_>>());
        assert_eq!(run(&|x| add(simd, x, &y)), x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<_>>());
        assert_eq!(run(&|x| mul(simd, x, &y)), x.iter().zip(&y).map(|(x, y)| x * y).collect::<Vec<_>>());
        let mut out = vec![0.0; n];
        scale_mul(simd, &x, &y, 0.7, &mut out);
        assert_eq!(out, x.iter().zip(&y).map(|(x, y)| x * 0.7 * y).collect::<Vec<_>>());
        close(&run(&|x| silu_mul(simd, x, &y)), both().map(|(x, y)| x / (1.0 + (-x).exp()) * y), 1e-6);
        let gelu = |x: f64| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + u.tanh())
        };
        close(&run(&|x| gelu_mul(simd, x, &y)), both().map(|(x, y)| gelu(x) * y), 1e-6);
    });
}

#[test]
fn exponentials_are_accurate_over_the_whole_range() {
    let x: Vec<f32> = (-87_000..88_500).step_by(7).map(|i| i as f32 * 1e-3).collect();
    for &simd in Simd::available() {
        let exact = || x.iter().map(|x| f64::from(*x));
        let run = |f: fn(Simd, &mut [f32])| {
            let mut out = x.clone();
            f(simd, &mut out);
            out
        };
        close(&run(exp), exact().map(f64::exp), 2.4e-7);
        close(&run(sigmoid), exact().map(|x| 1.0 / (1.0 + (-x).exp())), 5e-7);
        close(&run(silu), exact().map(|x| x / (1.0 + (-x).exp())), 6e-7);
        let mut special = [f32::NEG_INFINITY, -200.0, 0.0, 200.0, f32::INFINITY, f32::NAN, -100.0];
        exp(simd, &mut special);
        assert_eq!(special[..5], [0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY]);
        assert!(special[5].is_nan() && special[6] > 0.0 && special[6] < 1e-43);
    }
}

#[test]
fn softmax_sums_to_one_and_stands_infinities() {
    for_all(|simd, n| {
        let mut x: Vec<f32> = values(n, 5).iter().map(|x| x * 50.0).collect();
        if n > 3 {
            x[2] = f32::NEG_INFINITY;
        }
        let highest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f64> = x.iter().map(|x| f64::from(x - highest).exp()).collect();
        let total: f64 = e.iter().sum();
        softmax(simd, &mut x);
        close(&x, e.iter().map(|e| e / total), 1e-6);
        let mut none = vec![f32::NEG_INFINITY; n];
        softmax(simd, &mut none);
        assert!(none.iter().all(|&x| x == 0.0));
    });
}

#[test]
fn half_precision_is_exact() {
    for &simd in Simd::available() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|x| !x.is_nan()).collect();
        let mut out = vec![0.0; all.len()];
        from_f16(simd, &all, &mut out);
        assert!(all.iter().zip(&out).all(|(x, out)| x.to_f32().to_bits() == out.to_bits()));
        let x: Vec<f32> = values(1003, 6).iter().map(|x| x * x * 70_000.0 - 1e-5).collect();
        let mut halves = vec![f16::ZERO; x.len()];
        to_f16(simd, &x, &mut halves);
        assert_eq!(halves, x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>());
    }
}
