//! Softmax attention in blocks of cells with a running maximum.
//!
//! Queries that share keys are worked on together: the heads of one KV head, and in prompts a tile of rows. Small windows split
//! the cells into chunks for the threads and join the partial results afterwards; how they are split depends on the number of
//! cells alone. Rows that attend to chosen blocks gather them.

use std::ops::Range;

use half::f16;

use super::super::super::exec::{Kernel, Run, Span, Thread};
use super::super::super::kernels::floats;
use super::super::super::pool::Poisoned;
use super::super::super::vector::{self, Level};
use super::super::super::view::{Mat, MatMut, carve, carve_bytes};
use super::super::attention::{self, CacheElement, Side};
use super::blocks::{self, BLOCK};
use super::product::FEW_ROWS;
use crate::program::KvFormat;
use crate::quant::legacy::{BlockQ4_0, BlockQ8_0};

/// Queries that a tile of a prompt holds, about.
const TILE_QUERIES: usize = 96;
/// Most parts that the cells of a row are split into.
const MAX_CHUNKS: usize = 64;
const MIN_CHUNK_CELLS: usize = 256;

#[derive(Debug)]
pub struct Attention {
    pub op: attention::Attention,
    pub level: Level,
}

/// Running softmax of some queries over the cells seen so far.
struct Running<'s> {
    /// Queries, already scaled, `[query][padded dim]`.
    q: &'s mut [f32],
    scores: &'s mut [f32],
    sums: &'s mut [f32],
    max: &'s mut [f32],
    total: &'s mut [f32],
}

/// Keys and values of a block as floats, rows padded with zeros.
struct Cells<'s> {
    k: &'s mut [f32],
    v: &'s mut [f32],
    turned: &'s mut [f32],
    count: usize,
}

/// The working memory and the sizes of one thread.
struct Worker<'s> {
    level: Level,
    /// Elements of a head, and with padding.
    dim: usize,
    padded: usize,
    cells: Cells<'s>,
    running: Running<'s>,
}

/// The operands of a run.
struct Operands<'a> {
    q: Mat<'a, f32>,
    gate: Option<Mat<'a, f32>>,
}

impl Attention {
    fn padded(&self) -> usize {
        self.op.cache.dim.next_multiple_of(16)
    }

    /// Query heads of one KV head.
    fn group(&self) -> usize {
        self.op.q.count / self.op.cache.heads
    }

    /// Rows of a prompt that are worked on together.
    fn tile(&self) -> usize {
        (TILE_QUERIES / self.group()).max(1)
    }

