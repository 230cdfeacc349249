//! The pre-norm decoder families `llama`, `qwen2`, `qwen3`, `qwen3moe` and `gemma3`: attention and a gated feed-forward layer
//! (or a mixture of experts), each around a residual. What differs between them is a line in [`VARIANTS`].

use super::blocks::{Moe, decode_layers, finish_stage, gated_part};
use super::rope::{RopeConfig, Scaling};
use super::tensors::Linear;
use super::{Architecture, Dims, ModelError, StageOptions, Tensors};
use crate::gguf::{Metadata, ModelFiles};
use crate::program::{
    Epilogue, GateActivation, InputKind, Op, OutputKind, ProgramBuilder, RopeId, RopePairing, Rows, ShapeClass, Stage,
    StageBuilder, StateId, StateKind, View, WeightId,
};
use crate::quant::Format;

/// What sets a family apart.
#[derive(Debug, Clone, Copy)]
struct Variant {
    name: &'static str,
    pairing: RopePairing,
    activation: GateActivation,
    /// Norms after attention and feed-forward, before the residual; embeddings times `sqrt(width)`; every sixth layer
    /// attends to everything, the others to a sliding window with their own rotary base.
    gemma: bool,
}

const VARIANTS: &[Variant] = &[
    Variant { name: "llama", pairing: RopePairing::Adjacent, activation: GateActivation::Silu, gemma: false },
    Variant { name: "qwen2", pairing: RopePairing::Half, activation: GateActivation::Silu, gemma: false },
    Variant { name: "qwen3", pairing: RopePairing::Half, activation: GateActivation::Silu, gemma: false },
    Variant { name: "qwen3moe", pairing: RopePairing::Half, activation: GateActivation::Silu, gemma: false },
    Variant { name: "gemma3", pairing: RopePairing::Half, activation: GateActivation::GeluTanh, gemma: true },
];

/// Layers of one period of Gemma's window pattern; the last of them attends to everything.
const GEMMA_PERIOD: u32 = 6;
/// Rotary base of Gemma's sliding-window layers.
const GEMMA_LOCAL_BASE: f64 = 10_000.0;
/// Gemma 3 27B scales queries by `width / heads`, not by the head size. It is the one with this many layers.
const GEMMA_27B_LAYERS: u32 = 62;

#[derive(Debug, Clone)]
struct ExpertsConfig {
    count: u32,
    used: u32,
    hidden: u32,
}

#[derive(Debug, Clone)]
struct Config {
    variant: Variant,
    layers: u32,
    width: u32,
    vocab: u32,
    context: u32,
    eps: f32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    hidden: u32,
    experts: Option<ExpertsConfig>,
    rope: RopeConfig,
    window: Option<u32>,
    attention_scale: f32,
}

pub(super) fn open(files: &ModelFiles) -> Result<Box<dyn Architecture>, ModelError> {
    let metadata = files.metadata();
    let arch = metadata.str("general.architecture")?;
    let variant = VARIANTS.iter().find(|v| v.name == arch);
    let variant = variant.ok_or_else(|| ModelError::Architecture { found: arch.to_string() })?;
    let mut config = Config::read(metadata, &Tensors::new(files), *variant)?;
    config.rope.factors = rope_factors(files, config.rope.dims / 2)?;
    Ok(Box::new(config))
}

/// `rope_freqs.weight` of Llama 3.1 and later.
fn rope_factors(files: &ModelFiles, pairs: u32) -> Result<Option<Vec<f32>>, ModelError> {
    let Some(tensor) = files.tensor("rope_freqs.weight") else { return Ok(None) };
    Tensors::new(files).shaped("rope_freqs.weight", &[pairs])?;
    if tensor.format != Format::F32 {
        let reason = "rotary factors must be F32".into();
        return Err(ModelError::Format { tensor: tensor.name.clone(), format: tensor.format.name(), reason });
    }
    let mut bytes = vec![0; pairs as usize * 4];
    files.read_at(tensor, 0, &mut bytes)?;
    let factors: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    match factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
        Some(bad) => Err(ModelError::invalid("rope_freqs.weight", bad, "rotary factors must be above 0")),
        None => Ok(Some(factors)),
    }
}

