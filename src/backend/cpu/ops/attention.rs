//! Keys and values, and softmax attention over them.

use std::ops::Range;

use bytemuck::Pod;
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::super::exec::{Kernel, Run, Thread};
use super::super::layout::{HeadsPlace, Layout, Place, StatePlace};
use super::super::pool::Poisoned;
use super::super::view::{carve, carve_bytes};
use super::math::{axpy, dot, sigmoid};
use super::wrong_op;
use crate::program::{KvFormat, Op, StateId, StateKind};
use crate::quant::Block;
use crate::quant::legacy::{BlockQ4_0, BlockQ8_0};

/// Keys `[kv_head][cell][head_dim]`, then values the same.
#[derive(Debug, Clone, Copy)]
pub struct KvCache {
    state: StatePlace,
    pub format: KvFormat,
    pub cells: usize,
    pub heads: usize,
    pub dim: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Key = 0,
    Value = 1,
}

/// What the cache consists of: single numbers, or blocks of them. A cell is as many as a head needs.
pub trait CacheElement: Pod {
    /// Numbers in one.
    const LEN: usize;

    fn store(from: &[f32], to: &mut [Self]);
    /// The `buffer.len()` numbers of a cell as floats, converted into `buffer` where they are not.
    fn load<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];
    /// The first `dim` numbers as floats, then zeros.
    fn widen(from: &[Self], dim: usize, to: &mut [f32]);

    /// Of these, in a cell of `dim` numbers.
    fn count(dim: usize) -> usize {
        dim.div_ceil(Self::LEN)
    }
}

impl CacheElement for f32 {
    const LEN: usize = 1;

    fn store(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn load<'a>(from: &'a [f32], _: &'a mut [f32]) -> &'a [f32] {
        from
    }

    fn widen(from: &[f32], _dim: usize, to: &mut [f32]) {
        let (values, padding) = to.split_at_mut(from.len());
        values.copy_from_slice(from);
        padding.fill(0.0);
    }
}

impl CacheElement for f16 {
    const LEN: usize = 1;

    fn store(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }

    fn load<'a>(from: &'a [f16], buffer: &'a mut [f32]) -> &'a [f32] {
        let convert = |value: &f16| crate::quant::f16_bits_to_f32(value.to_bits());
        buffer.iter_mut().zip(from).for_each(|(to, from)| *to = convert(from));
        buffer
    }

    fn widen(from: &[f16], _dim: usize, to: &mut [f32]) {
        let (values, padding) = to.split_at_mut(from.len());
        from.convert_to_f32_slice(values);
        padding.fill(0.0);
    }
}

/// Blocks are decoded as [`Block::decode`] says. The last one of a cell may be partly empty: it is encoded with zeros.
macro_rules! blocks_in_the_cache {
    ($($block:ty),*) => {$(
        impl CacheElement for $block {
            const LEN: usize = <$block as Block>::LEN;

            fn store(from: &[f32], to: &mut [$block]) {
                const ENCODE: fn(&[f32]) -> $block = match <$block as Block>::ENCODE {
                    Some(encode) => encode,
                    None => panic!("caches are written"),
                };
                let mut padded = [0.0; <$block as Block>::LEN];
                for (values, block) in from.chunks(<$block as Block>::LEN).zip(to) {
                    padded[..values.len()].copy_from_slice(values);
                    padded[values.len()..].fill(0.0);
                    *block = ENCODE(&padded);
                }
            }

            fn load<'a>(from: &'a [$block], buffer: &'a mut [f32]) -> &'a [f32] {
                let dim = buffer.len();
                Self::widen(from, dim, buffer);
                buffer
            }

            fn widen(from: &[$block], dim: usize, to: &mut [f32]) {
                let (values, padding) = to.split_at_mut(dim);
                for (block, out) in from.iter().zip(values.chunks_mut(<$block as Block>::LEN)) {
                    if out.len() == <$block as Block>::LEN {
                        block.decode(out);
                    } else {
                        let mut whole = [0.0; <$block as Block>::LEN];
                        block.decode(&mut whole);
                        out.copy_from_slice(&whole[..out.len()]);
                    }
                }
                padding.fill(0.0);
            }
        }
    )*};
}

blocks_in_the_cache!(BlockQ8_0, BlockQ4_0);

/// Calls a method with the elements of keys and values of a format.
macro_rules! by_format {
    ($format:expr, $of:ident . $method:ident ( $($argument:expr),* )) => {
        match $format {
            KvFormat::F32 => $of.$method::<f32, f32>($($argument),*),
            KvFormat::F16 => $of.$method::<f16, f16>($($argument),*),
            KvFormat::Q8_0 => $of.$method::<BlockQ8_0, BlockQ8_0>($($argument),*),
            KvFormat::K8V4 => $of.$method::<BlockQ8_0, BlockQ4_0>($($argument),*),
            KvFormat::Q4_0 => $of.$method::<BlockQ4_0, BlockQ4_0>($($argument),*),
        }
    };
}
pub(super) use by_format;

impl KvCache {
    pub fn new(layout: &Layout<'_>, id: StateId) -> Result<KvCache, String> {
        let state = layout.state(id)?;
        match state.kind {
            StateKind::Kv { format, cells, kv_heads, head_dim } if kv_heads > 0 && head_dim > 0 => {
                Ok(KvCache { state, format, cells: cells as usize, heads: kv_heads as usize, dim: head_dim as usize })
            }
            _ => Err("the cache holds no keys and values".into()),
        }
    }

