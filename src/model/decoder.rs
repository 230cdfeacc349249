//! The pre-norm decoder families `llama`, `qwen2`, `qwen3`, `qwen3moe` and `gemma3`: attention and a gated feed-forward layer
//! (or a mixture of experts), each around a residual. What differs between them is a line in [`VARIANTS`].

use super::blocks::{Moe, decode_layers, finish_stage, gated_part};
use super::rope::{RopeConfig, Scaling};
use super::tensors::{Experts, Linear};
use super::{
    Architecture, Dims, ModelError, Pooling, StageOptions, Tensors, check_experts, check_head_dim, check_layers, row_len,
};
use crate::gguf::{GgufError, Metadata, ModelFiles, Value};
use crate::program::{
    Epilogue, GateActivation, InputKind, Op, OutputKind, ProgramBuilder, RopeId, RopePairing, Rows, ShapeClass, SlotRoom, Stage,
    StageBuilder, StateId, StateKind, View, WeightId,
};
use crate::quant::Format;

/// What sets a family apart.
#[derive(Debug, Clone, Copy)]
struct Variant {
    name: &'static str,
    pairing: RopePairing,
    activation: GateActivation,
    /// Every head of queries and keys is normed.
    head_norms: bool,
    /// Norms after attention and feed-forward, before the residual; embeddings times `sqrt(width)`; every sixth layer
    /// attends to everything, the others to a sliding window with their own rotary base.
    gemma: bool,
    /// There is no dense form.
    moe: bool,
}

const LLAMA: Variant = Variant {
    name: "llama",
    pairing: RopePairing::Adjacent,
    activation: GateActivation::Silu,
    head_norms: false,
    gemma: false,
    moe: false,
};
const QWEN: Variant = Variant { pairing: RopePairing::Half, ..LLAMA };

const VARIANTS: &[Variant] = &[
    LLAMA,
    Variant { name: "qwen2", ..QWEN },
    Variant { name: "qwen3", head_norms: true, ..QWEN },
    Variant { name: "qwen3moe", head_norms: true, moe: true, ..QWEN },
    Variant { name: "gemma3", head_norms: true, activation: GateActivation::GeluTanh, gemma: true, ..QWEN },
];

/// What the stage reads of a layer, without the ending `.weight`, `.bias` or `.scale`.
const LAYER_TENSORS: &[&str] = &[
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_q_norm",
    "attn_k_norm",
    "post_attention_norm",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_inp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_gate_up_exps",
    "post_ffw_norm",
];

