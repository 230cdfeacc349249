//! Products with weights that are floats. Activations stay f32.

use super::super::job::OutView;
use super::super::product::Weights;
use super::super::simd::Simd;
use super::super::table::is_float;
use crate::quant::Format;
use std::ops::Range;

/// Values of a row that are multiplied before going on to the next rows. The sums of stretches are added one after the
/// other for any number of tokens, so that a token gets the same bits in every window.
const STRETCH: usize = 512;
/// Up to so many tokens weights are read once, and only few rows at a time.
const FEW_TOKENS: usize = 6;
/// Rows that the kernels take together.
const ROWS: usize = 4;
/// Rows of activations that share a pass over the weights: with a stretch they stay in the second cache.
const TOKENS: usize = 96;

/// Some rows times some tokens over a stretch of values.
pub(super) struct Block<'a> {
    pub format: Format,
    pub weights: *const u8,
    pub row_bytes: usize,
    pub rows: Range<usize>,
    pub x: *const f32,
    pub x_stride: usize,
    pub first_token: usize,
    pub tokens: usize,
    pub start: usize,
    pub len: usize,
    pub out: OutView<'a>,
}

/// `out[token][row] = weights[row] · x[token]` for the rows of a range: the share of one thread. Rows of `x` are `stride`
/// floats apart, and there are `tokens`.
///
/// # Panics
/// If shapes do not fit, or if the format is quantised.
pub fn product_f32(simd: Simd, weights: Weights, rows: Range<usize>, x: &[f32], stride: usize, tokens: usize, out: OutView) {
    let k = weights.k();
    assert!(is_float(weights.format()), "{} takes quantised activations", weights.format());
    assert!(rows.start <= rows.end && rows.end <= weights.rows(), "rows {rows:?} of {}", weights.rows());
    assert!(tokens == 0 || k <= stride && (tokens - 1) * stride + k <= x.len(), "activations are missing");
    assert!(out.holds(tokens, rows.end), "the output is too small");
    let block = |rows: Range<usize>, first_token: usize, start: usize| {
        let block = Block {
            format: weights.format(),
            weights: weights.bytes().as_ptr(),
            row_bytes: weights.row_bytes(),
            rows,
            x: x.as_ptr(),
            x_stride: stride,
            first_token,
            tokens: (tokens - first_token).min(TOKENS),
            start,
            len: (k - start).min(STRETCH),
            out,
        };
        match simd.clamp_to_machine() {
            // SAFETY: the machine has the level; all ranges are checked above.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => unsafe { super::avx512::block(&block) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => unsafe { super::avx2::block(&block) },
            // SAFETY: as above.
            _ => unsafe { super::scalar::block(&block) },
        }
    };
    // Few tokens: the weights come from memory, and are best read row after row.
    let rows_at_once = if tokens <= FEW_TOKENS { ROWS } else { rows.len().max(1) };
    for first_token in (0..tokens).step_by(TOKENS) {
        for first in rows.clone().step_by(rows_at_once) {
            for start in (0..k).step_by(STRETCH) {
                block(first..(first + rows_at_once).min(rows.end), first_token, start);
            }
        }
    }
}