    /// First byte of a cell whose side has elements `T`.
    fn cell<T: CacheElement>(&self, slot: u32, side: Side, head: usize, cell: usize) -> usize {
        let before = match side {
            Side::Key => 0,
            Side::Value => self.heads * self.cells * self.format.cell_bytes(self.dim as u32).0 as usize,
        };
        self.state.slot(slot) + before + (head * self.cells + cell) * T::count(self.dim) * size_of::<T>()
    }

    /// The cells of one head, for a step that does not append.
    pub fn read<'a, T: CacheElement>(&self, run: &Run<'a>, slot: u32, side: Side, head: usize) -> &'a [T] {
        // SAFETY: only `KvAppend` writes the cache, and a step is either that or one that reads.
        unsafe { run.state.read(self.cell::<T>(slot, side, head, 0), self.cells * T::count(self.dim)) }
    }
}

#[derive(Debug)]
pub struct KvAppend {
    k: Place,
    v: Place,
    cache: KvCache,
}

impl KvAppend {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<KvAppend, String> {
        let Op::KvAppend { k, v, cache } = op else { return wrong_op() };
        let (k, v, cache) = (layout.view(*k)?, layout.view(*v)?, KvCache::new(layout, *cache)?);
        if [k.width, v.width] != [cache.heads * cache.dim; 2] {
            return Err("operands of different widths".into());
        }
        Ok(KvAppend { k, v, cache })
    }

    fn append<K: CacheElement, V: CacheElement>(&self, thread: &Thread<'_>) {
        self.append_side::<K>(thread, Side::Key, self.k);
        self.append_side::<V>(thread, Side::Value, self.v);
    }

    fn append_side<T: CacheElement>(&self, thread: &Thread<'_>, side: Side, values: Place) {
        let (run, heads, dim) = (thread.run, self.cache.heads, self.cache.dim);
        let values = values.read::<f32>(run);
        for item in thread.member().share(run.rows.len() * heads) {
            let (row, head) = (item / heads, item % heads);
            let at = run.rows[row];
            let cell = self.cache.cell::<T>(at.slot, side, head, at.index as usize);
            // SAFETY: rows differ in slot or index, so every item has a cell of its own.
            let cell: &mut [T] = unsafe { run.state.write(cell, T::count(dim)) };
            T::store(values.part(row, head * dim, dim), cell);
        }
    }
}

impl Kernel for KvAppend {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        by_format!(self.cache.format, self.append(thread));
        Ok(())
    }
}

#[derive(Debug)]
pub struct Attention {
    pub q: HeadsPlace,
    pub cache: KvCache,
    pub out: HeadsPlace,
    pub scale: f32,
    pub window: Option<usize>,
    pub selection: Option<(Place, usize)>,
    pub gate: Option<HeadsPlace>,
}

