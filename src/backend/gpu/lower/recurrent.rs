//! The causal convolution and the delta rule: one workgroup works through all rows of a sequence.

use super::super::args::{CausalConvArgs, DeltaFinishArgs, DeltaRuleArgs};
use super::super::kernels::{Kernel, Operand};
use super::super::launch::{Count, Extent};
use super::{Call, Lowering, Outcome, check_room};
use crate::program::{Op, StateKind, View};

/// Channels of a workgroup of `causal_conv`.
const CHANNELS: u32 = 64;

impl Lowering<'_> {
    pub(super) fn recurrent(&mut self, op: &Op) -> Outcome {
        match op {
            Op::CausalConv { .. } => self.conv(op),
            _ => self.delta(op),
        }
    }

    fn conv(&mut self, op: &Op) -> Outcome {
        let Op::CausalConv { x, weight, history, out, dilation } = op else { return Err("no kernel for the op".into()) };
        let StateKind::ConvHistory { ring_rows, channels } = self.stage.state(*history).kind else {
            return Err("the state is no convolution history".into());
        };
        let taps = self.weight(*weight)?.cols;
        let (_, state, state_at, slot_stride) = self.state(*history)?;
        let work = self.work(&[*x, *out])?;
        let ((x_at, x_stride), (out_at, out_stride)) = (self.place(*x, &work)?, self.place(*out, &work)?);
        let (w2, weight_at) = self.vector(Some(*weight))?;
        self.check_groups_yz(self.max_rows(*x))?;
        let grid = [Extent::Fixed(channels.div_ceil(CHANNELS)), Extent::of(Count::Spans), Extent::Fixed(1)];
        let call = Call::new(Kernel::CausalConv, grid).work(&work).with(Operand::W2, w2).with(Operand::State, Some(state));
        let dilation = *dilation;
        let args = CausalConvArgs {
            x_at,
            x_stride,
            out_at,
            out_stride,
            weight_at,
            state_at,
            slot_stride,
            ring_rows,
            channels,
            taps,
            dilation,
        };
        self.push(call, args);
        Ok(())
    }

    /// The kernel for the rows of a program, and the value channels of its workgroups.
    fn delta_kernel(&self, rows: View, key_dim: u32) -> (Kernel, u32) {
        let (tiles, room) = (&self.target.tiles, &self.target.room);
        let fits = tiles.delta_chunk_channels > 0 && key_dim <= room.delta_chunk_keys && key_dim.is_multiple_of(4);
        if fits && !self.few_rows(rows) {
            (Kernel::DeltaChunks, tiles.delta_chunk_channels)
        } else {
            (Kernel::DeltaRule, tiles.delta_channels)
        }
    }

    fn delta(&mut self, op: &Op) -> Outcome {
        let Op::DeltaRule { q, k, v, decay, beta, gate, norm, eps, state, out } = op else {
            return Err("no kernel for the op".into());
        };
        check_room("key channels of a head of the delta rule", q.dim, self.target.room.delta_keys)?;
        let (_, window, state_at, slot_stride) = self.state(*state)?;
        let work = self.work(&[q.view(), k.view(), v.view(), *decay, *beta, *gate, *out])?;
        let (q_at, q_stride, q_head_stride) = self.heads_place(*q, &work)?;
        let (k_at, k_stride, k_head_stride) = self.heads_place(*k, &work)?;
        let (v_at, v_stride, v_head_stride) = self.heads_place(*v, &work)?;
        let (decay_at, decay_stride) = self.place(*decay, &work)?;
        let (beta_at, beta_stride) = self.place(*beta, &work)?;
        let (gate_at, gate_stride) = self.place(*gate, &work)?;
        let (out_at, out_stride) = self.place(*out, &work)?;
        let (heads, value_dim) = (v.count, v.dim);
        let (kernel, channels) = self.delta_kernel(*out, q.dim);
        let args = DeltaRuleArgs {
            q_at,
            q_stride,
            q_head_stride,
            k_at,
            k_stride,
            k_head_stride,
            v_at,
            v_stride,
            v_head_stride,
            decay_at,
            decay_stride,
            beta_at,
            beta_stride,
            out_at,
            out_stride,
            key_heads: q.count,
            heads,
            key_dim: q.dim,
            value_dim,
            state_at,
            slot_stride,
            channels,
        };
        self.check_groups_yz(self.max_rows(*out))?;
        let grid = [Extent::Fixed(heads * value_dim.div_ceil(channels)), Extent::of(Count::Spans), Extent::Fixed(1)];
        self.push(Call::new(kernel, grid).work(&work).with(Operand::State, Some(window)), args);
        let (w2, norm_at) = self.vector(Some(*norm))?;
        let grid = [Extent::Fixed(heads), self.rows_extent(*out)?, Extent::Fixed(1)];
        let args = DeltaFinishArgs { gate_at, gate_stride, out_at, out_stride, norm_at, eps: *eps, heads, value_dim };
        self.push(Call::new(Kernel::DeltaFinish, grid).work(&work).with(Operand::W2, w2), args);
        Ok(())
    }
}
