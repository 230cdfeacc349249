//! Softmax attention among all rows of a window: tiles of queries over blocks of keys and values, with a running maximum.

use super::super::super::exec::{Kernel, Thread};
use super::super::super::pool::Poisoned;
use super::super::super::vector::Level;
use super::super::window;
use super::attention::{TILE_QUERIES, Worker};
use super::blocks::BLOCK;

#[derive(Debug)]
pub struct WindowAttention {
    pub op: window::WindowAttention,
    pub level: Level,
}

impl Kernel for WindowAttention {
    fn scratch_bytes(&self) -> usize {
        Worker::scratch_bytes(self.op.q.dim, TILE_QUERIES)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let (run, op) = (thread.run, &self.op);
        let [q, k, v] = [op.q, op.k, op.v].map(|heads| heads.place.read::<f32>(run));
        let out = op.out.place.write::<f32>(thread);
        let mut scratch = std::mem::take(&mut thread.scratch);
        let mut worker = Worker::new(self.level, op.q.dim, TILE_QUERIES, &mut scratch);
        let rows = q.rows();
        let tiles = rows.div_ceil(TILE_QUERIES);
        // The tiles of a head one after the other: their keys and values are the same.
        for item in thread.member().share(op.q.count * tiles) {
            let (head, first) = (item / tiles, item % tiles * TILE_QUERIES);
            let queries = TILE_QUERIES.min(rows - first);
            worker.load_queries(queries, op.scale, |i| op.q.head(&q, first + i, head));
            for block in (0..rows).step_by(BLOCK) {
                for row in block..(block + BLOCK).min(rows) {
                    worker.push::<f32, f32>(op.k.head(&k, row, head), op.v.head(&v, row, head), 0);
                }
                worker.absorb(queries);
            }
            worker.end_chunk(queries);
            for i in 0..queries {
                let from = head * op.out.step;
                // SAFETY: a tile of a head is one thread's item.
                let out = unsafe { out.part(first + i, from..from + op.out.dim) };
                worker.result(i, out);
            }
        }
        Ok(())
    }
}
