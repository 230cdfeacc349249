//! Ops that work on each row alone.

use super::super::args::{
    AddArgs, GatherArgs, HcCombineArgs, HcGateArgs, HeadNormRopeArgs, NONE, NgramGateArgs, RepeatArgs, RmsNormArgs,
};
use super::super::kernels::{Kernel, Operand};
use super::super::launch::Extent;
use super::super::run_block::AnglesOf;
use super::{Call, Lowering, Outcome};
use crate::program::{Heads, Op, RopeId, RopePairing, View, WeightId};

pub fn pairing_code(pairing: RopePairing) -> u32 {
    match pairing {
        RopePairing::Half => 0,
        RopePairing::Adjacent => 1,
    }
}

impl Lowering<'_> {
    pub(super) fn rowwise(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Repeat { x, out } => self.repeat(*x, *out),
            Op::Add { x, y, scale } => self.add(*x, *y, *scale),
            Op::GatherOutputs { x, out } => self.gather(*x, *out),
            Op::RmsNorm { x, weight, out, group, eps } => self.rms_norm(*x, *weight, *out, *group, *eps),
            Op::HeadNormRope { heads, weight, eps, rope } => self.head_norm_rope(*heads, *weight, *eps, *rope),
            Op::HcGate { gates, normed, out, streams } => self.hc_gate(*gates, *normed, *out, *streams),
            Op::HcCombine { x, weights, y } => self.hc_combine(*x, *weights, *y),
            _ => self.ngram_gate(op),
        }
    }

    fn repeat(&mut self, x: View, out: View) -> Outcome {
        let work = self.work(&[x, out])?;
        let ((x_at, x_stride), (out_at, out_stride)) = (self.place(x, &work)?, self.place(out, &work)?);
        let call = Call::new(Kernel::Repeat, self.columns_by_rows(out.width, out)?).work(&work);
        self.push(call, RepeatArgs { x_at, x_stride, out_at, out_stride, x_width: x.width, width: out.width });
        Ok(())
    }

    fn add(&mut self, x: View, y: View, scale: Option<View>) -> Outcome {
        let work = self.work(&[Some(x), Some(y), scale].into_iter().flatten().collect::<Vec<_>>())?;
        let ((x_at, x_stride), (y_at, y_stride)) = (self.place(x, &work)?, self.place(y, &work)?);
        let (scale_at, scale_stride) = scale.map_or(Ok((NONE, 0)), |s| self.place(s, &work))?;
        let call = Call::new(Kernel::Add, self.columns_by_rows(x.width, x)?).work(&work);
        self.push(call, AddArgs { x_at, x_stride, y_at, y_stride, scale_at, scale_stride, width: x.width });
        Ok(())
    }

    fn gather(&mut self, x: View, out: View) -> Outcome {
        let work = self.work(&[x, out])?;
        let ((x_at, x_stride), (out_at, out_stride)) = (self.place(x, &work)?, self.place(out, &work)?);
        let call = Call::new(Kernel::Gather, self.columns_by_rows(x.width, out)?).work(&work);
        self.push(call, GatherArgs { x_at, x_stride, out_at, out_stride, width: x.width });
        Ok(())
    }

    fn rms_norm(&mut self, x: View, weight: Option<WeightId>, out: View, group: u32, eps: f32) -> Outcome {
        let work = self.work(&[x, out])?;
        let ((x_at, x_stride), (out_at, out_stride)) = (self.place(x, &work)?, self.place(out, &work)?);
        let (w2, weight_at) = self.vector(weight)?;
        let weight_len = weight.map_or(Ok(1), |w| self.weight(w).map(|w| w.cols * w.rows))?;
        let grid = [Extent::Fixed(x.width / group), self.rows_extent(x)?, Extent::Fixed(1)];
        let call = Call::new(Kernel::RmsNorm, grid).work(&work).with(Operand::W2, w2);
        self.push(call, RmsNormArgs { x_at, x_stride, out_at, out_stride, group, weight_at, weight_len, eps });
        Ok(())
    }

    fn head_norm_rope(&mut self, heads: Heads, weight: Option<WeightId>, eps: f32, rope: Option<RopeId>) -> Outcome {
        let view = heads.view();
        let work = self.work(&[view])?;
        let (x_at, x_stride, head_stride) = self.heads_place(heads, &work)?;
        let (w2, weight_at) = self.vector(weight)?;
        let (angles_at, pairs, pairing) = match rope {
            Some(id) => {
                let rope = self.stage.rope(id);
                let at = self.run.angles_at(id, AnglesOf::Row).ok_or("the run block has no angles for the step")?;
                (at, rope.inv_freq.len() as u32, pairing_code(rope.pairing))
            }
            None => (NONE, 0, 0),
        };
        let grid = [Extent::Fixed(heads.count), self.rows_extent(view)?, Extent::Fixed(1)];
        let call = Call::new(Kernel::HeadNormRope, grid).work(&work).with(Operand::W2, w2);
        let dim = heads.dim;
        self.push(call, HeadNormRopeArgs { x_at, x_stride, head_stride, dim, weight_at, eps, angles_at, pairs, pairing });
        Ok(())
    }

    fn hc_gate(&mut self, gates: View, normed: View, out: View, streams: u32) -> Outcome {
        let work = self.work(&[gates, normed, out])?;
        let (gates_at, gates_stride) = self.place(gates, &work)?;
        let (normed_at, normed_stride) = self.place(normed, &work)?;
        let (out_at, out_stride) = self.place(out, &work)?;
        let call = Call::new(Kernel::HcGate, self.columns_by_rows(out.width, out)?).work(&work);
        let width = out.width;
        self.push(call, HcGateArgs { gates_at, gates_stride, normed_at, normed_stride, out_at, out_stride, width, streams });
        Ok(())
    }

    fn hc_combine(&mut self, x: View, weights: View, y: View) -> Outcome {
        let work = self.work(&[x, weights, y])?;
        let (x_at, x_stride) = self.place(x, &work)?;
        let (weights_at, weights_stride) = self.place(weights, &work)?;
        let (y_at, y_stride) = self.place(y, &work)?;
        let call = Call::new(Kernel::HcCombine, self.columns_by_rows(x.width, x)?).work(&work);
        let (width, streams) = (y.width, weights.width);
        self.push(call, HcCombineArgs { x_at, x_stride, weights_at, weights_stride, y_at, y_stride, width, streams });
        Ok(())
    }

    fn ngram_gate(&mut self, op: &Op) -> Outcome {
        let Op::NgramGate { x, key, value, norm_key, norm_query, norm_conv, streams, eps, gated, normed } = op else {
            return Err("no kernel for the op".into());
        };
        let work = self.work(&[*x, *key, *value, *gated, *normed])?;
        let (x_at, x_stride) = self.place(*x, &work)?;
        let (key_at, key_stride) = self.place(*key, &work)?;
        let (value_at, value_stride) = self.place(*value, &work)?;
        let (gated_at, gated_stride) = self.place(*gated, &work)?;
        let (normed_at, normed_stride) = self.place(*normed, &work)?;
        let (w2, [norm_key_at, norm_query_at, norm_conv_at]) =
            self.vectors([Some(*norm_key), Some(*norm_query), Some(*norm_conv)])?;
        let grid = [Extent::Fixed(*streams), self.rows_extent(*x)?, Extent::Fixed(1)];
        let call = Call::new(Kernel::NgramGate, grid).work(&work).with(Operand::W2, w2);
        let args = NgramGateArgs {
            x_at,
            x_stride,
            key_at,
            key_stride,
            value_at,
            value_stride,
            gated_at,
            gated_stride,
            normed_at,
            normed_stride,
            norm_key_at,
            norm_query_at,
            norm_conv_at,
            width: value.width,
            streams: *streams,
            eps: *eps,
        };
        self.push(call, args);
        Ok(())
    }
}
