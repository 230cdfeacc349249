//! The entry to the products: checks shapes, then runs the kernels of a format.

use super::activations::{ActBlock, blocks_per_row};
use super::job::{Job, OutView, Tokens};
use super::simd::Simd;
use super::table;
use crate::quant::Format;
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

/// A matrix of weights: `rows` rows of `k` weights, as they are in the file.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    format: Format,
    bytes: &'a [u8],
    row_bytes: usize,
    rows: usize,
    k: usize,
}

impl<'a> Weights<'a> {
    /// `None` if `bytes` is not exactly `rows` rows of `k` weights, or `k` is not whole blocks.
    pub fn new(format: Format, bytes: &'a [u8], rows: usize, k: usize) -> Option<Weights<'a>> {
        let row_bytes = usize::try_from(format.row_bytes(k as u64)?).ok()?;
        (k > 0 && row_bytes.checked_mul(rows)? == bytes.len()).then_some(Weights { format, bytes, row_bytes, rows, k })
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn k(&self) -> usize {
        self.k
    }
}

/// A cache line of scratch memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct ScratchBlock([u8; 64]);

/// Working memory of one thread. What it held before does not matter.
pub struct Scratch<'a>(&'a mut [ScratchBlock]);

impl<'a> Scratch<'a> {
    /// Blocks that every product is content with.
    pub const BLOCKS: usize = table::SCRATCH_BYTES.div_ceil(64);
    /// The same in bytes, for the planner. The memory must be aligned to 64.
    pub const BYTES: usize = Scratch::BLOCKS * 64;

    /// # Panics
    /// If there are fewer than [`Scratch::BLOCKS`].
    pub fn new(blocks: &'a mut [ScratchBlock]) -> Scratch<'a> {
        assert!(blocks.len() >= Scratch::BLOCKS, "scratch of {} blocks", blocks.len());
        Scratch(blocks)
    }
}

/// `out[i][row] = weights[row] · acts[tokens[i]]` for the rows of a range: the share of one thread.
///
/// `acts` are rows of [`blocks_per_row`]`(k)` blocks. Threads may run this at the same time on disjoint ranges of rows
/// with copies of one [`OutView`]; multiples of 48 rows are best for prompts, any number will do.
///
/// # Panics
/// If shapes do not fit, or if the format is one of floats ([`super::is_float`]): a program is checked before it runs.
pub fn product(
    simd: Simd,
    weights: Weights,
    rows: Range<usize>,
    acts: &[ActBlock],
    tokens: Tokens,
    out: OutView,
    scratch: &mut Scratch,
) {
    assert!(!table::is_float(weights.format), "{} takes float activations", weights.format);
    assert!(rows.start <= rows.end && rows.end <= weights.rows, "rows {rows:?} of {}", weights.rows);
    let act_rows = acts.len() / blocks_per_row(weights.k);
    assert!(tokens.max().is_none_or(|max| max < act_rows), "{act_rows} rows of activations for {tokens:?}");
    assert!(out.holds(tokens.len(), rows.end), "the output is too small");
    let job = Job { weights: weights.bytes, row_bytes: weights.row_bytes, rows, k: weights.k, acts, tokens, out };
    table::run(simd, weights.format, &job, scratch.0.as_mut_ptr().cast());
}
