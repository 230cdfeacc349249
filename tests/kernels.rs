//! The vector kernels against the scalar decode of every format.

use std::ops::Range;
use strata::backend::cpu::kernels::floats::product_f32;
use strata::backend::cpu::kernels::{
    ActBlock, Acts, OutView, Rounding, Scratch, ScratchBlock, Simd, Tokens, Weights, blocks_per_row, dequantize_row, is_float,
    product, quantize_rows,
};
use strata::quant::{FORMATS, Format};

#[path = "common/blocks.rs"]
mod blocks;
use blocks::{Random, random_weights};

struct Case {
    format: Format,
    rows: usize,
    k: usize,
    bytes: Vec<u8>,
    weights: Vec<f32>,
    x: Vec<f32>,
    rounding: Rounding,
    acts: Vec<ActBlock>,
    /// What `acts` stand for.
    rounded: Vec<f32>,
}

impl Case {
    fn new(format: Format, rows: usize, k: usize, tokens: usize, rounding: Rounding) -> Case {
        let mut random = Random(((format as u64) << 32) + (rows * 1000 + k + tokens) as u64);
        let bytes = random_weights(format, rows, k, &mut random);
        let mut weights = vec![0.0; rows * k];
        format.decode_row(&bytes, &mut weights).unwrap();
        assert!(weights.iter().all(|w| w.is_finite()));
        let mut x: Vec<f32> = (0..tokens * k).map(|_| random.unit() * random.unit()).collect();
        // A row of one sign shows what is lost when an offset is taken away again.
        x[3 * k..4 * k].iter_mut().for_each(|x| *x = x.abs());
        let mut acts = vec![bytemuck::Zeroable::zeroed(); tokens * blocks_per_row(k)];
        quantize_rows(Simd::detect(), rounding, &x, k, k, &mut acts);
        let mut rounded = vec![0.0; tokens * k];
        for (acts, out) in acts.chunks(blocks_per_row(k)).zip(rounded.chunks_mut(k)) {
            dequantize_row(Acts { blocks: acts, rounding }, out);
        }
        Case { format, rows, k, bytes, weights, x, rounding, acts, rounded }
    }

    fn acts(&self) -> Acts<'_> {
        Acts { blocks: &self.acts, rounding: self.rounding }
    }

    /// Compares `out` (one row of results for each of `tokens`) for the given rows of weights.
    fn check(&self, simd: Simd, tokens: &[usize], rows: Range<usize>, out: &[f32]) {
        for (i, &token) in tokens.iter().enumerate() {
            for row in rows.clone() {
                let w = &self.weights[row * self.k..][..self.k];
                let got = f64::from(out[i * self.rows + row]);
                let what = || {
                    format!(
                        "{} {simd} {:?} k {} tokens {} row {row} token {token}",
                        self.format,
                        self.rounding,
                        self.k,
                        tokens.len()
                    )
                };
                let (exact, size) = dot(w, &self.rounded[token * self.k..][..self.k]);
                assert!((got - exact).abs() <= 1e-6 * size + 1e-30, "{}: {got}, not {exact} (of {size})", what());
                let x = &self.x[token * self.k..][..self.k];
                let (real, _) = dot(w, x);
                let norm = (dot(w, w).0 * dot(x, x).0).sqrt();
                let bound = if self.rounding == Rounding::Bits8 { 0.02 } else { 0.0002 };
                assert!((got - real).abs() <= bound * norm, "{}: {got}, without rounding {real}", what());
            }
        }
    }
}

/// The dot product and the sum of magnitudes.
fn dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    a.iter().zip(b).fold((0.0, 0.0), |(sum, size), (a, b)| {
        let p = f64::from(*a) * f64::from(*b);
        (sum + p, size + p.abs())
    })
}

const BOTH: [Rounding; 2] = [Rounding::Bits8, Rounding::Bits15];

fn lengths(format: Format) -> &'static [usize] {
    match format.info().block_len {
        256 => &[256, 768, 2304],
        64 => &[64, 320, 576, 1024],
        _ => &[32, 96, 160, 256, 576, 640, 1056],
    }
}

fn scratch() -> Vec<ScratchBlock> {
    vec![bytemuck::Zeroable::zeroed(); Scratch::BLOCKS]
}

#[test]
fn every_format_on_every_level_agrees_with_its_decode() {
    let mut scratch = scratch();
    for info in FORMATS.iter().filter(|info| !is_float(info.format)) {
        for (&k, rounding) in lengths(info.format).iter().flat_map(|k| BOTH.map(|rounding| (k, rounding))) {
            let case = Case::new(info.format, 23, k, 70, rounding);
            let weights = Weights::new(info.format, &case.bytes, case.rows, k).unwrap();
            for &simd in Simd::available() {
                for count in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64] {
                    let mut out = vec![f32::NAN; count * case.rows];
                    let view = OutView::new(&mut out, count, case.rows, case.rows);
                    // Two shares, as two threads would take them.
                    for rows in [0..7, 7..case.rows] {
                        let mut scratch = Scratch::new(&mut scratch);
                        product(simd, weights, rows, case.acts(), Tokens::Rows(3..3 + count), view, &mut scratch);
                    }
                    let tokens: Vec<usize> = (3..3 + count).collect();
                    case.check(simd, &tokens, 0..case.rows, &out);
                }
            }
        }
    }
}