/// Layers of one period of Gemma's window pattern; the last of them attends to everything.
const GEMMA_PERIOD: u32 = 6;
/// Rotary base of Gemma's sliding-window layers where the file says nothing.
const GEMMA_LOCAL_BASE: f32 = 10_000.0;
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
    /// Rotary base of local layers.
    local_base: f64,
    /// Newest tokens that each layer attends to; `None` for all.
    windows: Vec<Option<u32>>,
    attention_scale: f32,
    pooling: Option<Pooling>,
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
    let tensors = Tensors::new(files);
    tensors.shaped("rope_freqs.weight", &[pairs])?;
    if tensor.format != Format::F32 {
        let reason = "rotary factors must be F32".into();
        return Err(ModelError::Format { tensor: tensor.name.clone(), format: tensor.format.name(), reason });
    }
    let factors = match tensors.read_floats("rope_freqs.weight") {
        // Plans are made from a header alone.
        Err(ModelError::Read(GgufError::NoData { .. })) => return Ok(None),
        factors => factors?,
    };
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
        row_len(key("embedding_length"), width, &[width])?;
        let layers = positive("block_count")?;
        check_layers(key("block_count"), layers)?;
        refuse_unknown_traits(metadata, variant)?;
        let context = positive("context_length")?;
        let uniform = |name: &str| opt_uniform(metadata, &key(name), layers);
        let heads = uniform("attention.head_count")?.map_or_else(|| positive("attention.head_count"), Ok)?;
        if heads == 0 {
            return Err(ModelError::invalid(key("attention.head_count"), 0, "it must be above 0"));
        }
        let kv_heads = uniform("attention.head_count_kv")?.unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::invalid(key("attention.head_count_kv"), kv_heads, format!("it must divide {heads} heads")));
        }
        let head_dim = match metadata.opt_u32(&key("attention.key_length"))? {
            Some(0) => return Err(ModelError::invalid(key("attention.key_length"), 0, "it must be above 0")),
            Some(dim) => dim,
            None if width.is_multiple_of(heads) => width / heads,
            None => {
                let problem = format!("without attention.key_length it must divide the width of {width}");
                return Err(ModelError::invalid(key("attention.head_count"), heads, problem));
            }
        };
        check_head_dim(key("attention.key_length"), head_dim)?;
        row_len(key("attention.head_count"), heads, &[heads, head_dim])?;
        let value_dim = metadata.opt_u32(&key("attention.value_length"))?.unwrap_or(head_dim);
        if value_dim != head_dim {
            let problem = format!("it must equal the key length of {head_dim}");
            return Err(ModelError::invalid(key("attention.value_length"), value_dim, problem));
        }
        let eps = metadata.f32(&key("attention.layer_norm_rms_epsilon"))?;
        if !(eps.is_finite() && eps > 0.0) {
            return Err(ModelError::invalid(key("attention.layer_norm_rms_epsilon"), eps, "it must be above 0"));
        }
        let vocab = tensors.rows_of("token_embd.weight")?;
        let vocab = u32::try_from(vocab).map_err(|_| ModelError::invalid("token_embd.weight", vocab, "too many rows"))?;
        tensors.shaped("token_embd.weight", &[width, vocab])?;
        let experts = read_experts(metadata, variant, layers)?;
        let hidden = match &experts {
            Some(_) => 0,
            None => uniform("feed_forward_length")?.map_or_else(|| positive("feed_forward_length"), Ok)?,
        };
        if hidden == 0 && experts.is_none() {
            return Err(ModelError::invalid(key("feed_forward_length"), 0, "it must be above 0"));
        }
        row_len(key("feed_forward_length"), hidden, &[hidden])?;
        let windows = if variant.gemma { read_windows(metadata, layers)? } else { vec![None; layers as usize] };
        let local_base = if variant.gemma { metadata.opt_f32(&key("rope.freq_base_swa"))? } else { None };
        let local_base = local_base.unwrap_or(GEMMA_LOCAL_BASE);
        check_base(key("rope.freq_base_swa"), local_base)?;
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
            local_base: f64::from(local_base),
            windows,
            attention_scale: 1.0 / (scaled_dim as f32).sqrt(),
            pooling: read_pooling(metadata, variant)?,
        })
    }
}

/// A number that some writers give as one, others as an array with an entry a layer.
fn opt_uniform(metadata: &Metadata, key: &str, layers: u32) -> Result<Option<u32>, ModelError> {
    let Some(values) = metadata.opt_u32_per_layer(key, layers as usize)? else { return Ok(None) };
    match values.iter().find(|v| **v != values[0]) {
        Some(other) => {
            let found = format!("{} in one layer and {other} in another", values[0]);
            Err(ModelError::invalid(key, found, "layers that differ are not supported"))
        }
        None => Ok(Some(values[0])),
    }
}

/// Keys of relatives of these families that change the mathematics.
fn refuse_unknown_traits(metadata: &Metadata, variant: Variant) -> Result<(), ModelError> {
    let key = |name: &str| format!("{}.{name}", variant.name);
    let number = |name: &str, neutral: &[f32], what: &str| match metadata.opt_f32(&key(name))? {
        Some(value) if !neutral.contains(&value) => {
            Err(ModelError::invalid(key(name), value, format!("{what} is not supported")))
        }
        _ => Ok(()),
    };
    number("final_logit_softcapping", &[0.0], "capping of logits")?;
    number("attn_logit_softcapping", &[0.0], "capping of attention scores")?;
    number("attention.scale", &[0.0], "an attention scale of its own")?;
    number("expert_weights_scale", &[0.0, 1.0], "scaling of expert weights")?;
    number("residual_scale", &[0.0, 1.0], "scaling of the residual")?;
    number("logit_scale", &[0.0, 1.0], "scaling of logits")?;
    if metadata.opt_bool(&key("attention.causal"))? == Some(false) {
        return Err(ModelError::invalid(key("attention.causal"), false, "models that look ahead are not supported"));
    }
    Ok(())
}

/// What makes a file that of an embedding model, in the numbers of GGUF.
fn read_pooling(metadata: &Metadata, variant: Variant) -> Result<Option<Pooling>, ModelError> {
    let key = format!("{}.pooling_type", variant.name);
    match metadata.opt_u32(&key)? {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(other) => Err(ModelError::invalid(key, other, "embeddings by the mean (1) or the last token (3) are supported")),
    }
}

