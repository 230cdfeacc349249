//! Softmax attention in blocks of cells with a running maximum.
//!
//! Queries that share keys are worked on together: the heads of one KV head, and in prompts a tile of rows. Rows that attend to
//! chosen blocks gather them.
//!
//! A row's result has the same bits in every window. Its cells are numbered in the order in which it attends to them and cut,
//! at multiples of fixed sizes, into chunks and these into blocks. Each chunk has a running softmax over its blocks, and chunks
//! are joined from first to last. In small windows chunks are dealt to the threads; in prompts one thread goes through them.

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
pub(super) const TILE_QUERIES: usize = 96;
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
    count: usize,
}

/// Softmax of a query over some cells: weighted sum of the values, and maximum and total of the weights.
struct Softmax<'s> {
    sums: &'s mut [f32],
    max: &'s mut f32,
    total: &'s mut f32,
}

impl Softmax<'_> {
    fn clear(&mut self) {
        (*self.max, *self.total) = (f32::NEG_INFINITY, 0.0);
    }

    /// Takes in the cells of another chunk.
    fn join(&mut self, level: Level, sums: &[f32], max: f32, total: f32) {
        if max == f32::NEG_INFINITY {
            return;
        }
        if *self.max == f32::NEG_INFINITY {
            self.sums.copy_from_slice(sums);
            (*self.max, *self.total) = (max, total);
            return;
        }
        let new = self.max.max(max);
        let (keep, take) = ((*self.max - new).exp(), (max - new).exp());
        floats::scale(level.simd(), self.sums, keep);
        floats::axpy(level.simd(), take, sums, self.sums);
        (*self.max, *self.total) = (new, *self.total * keep + total * take);
    }
}

/// The working memory and the sizes of one thread.
pub(super) struct Worker<'s> {
    level: Level,
    /// Elements of a head, and with padding.
    dim: usize,
    padded: usize,
    cells: Cells<'s>,
    /// The chunk at hand.
    running: Running<'s>,
    /// The chunks before it: sums, maximum and total of each query.
    joined: (&'s mut [f32], &'s mut [f32], &'s mut [f32]),
}

/// Elements of a head with its padding.
fn padded(dim: usize) -> usize {
    dim.next_multiple_of(16)
}

/// The operands of a run.
struct Operands<'a> {
    q: Mat<'a, f32>,
    gate: Option<Mat<'a, f32>>,
}

