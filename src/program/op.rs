//! The operations. Each is of the size of a fused kernel. Every operand is a [`View`] of a buffer, a weight or a state.
//! Unless said otherwise an op works on each row of the window independently, on as many rows as its buffers have: those of
//! the window ([`Rows::Batch`](super::Rows::Batch)) or the wanted outputs ([`Rows::Outputs`](super::Rows::Outputs)). Only
//! [`Op::GatherOutputs`] and [`Op::JoinRows`] go from one to the other. Section numbers refer to the model specification of `qwen4exp`.

use super::decl::{BufferId, RopeId, StateId, WeightId};

/// `width` neighbouring columns of a buffer, from column `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    pub buffer: BufferId,
    pub offset: u32,
    pub width: u32,
}

/// `count` vectors of `dim` elements in each row, `stride` apart, the first at column `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heads {
    pub buffer: BufferId,
    pub offset: u32,
    pub count: u32,
    pub dim: u32,
    pub stride: u32,
}

impl Heads {
    /// The columns from the first head's start to the last head's end.
    pub fn view(&self) -> View {
        View { buffer: self.buffer, offset: self.offset, width: self.stride * self.count.saturating_sub(1) + self.dim }
    }
}

impl View {
    /// The same columns as `count` adjoining heads.
    pub fn heads(&self, count: u32) -> Heads {
        let dim = self.width / count.max(1);
        Heads { buffer: self.buffer, offset: self.offset, count, dim, stride: dim }
    }

