//! The indexer of sparse attention (2.2): its keys, and the choice of blocks.

use super::super::exec::{Kernel, Run, Thread};
use super::super::kernels::floats;
use super::super::layout::{HeadsPlace, Layout, Place, StatePlace, Vector};
use super::super::pool::Poisoned;
use super::super::vector::Level;
use super::super::view::{Mat, carve, carve_bytes};
use super::math::{dot, rms_scale};
use super::wrong_op;
use crate::backend::rope::{angles, rotate};
use crate::program::{Op, Rope, Row, StateId, StateKind};

/// Raw keys by cell, then pooled keys by block.
#[derive(Debug, Clone, Copy)]
struct KeyCache {
    state: StatePlace,
    cells: usize,
    dim: usize,
    ratio: usize,
}

impl KeyCache {
    fn new(layout: &Layout<'_>, id: StateId) -> Result<KeyCache, String> {
        let state = layout.state(id)?;
        match state.kind {
            StateKind::IndexKeys { cells, dim, ratio } if dim > 0 && ratio > 0 => {
                Ok(KeyCache { state, cells: cells as usize, dim: dim as usize, ratio: ratio as usize })
            }
            _ => Err("the cache holds no indexer keys".into()),
        }
    }

    fn raw(&self, slot: u32, cell: usize) -> usize {
        self.state.slot(slot) + cell * self.dim * size_of::<f32>()
    }

    fn pooled(&self, slot: u32, block: usize) -> usize {
        self.raw(slot, self.cells + block)
    }
}

#[derive(Debug)]
pub struct IndexAppend {
    key: Place,
    cache: KeyCache,
    weight: Vector,
    eps: f32,
    rope: Rope,
}

impl IndexAppend {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<IndexAppend, String> {
        let Op::IndexAppend { key, cache, weight, eps, rope } = op else { return wrong_op() };
        let (key, cache) = (layout.view(*key)?, KeyCache::new(layout, *cache)?);
        let (weight, rope) = (layout.vector(*weight)?, layout.rope(*rope)?);
        if key.width != cache.dim || weight.len != cache.dim || rope.inv_freq.len() * 2 > cache.dim {
            return Err("operands of different widths".into());
        }
        Ok(IndexAppend { key, cache, weight, eps: *eps, rope })
    }
}