#[test]
fn float_formats_on_every_level_agree_with_their_decode() {
    for info in FORMATS.iter().filter(|info| is_float(info.format)) {
        for k in [1, 16, 37, 160, 576, 1100] {
            let case = Case::new(info.format, 23, k, 110, Rounding::Bits15);
            let weights = Weights::new(info.format, &case.bytes, case.rows, k).unwrap();
            for &simd in Simd::available() {
                for count in [1, 2, 3, 7, 8, 9, 16, 110] {
                    let mut out = vec![f32::NAN; count * case.rows];
                    let view = OutView::new(&mut out, count, case.rows, case.rows);
                    for rows in [0..7, 7..case.rows] {
                        product_f32(simd, weights, rows, &case.x, k, count, view);
                    }
                    for (token, out) in out.chunks(case.rows).enumerate() {
                        for (row, &got) in out.iter().enumerate() {
                            let (exact, size) = dot(&case.weights[row * k..][..k], &case.x[token * k..][..k]);
                            assert!(
                                (f64::from(got) - exact).abs() <= 2e-6 * size + 1e-30,
                                "{} {simd} k {k} tokens {count}: {got}, not {exact}",
                                info.name
                            );
                        }
                    }
                }
            }
        }
    }
}

/// The products of `tokens`, with the rows of weights in two shares.
fn product_of(simd: Simd, case: &Case, tokens: Tokens<'_>, scratch: &mut [ScratchBlock]) -> Vec<f32> {
    let count = tokens.len();
    let weights = Weights::new(case.format, &case.bytes, case.rows, case.k).unwrap();
    let mut out = vec![f32::NAN; count * case.rows];
    for rows in [0..7, 7..case.rows] {
        let view = OutView::new(&mut out, count, case.rows, case.rows);
        product(simd, weights, rows, case.acts(), tokens.clone(), view, &mut Scratch::new(scratch));
    }
    out
}

/// Rows within a stretch of additions, with several, and with parts of them.
fn long_and_short(format: Format) -> &'static [usize] {
    match format.info().block_len {
        256 => &[256, 768, 2048, 5376],
        64 => &[64, 576, 2112],
        _ => &[32, 160, 640, 2080, 4448],
    }
}

