//! Matrix products.

use super::super::args::{MatArgs, NONE, QuantiseArgs};
use super::super::kernels::{Kernel, Operand};
use super::super::launch::{Count, Extent, Region, Window};
use super::super::run_block::{RUN_OUTPUTS, RUN_ROWS};
use super::super::target::Activations;
use super::{Call, Lowering, Outcome, Quantised, quantised_stride, word};
use crate::program::{Epilogue, GateActivation, MatMulPart, PartWeights, View, WeightDecl, WeightId};
use crate::quant::Format;

pub fn activation_code(activation: GateActivation) -> u32 {
    match activation {
        GateActivation::Silu => 0,
        GateActivation::GeluTanh => 1,
    }
}

/// Whether products with weights of a format round their activations.
pub fn rounds(format: Format) -> bool {
    format.info().block_len > 1
}

/// The second product of a gated one.
#[derive(Clone, Copy)]
enum Second<'a> {
    None,
    /// In the same kernel, weights of the same format.
    Fused(&'a WeightDecl),
    /// Made before, in the scratch.
    Before {
        at: u32,
        stride: u32,
    },
}

/// Where the results go.
#[derive(Clone, Copy)]
enum To {
    Work(View),
    Scratch { at: u32, stride: u32 },
}

/// Epilogue as arguments: kind, scale, factor.
fn epilogue_code(epilogue: Epilogue) -> Outcome<(u32, f32, f32)> {
    Ok(match epilogue {
        Epilogue::None => (0, 1.0, 1.0),
        Epilogue::Silu { scale } => (1, scale, 1.0),
        Epilogue::Sigmoid { scale, factor } => (2, scale, factor),
        Epilogue::Decay { .. } => (3, 1.0, 1.0),
        Epilogue::Accumulate => (4, 1.0, 1.0),
        Epilogue::GeluTanh | Epilogue::GeluErf => return Err("a product with GELU is not supported on this backend".into()),
    })
}

/// A product to be cut into launches.
struct Product<'a> {
    x: View,
    matrix: &'a WeightDecl,
    second: Second<'a>,
    activation: u32,
    scale: Option<WeightId>,
    up_scale: Option<WeightId>,
    bias: Option<WeightId>,
    epilogue: Epilogue,
    to: To,
}

impl<'a> Lowering<'a> {
    pub(super) fn matmul(&mut self, x: View, parts: &[MatMulPart]) -> Outcome {
        parts.iter().try_for_each(|part| self.part(x, part))
    }

    fn part(&mut self, x: View, part: &MatMulPart) -> Outcome {
        let matrix = self.weight(part.main_weight())?;
        let mut product = Product {
            x,
            matrix,
            second: Second::None,
            activation: 0,
            scale: part.scale,
            up_scale: None,
            bias: part.bias,
            epilogue: part.epilogue,
            to: To::Work(part.out),
        };
        if let PartWeights::Gated { up, up_scale, activation, .. } = part.weights {
            let up = self.weight(up)?;
            product.activation = activation_code(activation);
            if part.bias.is_some() {
                return Err("a gated product with a bias".into());
            }
            if up.format == matrix.format {
                (product.second, product.up_scale) = (Second::Fused(up), up_scale);
            } else {
                product.second = self.product_before(x, up, up_scale, part.out)?;
            }
        }
        self.product(&product)
    }