impl Attention {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<Attention, String> {
        let Op::Attention { q, cache, out, scale, window, selection, gate } = op else { return wrong_op() };
        let (q, out, cache) = (layout.heads(*q)?, layout.heads(*out)?, KvCache::new(layout, *cache)?);
        let gate = gate.map(|g| layout.heads(g)).transpose()?;
        let selection = match selection {
            Some((view, ratio)) if *ratio > 0 => Some((layout.view(*view)?, *ratio as usize)),
            Some(_) => return Err("blocks of no tokens".into()),
            None => None,
        };
        let shape = (q.count, q.dim);
        if (out.count, out.dim) != shape || gate.is_some_and(|g| (g.count, g.dim) != shape) {
            return Err("operands of different shapes".into());
        }
        if q.dim != cache.dim || !q.count.is_multiple_of(cache.heads) {
            return Err(format!("{} heads of {} over {} of {}", q.count, q.dim, cache.heads, cache.dim));
        }
        let window = window.map(|w| w as usize);
        Ok(Attention { q, cache, out, scale: *scale, window, selection, gate })
    }

    /// Calls `see` with the runs of cells that a row attends to, ascending.
    pub fn cells(&self, run: &Run<'_>, row: usize, mut see: impl FnMut(Range<usize>)) {
        let end = run.rows[row].index as usize + 1;
        let start = self.window.map_or(0, |window| end.saturating_sub(window));
        let Some((place, ratio)) = &self.selection else { return see(start..end) };
        let selection = place.read::<u32>(run);
        let (count, blocks) = selection.row(row).split_first().unwrap_or((&0, &[]));
        for block in blocks.iter().take(*count as usize) {
            let first = *block as usize * ratio;
            see(first.max(start).min(end)..(first + ratio).clamp(start, end));
        }
        see((end / ratio * ratio).max(start)..end);
    }

    fn attend<K: CacheElement, V: CacheElement>(&self, thread: &mut Thread<'_>) {
        let run = thread.run;
        let q = self.q.place.read::<f32>(run);
        let gate = self.gate.map(|g| (g, g.place.read::<f32>(run)));
        let dim = self.cache.dim;
        let mut out = self.out.place.write::<f32>(thread);
        let mut scratch = std::mem::take(&mut thread.scratch);
        let scores: &mut [f32] = carve(&mut scratch, self.cache.cells);
        let buffer: &mut [f32] = carve(&mut scratch, dim);
        for piece in out.pieces(self.out.step, self.out.dim) {
            let (row, head) = (piece.row, piece.number);
            let kv_head = head / (self.q.count / self.cache.heads);
            let slot = run.rows[row].slot;
            let query = self.q.head(&q, row, head);
            let (keys, key_len) = (self.cache.read::<K>(run, slot, Side::Key, kv_head), K::count(dim));
            let (values, value_len) = (self.cache.read::<V>(run, slot, Side::Value, kv_head), V::count(dim));
            let mut count = 0;
            self.cells(run, row, |cells| {
                for key in keys[cells.start * key_len..cells.end * key_len].chunks_exact(key_len) {
                    scores[count] = dot(query, K::load(key, buffer)) * self.scale;
                    count += 1;
                }
            });
            let sum = exponentials(&mut scores[..count]);
            piece.data.fill(0.0);
            let mut next = 0;
            self.cells(run, row, |cells| {
                for value in values[cells.start * value_len..cells.end * value_len].chunks_exact(value_len) {
                    axpy(piece.data, scores[next] / sum, V::load(value, buffer));
                    next += 1;
                }
            });
            if let Some((place, gate)) = &gate {
                let gate = place.head(gate, row, head);
                piece.data.iter_mut().zip(gate).for_each(|(out, g)| *out *= sigmoid(*g));
            }
        }
    }
}

/// Replaces scores by `exp(score - max)` and returns their sum.
pub(super) fn exponentials(scores: &mut [f32]) -> f32 {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|s| *s = (*s - max).exp());
    scores.iter().sum()
}

impl Kernel for Attention {
    fn scratch_bytes(&self) -> usize {
        carve_bytes::<f32>(self.cache.cells) + carve_bytes::<f32>(self.cache.dim)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        by_format!(self.cache.format, self.attend(thread));
        Ok(())
    }
}
