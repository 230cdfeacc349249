//! Softmax attention among all rows of a window.

use super::super::exec::{Kernel, Thread};
use super::super::layout::{HeadsPlace, Layout};
use super::super::pool::Poisoned;
use super::super::view::{carve, carve_bytes};
use super::attention::exponentials;
use super::math::{axpy, dot};
use super::wrong_op;
use crate::program::Op;

#[derive(Debug)]
pub struct WindowAttention {
    pub q: HeadsPlace,
    pub k: HeadsPlace,
    pub v: HeadsPlace,
    pub out: HeadsPlace,
    pub scale: f32,
}

impl WindowAttention {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<WindowAttention, String> {
        let Op::WindowAttention { q, k, v, out, scale } = op else { return wrong_op() };
        let [q, k, v, out] = [q, k, v, out].map(|heads| layout.heads(*heads));
        let (q, k, v, out) = (q?, k?, v?, out?);
        if [k, v, out].iter().any(|heads| (heads.count, heads.dim) != (q.count, q.dim)) {
            return Err("operands of different shapes".into());
        }
        Ok(WindowAttention { q, k, v, out, scale: *scale })
    }
}

impl Kernel for WindowAttention {
    fn scratch_bytes(&self) -> usize {
        carve_bytes::<f32>(self.q.place.max_rows)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let [q, k, v] = [self.q, self.k, self.v].map(|heads| heads.place.read::<f32>(run));
        let mut out = self.out.place.write::<f32>(thread);
        let mut scratch = std::mem::take(&mut thread.scratch);
        let scores: &mut [f32] = carve(&mut scratch, q.rows());
        for piece in out.pieces(self.out.step, self.out.dim) {
            let (row, head) = (piece.row, piece.number);
            let query = self.q.head(&q, row, head);
            let score = |other: usize| dot(query, self.k.head(&k, other, head)) * self.scale;
            scores.iter_mut().enumerate().for_each(|(other, to)| *to = score(other));
            let sum = exponentials(scores);
            piece.data.fill(0.0);
            for (other, weight) in scores.iter().enumerate() {
                axpy(piece.data, weight / sum, self.v.head(&v, other, head));
            }
        }
        Ok(())
    }
}
