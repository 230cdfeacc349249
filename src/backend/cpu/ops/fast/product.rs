//! What the fast products share: activations in the form that the weights want, and dealing rows of weights to threads.

use std::ops::Range;

use super::super::super::exec::{Run, Thread};
use super::super::super::kernels::{self, ActBlock, OutView, Scratch, ScratchBlock, Tokens, Weights};
use super::super::super::layout::Matrix;
use super::super::super::pool::Poisoned;
use super::super::super::vector::Level;
use super::super::super::view::{Mat, carve, carve_bytes};

/// Windows up to this many rows are read-bound: every thread rounds the activations for itself instead of waiting.
pub const FEW_ROWS: usize = 8;

/// Output rows that are dealt at once: whole panels of the matrix kernels, or cache lines of the result.
pub fn tile_rows(tokens: usize) -> usize {
    if tokens <= FEW_ROWS { 16 } else { 48 }
}

/// Deals tiles of differing cost to the threads in order, each a contiguous part of about the same cost.
#[derive(Debug)]
pub struct Deal {
    from: u64,
    to: u64,
    at: u64,
}

impl Deal {
    pub fn new(thread: &Thread<'_>, total: u64) -> Deal {
        let (index, count) = (thread.member().index as u64, thread.member().count as u64);
        Deal { from: total * index / count, to: total * (index + 1) / count, at: 0 }
    }

    /// This thread's tiles of the next `tiles`, which cost `cost` each.
    pub fn next(&mut self, tiles: usize, cost: u64) -> Range<usize> {
        let start = self.at;
        self.at += tiles as u64 * cost;
        let tile_at = |cost_sum: u64| (cost_sum.saturating_sub(start).div_ceil(cost.max(1)) as usize).min(tiles);
        tile_at(self.from)..tile_at(self.to)
    }
}

/// The left side of a product, row by row: a buffer whose rows may each hold `split` vectors.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub x: Mat<'a, f32>,
    pub split: usize,
}

impl<'a> Source<'a> {
    pub fn len(&self) -> usize {
        self.x.rows() * self.split
    }

    pub fn width(&self) -> usize {
        self.x.width() / self.split
    }

    pub fn row(&self, i: usize) -> &'a [f32] {
        let width = self.width();
        self.x.part(i / self.split, i % self.split * width, width)
    }
}

/// Activations ready to be multiplied.
pub struct Activations<'a> {
    style: Style,
    source: Source<'a>,
    /// Rounded once, and what was left over.
    blocks: [&'a [ActBlock]; 2],
}

/// How activations are rounded for quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To 8 bits.
    Once,
    /// To 8 bits, and what is left over to 8 bits again: about 15 bits, for twice the products.
    Twice,
}

/// What the fast kernels are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub level: Level,
    pub rounding: Rounding,
}

/// Bytes of rounded activations for a source.
pub fn block_bytes(rows: usize, width: usize) -> usize {
    2 * carve_bytes::<ActBlock>(rows * kernels::blocks_per_row(width))
}

/// Rounds a row into `first`, and what is left over into `second` if that is asked for.
fn round_row(style: Style, x: &[f32], first: &mut [ActBlock], second: &mut [ActBlock], rest: &mut [f32]) {
    let simd = style.level.simd();
    kernels::quantize_row(simd, x, first);
    if style.rounding == Rounding::Twice {
        kernels::dequantize_row(first, rest);
        rest.iter_mut().zip(x).for_each(|(rest, x)| *rest = x - *rest);
        kernels::quantize_row(simd, rest, second);
    }
}