    pub fn columns(&self, offset: u32, width: u32) -> View {
        View { buffer: self.buffer, offset: self.offset + offset, width }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateActivation {
    Silu,
    /// The tanh form, as Gemma uses it.
    GeluTanh,
}

/// Applied to each element of a matrix product before it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Epilogue {
    None,
    /// `silu(x * scale)`
    Silu {
        scale: f32,
    },
    /// `factor * sigmoid(x * scale)`
    Sigmoid {
        scale: f32,
        factor: f32,
    },
    /// Log-decay of the delta rule (2.1): `a[o] * softplus(x + dt[o])`.
    Decay {
        a: WeightId,
        dt: WeightId,
    },
    /// GELU by the tanh form.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
    /// Adds to what the output holds.
    Accumulate,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PartWeights {
    One(WeightId),
    /// `activation(scale * gate · x) * (up_scale * up · x)`; `scale` is the part's.
    Gated {
        gate: WeightId,
        up: WeightId,
        up_scale: Option<WeightId>,
        activation: GateActivation,
    },
}

/// One product of a group that reads the same input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatMulPart {
    pub weights: PartWeights,
    /// F32 `[rows]`, added to the product.
    pub bias: Option<WeightId>,
    /// F32 `[1]`, multiplies the product before the bias (companion of NVFP4 tensors, 8.2).
    pub scale: Option<WeightId>,
    pub epilogue: Epilogue,
    pub out: View,
}

/// Rows `[row_offset, row_offset + rows)` of every expert's matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertMatrix {
    pub weight: WeightId,
    pub row_offset: u32,
    pub rows: u32,
    /// F32 `[experts]`, multiplies the product of an expert.
    pub scale: Option<WeightId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterScore {
    /// Softmax over all experts, then top-k.
    SoftmaxAll,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out` = `x` repeated until it is filled.
    Repeat { x: View, out: View },
    /// RMS norm of every `group` columns on their own; `weight[i % len(weight)]` multiplies column `i`.
    RmsNorm { x: View, weight: Option<WeightId>, out: View, group: u32, eps: f32 },
    /// `out = (x - mean) / sqrt(variance + eps) * weight + bias`, mean and variance over all columns.
    LayerNorm { x: View, weight: WeightId, bias: WeightId, out: View, eps: f32 },
    /// `out = W x` for every part.
    MatMul { x: View, parts: Vec<MatMulPart> },
    /// Hyper-connection mix, last step (1.2): `out[d] = mean over s of gates[s*D+d] * normed[s*D+d]`.
    HcGate { gates: View, normed: View, out: View, streams: u32 },
    /// Hyper-connection combine (1.2): `x[s*D+d] += weights[s] * y[d]`.
    HcCombine { x: View, weights: View, y: View },
    /// In place: RMS norm of each head with a weight shared by the heads (if given), then rotation (if given).
    HeadNormRope { heads: Heads, weight: Option<WeightId>, eps: f32, rope: Option<RopeId> },
    /// Stores keys and values of each row at `(slot, index)`.
    KvAppend { k: View, v: View, cache: StateId },
    /// Stores raw indexer keys; a block that becomes complete gets its pooled key:
    /// mean of its raw keys, RMS norm with `weight`, rotation at the position of its first token (2.2).
    IndexAppend { key: View, cache: StateId, weight: WeightId, eps: f32, rope: RopeId },
    /// Block selection (2.2). Row of `out` (U32): `[n, block ids ascending ...]`, `n = min(budget_blocks, nb)`; the
    /// open tail is implied. Ties go to the lower block.
    BlockSelect { query: Heads, cache: StateId, budget_blocks: u32, out: View },
    /// Softmax attention of each head over cells `0..=index` of its slot, restricted to the newest `window` cells or to
    /// the chosen blocks and the open tail; query head `h` reads KV head `h / (heads / kv_heads)`. The result is multiplied
    /// by `sigmoid(gate)` where a gate is given. The window's own keys are stored before.
    Attention {
        q: Heads,
        cache: StateId,
        out: Heads,
        scale: f32,
        window: Option<u32>,
        /// Selected blocks and their length in tokens.
        selection: Option<(View, u32)>,
        gate: Option<Heads>,
    },
    /// Softmax attention of each head over all rows of the window, those behind a row too. Nothing is stored.
    WindowAttention { q: Heads, k: Heads, v: Heads, out: Heads, scale: f32 },
    /// Causal depthwise convolution over tokens with `silu`: `out[t][c] = silu(sum_j w[c][j] * x[t-(K-1-j)*dilation][c])`.
    /// Inputs before the window come from `history`, which is brought up to date.
    CausalConv { x: View, weight: WeightId, history: StateId, out: View, dilation: u32 },
    /// Gated delta rule (2.1) with L2-normalised q and k; value head `n` reads key head `n % q.count`. Output: RMS norm per
    /// head times `norm` times `gate` (already sigmoid). Rows of a slot are worked through in order.
    DeltaRule {
        q: Heads,
        k: Heads,
        v: Heads,
        /// Log-decay, one per value head, not above 0.
        decay: View,
        beta: View,
        gate: View,
        norm: WeightId,
        eps: f32,
        state: StateId,
        out: View,
    },
    /// Top-k experts of each row: ids descending by score (ties: lower id) and weights `p / max(sum p, 2^-14)` when
    /// `normalise`, else `p`.
    Router { logits: View, score: RouterScore, normalise: bool, ids: View, weights: View },
    /// For each chosen expert `j` of a row: `out[j*F..] = activation(gate x) * (up x)`. With `slots` (a table of
    /// [`StateKind::ExpertSlots`](super::StateKind::ExpertSlots)) only for experts that lie in a slot; the columns of the others
    /// stay as they are.
    ExpertGated {
        x: View,
        ids: View,
        gate: ExpertMatrix,
        up: ExpertMatrix,
        activation: GateActivation,
        slots: Option<StateId>,
        out: View,
    },
    /// `out = sum_j weights[j] * down_j(x[j*F..])`. All experts are held.
    ExpertDown { x: View, ids: View, weights: View, down: ExpertMatrix, out: View },
    /// For each chosen expert `j` of a row that lies in a slot: `out[j*D..] = down_j(x[j*F..])`, without the matrix's scale. The
    /// columns of the others stay as they are.
    ExpertDownEach { x: View, ids: View, down: ExpertMatrix, slots: StateId, out: View },
    /// `out = sum_j weights[j] * scale[ids[j]] * x[j*D..]`, added in the same order as by `ExpertDown`.
    ExpertSum { x: View, ids: View, weights: View, scale: Option<WeightId>, out: View },
    /// Taken by the host, see [`Op::is_host`]. The host sees to the chosen experts that lie in no slot of `slots`: it computes
    /// them on its processor, or copies them to slots and lets the device run the next segment once more. It reads `x` and `ids`
    /// before it starts the next segment. That segment is `ExpertGated` and `ExpertDownEach` for the held experts, nothing else.
    HostExperts { x: View, ids: View, slots: StateId, out: View },
    /// Taken by the host: from here on `out` holds what the host computed, too.
    HostJoin { out: View },
    /// `x += y`, or `x += scale * y` with one scale a row.
    Add { x: View, y: View, scale: Option<View> },
    /// N-gram injection up to the convolution (2.4): gate each stream's copy of `value` by the match of `key` and the stream,
    /// giving `gated` and its RMS norm `normed` (the convolution's input).
    NgramGate {
        x: View,
        key: View,
        value: View,
        norm_key: WeightId,
        norm_query: WeightId,
        norm_conv: WeightId,
        streams: u32,
        eps: f32,
        gated: View,
        normed: View,
    },
    /// Rows of `x` that are wanted as outputs, in their order.
    GatherOutputs { x: View, out: View },
    /// For each wanted output its row of `x` and those behind it, side by side: as many as `out` is wider than `x`.
    JoinRows { x: View, out: View },
    /// Taken by the host, which does nothing here: the program may be left for a while, or given up.
    Pause,
}

/// An op with a name for people: `L3 attention`.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub name: String,
    pub op: Op,
}

/// Calls `read`/`write` for each view an op touches. The one place that knows the operands of every op.
impl Op {
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Repeat { .. } => "repeat",
            Op::RmsNorm { .. } => "rms_norm",
            Op::MatMul { .. } => "matmul",
            Op::HcGate { .. } => "hc_gate",
            Op::HcCombine { .. } => "hc_combine",
            Op::HeadNormRope { .. } => "head_norm_rope",
            Op::KvAppend { .. } => "kv_append",
            Op::IndexAppend { .. } => "index_append",
            Op::BlockSelect { .. } => "block_select",
            Op::Attention { .. } => "attention",
            Op::CausalConv { .. } => "causal_conv",
            Op::DeltaRule { .. } => "delta_rule",
            Op::Router { .. } => "router",
            Op::ExpertGated { .. } => "expert_gated",
            Op::ExpertDown { .. } => "expert_down",
            Op::ExpertDownEach { .. } => "expert_down_each",
            Op::ExpertSum { .. } => "expert_sum",
            Op::HostExperts { .. } => "host_experts",
            Op::HostJoin { .. } => "host_join",
            Op::Add { .. } => "add",
            Op::NgramGate { .. } => "ngram_gate",
            Op::GatherOutputs { .. } => "gather_outputs",
            Op::JoinRows { .. } => "join_rows",
            Op::LayerNorm { .. } => "layer_norm",
            Op::WindowAttention { .. } => "window_attention",
            Op::Pause => "pause",
        }
    }

    /// Whether the host takes this step. Host steps cut a program into the segments that devices run.
    pub fn is_host(&self) -> bool {
        matches!(self, Op::HostExperts { .. } | Op::HostJoin { .. } | Op::Pause)
    }

    /// Views that are read (in-place operands are in both lists).
    pub fn reads(&self) -> Vec<View> {
        match self {
            Op::Repeat { x, .. }
            | Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::CausalConv { x, .. }
            | Op::GatherOutputs { x, .. }
            | Op::JoinRows { x, .. } => vec![*x],
            Op::WindowAttention { q, k, v, .. } => vec![q.view(), k.view(), v.view()],
            Op::Pause => vec![],
            Op::MatMul { x, parts } => {
                let held = parts.iter().filter(|p| p.epilogue == Epilogue::Accumulate).map(|p| p.out);
                std::iter::once(*x).chain(held).collect()
            }
            Op::HcGate { gates, normed, .. } => vec![*gates, *normed],
            Op::HcCombine { x, weights, y } => vec![*x, *weights, *y],
            Op::HeadNormRope { heads, .. } => vec![heads.view()],
            Op::KvAppend { k, v, .. } => vec![*k, *v],
            Op::IndexAppend { key, .. } => vec![*key],
            Op::BlockSelect { query, .. } => vec![query.view()],
            Op::Attention { q, selection, gate, .. } => {
                let mut views = vec![q.view()];
                views.extend(selection.map(|(view, _)| view));
                views.extend(gate.map(|g| g.view()));
                views
            }
            Op::DeltaRule { q, k, v, decay, beta, gate, .. } => {
                vec![q.view(), k.view(), v.view(), *decay, *beta, *gate]
            }
            Op::Router { logits, .. } => vec![*logits],
            Op::ExpertGated { x, ids, .. } => vec![*x, *ids],
            Op::ExpertDown { x, ids, weights, .. } | Op::ExpertSum { x, ids, weights, .. } => vec![*x, *ids, *weights],
            Op::ExpertDownEach { x, ids, .. } | Op::HostExperts { x, ids, .. } => vec![*x, *ids],
            Op::HostJoin { out } => vec![*out],
            Op::Add { x, y, scale } => [Some(*x), Some(*y), *scale].into_iter().flatten().collect(),
            Op::NgramGate { x, key, value, .. } => vec![*x, *key, *value],
        }
    }

    /// Views that are written.
    pub fn writes(&self) -> Vec<View> {
        match self {
            Op::MatMul { parts, .. } => parts.iter().map(|p| p.out).collect(),
            Op::HcCombine { x, .. } | Op::Add { x, .. } => vec![*x],
            Op::HeadNormRope { heads, .. } => vec![heads.view()],
            Op::KvAppend { .. } | Op::IndexAppend { .. } | Op::Pause => vec![],
            Op::Attention { out, .. } | Op::WindowAttention { out, .. } => vec![out.view()],
            Op::Router { ids, weights, .. } => vec![*ids, *weights],
            Op::NgramGate { gated, normed, .. } => vec![*gated, *normed],
            Op::Repeat { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::LayerNorm { out, .. }
            | Op::JoinRows { out, .. }
            | Op::HcGate { out, .. }
            | Op::BlockSelect { out, .. }
            | Op::CausalConv { out, .. }
            | Op::DeltaRule { out, .. }
            | Op::ExpertGated { out, .. }
            | Op::ExpertDown { out, .. }
            | Op::ExpertDownEach { out, .. }
            | Op::ExpertSum { out, .. }
            | Op::HostExperts { out, .. }
            | Op::HostJoin { out }
            | Op::GatherOutputs { out, .. } => vec![*out],
        }
    }

    /// Weights that the op reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::RmsNorm { weight, .. } | Op::HeadNormRope { weight, .. } => weight.iter().copied().collect(),
            Op::LayerNorm { weight, bias, .. } => vec![*weight, *bias],
            Op::MatMul { parts, .. } => parts.iter().flat_map(MatMulPart::all_weights).collect(),
            Op::IndexAppend { weight, .. } | Op::CausalConv { weight, .. } => vec![*weight],
            Op::DeltaRule { norm, .. } => vec![*norm],
            Op::ExpertGated { gate, up, .. } => {
                [Some(gate.weight), Some(up.weight), gate.scale, up.scale].into_iter().flatten().collect()
            }
            Op::ExpertDown { down, .. } => [Some(down.weight), down.scale].into_iter().flatten().collect(),
            Op::ExpertDownEach { down, .. } => vec![down.weight],
            Op::ExpertSum { scale, .. } => scale.iter().copied().collect(),
            Op::NgramGate { norm_key, norm_query, norm_conv, .. } => vec![*norm_key, *norm_query, *norm_conv],
            _ => vec![],
        }
    }

    /// The state that the op reads or writes.
    pub fn state(&self) -> Option<StateId> {
        match self {
            Op::KvAppend { cache, .. }
            | Op::IndexAppend { cache, .. }
            | Op::BlockSelect { cache, .. }
            | Op::Attention { cache, .. } => Some(*cache),
            Op::CausalConv { history, .. } => Some(*history),
            Op::DeltaRule { state, .. } => Some(*state),
            Op::ExpertGated { slots, .. } => *slots,
            Op::ExpertDownEach { slots, .. } | Op::HostExperts { slots, .. } => Some(*slots),
            _ => None,
        }
    }
}

impl MatMulPart {
    pub fn all_weights(&self) -> Vec<WeightId> {
        let mut all = match self.weights {
            PartWeights::One(w) => vec![w],
            PartWeights::Gated { gate, up, up_scale, .. } => [Some(gate), Some(up), up_scale].into_iter().flatten().collect(),
        };
        all.extend(self.bias);
        all.extend(self.scale);
        if let Epilogue::Decay { a, dt } = self.epilogue {
            all.extend([a, dt]);
        }
        all
    }

    /// The matrix whose rows set the width of the output.
    pub fn main_weight(&self) -> WeightId {
        match self.weights {
            PartWeights::One(w) => w,
            PartWeights::Gated { gate, .. } => gate,
        }
    }
}