/// Gemma's sliding windows: a period, or a flag for each layer.
fn read_windows(metadata: &Metadata, layers: u32) -> Result<Vec<Option<u32>>, ModelError> {
    let count = layers as usize;
    let Some(window) = metadata.opt_u32("gemma3.attention.sliding_window")?.filter(|w| *w > 0) else {
        return Ok(vec![None; count]);
    };
    let key = "gemma3.attention.sliding_window_pattern";
    if matches!(metadata.get(key), Some(Value::Array(_))) {
        let local = metadata.opt_bool_per_layer(key, count)?.unwrap_or_default();
        return Ok(local.into_iter().map(|local| local.then_some(window)).collect());
    }
    let period = metadata.opt_u32(key)?.unwrap_or(GEMMA_PERIOD);
    // A period of 0: no layer attends to everything.
    let is_local = |layer: u32| period == 0 || !(layer + 1).is_multiple_of(period);
    Ok((0..layers).map(|layer| is_local(layer).then_some(window)).collect())
}

fn check_base(key: String, base: f32) -> Result<(), ModelError> {
    if base.is_finite() && base > 1.0 { Ok(()) } else { Err(ModelError::invalid(key, base, "it must be above 1")) }
}

fn read_experts(metadata: &Metadata, variant: Variant, layers: u32) -> Result<Option<ExpertsConfig>, ModelError> {
    let key = |name: &str| format!("{}.{name}", variant.name);
    let count = metadata.opt_u32(&key("expert_count"))?.unwrap_or(0);
    if count == 0 && variant.moe {
        return Err(ModelError::invalid(key("expert_count"), count, "this family always has experts"));
    }
    if count == 0 {
        return Ok(None);
    }
    check_experts(key("expert_count"), count)?;
    let used = metadata.u32(&key("expert_used_count"))?;
    if used == 0 || used > count {
        return Err(ModelError::invalid(key("expert_used_count"), used, format!("it must be 1 to {count}")));
    }
    let stated = opt_uniform(metadata, &key("expert_feed_forward_length"), layers)?;
    let (from, hidden) = match stated {
        Some(hidden) => ("expert_feed_forward_length", hidden),
        None => {
            let all = opt_uniform(metadata, &key("feed_forward_length"), layers)?;
            let all = all.map_or_else(|| metadata.u32(&key("feed_forward_length")), Ok)?;
            ("feed_forward_length", if variant.moe { all / used } else { all })
        }
    };
    if hidden == 0 {
        return Err(ModelError::invalid(key(from), 0, "it must be above 0"));
    }
    row_len(key(from), hidden, &[used, hidden])?;
    Ok(Some(ExpertsConfig { count, used, hidden }))
}

fn read_rope(metadata: &Metadata, variant: Variant, head_dim: u32, context: u32) -> Result<RopeConfig, ModelError> {
    let key = |name: &str| format!("{}.rope.{name}", variant.name);
    let dims = metadata.opt_u32(&key("dimension_count"))?.unwrap_or(head_dim);
    if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
        return Err(ModelError::invalid(key("dimension_count"), dims, format!("it must be even and at most {head_dim}")));
    }
    let base = metadata.opt_f32(&key("freq_base"))?.unwrap_or(10_000.0);
    check_base(key("freq_base"), base)?;
    let scaling = Scaling::from_metadata(metadata, variant.name, context)?;
    Ok(RopeConfig { dims, base: f64::from(base), scaling, pairing: variant.pairing, factors: None, component: vec![] })
}

impl Architecture for Config {
    fn dims(&self) -> Dims {
        Dims {
            layers: self.layers,
            width: self.width,
            hand_off_width: self.width,
            vocab: self.vocab,
            context: self.context,
            pooling: self.pooling,
        }
    }

    fn embedding_scale(&self) -> f32 {
        if self.variant.gemma { (self.width as f32).sqrt() } else { 1.0 }
    }

    fn stage(&self, tensors: &Tensors<'_>, options: &StageOptions) -> Result<Stage, ModelError> {
        let mut stage = decode_layers(options, self.layers)?;
        let layers =
            options.layers.clone().map(|i| self.declare(tensors, options, &mut stage, i)).collect::<Result<Vec<_>, _>>()?;
        let ends_here = options.layers.end == self.layers;
        let head = if ends_here { Some(self.declare_head(tensors, &mut stage)?) } else { None };
        for (name, shape) in &options.programs {
            stage.program(self.program(name, *shape, options.layers.start == 0, &layers, head.as_ref()));
        }
        finish_stage(stage)
    }

