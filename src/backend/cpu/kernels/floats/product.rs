//! Products with weights that are floats. Activations stay f32.

use super::super::job::OutView;
use super::super::product::Weights;
use super::super::simd::Simd;
use super::super::table::is_float;
use crate::quant::Format;
use std::ops::Range;

/// Values of a row that are multiplied before going on to the next rows.
const STRETCH: usize = 512;
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
    for first_token in (0..tokens).step_by(TOKENS) {
        // With few tokens the weights come from memory, and are best read in one go.
        let stretch = if tokens <= 6 { k } else { STRETCH };
        for start in (0..k).step_by(stretch) {
            let block = Block {
                format: weights.format(),
                weights: weights.bytes().as_ptr(),
                row_bytes: weights.row_bytes(),
                rows: rows.clone(),
                x: x.as_ptr(),
                x_stride: stride,
                first_token,
                tokens: (tokens - first_token).min(TOKENS),
                start,
                len: (k - start).min(stretch),
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
        }
    }
}
