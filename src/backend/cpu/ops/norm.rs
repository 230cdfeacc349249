//! RMS norms (1.1), layer norms, and the rotary embedding (1.3).

use super::super::exec::{Kernel, Thread};
use super::super::layout::{HeadsPlace, Layout, Place, Vector};
use super::super::pool::Poisoned;
use super::math::{mean_and_scale, rms_scale, scaled};
use super::wrong_op;
use crate::backend::rope::rotate;
use crate::program::{Op, RopePairing};

/// `out = x / rms(x) * weight`, with the weight's first element at `first` and repeating.
pub fn scale_by(x: &[f32], scale: f32, weight: Option<&[f32]>, first: usize, out: &mut [f32]) {
    match weight {
        None => out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale),
        Some(weight) => match weight.get(first % weight.len()..).and_then(|w| w.get(..x.len())) {
            Some(weight) => scaled(x, scale, weight, out),
            None => {
                let weight = weight.iter().cycle().skip(first % weight.len());
                out.iter_mut().zip(x).zip(weight).for_each(|((out, x), w)| *out = x * scale * w);
            }
        },
    }
}

#[derive(Debug)]
pub struct RmsNorm {
    /// `None`: in place.
    x: Option<Place>,
    weight: Option<Vector>,
    out: Place,
    group: usize,
    eps: f32,
}

impl RmsNorm {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<RmsNorm, String> {
        let Op::RmsNorm { x, weight, out, group, eps } = op else { return wrong_op() };
        let weight = weight.map(|w| layout.vector(w)).transpose()?;
        let group = *group as usize;
        if x.width != out.width || group == 0 || !(x.width as usize).is_multiple_of(group) {
            return Err(format!("{} columns in groups of {group} into {}", x.width, out.width));
        }
        if weight.is_some_and(|w| w.len == 0) {
            return Err("a norm weight without elements".into());
        }
        let source = if x == out { None } else { Some(layout.view(*x)?) };
        Ok(RmsNorm { x: source, weight, out: layout.view(*out)?, group, eps: *eps })
    }
}

impl Kernel for RmsNorm {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let x = self.x.map(|x| x.read::<f32>(thread.run));
        let weight = self.weight.map(|w| w.get(thread.run));
        for piece in self.out.write::<f32>(thread).pieces(self.group, self.group) {
            match &x {
                Some(x) => {
                    let x = x.part(piece.row, piece.column, self.group);
                    scale_by(x, rms_scale(x, self.eps), weight, piece.column, piece.data);
                }
                None => norm_in_place(piece.data, self.eps, weight, piece.column),
            }
        }
        Ok(())
    }
}

fn norm_in_place(x: &mut [f32], eps: f32, weight: Option<&[f32]>, first: usize) {
    let scale = rms_scale(x, eps);
    match weight {
        None => x.iter_mut().for_each(|x| *x *= scale),
        Some(weight) => {
            let weight = weight.iter().cycle().skip(first % weight.len());
            x.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * scale * w);
        }
    }
}

#[derive(Debug)]
pub struct LayerNorm {
    x: Place,
    weight: Vector,
    bias: Vector,
    out: Place,
    eps: f32,
}

impl LayerNorm {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<LayerNorm, String> {
        let Op::LayerNorm { x, weight, bias, out, eps } = op else { return wrong_op() };
        let (weight, bias) = (layout.vector(*weight)?, layout.vector(*bias)?);
        if [out.width as usize, weight.len, bias.len] != [x.width as usize; 3] {
            return Err("operands of different widths".into());
        }
        Ok(LayerNorm { x: layout.view(*x)?, weight, bias, out: layout.view(*out)?, eps: *eps })
    }
}

impl Kernel for LayerNorm {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let x = self.x.read::<f32>(thread.run);
        let (weight, bias) = (self.weight.get(thread.run), self.bias.get(thread.run));
        for piece in self.out.write::<f32>(thread).whole_rows() {
            let x = x.row(piece.row);
            let (mean, scale) = mean_and_scale(x, self.eps);
            for (((out, x), w), b) in piece.data.iter_mut().zip(x).zip(weight).zip(bias) {
                *out = (x - mean) * scale * w + b;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct HeadNormRope {
    heads: HeadsPlace,
    weight: Option<Vector>,
    eps: f32,
    rope: Option<(usize, RopePairing)>,
}

impl HeadNormRope {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<HeadNormRope, String> {
        let Op::HeadNormRope { heads, weight, eps, rope } = op else { return wrong_op() };
        let heads = layout.heads(*heads)?;
        let weight = weight.map(|w| layout.vector(w)).transpose()?;
        if weight.is_some_and(|w| w.len != heads.dim) {
            return Err("the norm weight has not the size of a head".into());
        }
        let rope = match rope {
            Some(id) => {
                let rope = layout.rope(*id)?;
                if rope.inv_freq.len() * 2 > heads.dim {
                    return Err("more rotary pairs than fit into a head".into());
                }
                Some((id.0 as usize, rope.pairing))
            }
            None => None,
        };
        Ok(HeadNormRope { heads, weight, eps: *eps, rope })
    }
}

impl Kernel for HeadNormRope {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let weight = self.weight.map(|w| w.get(thread.run));
        let ropes = thread.run.ropes;
        for piece in self.heads.place.write::<f32>(thread).pieces(self.heads.step, self.heads.dim) {
            if let Some(weight) = weight {
                norm_in_place(piece.data, self.eps, Some(weight), 0);
            }
            if let Some((table, pairing)) = self.rope {
                rotate(piece.data, pairing, ropes[table].row(piece.row));
            }
        }
        Ok(())
    }
}
