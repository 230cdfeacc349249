//! Copies and sums.

use super::super::exec::{Kernel, Thread};
use super::super::layout::{Layout, Place};
use super::super::pool::Poisoned;
use super::math::axpy;
use crate::program::View;

/// Columns that a thread works on at once: small enough to share a single row among many threads.
pub const TILE: usize = 256;

#[derive(Debug)]
pub struct Repeat {
    x: Place,
    out: Place,
}

impl Repeat {
    pub fn new(layout: &Layout<'_>, x: View, out: View) -> Result<Repeat, String> {
        if !out.width.is_multiple_of(x.width) {
            return Err("the output is no multiple of the input".into());
        }
        Ok(Repeat { x: layout.view(x)?, out: layout.view(out)? })
    }
}

impl Kernel for Repeat {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let x = self.x.read::<f32>(thread.run);
        let width = self.x.width;
        for piece in self.out.write::<f32>(thread).pieces(width, width) {
            piece.data.copy_from_slice(x.row(piece.row));
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Add {
    x: Place,
    y: Place,
    scale: Option<Place>,
}

impl Add {
    pub fn new(layout: &Layout<'_>, x: View, y: View, scale: Option<View>) -> Result<Add, String> {
        if x.width != y.width || scale.is_some_and(|s| s.width != 1) {
            return Err("operands of different widths".into());
        }
        Ok(Add { x: layout.view(x)?, y: layout.view(y)?, scale: scale.map(|s| layout.view(s)).transpose()? })
    }
}

impl Kernel for Add {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let y = self.y.read::<f32>(thread.run);
        let scale = self.scale.map(|s| s.read::<f32>(thread.run));
        for piece in self.x.write::<f32>(thread).pieces(TILE, TILE) {
            let y = y.part(piece.row, piece.column, piece.data.len());
            match &scale {
                None => axpy(piece.data, 1.0, y),
                Some(scale) => axpy(piece.data, scale.row(piece.row)[0], y),
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Gather {
    x: Place,
    out: Place,
}

impl Gather {
    pub fn new(layout: &Layout<'_>, x: View, out: View) -> Result<Gather, String> {
        if x.width != out.width {
            return Err("operands of different widths".into());
        }
        let (x, out) = (layout.view(x)?, layout.view(out)?);
        Ok(Gather { x, out })
    }
}

impl Kernel for Gather {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let x = self.x.read::<f32>(thread.run);
        let outputs = thread.run.outputs;
        for piece in self.out.write::<f32>(thread).whole_rows() {
            piece.data.copy_from_slice(x.row(outputs[piece.row] as usize));
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Join {
    x: Place,
    out: Place,
}

impl Join {
    pub fn new(layout: &Layout<'_>, x: View, out: View) -> Result<Join, String> {
        if x.width == 0 || !out.width.is_multiple_of(x.width) {
            return Err("the output is no multiple of the input".into());
        }
        Ok(Join { x: layout.view(x)?, out: layout.view(out)? })
    }
}

impl Kernel for Join {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let x = self.x.read::<f32>(thread.run);
        let outputs = thread.run.outputs;
        for piece in self.out.write::<f32>(thread).pieces(self.x.width, self.x.width) {
            piece.data.copy_from_slice(x.row(outputs[piece.row] as usize + piece.number));
        }
        Ok(())
    }
}