    fn worker<'s>(&self, scratch: &mut &'s mut [u8]) -> Worker<'s> {
        let (padded, queries) = (self.padded(), self.tile() * self.group());
        let mut floats = |len: usize| -> &'s mut [f32] { carve(scratch, len) };
        Worker {
            level: self.level,
            dim: self.op.cache.dim,
            padded,
            cells: Cells { k: floats(BLOCK * padded), v: floats(BLOCK * padded), turned: floats(BLOCK * padded), count: 0 },
            running: Running {
                q: floats(queries * padded),
                scores: floats(queries * BLOCK),
                sums: floats(queries * padded),
                max: floats(queries),
                total: floats(queries),
            },
        }
    }

    /// Floats of one partial result: sums, maximum, total.
    fn partial_len(&self) -> usize {
        self.padded() + 16
    }

    /// Whether a row sees all cells before it.
    fn is_dense(&self, run: &Run<'_>, row: usize) -> bool {
        self.op.selection.is_none() || self.attended(run, row) > run.rows[row].index as usize
    }

    fn attended(&self, run: &Run<'_>, row: usize) -> usize {
        let mut count = 0;
        self.op.cells(run, row, |cells| count += cells.len());
        count
    }

    /// Begins with the queries of one KV head for some rows, `[row][head of the group]`.
    fn load_queries(&self, worker: &mut Worker<'_>, q: &Mat<'_, f32>, rows: Range<usize>, kv_head: usize) -> usize {
        let group = self.group();
        let queries = rows.len() * group;
        let padded = worker.padded;
        for (i, out) in worker.running.q[..queries * padded].chunks_exact_mut(padded).enumerate() {
            let head = kv_head * group + i % group;
            let from = self.op.q.head(q, rows.start + i / group, head);
            out[from.len()..].fill(0.0);
            out.iter_mut().zip(from).for_each(|(out, q)| *out = q * self.op.scale);
        }
        worker.running.begin(queries, padded);
        queries
    }

    /// One row over the attended cells `range` (numbered in the order in which they are attended).
    fn gather_row<K: CacheElement, V: CacheElement>(
        &self,
        run: &Run<'_>,
        worker: &mut Worker<'_>,
        (row, kv_head): (usize, usize),
        range: Range<usize>,
        queries: usize,
    ) {
        let slot = run.rows[row].slot;
        let keys: &[K] = self.op.cache.read(run, slot, Side::Key, kv_head);
        let values: &[V] = self.op.cache.read(run, slot, Side::Value, kv_head);
        let mut before = 0;
        self.op.cells(run, row, |cells| {
            let from = range.start.clamp(before, before + cells.len()) - before;
            let to = range.end.clamp(before, before + cells.len()) - before;
            before += cells.len();
            for cell in cells.start + from..cells.start + to {
                worker.push(keys, values, cell);
                if worker.cells.count == BLOCK {
                    worker.absorb(queries);
                }
            }
        });
        worker.absorb(queries);
    }

    /// Small windows: chunks of cells in parallel, then rows and heads in parallel.
    fn few_rows<K: CacheElement, V: CacheElement>(
        &self,
        thread: &mut Thread<'_>,
        operands: &Operands<'_>,
    ) -> Result<(), Poisoned> {
        let (run, heads) = (thread.run, self.op.cache.heads);
        let rows = operands.q.rows();
        let mut lengths = [0; FEW_ROWS];
        lengths[..rows].iter_mut().enumerate().for_each(|(row, n)| *n = self.attended(run, row));
        let lengths = &lengths[..rows];
        let mine = thread.member().share(lengths.iter().map(|cells| heads * chunks(*cells)).sum());
        let mut out = self.op.out.place.write::<f32>(thread);
        let mut scratch = std::mem::take(&mut thread.scratch);
        let mut worker = self.worker(&mut scratch);
        let mut before = 0;
        for (row, &cells) in lengths.iter().enumerate() {
            let items = heads * chunks(cells);
            for item in mine.start.max(before)..mine.end.min(before + items) {
                let (kv_head, chunk) = ((item - before) / chunks(cells), (item - before) % chunks(cells));
                let queries = self.load_queries(&mut worker, &operands.q, row..row + 1, kv_head);
                let size = chunk_cells(cells);
                let range = chunk * size..((chunk + 1) * size).min(cells);
                self.gather_row::<K, V>(run, &mut worker, (row, kv_head), range, queries);
                self.keep_partials(run, &worker, row, kv_head, chunk, queries);
            }
            before += items;
        }
        thread.team.meet(|| ())?;
        for piece in out.pieces(self.op.out.step, self.op.out.dim) {
            self.join(run, piece.row, piece.number, chunks(lengths[piece.row]), piece.data, &mut worker.running.q[..]);
            self.finish(operands, piece.row, piece.number, piece.data);
        }
        Ok(())
    }

    /// First byte of a partial result.
    fn partial(&self, row: usize, head: usize, chunk: usize) -> usize {
        ((row * self.op.q.count + head) * MAX_CHUNKS + chunk) * self.partial_len() * size_of::<f32>()
    }

    fn keep_partials(&self, run: &Run<'_>, worker: &Worker<'_>, row: usize, kv_head: usize, chunk: usize, queries: usize) {
        let padded = worker.padded;
        for i in 0..queries {
            let at = self.partial(row, kv_head * self.group() + i, chunk);
            // SAFETY: a chunk of a row and KV head is one thread's item.
            let kept: &mut [f32] = unsafe { run.shared.write(at, self.partial_len()) };
            kept[..padded].copy_from_slice(&worker.running.sums[i * padded..(i + 1) * padded]);
            (kept[padded], kept[padded + 1]) = (worker.running.max[i], worker.running.total[i]);
        }
    }

    /// Joins the partial results of one head, in the order of the chunks.
    fn join(&self, run: &Run<'_>, row: usize, head: usize, count: usize, out: &mut [f32], sums: &mut [f32]) {
        let padded = self.padded();
        let partial = |chunk: usize| -> &[f32] {
            // SAFETY: written before the threads met; nothing writes the shared scratch again in this step.
            unsafe { run.shared.read(self.partial(row, head, chunk), self.partial_len()) }
        };
        let max = (0..count).map(|c| partial(c)[padded]).fold(f32::NEG_INFINITY, f32::max);
        let sums = &mut sums[..padded];
        sums.fill(0.0);
        let mut total = 0.0;
        for part in (0..count).map(partial) {
            let weight = (part[padded] - max).exp();
            total += weight * part[padded + 1];
            floats::axpy(self.level.simd(), weight, &part[..padded], sums);
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = *sum / total);
    }

    fn finish(&self, operands: &Operands<'_>, row: usize, head: usize, out: &mut [f32]) {
        if let (Some(place), Some(gate)) = (self.op.gate, &operands.gate) {
            vector::times_sigmoid(self.level, out, place.head(gate, row, head));
        }
    }

    /// Prompts: tiles of rows.
    fn many_rows<K: CacheElement, V: CacheElement>(&self, thread: &mut Thread<'_>, operands: &Operands<'_>) {
        let (run, heads, tile) = (thread.run, self.op.cache.heads, self.tile());
        let out = self.op.out.place.write::<f32>(thread);
        let member = thread.member();
        let mut scratch = std::mem::take(&mut thread.scratch);
        let mut worker = self.worker(&mut scratch);
        // Later rows see more cells: dealing in turn evens that out.
        let mut item = 0;
        for span in run.spans {
            for first in (0..span.len).step_by(tile) {
                let rows = span.first + first..span.first + (first + tile).min(span.len);
                for kv_head in 0..heads {
                    item += 1;
                    if item % member.count != member.index {
                        continue;
                    }
                    if rows.clone().all(|row| self.is_dense(run, row)) {
                        let queries = self.load_queries(&mut worker, &operands.q, rows.clone(), kv_head);
                        self.dense_tile::<K, V>(run, &mut worker, span, rows.clone(), kv_head);
                        self.store(&worker, operands, rows.clone(), kv_head, queries, &out);
                        continue;
                    }
                    for row in rows.clone() {
                        let queries = self.load_queries(&mut worker, &operands.q, row..row + 1, kv_head);
                        self.gather_row::<K, V>(run, &mut worker, (row, kv_head), 0..usize::MAX, queries);
                        self.store(&worker, operands, row..row + 1, kv_head, queries, &out);
                    }
                }
            }
        }
    }

    fn dense_tile<K: CacheElement, V: CacheElement>(
        &self,
        run: &Run<'_>,
        worker: &mut Worker<'_>,
        span: &Span,
        rows: Range<usize>,
        kv_head: usize,
    ) {
        let (group, dim) = (self.group(), worker.dim);
        let keys: &[K] = self.op.cache.read(run, span.slot, Side::Key, kv_head);
        let values: &[V] = self.op.cache.read(run, span.slot, Side::Value, kv_head);
        let visible = |row: usize| {
            let end = run.rows[row].index as usize + 1;
            self.op.window.map_or(0, |window| end.saturating_sub(window))..end
        };
        let (all_from, all_to) = (visible(rows.start).start, visible(rows.end - 1).end);
        for first in (all_from..all_to).step_by(BLOCK) {
            let count = BLOCK.min(all_to - first);
            worker.cells.load(&keys[first * K::count(dim)..], &values[first * V::count(dim)..], count, dim, worker.padded);
            worker.absorb_tile(rows.len() * group, count, |query| {
                let seen = visible(rows.start + query / group);
                let from = seen.start.clamp(first, first + count);
                from - first..seen.end.clamp(from, first + count) - first
            });
        }
    }

    /// Writes the results of a tile.
    fn store(
        &self,
        worker: &Worker<'_>,
        operands: &Operands<'_>,
        rows: Range<usize>,
        kv_head: usize,
        queries: usize,
        out: &MatMut<'_, f32>,
    ) {
        let (group, padded) = (self.group(), worker.padded);
        for i in 0..queries {
            let (row, head) = (rows.start + i / group, kv_head * group + i % group);
            let first = head * self.op.out.step;
            // SAFETY: the heads of a KV head and a tile of rows are one thread's item.
            let out = unsafe { out.part(row, first..first + self.op.out.dim) };
            let total = worker.running.total[i];
            let sums = &worker.running.sums[i * padded..];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / total);
            self.finish(operands, row, head, out);
        }
    }

    fn dispatch<K: CacheElement, V: CacheElement>(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let operands = Operands { q: self.op.q.place.read(run), gate: self.op.gate.map(|g| g.place.read(run)) };
        if operands.q.rows() <= FEW_ROWS {
            self.few_rows::<K, V>(thread, &operands)
        } else {
            self.many_rows::<K, V>(thread, &operands);
            Ok(())
        }
    }
}