#[test]
fn a_token_has_the_same_bits_alone_and_among_others() {
    let mut scratch = scratch();
    for info in FORMATS.iter().filter(|info| !is_float(info.format)) {
        for (&k, rounding) in long_and_short(info.format).iter().flat_map(|k| BOTH.map(|rounding| (k, rounding))) {
            let case = Case::new(info.format, 19, k, 70, rounding);
            for &simd in Simd::available() {
                let alone: Vec<f32> =
                    (0..70).flat_map(|token| product_of(simd, &case, Tokens::Rows(token..token + 1), &mut scratch)).collect();
                for count in [2, 3, 4, 6, 7, 8, 9, 16, 33, 64] {
                    let found = product_of(simd, &case, Tokens::Rows(5..5 + count), &mut scratch);
                    let expected = &alone[5 * case.rows..(5 + count) * case.rows];
                    assert!(found == expected, "{} {simd} {rounding:?}: {count} tokens, rows of {k}", info.name);
                }
            }
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_and_among_others_with_float_weights() {
    for info in FORMATS.iter().filter(|info| is_float(info.format)) {
        for k in [1, 37, 160, 576, 1100, 2048] {
            let case = Case::new(info.format, 23, k, 110, Rounding::Bits15);
            let weights = Weights::new(info.format, &case.bytes, case.rows, k).unwrap();
            for &simd in Simd::available() {
                let products = |first: usize, count: usize| {
                    let mut out = vec![f32::NAN; count * case.rows];
                    for rows in [0..7, 7..case.rows] {
                        let view = OutView::new(&mut out, count, case.rows, case.rows);
                        product_f32(simd, weights, rows, &case.x[first * k..], k, count, view);
                    }
                    out
                };
                let alone: Vec<f32> = (0..110).flat_map(|token| products(token, 1)).collect();
                for count in [2, 3, 4, 6, 7, 8, 9, 33, 96, 110] {
                    let found = products(0, count);
                    assert!(found == alone[..count * case.rows], "{} {simd}: {count} tokens, rows of {k}", info.name);
                }
            }
        }
    }
}

#[test]
fn an_expert_takes_its_tokens_in_the_order_of_the_list() {
    let case = Case::new(Format::IQ3_XXS, 100, 512, 40, Rounding::Bits15);
    let weights = Weights::new(case.format, &case.bytes, case.rows, case.k).unwrap();
    let mut scratch = scratch();
    for &simd in Simd::available() {
        for list in [&[][..], &[39], &[5, 0, 5], &[31, 3, 4, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9]] {
            let mut out = vec![f32::NAN; list.len() * case.rows];
            let view = OutView::new(&mut out, list.len(), case.rows, case.rows);
            let mut scratch = Scratch::new(&mut scratch);
            product(simd, weights, 0..case.rows, case.acts(), Tokens::List(list), view, &mut scratch);
            let tokens: Vec<usize> = list.iter().map(|&token| token as usize).collect();
            case.check(simd, &tokens, 0..case.rows, &out);
        }
    }
}

/// More tokens than are packed at a time, rows longer than a stretch, and a wide output.
#[test]
fn large_products_are_cut_up_correctly() {
    let mut scratch = scratch();
    for (format, rows, k, tokens, rounding) in
        [(Format::Q4_K, 70, 12_544, 50, Rounding::Bits8), (Format::Q5_1, 110, 1_376, 530, Rounding::Bits15)]
    {
        let case = Case::new(format, rows, k, tokens, rounding);
        let weights = Weights::new(format, &case.bytes, rows, k).unwrap();
        for &simd in &Simd::available()[1..] {
            let mut wide = vec![f32::NAN; tokens * (rows + 9)];
            let view = OutView::new(&mut wide, tokens, rows, rows + 9);
            let mut scratch = Scratch::new(&mut scratch);
            product(simd, weights, 0..rows, case.acts(), Tokens::Rows(0..tokens), view, &mut scratch);
            let out: Vec<f32> = wide.chunks(rows + 9).flat_map(|row| row[..rows].to_vec()).collect();
            case.check(simd, &(0..tokens).collect::<Vec<_>>(), 0..rows, &out);
            let untouched = wide.chunks(rows + 9).all(|row| row[rows..].iter().all(|x| x.is_nan()));
            assert!(untouched, "{format} {simd} wrote past its rows");
        }
    }
}

/// Weights that end at a page that may not be read.
#[cfg(unix)]
mod guarded {
    use super::*;

    struct Pages {
        start: *mut u8,
        bytes: usize,
    }

    const PAGE_BYTES: usize = 4096;

    impl Pages {
        /// `bytes` of readable memory, a whole number of pages, and one page after them that is not.
        fn new(bytes: usize) -> Pages {
            let bytes = bytes.next_multiple_of(PAGE_BYTES);
            let all = bytes + PAGE_BYTES;
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: new anonymous pages; the last one loses its permissions.
            unsafe {
                let start = libc::mmap(std::ptr::null_mut(), all, access, kind, -1, 0);
                assert_ne!(start, libc::MAP_FAILED);
                assert_eq!(libc::mprotect(start.add(bytes), PAGE_BYTES, libc::PROT_NONE), 0);
                Pages { start: start.cast(), bytes }
            }
        }

        /// The last `len` bytes before the page that may not be read.
        fn tail(&mut self, len: usize) -> &mut [u8] {
            // SAFETY: inside the readable pages, which are zeroed.
            unsafe { std::slice::from_raw_parts_mut(self.start.add(self.bytes - len), len) }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the pages of `new`.
            unsafe { libc::munmap(self.start.cast(), self.bytes + PAGE_BYTES) };
        }
    }

    #[test]
    fn no_kernel_reads_past_its_weights() {
        let mut scratch = scratch();
        for info in FORMATS {
            for (&k, rounding) in lengths(info.format)[..3].iter().flat_map(|k| BOTH.map(|rounding| (k, rounding))) {
                let case = Case::new(info.format, 5, k, 20, rounding);
                let mut pages = Pages::new(case.bytes.len());
                let bytes = pages.tail(case.bytes.len());
                bytes.copy_from_slice(&case.bytes);
                let weights = Weights::new(info.format, bytes, case.rows, k).unwrap();
                for &simd in Simd::available() {
                    for count in [1, 3, 20] {
                        let mut out = vec![f32::NAN; count * case.rows];
                        let view = OutView::new(&mut out, count, case.rows, case.rows);
                        if is_float(info.format) {
                            product_f32(simd, weights, 0..case.rows, &case.x, k, count, view);
                            continue;
                        }
                        let mut scratch = Scratch::new(&mut scratch);
                        product(simd, weights, 0..case.rows, case.acts(), Tokens::Rows(0..count), view, &mut scratch);
                        case.check(simd, &(0..count).collect::<Vec<_>>(), 0..case.rows, &out);
                    }
                }
            }
        }
    }
}
