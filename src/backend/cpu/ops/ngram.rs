//! N-gram injection up to the convolution (2.4).

use super::super::exec::{Kernel, Thread};
use super::super::layout::{Layout, Place, Vector};
use super::super::pool::Poisoned;
use super::math::{rms_scale, sigmoid};
use super::norm::scale_by;
use super::wrong_op;
use crate::program::Op;

#[derive(Debug)]
pub struct NgramGate {
    x: Place,
    key: Place,
    value: Place,
    norm_key: Vector,
    norm_query: Vector,
    norm_conv: Vector,
    eps: f32,
    gated: Place,
    normed: Place,
}

impl NgramGate {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<NgramGate, String> {
        let Op::NgramGate { x, key, value, norm_key, norm_query, norm_conv, streams, eps, gated, normed } = op else {
            return wrong_op();
        };
        let width = u64::from(value.width) * u64::from(*streams);
        if [x, key, gated, normed].iter().any(|view| u64::from(view.width) != width) {
            return Err("operands of different widths".into());
        }
        let [norm_key, norm_query, norm_conv] = [norm_key, norm_query, norm_conv].map(|w| layout.vector(*w));
        let kernel = NgramGate {
            x: layout.view(*x)?,
            key: layout.view(*key)?,
            value: layout.view(*value)?,
            norm_key: norm_key?,
            norm_query: norm_query?,
            norm_conv: norm_conv?,
            eps: *eps,
            gated: layout.view(*gated)?,
            normed: layout.view(*normed)?,
        };
        if [kernel.norm_key, kernel.norm_query, kernel.norm_conv].iter().any(|w| w.len as u64 != width) {
            return Err("a norm weight has not the width of the streams".into());
        }
        Ok(kernel)
    }

    /// How far the value is let through for one stream: `sigmoid(signed root of the match)`.
    fn gate(&self, x: &[f32], key: &[f32], norm_query: &[f32], norm_key: &[f32]) -> f32 {
        let (x_scale, key_scale) = (rms_scale(x, self.eps), rms_scale(key, self.eps));
        let mut sum = 0.0f64;
        for ((x, wq), (k, wk)) in x.iter().zip(norm_query).zip(key.iter().zip(norm_key)) {
            sum += f64::from((x * x_scale * wq) * (k * key_scale * wk));
        }
        let score = (sum / (x.len() as f64).sqrt()) as f32;
        let root = score.abs().max(1e-6).sqrt();
        let signed = if score > 0.0 {
            root
        } else if score < 0.0 {
            -root
        } else {
            score * 0.0
        };
        sigmoid(signed)
    }
}

impl Kernel for NgramGate {
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let (x, key, value) = (self.x.read::<f32>(run), self.key.read::<f32>(run), self.value.read::<f32>(run));
        let (norm_key, norm_query, norm_conv) = (self.norm_key.get(run), self.norm_query.get(run), self.norm_conv.get(run));
        let width = self.value.width;
        let mut gated = self.gated.write::<f32>(thread);
        let mut normed = self.normed.write::<f32>(thread);
        // Both results have the same shape, so their pieces come in the same order.
        for (gated, normed) in gated.pieces(width, width).zip(normed.pieces(width, width)) {
            let (row, column) = (gated.row, gated.column);
            let weights = column..column + width;
            let (x, key) = (x.part(row, column, width), key.part(row, column, width));
            let gate = self.gate(x, key, &norm_query[weights.clone()], &norm_key[weights.clone()]);
            gated.data.iter_mut().zip(value.row(row)).for_each(|(out, v)| *out = gate * v);
            let scale = rms_scale(gated.data, self.eps);
            scale_by(gated.data, scale, Some(&norm_conv[weights]), 0, normed.data);
        }
        Ok(())
    }
}