/// Cells of a chunk: enough to be worth a thread's while, few enough chunks to keep their results.
fn chunk_cells(cells: usize) -> usize {
    cells.div_ceil(MAX_CHUNKS).next_multiple_of(BLOCK).max(MIN_CHUNK_CELLS)
}

fn chunks(cells: usize) -> usize {
    cells.div_ceil(chunk_cells(cells))
}

impl Running<'_> {
    fn begin(&mut self, queries: usize, padded: usize) {
        self.sums[..queries * padded].fill(0.0);
        self.max[..queries].fill(f32::NEG_INFINITY);
        self.total[..queries].fill(0.0);
    }
}

/// A cell of `dim` numbers.
fn one<T: CacheElement>(cells: &[T], cell: usize, dim: usize) -> &[T] {
    let len = T::count(dim);
    &cells[cell * len..(cell + 1) * len]
}

impl Cells<'_> {
    /// Loads neighbouring cells; `turned` gets the keys as `[dim][cell]`.
    fn load<K: CacheElement, V: CacheElement>(&mut self, keys: &[K], values: &[V], count: usize, dim: usize, padded: usize) {
        for cell in 0..count {
            let to = cell * padded..(cell + 1) * padded;
            K::widen(one(keys, cell, dim), dim, &mut self.k[to.clone()]);
            V::widen(one(values, cell, dim), dim, &mut self.v[to]);
        }
        blocks::turn(&self.k[..count * padded], padded, self.turned);
    }
}