impl Config {
    fn read(metadata: &Metadata, tensors: &Tensors<'_>, variant: Variant) -> Result<Config, ModelError> {
        let key = |name: &str| format!("{}.{name}", variant.name);
        let positive = |name: &str| match metadata.u32(&key(name))? {
            0 => Err(ModelError::invalid(key(name), 0, "it must be above 0")),
            value => Ok(value),
        };
        let width = positive("embedding_length")?;
        let layers = positive("block_count")?;
        let context = positive("context_length")?;
        let heads = positive("attention.head_count")?;
        let kv_heads = metadata.opt_u32(&key("attention.head_count_kv"))?.unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::invalid(key("attention.head_count_kv"), kv_heads, format!("it must divide {heads} heads")));
        }
        let head_dim = metadata.opt_u32(&key("attention.key_length"))?.unwrap_or(width / heads);
        let value_dim = metadata.opt_u32(&key("attention.value_length"))?.unwrap_or(head_dim);
        if head_dim == 0 || value_dim != head_dim {
            return Err(ModelError::invalid(key("attention.value_length"), value_dim, format!("it must equal {head_dim}")));
        }
        let eps = metadata.f32(&key("attention.layer_norm_rms_epsilon"))?;
        if !(eps.is_finite() && eps > 0.0) {
            return Err(ModelError::invalid(key("attention.layer_norm_rms_epsilon"), eps, "it must be above 0"));
        }
        let vocab = tensors.rows_of("token_embd.weight")?;
        let vocab = u32::try_from(vocab).map_err(|_| ModelError::invalid("token_embd.weight", vocab, "too many rows"))?;
        let experts = read_experts(metadata, variant)?;
        let hidden = if experts.is_some() { 0 } else { positive("feed_forward_length")? };
        let window = if variant.gemma { metadata.opt_u32(&key("attention.sliding_window"))?.filter(|w| *w > 0) } else { None };
        let scaled_dim = if variant.gemma && layers == GEMMA_27B_LAYERS { width / heads } else { head_dim };
        Ok(Config {
            variant,
            layers,
            width,
            vocab,
            context,
            eps,
            heads,
            kv_heads,
            head_dim,
            hidden,
            experts,
            rope: read_rope(metadata, variant, head_dim, context)?,
            window,
            attention_scale: 1.0 / (scaled_dim as f32).sqrt(),
        })
    }

    /// Whether a layer attends only to the sliding window.
    fn is_local(&self, layer: u32) -> bool {
        self.window.is_some() && !(layer + 1).is_multiple_of(GEMMA_PERIOD)
    }
}

fn read_experts(metadata: &Metadata, variant: Variant) -> Result<Option<ExpertsConfig>, ModelError> {
    let key = |name: &str| format!("{}.{name}", variant.name);
    let count = metadata.opt_u32(&key("expert_count"))?.unwrap_or(0);
    if count == 0 {
        return Ok(None);
    }
    let used = metadata.u32(&key("expert_used_count"))?;
    if used == 0 || used > count {
        return Err(ModelError::invalid(key("expert_used_count"), used, format!("it must be 1 to {count}")));
    }
    let hidden = match metadata.opt_u32(&key("expert_feed_forward_length"))? {
        Some(hidden) => hidden,
        None => metadata.u32(&key("feed_forward_length"))?,
    };
    if hidden == 0 {
        return Err(ModelError::invalid(key("expert_feed_forward_length"), 0, "it must be above 0"));
    }
    Ok(Some(ExpertsConfig { count, used, hidden }))
}

fn read_rope(metadata: &Metadata, variant: Variant, head_dim: u32, context: u32) -> Result<RopeConfig, ModelError> {
    let key = |name: &str| format!("{}.rope.{name}", variant.name);
    let dims = metadata.opt_u32(&key("dimension_count"))?.unwrap_or(head_dim);
    if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
        return Err(ModelError::invalid(key("dimension_count"), dims, format!("it must be even and at most {head_dim}")));
    }
    let base = metadata.opt_f32(&key("freq_base"))?.unwrap_or(10_000.0);
    if !(base.is_finite() && base > 1.0) {
        return Err(ModelError::invalid(key("freq_base"), base, "it must be above 1"));
    }
    let scaling = Scaling::from_metadata(metadata, variant.name, context)?;
    Ok(RopeConfig { dims, base: f64::from(base), scaling, pairing: variant.pairing, factors: None, component: vec![] })
}

impl Architecture for Config {
    fn dims(&self) -> Dims {
        Dims { layers: self.layers, width: self.width, hand_off_width: self.width, vocab: self.vocab, context: self.context }
    }

    fn embedding_scale(&self) -> f32 {
        if self.variant.gemma { (self.width as f32).sqrt() } else { 1.0 }
    }

    fn stage(&self, tensors: &Tensors<'_>, options: &StageOptions) -> Result<Stage, ModelError> {
        let mut stage = decode_layers(options, self.layers)?;
        let layers =
            options.layers.clone().map(|i| self.declare(tensors, options, &mut stage, i)).collect::<Result<Vec<_>, _>>()?;
        let head = if options.layers.end == self.layers {
            let base = if tensors.has("output.weight") { "output" } else { "token_embd" };
            let norm = tensors.vector(&mut stage, "output_norm.weight", self.width)?;
            Some((norm, tensors.linear(&mut stage, base, self.width, self.vocab)?))
        } else {
            None
        };
        for (name, shape) in &options.programs {
            stage.program(self.program(name, *shape, options.layers.start == 0, &layers, head.as_ref()));
        }
        finish_stage(stage)
    }