impl Attention {
    fn padded(&self) -> usize {
        padded(self.op.cache.dim)
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
        Worker::new(self.level, self.op.cache.dim, self.tile() * self.group(), scratch)
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

    /// The numbers of the cells that a row attends to. Where it sees all since the first of them, they are their places in the
    /// sequence, so that rows of a tile have their chunks and blocks in common.
    fn numbers(&self, run: &Run<'_>, row: usize) -> Range<usize> {
        let count = self.attended(run, row);
        let end = run.rows[row].index as usize + 1;
        if self.op.selection.is_none() { end - count..end } else { 0..count }
    }

    /// Begins with the queries of one KV head for some rows, `[row][head of the group]`.
    fn load_queries(&self, worker: &mut Worker<'_>, q: &Mat<'_, f32>, rows: Range<usize>, kv_head: usize) -> usize {
        let group = self.group();
        let queries = rows.len() * group;
        let head = |i: usize| self.op.q.head(q, rows.start + i / group, kv_head * group + i % group);
        worker.load_queries(queries, self.op.scale, head);
        queries
    }

    /// One row over the attended cells with the numbers `chunk`.
    fn gather_chunk<K: CacheElement, V: CacheElement>(
        &self,
        run: &Run<'_>,
        worker: &mut Worker<'_>,
        (row, kv_head): (usize, usize),
        chunk: Range<usize>,
        queries: usize,
    ) {
        let slot = run.rows[row].slot;
        let keys: &[K] = self.op.cache.read(run, slot, Side::Key, kv_head);
        let values: &[V] = self.op.cache.read(run, slot, Side::Value, kv_head);
        let mut number = self.numbers(run, row).start;
        self.op.cells(run, row, |cells| {
            let from = chunk.start.clamp(number, number + cells.len()) - number;
            let to = chunk.end.clamp(number, number + cells.len()) - number;
            for cell in from..to {
                worker.push(keys, values, cells.start + cell);
                if (number + cell + 1).is_multiple_of(BLOCK) {
                    worker.absorb(queries);
                }
            }
            number += cells.len();
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
        let mut chunks = [Chunks::default(); FEW_ROWS];
        chunks[..rows].iter_mut().enumerate().for_each(|(row, chunks)| *chunks = Chunks::of(self.numbers(run, row)));
        let chunks = &chunks[..rows];
        let mine = thread.member().share(chunks.iter().map(|chunks| heads * chunks.count).sum());
        let mut out = self.op.out.place.write::<f32>(thread);
        let mut scratch = std::mem::take(&mut thread.scratch);
        let mut worker = self.worker(&mut scratch);
        let mut before = 0;
        for (row, chunks) in chunks.iter().enumerate() {
            let items = heads * chunks.count;
            for item in mine.start.max(before)..mine.end.min(before + items) {
                let (kv_head, chunk) = ((item - before) / chunks.count, (item - before) % chunks.count);
                let queries = self.load_queries(&mut worker, &operands.q, row..row + 1, kv_head);
                self.gather_chunk::<K, V>(run, &mut worker, (row, kv_head), chunks.get(chunk), queries);
                self.keep_partials(run, &worker, row, kv_head, chunk, queries);
            }
            before += items;
        }
        thread.team.meet(|| ())?;
        for piece in out.pieces(self.op.out.step, self.op.out.dim) {
            self.join_partials(run, piece.row, piece.number, chunks[piece.row].count, piece.data, worker.joined.0);
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
    fn join_partials(&self, run: &Run<'_>, row: usize, head: usize, count: usize, out: &mut [f32], sums: &mut [f32]) {
        let padded = self.padded();
        let (mut max, mut total) = (f32::NEG_INFINITY, 0.0);
        let mut joined = Softmax { sums: &mut sums[..padded], max: &mut max, total: &mut total };
        for chunk in 0..count {
            // SAFETY: written before the threads met; nothing writes the shared scratch again in this step.
            let part: &[f32] = unsafe { run.shared.read(self.partial(row, head, chunk), self.partial_len()) };
            joined.join(self.level, &part[..padded], part[padded], part[padded + 1]);
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
                    if let Some(chunk_cells) = self.common_chunks(run, rows.clone()) {
                        let queries = self.load_queries(&mut worker, &operands.q, rows.clone(), kv_head);
                        self.dense_tile::<K, V>(run, &mut worker, span, rows.clone(), kv_head, chunk_cells);
                        self.store(&worker, operands, rows.clone(), kv_head, queries, &out);
                        continue;
                    }
                    for row in rows.clone() {
                        let queries = self.load_queries(&mut worker, &operands.q, row..row + 1, kv_head);
                        let chunks = Chunks::of(self.numbers(run, row));
                        for chunk in 0..chunks.count {
                            self.gather_chunk::<K, V>(run, &mut worker, (row, kv_head), chunks.get(chunk), queries);
                            worker.end_chunk(queries);
                        }
                        self.store(&worker, operands, row..row + 1, kv_head, queries, &out);
                    }
                }
            }
        }
    }

    /// The size of the chunks of a tile whose rows see all cells before them and have chunks of one size.
    fn common_chunks(&self, run: &Run<'_>, rows: Range<usize>) -> Option<usize> {
        let mut sizes = rows.map(|row| self.is_dense(run, row).then(|| Chunks::of(self.numbers(run, row)).cells));
        let first = sizes.next()??;
        sizes.all(|size| size == Some(first)).then_some(first)
    }

    fn dense_tile<K: CacheElement, V: CacheElement>(
        &self,
        run: &Run<'_>,
        worker: &mut Worker<'_>,
        span: &Span,
        rows: Range<usize>,
        kv_head: usize,
        chunk_cells: usize,
    ) {
        let (group, dim) = (self.group(), worker.dim);
        let keys: &[K] = self.op.cache.read(run, span.slot, Side::Key, kv_head);
        let values: &[V] = self.op.cache.read(run, span.slot, Side::Value, kv_head);
        let visible = |row: usize| {
            let end = run.rows[row].index as usize + 1;
            self.op.window.map_or(0, |window| end.saturating_sub(window))..end
        };
        let (all_from, all_to) = (visible(rows.start).start / BLOCK * BLOCK, visible(rows.end - 1).end);
        for first in (all_from..all_to).step_by(BLOCK) {
            if first.is_multiple_of(chunk_cells) && first > all_from {
                worker.end_chunk(rows.len() * group);
            }
            let count = BLOCK.min(all_to - first);
            worker.cells.load(&keys[first * K::count(dim)..], &values[first * V::count(dim)..], count, dim, worker.padded);
            worker.absorb_tile(rows.len() * group, count, |query| {
                let seen = visible(rows.start + query / group);
                let from = seen.start.clamp(first, first + count);
                from - first..seen.end.clamp(from, first + count) - first
            });
        }
        worker.end_chunk(rows.len() * group);
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
        let group = self.group();
        for i in 0..queries {
            let (row, head) = (rows.start + i / group, kv_head * group + i % group);
            let first = head * self.op.out.step;
            // SAFETY: the heads of a KV head and a tile of rows are one thread's item.
            let out = unsafe { out.part(row, first..first + self.op.out.dim) };
            worker.result(i, out);
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

/// The chunks of a row's cells.
#[derive(Debug, Clone, Copy, Default)]
struct Chunks {
    /// Numbers of the first cell and after the last.
    start: usize,
    end: usize,
    /// Size of a chunk. The first and the last may be cut off.
    cells: usize,
    count: usize,
}

impl Chunks {
    /// Chunks are large enough to be worth a thread's while, and few enough to keep their results.
    fn of(numbers: Range<usize>) -> Chunks {
        let Range { start, end } = numbers;
        let mut cells = MIN_CHUNK_CELLS;
        while end / cells + 1 - start / cells > MAX_CHUNKS {
            cells *= 2;
        }
        Chunks { start, end, cells, count: end.div_ceil(cells) - start / cells }
    }

    /// Numbers of the cells of a chunk.
    fn get(&self, chunk: usize) -> Range<usize> {
        let first = (self.start / self.cells + chunk) * self.cells;
        first.max(self.start)..(first + self.cells).min(self.end)
    }
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
    /// Loads neighbouring cells.
    fn load<K: CacheElement, V: CacheElement>(&mut self, keys: &[K], values: &[V], count: usize, dim: usize, padded: usize) {
        for cell in 0..count {
            let to = cell * padded..(cell + 1) * padded;
            K::widen(one(keys, cell, dim), dim, &mut self.k[to.clone()]);
            V::widen(one(values, cell, dim), dim, &mut self.v[to]);
        }
    }
}

impl<'s> Worker<'s> {
    pub fn new(level: Level, dim: usize, queries: usize, scratch: &mut &'s mut [u8]) -> Worker<'s> {
        let padded = padded(dim);
        let mut floats = |len: usize| -> &'s mut [f32] { carve(scratch, len) };
        Worker {
            level,
            dim,
            padded,
            cells: Cells { k: floats(BLOCK * padded), v: floats(BLOCK * padded), count: 0 },
            running: Running {
                q: floats(queries * padded),
                scores: floats(queries * BLOCK),
                sums: floats(queries * padded),
                max: floats(queries),
                total: floats(queries),
            },
            joined: (floats(queries * padded), floats(queries), floats(queries)),
        }
    }

    pub fn scratch_bytes(dim: usize, queries: usize) -> usize {
        let padded = padded(dim);
        2 * carve_bytes::<f32>(BLOCK * padded)
            + 3 * carve_bytes::<f32>(queries * padded)
            + carve_bytes::<f32>(queries * BLOCK)
            + 4 * carve_bytes::<f32>(queries)
    }
}

impl Worker<'_> {
    /// Begins with so many queries, each times `scale`.
    pub fn load_queries<'a>(&mut self, queries: usize, scale: f32, query: impl Fn(usize) -> &'a [f32]) {
        let padded = self.padded;
        for (i, out) in self.running.q[..queries * padded].chunks_exact_mut(padded).enumerate() {
            let from = query(i);
            out[from.len()..].fill(0.0);
            out.iter_mut().zip(from).for_each(|(out, q)| *out = q * scale);
        }
        self.begin(queries);
    }

    /// What a query has got of all chunks that have ended.
    pub fn result(&self, query: usize, out: &mut [f32]) {
        let total = self.joined.2[query];
        let sums = &self.joined.0[query * self.padded..];
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / total);
    }

    fn begin(&mut self, queries: usize) {
        self.running.begin(queries, self.padded);
        for query in 0..queries {
            self.joined(query).0.clear();
        }
    }

    /// What is known of a query before the chunk at hand, and the chunk.
    fn joined(&mut self, query: usize) -> (Softmax<'_>, (&[f32], f32, f32)) {
        let at = query * self.padded..(query + 1) * self.padded;
        let (sums, max, total) = &mut self.joined;
        let joined = Softmax { sums: &mut sums[at.clone()], max: &mut max[query], total: &mut total[query] };
        (joined, (&self.running.sums[at], self.running.max[query], self.running.total[query]))
    }

    /// Joins the chunk at hand to those before, and begins another.
    pub fn end_chunk(&mut self, queries: usize) {
        let level = self.level;
        for query in 0..queries {
            let (mut joined, (sums, max, total)) = self.joined(query);
            joined.join(level, sums, max, total);
        }
        self.running.begin(queries, self.padded);
    }

    /// Takes a cell into the block at hand.
    pub fn push<K: CacheElement, V: CacheElement>(&mut self, keys: &[K], values: &[V], cell: usize) {
        let to = self.cells.count * self.padded..(self.cells.count + 1) * self.padded;
        K::widen(one(keys, cell, self.dim), self.dim, &mut self.cells.k[to.clone()]);
        V::widen(one(values, cell, self.dim), self.dim, &mut self.cells.v[to]);
        self.cells.count += 1;
    }

    /// Takes the gathered cells into the running softmax: all are visible to all queries.
    pub fn absorb(&mut self, queries: usize) {
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
        let q = &self.running.q[..queries * padded];
        blocks::scores(self.level, q, &self.cells.k[..count * padded], padded, self.running.scores);
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
        Worker::scratch_bytes(self.op.cache.dim, self.tile() * self.group())
    }

    fn shared_bytes(&self) -> usize {
        let rows = self.op.q.place.max_rows.min(FEW_ROWS);
        rows * self.op.q.count * MAX_CHUNKS * self.partial_len() * size_of::<f32>()
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        attention::by_format!(self.op.cache.format, self.dispatch(thread))
    }
}