impl<'a> Activations<'a> {
    /// Rounds the activations if `rounded`: into this thread's scratch where the window is small, else together into the shared
    /// scratch, which makes all threads meet.
    pub fn new(thread: &mut Thread<'a>, style: Style, source: Source<'a>, rounded: bool) -> Result<Activations<'a>, Poisoned> {
        let none: &[ActBlock] = &[];
        let mut activations = Activations { style, source, blocks: [none; 2] };
        if !rounded {
            return Ok(activations);
        }
        let (per_row, len) = (kernels::blocks_per_row(source.width()), source.len());
        let second_len = if style.rounding == Rounding::Twice { len * per_row } else { 0 };
        let second_of = |i: usize| (i * per_row).min(second_len)..((i + 1) * per_row).min(second_len);
        let rest: &mut [f32] = carve(&mut thread.scratch, source.width());
        if source.x.rows() <= FEW_ROWS {
            let first: &mut [ActBlock] = carve(&mut thread.scratch, len * per_row);
            let second: &mut [ActBlock] = carve(&mut thread.scratch, second_len);
            for (i, first) in first.chunks_exact_mut(per_row).enumerate() {
                round_row(style, source.row(i), first, &mut second[second_of(i)], rest);
            }
            activations.blocks = [first, second];
            return Ok(activations);
        }
        let shared = thread.run.shared;
        let at = |block: usize| block * size_of::<ActBlock>();
        for i in thread.member().share(len) {
            let range = second_of(i);
            // SAFETY: rows are dealt to the threads; the second blocks of all rows come after all first ones.
            let (first, second): (&mut [ActBlock], &mut [ActBlock]) =
                unsafe { (shared.write(at(i * per_row), per_row), shared.write(at(len * per_row + range.start), range.len())) };
            round_row(style, source.row(i), first, second, rest);
        }
        thread.team.meet(|| ())?;
        // SAFETY: nothing writes the shared scratch again in this step.
        activations.blocks = unsafe { [shared.read(0, len * per_row), shared.read(at(len * per_row), second_len)] };
        Ok(activations)
    }

    /// `out[i][r] = matrix[rows.start + r] · activations[tokens[i]]`, rows of `out` adjoining.
    pub fn multiply(
        &self,
        run: &Run<'_>,
        (matrix, expert): (&Matrix, usize),
        rows: Range<usize>,
        tokens: Tokens<'_>,
        out: &mut [f32],
        tools: &mut Tools<'_>,
    ) {
        let count = rows.len();
        if count == 0 || tokens.is_empty() {
            return;
        }
        let bytes = matrix.rows(run, expert, rows.start, count);
        let Some(weights) = Weights::new(matrix.format, bytes, count, matrix.cols) else { return };
        let (simd, len) = (self.style.level.simd(), tokens.len());
        if kernels::is_float(matrix.format) {
            return self.multiply_floats(weights, &tokens, out);
        }
        let [once, rest] = self.blocks;
        let mut scratch = Scratch::new(tools.blocks);
        if rest.is_empty() {
            let view = OutView::new(out, len, count, count);
            return kernels::product(simd, weights, 0..count, once, tokens, view, &mut scratch);
        }
        // Few enough rows at once that their weights stay in the cache for the second product.
        let step = (CACHED_BYTES / matrix.row_bytes.max(1) / tile_rows(len) * tile_rows(len)).max(tile_rows(len));
        for first in (0..count).step_by(step) {
            let last = (first + step).min(count);
            let view = OutView::new(out, len, count, count);
            kernels::product(simd, weights, first..last, once, tokens.clone(), view, &mut scratch);
            let view = OutView::new(tools.second, len, count, count);
            kernels::product(simd, weights, first..last, rest, tokens.clone(), view, &mut scratch);
        }
        kernels::floats::add(simd, &mut out[..len * count], &tools.second[..len * count]);
    }

    /// Neighbouring rows of activations in one product, listed ones one by one.
    fn multiply_floats(&self, weights: Weights<'_>, tokens: &Tokens<'_>, out: &mut [f32]) {
        let (simd, count) = (self.style.level.simd(), weights.rows());
        match tokens {
            Tokens::Rows(range) if self.source.split == 1 => {
                let (x, stride) = self.source.x.spanning(range.clone());
                let view = OutView::new(out, range.len(), count, count);
                kernels::floats::product_f32(simd, weights, 0..count, x, stride, range.len(), view);
            }
            _ => {
                for i in 0..tokens.len() {
                    let token = match tokens {
                        Tokens::Rows(range) => range.start + i,
                        Tokens::List(list) => list[i] as usize,
                    };
                    let x = self.source.row(token);
                    let view = OutView::new(&mut out[i * count..(i + 1) * count], 1, count, count);
                    kernels::floats::product_f32(simd, weights, 0..count, x, x.len(), 1, view);
                }
            }
        }
    }
}

/// Working memory of a thread for products.
pub struct Tools<'s> {
    blocks: &'s mut [ScratchBlock],
    /// Results of the second rounding.
    second: &'s mut [f32],
}

impl<'s> Tools<'s> {
    pub fn scratch_bytes(style: Style, width: usize, max_tokens: usize) -> usize {
        carve_bytes::<ScratchBlock>(Scratch::BLOCKS)
            + carve_bytes::<f32>(second_floats(style, max_tokens))
            + carve_bytes::<f32>(width)
    }

    pub fn new(style: Style, max_tokens: usize, scratch: &mut &'s mut [u8]) -> Tools<'s> {
        Tools { blocks: carve(scratch, Scratch::BLOCKS), second: carve(scratch, second_floats(style, max_tokens)) }
    }
}

fn second_floats(style: Style, max_tokens: usize) -> usize {
    if style.rounding == Rounding::Twice { result_floats(max_tokens) } else { 0 }
}

/// Weights that are read from memory once for two products.
const CACHED_BYTES: usize = 192 << 10;

/// Output rows that are multiplied in one go: the kernels of large windows pack the activations anew for each.
const ROWS_AT_ONCE: usize = 192;

/// Floats that hold the results of one tile for the largest window. With few rows a tile is much wider than one panel.
pub fn result_floats(max_tokens: usize) -> usize {
    (max_tokens * ROWS_AT_ONCE).max(8192)
}

/// Output rows for which the results of `tokens` tokens fit into `floats`: whole tiles.
pub fn rows_that_fit(tokens: usize, floats: usize) -> usize {
    let tile = tile_rows(tokens);
    (floats / tokens.max(1) / tile * tile).max(tile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_tile_fit() {
        for max in [1, 3, 8, 9, 64, 170, 171, 513] {
            let floats = result_floats(max);
            for tokens in 1..=max {
                assert!(rows_that_fit(tokens, floats) * tokens <= floats, "{tokens} of {max}");
            }
        }
    }

    #[test]
    fn deals_cover_every_tile_once() {
        let parts = [(7usize, 3u64), (1, 100), (0, 5), (20, 1), (3, 17)];
        let total: u64 = parts.iter().map(|(tiles, cost)| *tiles as u64 * cost).sum();
        for count in 1..9u64 {
            let mut next = [0; 5];
            for index in 0..count {
                let mut deal = Deal { from: total * index / count, to: total * (index + 1) / count, at: 0 };
                for (part, (tiles, cost)) in parts.iter().enumerate() {
                    let range = deal.next(*tiles, *cost);
                    if !range.is_empty() {
                        assert_eq!(range.start, next[part]);
                        next[part] = range.end;
                    }
                }
            }
            assert_eq!(next, parts.map(|(tiles, _)| tiles), "{count} threads");
        }
    }
}