    fn uses(&self, tensor: &str) -> bool {
        match tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => {
                let ours = layer.parse::<u32>().is_ok_and(|n| n < self.layers);
                ours && ["attn_", "ffn_", "post_"].iter().any(|p| rest.starts_with(p))
            }
            None => ["token_embd.", "output.", "output_norm.", "rope_freqs."].iter().any(|p| tensor.starts_with(p)),
        }
    }
}

enum FeedForward {
    Dense { gate: Linear, up: Linear, down: Linear },
    Experts(Box<Moe>),
}

struct Layer {
    index: u32,
    attn_norm: WeightId,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    q_norm: Option<WeightId>,
    k_norm: Option<WeightId>,
    post_attn_norm: Option<WeightId>,
    ffn_norm: WeightId,
    post_ffn_norm: Option<WeightId>,
    feed_forward: FeedForward,
    rope: RopeId,
    window: Option<u32>,
    cache: StateId,
}

impl Config {
    fn declare(
        &self,
        tensors: &Tensors<'_>,
        options: &StageOptions,
        stage: &mut StageBuilder,
        i: u32,
    ) -> Result<Layer, ModelError> {
        let (width, dim) = (self.width, self.head_dim);
        let name = |part: &str| format!("blk.{i}.{part}");
        let norm = |stage: &mut StageBuilder, part: &str, len| tensors.vector(stage, &name(&format!("{part}.weight")), len);
        let optional = |stage: &mut StageBuilder, part: &str, len| {
            if tensors.has(&name(&format!("{part}.weight"))) { norm(stage, part, len).map(Some) } else { Ok(None) }
        };
        let local = self.is_local(i);
        let rope = if local && self.variant.gemma {
            RopeConfig { base: GEMMA_LOCAL_BASE, scaling: Scaling::None, ..self.rope.clone() }.to_rope()
        } else {
            self.rope.to_rope()
        };
        let kind = StateKind::Kv { format: options.kv, cells: options.cells, kv_heads: self.kv_heads, head_dim: dim };
        Ok(Layer {
            index: i,
            attn_norm: norm(stage, "attn_norm", width)?,
            q: tensors.linear(stage, &name("attn_q"), width, self.heads * dim)?,
            k: tensors.linear(stage, &name("attn_k"), width, self.kv_heads * dim)?,
            v: tensors.linear(stage, &name("attn_v"), width, self.kv_heads * dim)?,
            out: tensors.linear(stage, &name("attn_output"), self.heads * dim, width)?,
            q_norm: optional(stage, "attn_q_norm", dim)?,
            k_norm: optional(stage, "attn_k_norm", dim)?,
            post_attn_norm: if self.variant.gemma { optional(stage, "post_attention_norm", width)? } else { None },
            ffn_norm: norm(stage, "ffn_norm", width)?,
            post_ffn_norm: if self.variant.gemma { optional(stage, "post_ffw_norm", width)? } else { None },
            feed_forward: self.declare_feed_forward(tensors, stage, i)?,
            rope: stage.rope(rope),
            window: if local { self.window } else { None },
            cache: stage.state(format!("L{i} kv"), kind, options.slots),
        })
    }

    fn declare_feed_forward(&self, tensors: &Tensors<'_>, stage: &mut StageBuilder, i: u32) -> Result<FeedForward, ModelError> {
        let width = self.width;
        let mut linear = |part: &str, cols, rows| tensors.linear(stage, &format!("blk.{i}.{part}"), cols, rows);
        let Some(e) = &self.experts else {
            return Ok(FeedForward::Dense {
                gate: linear("ffn_gate", width, self.hidden)?,
                up: linear("ffn_up", width, self.hidden)?,
                down: linear("ffn_down", self.hidden, width)?,
            });
        };
        let router = linear("ffn_gate_inp", width, e.count)?;
        let [gate, up, down] = tensors.experts(stage, i, width, e.hidden, e.count)?;
        let (count, used, hidden) = (e.count, e.used, e.hidden);
        Ok(FeedForward::Experts(Box::new(Moe { router, gate, up, down, shared: None, count, used, hidden, normalise: true })))
    }

