//! Hyper-connections (1.2): the mean of the gated streams, and the way back into the streams.

use super::super::exec::{Kernel, Thread};
use super::super::layout::{Layout, Place};
use super::super::pool::Poisoned;
use super::elementwise::TILE;
use super::math::{add_products_of, axpy};
use super::wrong_op;
use crate::program::Op;

#[derive(Debug)]
pub struct Gate {
    gates: Place,
    normed: Place,
    out: Place,
    streams: usize,
}

impl Gate {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<Gate, String> {
        let Op::HcGate { gates, normed, out, streams } = op else { return wrong_op() };
        if *streams == 0 || gates.width != normed.width || u64::from(normed.width) != u64::from(out.width) * u64::from(*streams) {
            return Err("operands of different widths".into());
        }
        let streams = *streams as usize;
        Ok(Gate { gates: layout.view(*gates)?, normed: layout.view(*normed)?, out: layout.view(*out)?, streams })
    }
}

impl Kernel for Gate {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let (gates, normed) = (self.gates.read::<f32>(thread.run), self.normed.read::<f32>(thread.run));
        let share = 1.0 / self.streams as f32;
        for piece in self.out.write::<f32>(thread).pieces(TILE, TILE) {
            piece.data.fill(0.0);
            for stream in 0..self.streams {
                let column = stream * self.out.width + piece.column;
                let gates = gates.part(piece.row, column, piece.data.len());
                let normed = normed.part(piece.row, column, piece.data.len());
                add_products_of(piece.data, gates, normed);
            }
            piece.data.iter_mut().for_each(|out| *out *= share);
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Combine {
    x: Place,
    weights: Place,
    y: Place,
}

impl Combine {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<Combine, String> {
        let Op::HcCombine { x, weights, y } = op else { return wrong_op() };
        if u64::from(x.width) != u64::from(weights.width) * u64::from(y.width) {
            return Err("operands of different widths".into());
        }
        Ok(Combine { x: layout.view(*x)?, weights: layout.view(*weights)?, y: layout.view(*y)? })
    }
}

impl Kernel for Combine {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let (weights, y) = (self.weights.read::<f32>(thread.run), self.y.read::<f32>(thread.run));
        let width = self.y.width;
        for piece in self.x.write::<f32>(thread).pieces(width, width) {
            let weight = weights.row(piece.row)[piece.number];
            axpy(piece.data, weight, y.row(piece.row));
        }
        Ok(())
    }
}
