//! Caches, attention and the indexer.

use super::super::args::{AttentionArgs, BlockSelectArgs, IndexAppendArgs, IndexScoresArgs, KvAppendArgs, NONE};
use super::super::kernels::{Kernel, Operand};
use super::super::launch::Extent;
use super::super::run_block::AnglesOf;
use super::rowwise::pairing_code;
use super::{Call, Lowering, Outcome, check_room};
use crate::program::{Heads, KvFormat, Op, StateId, StateKind, View};

/// Cells for which one more split of attention pays.
const CELLS_OF_SPLIT: u32 = 128;
/// Blocks of a workgroup of `index_scores`.
const SCORE_BLOCKS: u32 = 64;
/// Rows of a chunk that are scored together: their scores lie in the scratch.
const SCORE_ROWS: u32 = 64;

struct Cache {
    format: KvFormat,
    cells: u32,
    kv_heads: u32,
    dim: u32,
}

struct IndexKeys {
    cells: u32,
    dim: u32,
    ratio: u32,
}

impl Lowering<'_> {
    fn index_keys(&self, id: StateId) -> Outcome<IndexKeys> {
        let StateKind::IndexKeys { cells, dim, ratio } = self.stage.state(id).kind else {
            return Err("the cache holds no indexer keys".into());
        };
        check_room("elements of an indexer key", dim, self.target.room.index_keys)?;
        Ok(IndexKeys { cells, dim, ratio })
    }

    fn kv_cache(&self, id: StateId) -> Outcome<Cache> {
        let StateKind::Kv { format, cells, kv_heads, head_dim } = self.stage.state(id).kind else {
            return Err("the cache holds no keys and values".into());
        };
        if format == KvFormat::F16 && !head_dim.is_multiple_of(2) {
            return Err(format!("heads of {head_dim} elements with keys of two bytes: GPU kernels store pairs"));
        }
        if !self.target.caches.contains(&format) {
            return Err(format!("keys and values cached as {}: this device has no kernels for them", format.name()));
        }
        Ok(Cache { format, cells, kv_heads, dim: head_dim })
    }

    pub(super) fn attention(&mut self, op: &Op) -> Outcome {
        match op {
            Op::KvAppend { k, v, cache } => self.kv_append(*k, *v, *cache),
            Op::Attention { q, cache, out, scale, window, selection, gate } => {
                self.attend(*q, *cache, *out, *scale, *window, *selection, *gate)
            }
            _ => Err("no kernel for the op".into()),
        }
    }

    fn kv_append(&mut self, k: View, v: View, id: StateId) -> Outcome {
        let cache = self.kv_cache(id)?;
        let (_, state, state_at, slot_stride) = self.state(id)?;
        let work = self.work(&[k, v])?;
        let ((k_at, k_stride), (v_at, v_stride)) = (self.place(k, &work)?, self.place(v, &work)?);
        let (key_format, _) = cache.format.formats();
        let padded = cache.dim.next_multiple_of(key_format.info().block_len as u32) * cache.kv_heads;
        let mut call = Call::new(Kernel::KvAppend, self.columns_by_rows(padded, k)?).work(&work);
        call.cache = Some(cache.format);
        let Cache { cells, kv_heads, dim, .. } = cache;
        let args = KvAppendArgs { k_at, k_stride, v_at, v_stride, state_at, slot_stride, cells, kv_heads, dim };
        self.push(call.with(Operand::State, Some(state)), args);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // the operands of the op, one each
    fn attend(
        &mut self,
        q: Heads,
        id: StateId,
        out: Heads,
        scale: f32,
        window: Option<u32>,
        selection: Option<(View, u32)>,
        gate: Option<Heads>,
    ) -> Outcome {
        check_room("elements of an attention head", q.dim, self.target.room.head_dim)?;
        let cache = self.kv_cache(id)?;
        let (_, state, state_at, slot_stride) = self.state(id)?;
        let mut views = vec![q.view(), out.view()];
        views.extend(gate.map(|g| g.view()));
        views.extend(selection.map(|(view, _)| view));
        let work = self.work(&views)?;
        let (q_at, q_stride, q_head_stride) = self.heads_place(q, &work)?;
        let (out_at, out_stride, out_head_stride) = self.heads_place(out, &work)?;
        let (gate_at, gate_stride, gate_head_stride) = gate.map_or(Ok((NONE, 0, 0)), |g| self.heads_place(g, &work))?;
        let (selection_at, selection_stride) = selection.map_or(Ok((NONE, 0)), |(view, _)| self.place(view, &work))?;
        let ratio = selection.map_or(1, |(_, ratio)| ratio);
        let few = self.few_rows(q.view());
        let seen = selection.map_or(cache.cells, |(view, ratio)| (view.width * ratio).min(cache.cells));
        let seen = window.map_or(seen, |w| w.min(seen));
        let splits = if few { seen.div_ceil(CELLS_OF_SPLIT).clamp(1, self.target.tiles.attention_splits) } else { 1 };
        let partials = u64::from(self.max_rows(q.view())) * u64::from(q.count) * u64::from(splits) * u64::from(q.dim + 2);
        let partial_at = if splits > 1 { self.scratch(partials)? } else { NONE };
        let args = AttentionArgs {
            q_at,
            q_stride,
            q_head_stride,
            out_at,
            out_stride,
            out_head_stride,
            gate_at,
            gate_stride,
            gate_head_stride,
            selection_at,
            selection_stride,
            ratio,
            window: window.unwrap_or(NONE),
            heads: q.count,
            kv_heads: cache.kv_heads,
            dim: q.dim,
            state_at,
            slot_stride,
            cells: cache.cells,
            scale,
            splits,
            partial_at,
        };
        let rows = self.rows_extent(q.view())?;
        let mut call = Call::new(Kernel::Attention, [Extent::Fixed(q.count), rows, Extent::Fixed(splits)]);
        call.cache = Some(cache.format);
        self.push(call.work(&work).with(Operand::State, Some(state)), args);
        if splits > 1 {
            let grid = [Extent::Fixed(q.count), rows, Extent::Fixed(1)];
            self.push(Call::new(Kernel::AttentionMerge, grid).work(&work), args);
        }
        Ok(())
    }

    pub(super) fn indexer(&mut self, op: &Op) -> Outcome {
        match op {
            Op::IndexAppend { key, cache, weight, eps, rope } => {
                let IndexKeys { cells, dim, ratio } = self.index_keys(*cache)?;
                let (_, state, state_at, slot_stride) = self.state(*cache)?;
                let work = self.work(&[*key])?;
                let (key_at, key_stride) = self.place(*key, &work)?;
                let (w2, weight_at) = self.vector(Some(*weight))?;
                let of = AnglesOf::BlockStart { ratio };
                let angles_at = self.run.angles_at(*rope, of).ok_or("the run block has no angles for the step")?;
                let rope = self.stage.rope(*rope);
                let grid = [Extent::Fixed(1), self.rows_extent(*key)?, Extent::Fixed(1)];
                let call = Call::new(Kernel::IndexAppend, grid).work(&work).with(Operand::W2, w2);
                let args = IndexAppendArgs {
                    key_at,
                    key_stride,
                    state_at,
                    slot_stride,
                    cells,
                    dim,
                    ratio,
                    weight_at,
                    eps: *eps,
                    angles_at,
                    pairs: rope.inv_freq.len() as u32,
                    pairing: pairing_code(rope.pairing),
                };
                self.push(call.with(Operand::State, Some(state)), args);
                Ok(())
            }
            Op::BlockSelect { query, cache, budget_blocks, out } => self.block_select(*query, *cache, *budget_blocks, *out),
            _ => Err("no kernel for the op".into()),
        }
    }

    fn block_select(&mut self, query: Heads, id: StateId, budget: u32, out: View) -> Outcome {
        let IndexKeys { cells, dim, ratio } = self.index_keys(id)?;
        let (_, state, state_at, slot_stride) = self.state(id)?;
        let work = self.work(&[query.view(), out])?;
        let (query_at, query_stride, head_stride) = self.heads_place(query, &work)?;
        let (out_at, out_stride) = self.place(out, &work)?;
        let blocks = cells / ratio.max(1);
        let max_rows = self.max_rows(out);
        let scores_at = self.scratch(u64::from(max_rows.min(SCORE_ROWS)) * u64::from(blocks))?;
        let groups = blocks.div_ceil(SCORE_BLOCKS).max(1);
        if groups > self.target.max_groups_x {
            return Err(format!("{blocks} blocks are more than the device can score at once"));
        }
        for first_row in (0..max_rows).step_by(SCORE_ROWS as usize) {
            let rows =
                Extent::Counted { count: self.count_of(out), first: first_row, most: SCORE_ROWS, times: 1, per: 1, extra: 0 };
            let scores_stride = blocks;
            let args = IndexScoresArgs {
                query_at,
                query_stride,
                head_stride,
                heads: query.count,
                dim,
                state_at,
                slot_stride,
                cells,
                ratio,
                budget,
                first_row,
                scores_at,
                scores_stride,
            };
            let call = Call::new(Kernel::IndexScores, [Extent::Fixed(groups), rows, Extent::Fixed(1)]).work(&work);
            self.push(call.with(Operand::State, Some(state)), args);
            let args = BlockSelectArgs { scores_at, scores_stride, out_at, out_stride, budget, ratio, first_row };
            self.push(Call::new(Kernel::BlockSelect, [Extent::Fixed(1), rows, Extent::Fixed(1)]).work(&work), args);
        }
        Ok(())
    }
}