impl Worker<'_> {
    fn push<K: CacheElement, V: CacheElement>(&mut self, keys: &[K], values: &[V], cell: usize) {
        let to = self.cells.count * self.padded..(self.cells.count + 1) * self.padded;
        K::widen(one(keys, cell, self.dim), self.dim, &mut self.cells.k[to.clone()]);
        V::widen(one(values, cell, self.dim), self.dim, &mut self.cells.v[to]);
        self.cells.count += 1;
    }

    /// Takes the gathered cells into the running softmax: all are visible to all queries.
    fn absorb(&mut self, queries: usize) {
        let (count, padded) = (std::mem::take(&mut self.cells.count), self.padded);
        if count == 0 {
            return;
        }
        let q = &self.running.q[..queries * padded];
        blocks::scores(self.level, q, &self.cells.k[..count * padded], padded, self.running.scores);
        for query in 0..queries {
            self.update(query, 0..count);
        }
        blocks::accumulate(
            self.level,
            &self.running.scores[..queries * BLOCK],
            count,
            &self.cells.v[..count * padded],
            padded,
            &mut self.running.sums[..queries * padded],
        );
    }

    /// Takes a loaded block into the running softmax; each query sees some of its cells.
    fn absorb_tile(&mut self, queries: usize, count: usize, visible: impl Fn(usize) -> Range<usize>) {
        let padded = self.padded;
        let scores = &mut self.running.scores[..queries * BLOCK];
        scores.fill(0.0);
        blocks::gemm(self.level, &self.running.q[..queries * padded], padded, padded, self.cells.turned, BLOCK, scores);
        for query in 0..queries {
            self.update(query, visible(query));
        }
        blocks::accumulate(
            self.level,
            &self.running.scores[..queries * BLOCK],
            count,
            &self.cells.v[..count * padded],
            padded,
            &mut self.running.sums[..queries * padded],
        );
    }

    /// Turns a query's scores of a block into weights relative to the new maximum.
    fn update(&mut self, query: usize, visible: Range<usize>) {
        let Running { scores, sums, max, total, .. } = &mut self.running;
        let scores = &mut scores[query * BLOCK..(query + 1) * BLOCK];
        scores[..visible.start].fill(0.0);
        scores[visible.end..].fill(0.0);
        if visible.is_empty() {
            return;
        }
        let scores = &mut scores[visible];
        let new = vector::max(self.level, scores).max(max[query]);
        if new > max[query] {
            let keep = (max[query] - new).exp();
            total[query] *= keep;
            sums[query * self.padded..(query + 1) * self.padded].iter_mut().for_each(|sum| *sum *= keep);
            max[query] = new;
        }
        total[query] += vector::exponentials(self.level, scores, new);
    }
}

impl Kernel for Attention {
    fn scratch_bytes(&self) -> usize {
        let (padded, queries) = (self.padded(), self.tile() * self.group());
        3 * carve_bytes::<f32>(BLOCK * padded)
            + 2 * carve_bytes::<f32>(queries * padded)
            + carve_bytes::<f32>(queries * BLOCK)
            + 2 * carve_bytes::<f32>(queries)
    }

    fn shared_bytes(&self) -> usize {
        let rows = self.op.q.place.max_rows.min(FEW_ROWS);
        rows * self.op.q.count * MAX_CHUNKS * self.partial_len() * size_of::<f32>()
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        attention::by_format!(self.op.cache.format, self.dispatch(thread))
    }
}