    /// The second product on its own, into the scratch.
    fn product_before(&mut self, x: View, up: &'a WeightDecl, scale: Option<WeightId>, out: View) -> Outcome<Second<'a>> {
        let stride = up.rows;
        let at = self.scratch(u64::from(self.max_rows(out)) * u64::from(stride))?;
        let (second, epilogue, to) = (Second::None, Epilogue::None, To::Scratch { at, stride });
        self.product(&Product { x, matrix: up, second, activation: 0, scale, up_scale: None, bias: None, epilogue, to })?;
        Ok(Second::Before { at, stride })
    }

    /// Whether products of these rows with quantised weights round them.
    pub(super) fn rounds_activations(&self, x: View) -> bool {
        match self.target.activations {
            Activations::Float => false,
            Activations::TwoBytes => true,
            Activations::TwoBytesOfMany => !self.few_rows(x),
        }
    }

    /// Rounds the rows of a view, if the device wants that for a format and has not done so for this view.
    pub(super) fn quantise(&mut self, x: View, format: Format) -> Outcome<(u32, u32)> {
        if !self.rounds_activations(x) || !rounds(format) {
            return Ok((NONE, 0));
        }
        if let Some(q) = self.quantised.filter(|q| q.x == x) {
            return Ok((q.at, q.stride));
        }
        let work = self.work(&[x])?;
        let (x_at, x_stride) = self.place(x, &work)?;
        let (q_at, q_stride) = (self.quantised_at, quantised_stride(x.width));
        let call = Call::new(Kernel::Quantise, self.columns_by_rows(x.width, x)?).work(&work);
        self.push(call, QuantiseArgs { x_at, x_stride, width: x.width, q_at, q_stride });
        self.quantised = Some(Quantised { x, at: q_at, stride: q_stride });
        Ok((q_at, q_stride))
    }

    fn product(&mut self, p: &Product<'_>) -> Outcome {
        let (q_at, q_stride) = self.quantise(p.x, p.matrix.format)?;
        let mut first = 0;
        while first < p.matrix.rows {
            let outs = self.outs_of_launch(p, first)?;
            self.product_rows(p, first, outs, (q_at, q_stride))?;
            first += outs;
        }
        Ok(())
    }

    /// How many rows from `first` one launch can take: all but for very large matrices.
    fn outs_of_launch(&self, p: &Product<'_>, first: u32) -> Outcome<u32> {
        let tiles = &self.target.tiles;
        let per_group = if self.few_rows(p.x) { tiles.vector_outs } else { tiles.matrix_outs };
        let most = u64::from(self.target.max_groups_x) * u64::from(per_group);
        let mut outs = most.min(u64::from(p.matrix.rows - first));
        let second = match p.second {
            Second::Fused(up) => Some(up),
            _ => None,
        };
        for w in [Some(p.matrix), second].into_iter().flatten() {
            let start = w.offset_bytes + u64::from(first) * w.row_bytes();
            let window_start = start / 256 * 256;
            let end =
                window_start.saturating_add(self.target.max_binding_bytes).min(self.visible_end(Region::Weights, window_start));
            outs = outs.min(end.saturating_sub(start) / w.row_bytes());
        }
        if outs == 0 {
            return Err(format!("a row of {} is larger than what a kernel of this device can see", p.matrix.tensor));
        }
        Ok(outs as u32)
    }

    fn rows_window(&self, w: &WeightDecl, first: u32, outs: u32) -> Outcome<(Window, u32)> {
        let start = w.offset_bytes + u64::from(first) * w.row_bytes();
        let window = self.window(Region::Weights, start, start + u64::from(outs) * w.row_bytes(), &w.tensor)?;
        Ok((window, word(start - window.offset_bytes)?))
    }

    fn product_rows(&mut self, p: &Product<'_>, first: u32, outs: u32, (q_at, q_stride): (u32, u32)) -> Outcome {
        let count = self.count_of(p.x);
        let (w0, w0_at_bytes) = self.rows_window(p.matrix, first, outs)?;
        let (w1, w1_at_bytes) = match p.second {
            Second::Fused(up) => self.rows_window(up, first, outs).map(|(w, at)| (Some(w), at))?,
            _ => (None, NONE),
        };
        let (a, dt) = match p.epilogue {
            Epilogue::Decay { a, dt } => (Some(a), Some(dt)),
            _ => (None, None),
        };
        let (w2, [scale_at, up_scale_at, bias_at, a_at, dt_at]) = self.vectors([p.scale, p.up_scale, p.bias, a, dt])?;
        let shift = |at: u32| if at == NONE { NONE } else { at + first };
        let views = match p.to {
            To::Work(out) => vec![p.x, out],
            To::Scratch { .. } => vec![p.x],
        };
        let work = self.work(&views)?;
        let (x_at, x_stride) = self.place(p.x, &work)?;
        let ((out_at, out_stride), out_in_scratch) = match p.to {
            To::Work(out) => (self.place(out, &work)?, 0),
            To::Scratch { at, stride } => ((at, stride), 1),
        };
        let (up_at, up_stride) = match p.second {
            Second::Before { at, stride } => (at + first, stride),
            _ => (NONE, 0),
        };
        let (epilogue, epilogue_scale, epilogue_factor) = epilogue_code(p.epilogue)?;
        let args = MatArgs {
            x_at,
            x_stride,
            q_at,
            q_stride,
            out_at: out_at + first,
            out_stride,
            cols: p.matrix.cols,
            outs,
            rows_at: if count == Count::Rows { RUN_ROWS } else { RUN_OUTPUTS },
            row_bytes: word(p.matrix.row_bytes())?,
            w0_at_bytes,
            w1_at_bytes,
            scale_at,
            up_scale_at,
            bias_at: shift(bias_at),
            activation: p.activation,
            up_at,
            up_stride,
            epilogue,
            epilogue_scale,
            epilogue_factor,
            a_at: shift(a_at),
            dt_at: shift(dt_at),
            out_in_scratch,
        };
        let mut call = self.product_call(p.x, outs, count);
        call.format = Some(p.matrix.format);
        call.gated = matches!(p.second, Second::Fused(_));
        let call = call.work(&work).with(Operand::W0, Some(w0)).with(Operand::W1, w1).with(Operand::W2, w2);
        self.push(call, args);
        Ok(())
    }

    fn product_call(&self, x: View, outs: u32, count: Count) -> Call {
        let tiles = &self.target.tiles;
        let one = Extent::Fixed(1);
        if self.few_rows(x) {
            let mut call = Call::new(Kernel::MatVec, [Extent::Fixed(outs.div_ceil(tiles.vector_outs)), one, one]);
            call.batched = Some((count, self.max_rows(x)));
            return call;
        }
        let per = tiles.matrix_rows;
        let rows = Extent::Counted { count, first: 0, most: u32::MAX, times: 1, per, extra: 0 };
        Call::new(Kernel::MatMul, [Extent::Fixed(outs.div_ceil(tiles.matrix_outs)), rows, one])
    }
}
