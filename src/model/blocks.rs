//! Building blocks that families share.

use super::tensors::Linear;
use super::{ModelError, StageOptions};
use crate::program::{
    Epilogue, ExpertMatrix, GateActivation, MatMulPart, Op, PartWeights, ProgramBuilder, RouterScore, Stage, StageBuilder,
    StateId, View, check_stage,
};

const MAX_VERSIONS: u32 = 1 << 16;

/// A builder for the layers that the options ask for.
pub(super) fn decode_layers(options: &StageOptions, total: u32) -> Result<StageBuilder, ModelError> {
    let range = &options.layers;
    if range.start >= range.end || range.end > total {
        let problem = format!("layers {}..{} are no range of the model's {total} layers", range.start, range.end);
        return Err(ModelError::Unsupported { problem });
    }
    for (what, value) in [("context", options.cells), ("sequence slots", options.slots), ("state versions", options.versions)] {
        if value == 0 {
            return Err(ModelError::Unsupported { problem: format!("{what} must be at least 1") });
        }
    }
    // Conv histories keep a row a version.
    if options.versions > MAX_VERSIONS {
        let problem = format!("{} state versions are too many; at most {MAX_VERSIONS} are kept", options.versions);
        return Err(ModelError::Unsupported { problem });
    }
    Ok(StageBuilder::new(format!("layers {}..{}", range.start, range.end)))
}

/// A stage that a family has built must pass the checks; a failure is a shape that validation let through.
pub(super) fn finish_stage(stage: StageBuilder) -> Result<Stage, ModelError> {
    let stage = stage.finish();
    check_stage(&stage).map_err(|e| ModelError::Unsupported { problem: e.to_string() })?;
    Ok(stage)
}

/// `activation(gate x) * (up x)` as one part of a product.
pub(super) fn gated_part(gate: &Linear, up: &Linear, activation: GateActivation, out: View) -> MatMulPart {
    let weights = PartWeights::Gated { gate: gate.weight, up: up.weight, up_scale: up.scale, activation };
    MatMulPart { weights, bias: None, scale: gate.scale, epilogue: Epilogue::None, out }
}

pub(super) struct SharedExpert {
    /// Its scalar gate, through a sigmoid.
    pub gate_input: Linear,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    pub hidden: u32,
}

/// A mixture of experts: softmax over all, then the best `used` (specification of `qwen4exp`, 2.3).
pub(super) struct Moe {
    pub router: Linear,
    pub gate: ExpertMatrix,
    pub up: ExpertMatrix,
    pub down: ExpertMatrix,
    /// The table of slots, where not every expert has one of its own.
    pub slots: Option<StateId>,
    pub shared: Option<SharedExpert>,
    pub count: u32,
    pub used: u32,
    pub hidden: u32,
    pub normalise: bool,
}

impl Moe {
    /// Steps from the normed input to the layer's output row.
    pub fn emit(&self, p: &mut ProgramBuilder, label: &str, x: View) -> View {
        let activation = GateActivation::Silu;
        let logits = p.buffer(format!("{label} router logits"), self.count);
        let mut parts = vec![self.router.part(logits, Epilogue::None)];
        let shared = self.shared.as_ref().map(|s| {
            let gate = p.buffer(format!("{label} shared gate"), 1);
            let hidden = p.buffer(format!("{label} shared hidden"), s.hidden);
            parts.push(s.gate_input.part(gate, Epilogue::Sigmoid { scale: 1.0, factor: 1.0 }));
            parts.push(gated_part(&s.gate, &s.up, activation, hidden));
            (s, gate, hidden)
        });
        p.step(format!("{label} router"), Op::MatMul { x, parts });
        let ids = p.ids(format!("{label} expert ids"), self.used);
        let weights = p.buffer(format!("{label} expert weights"), self.used);
        let score = RouterScore::SoftmaxAll;
        p.step(format!("{label} top-k"), Op::Router { logits, score, normalise: self.normalise, ids, weights });
        let y = self.emit_experts(p, label, x, (ids, weights));
        if let Some((s, gate, hidden)) = shared {
            let out = p.buffer(format!("{label} shared out"), self.down.rows);
            p.step(format!("{label} shared out"), Op::MatMul { x: hidden, parts: vec![s.down.part(out, Epilogue::None)] });
            p.step(format!("{label} shared add"), Op::Add { x: y, y: out, scale: Some(gate) });
        }
        y
    }

    /// Steps from the choices of the router to their weighted sum.
    fn emit_experts(&self, p: &mut ProgramBuilder, label: &str, x: View, (ids, weights): (View, View)) -> View {
        let Moe { gate, up, down, slots, .. } = *self;
        let activation = GateActivation::Silu;
        let hidden = p.buffer(format!("{label} expert hidden"), self.used * self.hidden);
        let y = p.buffer(format!("{label} ffn out"), down.rows);
        let Some(table) = slots else {
            p.step(format!("{label} experts in"), Op::ExpertGated { x, ids, gate, up, activation, slots, out: hidden });
            p.step(format!("{label} experts out"), Op::ExpertDown { x: hidden, ids, weights, down, out: y });
            return y;
        };
        let each = p.buffer(format!("{label} expert out"), self.used * down.rows);
        p.step(format!("{label} experts elsewhere"), Op::HostExperts { x, ids, slots: table, out: each });
        p.step(format!("{label} experts in"), Op::ExpertGated { x, ids, gate, up, activation, slots, out: hidden });
        p.step(format!("{label} experts out"), Op::ExpertDownEach { x: hidden, ids, down, slots: table, out: each });
        p.step(format!("{label} experts join"), Op::HostJoin { out: each });
        p.step(format!("{label} experts sum"), Op::ExpertSum { x: each, ids, weights, scale: down.scale, out: y });
        y
    }
}