    fn uses(&self, tensor: &str) -> bool {
        match tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => {
                let ours = layer.parse::<u32>().is_ok_and(|n| n < self.layers);
                let part = rest.rsplit_once('.').map(|(part, _)| part);
                ours && part.is_some_and(|part| LAYER_TENSORS.contains(&part))
            }
            None => ["token_embd.", "output.", "output_norm.", "rope_freqs."].iter().any(|p| tensor.starts_with(p)),
        }
    }
}

/// What follows the last layer: a norm, and the output matrix where scores are wanted.
struct Head {
    norm: WeightId,
    output: Option<Linear>,
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
    fn declare_head(&self, tensors: &Tensors<'_>, stage: &mut StageBuilder) -> Result<Head, ModelError> {
        let norm = tensors.vector(stage, "output_norm.weight", self.width)?;
        if self.pooling.is_some() {
            return Ok(Head { norm, output: None });
        }
        let base = if tensors.has("output.weight") { "output" } else { "token_embd" };
        Ok(Head { norm, output: Some(tensors.linear(stage, base, self.width, self.vocab)?) })
    }

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
        let head_norm = |stage: &mut StageBuilder, part: &str| {
            if self.variant.head_norms { norm(stage, part, dim).map(Some) } else { optional(stage, part, dim) }
        };
        let window = self.windows[i as usize];
        let rope = if window.is_some() {
            RopeConfig { base: self.local_base, scaling: Scaling::None, factors: None, ..self.rope.clone() }.to_rope()
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
            q_norm: head_norm(stage, "attn_q_norm")?,
            k_norm: head_norm(stage, "attn_k_norm")?,
            post_attn_norm: if self.variant.gemma { Some(norm(stage, "post_attention_norm", width)?) } else { None },
            ffn_norm: norm(stage, "ffn_norm", width)?,
            post_ffn_norm: if self.variant.gemma { Some(norm(stage, "post_ffw_norm", width)?) } else { None },
            feed_forward: self.declare_feed_forward(tensors, stage, i, options.slots_of_layer(i))?,
            rope: stage.rope(rope),
            window,
            cache: stage.state(format!("L{i} kv"), kind, options.slots),
        })
    }

    fn declare_feed_forward(
        &self,
        tensors: &Tensors<'_>,
        stage: &mut StageBuilder,
        i: u32,
        slots: Option<SlotRoom>,
    ) -> Result<FeedForward, ModelError> {
        let width = self.width;
        let base = |part: &str| format!("blk.{i}.{part}");
        let Some(e) = &self.experts else {
            return Ok(FeedForward::Dense {
                gate: tensors.linear_without_bias(stage, &base("ffn_gate"), width, self.hidden)?,
                up: tensors.linear_without_bias(stage, &base("ffn_up"), width, self.hidden)?,
                down: tensors.linear(stage, &base("ffn_down"), self.hidden, width)?,
            });
        };
        let router = tensors.linear(stage, &base("ffn_gate_inp"), width, e.count)?;
        let Experts { gate, up, down, slots } = tensors.experts(stage, i, width, e.hidden, (e.count, slots))?;
        let (count, used, hidden) = (e.count, e.used, e.hidden);
        let moe = Moe { router, gate, up, down, slots, shared: None, count, used, hidden, normalise: true };
        Ok(FeedForward::Experts(Box::new(moe)))
    }

    fn program(&self, name: &str, shape: ShapeClass, first: bool, layers: &[Layer], head: Option<&Head>) -> ProgramBuilder {
        let mut p = ProgramBuilder::new(name, shape);
        let kind = if first { InputKind::TokenEmbedding { scale: self.embedding_scale() } } else { InputKind::HandOff };
        let x = p.input("residual", self.width, kind);
        p.carry(x);
        for layer in layers {
            self.emit(&mut p, layer, x);
        }
        match head {
            None => p.mark_output(x, OutputKind::HandOff),
            Some(Head { norm, output }) => {
                let wanted = p.output_rows("wanted residual", self.width);
                p.step("wanted rows", Op::GatherOutputs { x, out: wanted });
                let normed = p.output_rows("head normed", self.width);
                let (group, eps) = (self.width, self.eps);
                p.step("head norm", Op::RmsNorm { x: wanted, weight: Some(*norm), out: normed, group, eps });
                match output {
                    None => p.mark_output(normed, OutputKind::Embedding),
                    Some(output) => {
                        let logits = p.output("logits", Rows::Outputs, self.vocab, OutputKind::Logits);
                        p.step("head logits", Op::MatMul { x: normed, parts: vec![output.part(logits, Epilogue::None)] });
                    }
                }
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