    fn program(
        &self,
        name: &str,
        shape: ShapeClass,
        first: bool,
        layers: &[Layer],
        head: Option<&(WeightId, Linear)>,
    ) -> ProgramBuilder {
        let mut p = ProgramBuilder::new(name, shape);
        let kind = if first { InputKind::TokenEmbedding { scale: self.embedding_scale() } } else { InputKind::HandOff };
        let x = p.input("residual", self.width, kind);
        for layer in layers {
            self.emit(&mut p, layer, x);
        }
        match head {
            None => p.mark_output(x, OutputKind::HandOff),
            Some((norm, output)) => {
                let wanted = p.output_rows("wanted residual", self.width);
                p.step("wanted rows", Op::GatherOutputs { x, out: wanted });
                let normed = p.output_rows("head normed", self.width);
                let (group, eps) = (self.width, self.eps);
                p.step("head norm", Op::RmsNorm { x: wanted, weight: Some(*norm), out: normed, group, eps });
                let logits = p.output("logits", Rows::Outputs, self.vocab, OutputKind::Logits);
                p.step("head logits", Op::MatMul { x: normed, parts: vec![output.part(logits, Epilogue::None)] });
            }
        }
        p
    }

    fn emit(&self, p: &mut ProgramBuilder, layer: &Layer, x: View) {
        let label = format!("L{}", layer.index);
        let normed = self.norm(p, &format!("{label} attn norm"), x, layer.attn_norm);
        let y = self.attention(p, layer, &label, normed);
        self.residual(p, &format!("{label} attn"), x, y, &layer.out, layer.post_attn_norm);

        let normed = self.norm(p, &format!("{label} ffn norm"), x, layer.ffn_norm);
        match &layer.feed_forward {
            FeedForward::Dense { gate, up, down } => {
                let hidden = p.buffer(format!("{label} ffn hidden"), self.hidden);
                let parts = vec![gated_part(gate, up, self.variant.activation, hidden)];
                p.step(format!("{label} ffn in"), Op::MatMul { x: normed, parts });
                self.residual(p, &format!("{label} ffn"), x, hidden, down, layer.post_ffn_norm);
            }
            FeedForward::Experts(moe) => {
                let y = moe.emit(p, &label, normed);
                p.step(format!("{label} ffn add"), Op::Add { x, y, scale: None });
            }
        }
    }

    fn norm(&self, p: &mut ProgramBuilder, name: &str, x: View, weight: WeightId) -> View {
        let out = p.buffer(name, x.width);
        p.step(name, Op::RmsNorm { x, weight: Some(weight), out, group: x.width, eps: self.eps });
        out
    }

    /// `x += norm(W y)`, or with no norm `x += W y` in one step.
    fn residual(&self, p: &mut ProgramBuilder, name: &str, x: View, y: View, linear: &Linear, norm: Option<WeightId>) {
        let Some(norm) = norm else {
            let parts = vec![linear.part(x, Epilogue::Accumulate)];
            p.step(format!("{name} out"), Op::MatMul { x: y, parts });
            return;
        };
        let out = p.buffer(format!("{name} out"), self.width);
        p.step(format!("{name} out"), Op::MatMul { x: y, parts: vec![linear.part(out, Epilogue::None)] });
        let normed = self.norm(p, &format!("{name} post norm"), out, norm);
        p.step(format!("{name} add"), Op::Add { x, y: normed, scale: None });
    }

    fn attention(&self, p: &mut ProgramBuilder, layer: &Layer, label: &str, x: View) -> View {
        let (heads, kv_heads, dim, eps) = (self.heads, self.kv_heads, self.head_dim, self.eps);
        let q = p.buffer(format!("{label} q"), heads * dim);
        let k = p.buffer(format!("{label} k"), kv_heads * dim);
        let v = p.buffer(format!("{label} v"), kv_heads * dim);
        let parts = vec![layer.q.part(q, Epilogue::None), layer.k.part(k, Epilogue::None), layer.v.part(v, Epilogue::None)];
        p.step(format!("{label} attn in"), Op::MatMul { x, parts });
        let rope = Some(layer.rope);
        p.step(format!("{label} attn q rope"), Op::HeadNormRope { heads: q.heads(heads), weight: layer.q_norm, eps, rope });
        p.step(format!("{label} attn k rope"), Op::HeadNormRope { heads: k.heads(kv_heads), weight: layer.k_norm, eps, rope });
        p.step(format!("{label} attn store"), Op::KvAppend { k, v, cache: layer.cache });
        let out = p.buffer(format!("{label} attention"), heads * dim);
        p.step(
            format!("{label} attention"),
            Op::Attention {
                q: q.heads(heads),
                cache: layer.cache,
                out: out.heads(heads),
                scale: self.attention_scale,
                window: layer.window,
                selection: None,
                gate: None,
            },
        );
        out
    }
}