impl Kernel for IndexAppend {
    fn scratch_bytes(&self) -> usize {
        carve_bytes::<f32>(2 * self.rope.inv_freq.len())
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let key = self.key.read::<f32>(run);
        let weight = self.weight.get(run);
        let KeyCache { dim, ratio, .. } = self.cache;
        let mine = thread.member().share(key.rows());
        let turns: &mut [f32] = carve(&mut thread.scratch, 2 * self.rope.inv_freq.len());
        for span in run.spans {
            for i in (0..span.len).filter(|i| mine.contains(&(span.first + i))) {
                let token = span.index as usize + i;
                // SAFETY: rows are dealt to the threads, and a row alone writes the raw key of its token.
                let raw = unsafe { run.state.write::<f32>(self.cache.raw(span.slot, token), dim) };
                raw.copy_from_slice(key.row(span.first + i));
                if !(token + 1).is_multiple_of(ratio) {
                    continue;
                }
                // SAFETY: a block is completed by one row.
                let pooled = unsafe { run.state.write::<f32>(self.cache.pooled(span.slot, token / ratio), dim) };
                pooled.fill(0.0);
                for back in (0..ratio).rev() {
                    let raw = match i.checked_sub(back) {
                        Some(i) => key.row(span.first + i),
                        // SAFETY: tokens before the window were stored by earlier runs; this step does not write them.
                        None => unsafe { run.state.read(self.cache.raw(span.slot, token - back), dim) },
                    };
                    pooled.iter_mut().zip(raw).for_each(|(sum, raw)| *sum += raw);
                }
                pooled.iter_mut().for_each(|sum| *sum /= ratio as f32);
                let scale = rms_scale(pooled, self.eps);
                pooled.iter_mut().zip(weight).for_each(|(v, w)| *v = *v * scale * w);
                angles(&self.rope, span.position_before(run.rows, run.earlier, i, ratio - 1), turns);
                rotate(pooled, self.rope.pairing, turns);
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct BlockSelect {
    query: HeadsPlace,
    cache: KeyCache,
    budget: usize,
    out: Place,
    level: Option<Level>,
}

impl BlockSelect {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<BlockSelect, String> {
        let Op::BlockSelect { query, cache, budget_blocks, out } = op else { return wrong_op() };
        let (query, cache, out) = (layout.heads(*query)?, KeyCache::new(layout, *cache)?, layout.view(*out)?);
        if query.dim != cache.dim || out.width != *budget_blocks as usize + 1 {
            return Err("operands of different widths".into());
        }
        Ok(BlockSelect { query, cache, budget: *budget_blocks as usize, out, level: layout.level() })
    }

    fn blocks(&self) -> usize {
        self.cache.cells / self.cache.ratio
    }
}

/// Orders the blocks so that the `budget` best come first; of equals the lower number.
fn best_blocks<'b>(scores: &[f32], blocks: &'b mut [u32], budget: usize) -> &'b mut [u32] {
    blocks.iter_mut().zip(0..).for_each(|(block, number)| *block = number);
    if budget > 0 && budget < blocks.len() {
        let order = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
        blocks.select_nth_unstable_by(budget - 1, order);
    }
    let chosen = &mut blocks[..budget.min(scores.len())];
    chosen.sort_unstable();
    chosen
}

/// Scores in a small window, where the blocks are dealt to the threads, are kept for this many rows.
const FEW_ROWS: usize = 8;

impl BlockSelect {
    fn complete(&self, row: &Row) -> usize {
        (row.index as usize + 1) / self.cache.ratio
    }

    /// Scores of some blocks for the query of a row.
    fn score(&self, run: &Run<'_>, query: &Mat<'_, f32>, row: usize, first: usize, scores: &mut [f32]) {
        let dim = self.cache.dim;
        let from = self.cache.pooled(run.rows[row].slot, first);
        // SAFETY: pooled keys are written by `IndexAppend`, not in this step.
        let keys: &[f32] = unsafe { run.state.read(from, scores.len() * dim) };
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(dim)) {
            let heads = (0..self.query.count).map(|h| self.query.head(query, row, h));
            let product = |q: &[f32]| self.level.map_or_else(|| dot(q, key), |level| floats::dot(level.simd(), q, key));
            *score = heads.map(|q| product(q).max(0.0)).sum();
        }
    }

    /// Writes the choice of a row: all blocks if the budget allows, else the best by `scores`.
    fn choose(&self, complete: usize, scores: &[f32], blocks: &mut [u32], out: &mut [u32]) {
        let chosen = complete.min(self.budget);
        out[0] = chosen as u32;
        out[1 + chosen..].fill(0);
        if complete <= self.budget {
            out[1..=chosen].iter_mut().zip(0..).for_each(|(block, number)| *block = number);
        } else {
            let best = best_blocks(&scores[..complete], &mut blocks[..complete], self.budget);
            out[1..=chosen].copy_from_slice(best);
        }
    }

    /// Scores the rows of a small window together, into the shared scratch.
    fn score_together(&self, thread: &Thread<'_>, query: &Mat<'_, f32>) -> Result<(), Poisoned> {
        let run = thread.run;
        for row in 0..query.rows() {
            let complete = self.complete(&run.rows[row]);
            if complete > self.budget {
                let mine = thread.member().share(complete);
                let at = (row * self.blocks() + mine.start) * size_of::<f32>();
                // SAFETY: the blocks are dealt to the threads.
                let scores = unsafe { run.shared.write(at, mine.len()) };
                self.score(run, query, row, mine.start, scores);
            }
        }
        thread.team.meet(|| ())
    }
}

impl Kernel for BlockSelect {
    fn scratch_bytes(&self) -> usize {
        carve_bytes::<f32>(self.blocks()) + carve_bytes::<u32>(self.blocks())
    }

    fn shared_bytes(&self) -> usize {
        self.query.place.max_rows.min(FEW_ROWS) * self.blocks() * size_of::<f32>()
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let query = self.query.place.read::<f32>(run);
        let mut out = self.out.write::<u32>(thread);
        let together = query.rows() <= FEW_ROWS;
        if together {
            self.score_together(thread, &query)?;
        }
        let scores: &mut [f32] = carve(&mut thread.scratch, self.blocks());
        let blocks: &mut [u32] = carve(&mut thread.scratch, self.blocks());
        for piece in out.whole_rows() {
            let complete = self.complete(&run.rows[piece.row]);
            if !together && complete > self.budget {
                self.score(run, &query, piece.row, 0, &mut scores[..complete]);
            }
            if together {
                let at = piece.row * self.blocks() * size_of::<f32>();
                // SAFETY: written before the threads met; nothing writes the shared scratch again in this step.
                self.choose(complete, unsafe { run.shared.read(at, complete) }, blocks, piece.data);
            } else {
                self.choose(complete, scores, blocks, piece.data);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_blocks_come_ascending_and_ties_go_to_the_lower() {
        let mut blocks = [0; 6];
        let scores = [1.0, 3.0, 0.0, 3.0, 1.0, 2.0];
        assert_eq!(best_blocks(&scores, &mut blocks, 4), [0, 1, 3, 5]);
        assert_eq!(best_blocks(&scores, &mut blocks, 1), [1]);
        assert_eq!(best_blocks(&[0.0; 6], &mut blocks, 2), [0, 1]);
        assert_eq!(best_blocks(&scores, &mut blocks, 6), [0, 1, 2, 3, 4, 5]);
        assert!(best_blocks(&scores, &mut blocks, 0).is_empty());
    }
}
