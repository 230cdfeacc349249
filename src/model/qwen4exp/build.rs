//! From configuration to programs: the order of operations of section 0.

use super::config::{Config, Mixer};
use crate::gguf::GgufError;
use crate::model::blocks::{Moe, SharedExpert, decode_layers, finish_stage};
use crate::model::tensors::{Experts, Linear};
use crate::model::{Architecture, ModelError, StageOptions, Tensors};
use crate::program::{
    Epilogue, Heads, InputKind, Op, OutputKind, ProgramBuilder, RopeId, Rows, ShapeClass, Stage, StageBuilder, StateId,
    StateKind, View, WeightId,
};

/// Weights of a hyper-connection mix (1.2).
struct Mix {
    norm: WeightId,
    down: Linear,
    up: Linear,
    inject: Option<Linear>,
}

struct DeltaWeights {
    qkv: Linear,
    gate: Linear,
    alpha: Linear,
    beta: Linear,
    a: WeightId,
    dt: WeightId,
    conv: WeightId,
    norm: WeightId,
    out: Linear,
    history: StateId,
    state: StateId,
}

struct IndexerWeights {
    q: Linear,
    k: Linear,
    q_norm: WeightId,
    k_norm: WeightId,
    cache: StateId,
    ratio: u32,
    budget_blocks: u32,
}

struct AttentionWeights {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    q_norm: WeightId,
    k_norm: WeightId,
    indexer: Option<IndexerWeights>,
    cache: StateId,
}

enum MixerWeights {
    Delta(DeltaWeights),
    Attention(AttentionWeights),
}

struct PleWeights {
    key: Linear,
    value: Linear,
    norms: [WeightId; 3],
    conv: WeightId,
    history: StateId,
}

struct Layer {
    index: u32,
    ple: Option<PleWeights>,
    attn_mix: Mix,
    mixer: MixerWeights,
    ffn_mix: Mix,
    moe: Moe,
}

struct Head {
    mix: Mix,
    output: Linear,
}

/// Everything a stage's programs refer to.
struct Parts<'a> {
    config: &'a Config,
    rope: RopeId,
    layers: Vec<Layer>,
    head: Option<Head>,
    first: bool,
}

pub(super) fn stage(config: &Config, tensors: &Tensors<'_>, options: &StageOptions) -> Result<Stage, ModelError> {
    let total = config.layers.len() as u32;
    let mut stage = decode_layers(options, total)?;
    let mut declare = Declare { config, tensors, options, stage: &mut stage };
    let layers = options.layers.clone().map(|i| declare.layer(i)).collect::<Result<Vec<_>, _>>()?;
    let head = if options.layers.end == total { Some(declare.head()?) } else { None };
    let rope = stage.rope(config.attention.rope.to_rope());
    let parts = Parts { config, rope, layers, head, first: options.layers.start == 0 };
    for (name, shape) in &options.programs {
        stage.program(parts.program(name, *shape));
    }
    finish_stage(stage)
}

/// Declares weights and state.
struct Declare<'a> {
    config: &'a Config,
    tensors: &'a Tensors<'a>,
    options: &'a StageOptions,
    stage: &'a mut StageBuilder,
}

impl Declare<'_> {
    fn linear(&mut self, base: &str, cols: u32, rows: u32) -> Result<Linear, ModelError> {
        self.tensors.linear(self.stage, base, cols, rows)
    }

    fn vector(&mut self, name: &str, len: u32) -> Result<WeightId, ModelError> {
        self.tensors.vector(self.stage, name, len)
    }

    fn mix(&mut self, base: &str, inject: bool) -> Result<Mix, ModelError> {
        let (wide, rank, streams) = (self.config.wide(), self.config.rank, self.config.streams);
        Ok(Mix {
            norm: self.vector(&format!("{base}_norm.weight"), wide)?,
            down: self.linear(&format!("{base}_down"), wide, rank)?,
            up: self.linear(&format!("{base}_up"), rank, wide)?,
            inject: if inject { Some(self.linear(&format!("{base}_inject"), wide, streams)?) } else { None },
        })
    }

    fn layer(&mut self, i: u32) -> Result<Layer, ModelError> {
        let ple = match &self.config.ple {
            Some(ple) if ple.layer == i => Some(self.ple(i)?),
            _ => None,
        };
        let attn_mix = self.mix(&format!("blk.{i}.hc_attn"), true)?;
        let mixer = match self.config.layers[i as usize] {
            Mixer::DeltaNet => MixerWeights::Delta(self.delta(i)?),
            Mixer::Attention { ratio } => MixerWeights::Attention(self.attention(i, ratio)?),
        };
        let ffn_mix = self.mix(&format!("blk.{i}.hc_ffn"), true)?;
        let moe = self.moe(i)?;
        Ok(Layer { index: i, ple, attn_mix, mixer, ffn_mix, moe })
    }

    fn delta(&mut self, i: u32) -> Result<DeltaWeights, ModelError> {
        let d = &self.config.delta;
        let (width, inner) = (self.config.width, d.value_heads * d.head_dim);
        let channels = 2 * d.key_heads * d.head_dim + inner;
        let (versions, slots) = (self.options.versions, self.options.slots);
        let conv = self.tensors.floats(&format!("blk.{i}.ssm_conv1d.weight"), d.conv_kernel, channels)?;
        let state = StateKind::Delta { versions, heads: d.value_heads, key_dim: d.head_dim, value_dim: d.head_dim };
        let history = StateKind::ConvHistory { ring_rows: d.conv_kernel - 1 + versions - 1, channels };
        Ok(DeltaWeights {
            qkv: self.linear(&format!("blk.{i}.attn_qkv"), width, channels)?,
            gate: self.linear(&format!("blk.{i}.attn_gate"), width, inner)?,
            alpha: self.linear(&format!("blk.{i}.ssm_alpha"), width, d.value_heads)?,
            beta: self.linear(&format!("blk.{i}.ssm_beta"), width, d.value_heads)?,
            a: self.decay(&format!("blk.{i}.ssm_a"), d.value_heads)?,
            dt: self.vector(&format!("blk.{i}.ssm_dt.bias"), d.value_heads)?,
            conv: self.stage.weight(conv),
            norm: self.vector(&format!("blk.{i}.ssm_norm.weight"), d.head_dim)?,
            out: self.linear(&format!("blk.{i}.ssm_out"), inner, width)?,
            history: self.stage.state(format!("L{i} conv"), history, slots),
            state: self.stage.state(format!("L{i} delta"), state, slots),
        })
    }

    /// `-exp(A_log)`: one that is not below 0 would let the state grow without bound.
    fn decay(&mut self, name: &str, len: u32) -> Result<WeightId, ModelError> {
        let id = self.vector(name, len)?;
        match self.tensors.read_floats(name) {
            Ok(values) => match values.iter().find(|a| **a >= 0.0 || a.is_nan()) {
                Some(bad) => {
                    let problem = format!("it holds {bad}, but decays must be below 0");
                    Err(ModelError::Values { tensor: name.into(), problem })
                }
                None => Ok(id),
            },
            // Plans are made from a header alone.
            Err(ModelError::Read(GgufError::NoData { .. })) => Ok(id),
            Err(error) => Err(error),
        }
    }

    fn attention(&mut self, i: u32, ratio: Option<u32>) -> Result<AttentionWeights, ModelError> {
        let a = &self.config.attention;
        let (width, heads_width, kv_width) = (self.config.width, a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let kind =
            StateKind::Kv { format: self.options.kv, cells: self.options.cells, kv_heads: a.kv_heads, head_dim: a.head_dim };
        let indexer = match ratio {
            Some(ratio) => self.indexer(i, ratio)?,
            None => None,
        };
        Ok(AttentionWeights {
            q: self.linear(&format!("blk.{i}.attn_q"), width, 2 * heads_width)?,
            k: self.linear(&format!("blk.{i}.attn_k"), width, kv_width)?,
            v: self.linear(&format!("blk.{i}.attn_v"), width, kv_width)?,
            out: self.linear(&format!("blk.{i}.attn_output"), heads_width, width)?,
            q_norm: self.vector(&format!("blk.{i}.attn_q_norm.weight"), a.head_dim)?,
            k_norm: self.vector(&format!("blk.{i}.attn_k_norm.weight"), a.head_dim)?,
            indexer,
            cache: self.stage.state(format!("L{i} kv"), kind, self.options.slots),
        })
    }

    /// Nothing where the context is too short for a block ever to be dropped: attention is dense then.
    fn indexer(&mut self, i: u32, ratio: u32) -> Result<Option<IndexerWeights>, ModelError> {
        let Some(indexer) = &self.config.indexer else { return Ok(None) };
        let budget_blocks = indexer.budget_tokens / ratio;
        if self.options.cells / ratio <= budget_blocks {
            return Ok(None);
        }
        let kind = StateKind::IndexKeys { cells: self.options.cells, dim: indexer.dim, ratio };
        let width = self.config.width;
        Ok(Some(IndexerWeights {
            q: self.linear(&format!("blk.{i}.indexer.q_proj"), width, indexer.heads * indexer.dim)?,
            k: self.linear(&format!("blk.{i}.indexer.k_proj"), width, indexer.dim)?,
            q_norm: self.vector(&format!("blk.{i}.indexer.q_norm.weight"), indexer.dim)?,
            k_norm: self.vector(&format!("blk.{i}.indexer.k_norm.weight"), indexer.dim)?,
            cache: self.stage.state(format!("L{i} index"), kind, self.options.slots),
            ratio,
            budget_blocks,
        }))
    }

    fn moe(&mut self, i: u32) -> Result<Moe, ModelError> {
        let e = &self.config.experts;
        let width = self.config.width;
        let shared = SharedExpert {
            gate_input: self.linear(&format!("blk.{i}.ffn_gate_inp_shexp"), width, 1)?,
            gate: self.tensors.linear_without_bias(self.stage, &format!("blk.{i}.ffn_gate_shexp"), width, e.shared_hidden)?,
            up: self.tensors.linear_without_bias(self.stage, &format!("blk.{i}.ffn_up_shexp"), width, e.shared_hidden)?,
            down: self.linear(&format!("blk.{i}.ffn_down_shexp"), e.shared_hidden, width)?,
            hidden: e.shared_hidden,
        };
        let router = self.linear(&format!("blk.{i}.ffn_gate_inp"), width, e.count)?;
        let slots = self.options.slots_of_layer(i);
        let Experts { gate, up, down, slots } = self.tensors.experts(self.stage, i, width, e.hidden, (e.count, slots))?;
        let shared = Some(shared);
        Ok(Moe { router, gate, up, down, slots, shared, count: e.count, used: e.used, hidden: e.hidden, normalise: true })
    }

    fn ple(&mut self, i: u32) -> Result<PleWeights, ModelError> {
        let Some(ple) = &self.config.ple else {
            return Err(ModelError::Unsupported { problem: "no n-gram embedding is configured".into() });
        };
        let (width, wide) = (self.config.width, self.config.wide());
        let ring_rows = (ple.conv_kernel - 1) * ple.ngram.ngram_size + self.options.versions - 1;
        let conv = self.tensors.floats(&format!("blk.{i}.ple_conv1d.weight"), ple.conv_kernel, wide)?;
        let mut norm = |name: &str| self.vector(&format!("blk.{i}.ple_norm_{name}.weight"), wide);
        let norms = [norm("key")?, norm("query")?, norm("conv")?];
        let history = StateKind::ConvHistory { ring_rows, channels: wide };
        Ok(PleWeights {
            key: self.linear(&format!("blk.{i}.ple_key"), width, wide)?,
            value: self.linear(&format!("blk.{i}.ple_value"), width, width)?,
            norms,
            conv: self.stage.weight(conv),
            history: self.stage.state(format!("L{i} n-gram conv"), history, self.options.slots),
        })
    }

    fn head(&mut self) -> Result<Head, ModelError> {
        let (width, vocab) = (self.config.width, self.config.vocab);
        let base = if self.tensors.has("output.weight") { "output" } else { "token_embd" };
        Ok(Head { mix: self.mix("output_hc", false)?, output: self.linear(base, width, vocab)? })
    }
}

impl Parts<'_> {
    fn program(&self, name: &str, shape: ShapeClass) -> ProgramBuilder {
        let config = self.config;
        let dims = config.dims();
        let mut p = ProgramBuilder::new(name, shape);
        let x = if self.first {
            let embedding = p.input("embedding", dims.width, InputKind::TokenEmbedding { scale: 1.0 });
            let x = p.buffer("streams", dims.hand_off_width);
            p.step("embedding to streams", Op::Repeat { x: embedding, out: x });
            x
        } else {
            p.input("streams", dims.hand_off_width, InputKind::HandOff)
        };
        p.carry(x);
        let ngram = self.layers.iter().any(|l| l.ple.is_some()).then(|| p.input("n-gram rows", dims.width, InputKind::NgramRows));
        ngram.into_iter().for_each(|rows| p.carry(rows));
        for layer in &self.layers {
            let mut emit = Emit { config, rope: self.rope, p: &mut p, label: format!("L{}", layer.index) };
            if let (Some(ple), Some(rows)) = (&layer.ple, ngram) {
                emit.ple(ple, x, rows);
            }
            emit.layer(layer, x);
        }
        match &self.head {
            Some(head) => self.head(&mut p, head, x),
            None => p.mark_output(x, OutputKind::HandOff),
        }
        p
    }

    fn head(&self, p: &mut ProgramBuilder, head: &Head, x: View) {
        let config = self.config;
        let wanted = p.output_rows("wanted streams", config.wide());
        p.step("wanted rows", Op::GatherOutputs { x, out: wanted });
        let mut emit = Emit { config, rope: self.rope, p, label: "head".into() };
        let (mixed, _) = emit.mix("mix", &head.mix, wanted, Rows::Outputs);
        let logits = p.output("logits", Rows::Outputs, config.vocab, OutputKind::Logits);
        p.step("head logits", Op::MatMul { x: mixed, parts: vec![head.output.part(logits, Epilogue::None)] });
    }
}

/// Writes the steps of one layer.
struct Emit<'a> {
    config: &'a Config,
    rope: RopeId,
    p: &'a mut ProgramBuilder,
    label: String,
}

impl Emit<'_> {
    fn step(&mut self, name: &str, op: Op) {
        self.p.step(format!("{} {name}", self.label), op);
    }

    fn buffer(&mut self, name: &str, width: u32) -> View {
        self.p.buffer(format!("{} {name}", self.label), width)
    }

    fn layer(&mut self, layer: &Layer, x: View) {
        let (mixed, inject) = self.mix("attn mix", &layer.attn_mix, x, Rows::Batch);
        let y = match &layer.mixer {
            MixerWeights::Delta(w) => self.delta(w, mixed),
            MixerWeights::Attention(w) => self.attention(w, mixed),
        };
        self.combine("attn combine", x, inject, y);
        let (mixed, inject) = self.mix("ffn mix", &layer.ffn_mix, x, Rows::Batch);
        let label = self.label.clone();
        let y = layer.moe.emit(self.p, &label, mixed);
        self.combine("ffn combine", x, inject, y);
    }

    fn combine(&mut self, name: &str, x: View, inject: Option<View>, y: View) {
        if let Some(weights) = inject {
            self.step(name, Op::HcCombine { x, weights, y });
        }
    }

    /// Hyper-connection mix: `(mixed row, inject weights)`.
    fn mix(&mut self, name: &str, mix: &Mix, x: View, rows: Rows) -> (View, Option<View>) {
        let (width, streams) = (self.config.width, self.config.streams);
        let wide = self.config.wide();
        let scale = 1.0 / streams as f32;
        let buffer = |emit: &mut Self, what: &str, width| {
            let name = format!("{} {name} {what}", emit.label);
            if rows == Rows::Batch { emit.p.buffer(name, width) } else { emit.p.output_rows(name, width) }
        };
        let normed = buffer(self, "normed", wide);
        let weight = Some(mix.norm);
        self.step(&format!("{name} norm"), Op::RmsNorm { x, weight, out: normed, group: width, eps: self.config.eps });
        let low = buffer(self, "low rank", self.config.rank);
        let mut parts = vec![mix.down.part(low, Epilogue::Silu { scale })];
        let inject = mix.inject.as_ref().map(|linear| (linear, buffer(self, "inject", streams)));
        if let Some((linear, out)) = &inject {
            parts.push(linear.part(*out, Epilogue::Sigmoid { scale, factor: 2.0 }));
        }
        self.step(&format!("{name} down"), Op::MatMul { x: normed, parts });
        let gates = buffer(self, "gates", wide);
        let up = mix.up.part(gates, Epilogue::Sigmoid { scale: 1.0, factor: 1.0 });
        self.step(&format!("{name} up"), Op::MatMul { x: low, parts: vec![up] });
        let mixed = buffer(self, "mixed", width);
        self.step(&format!("{name} gate"), Op::HcGate { gates, normed, out: mixed, streams });
        (mixed, inject.map(|(_, view)| view))
    }

    /// Gated delta net (2.1).
    fn delta(&mut self, w: &DeltaWeights, x: View) -> View {
        let d = &self.config.delta;
        let (key_width, inner) = (d.key_heads * d.head_dim, d.value_heads * d.head_dim);
        let channels = 2 * key_width + inner;
        let qkv = self.buffer("qkv", channels);
        let gate = self.buffer("z", inner);
        let decay = self.buffer("decay", d.value_heads);
        let beta = self.buffer("beta", d.value_heads);
        let sigmoid = Epilogue::Sigmoid { scale: 1.0, factor: 1.0 };
        let parts = vec![
            w.qkv.part(qkv, Epilogue::None),
            w.gate.part(gate, sigmoid),
            w.beta.part(beta, sigmoid),
            w.alpha.part(decay, Epilogue::Decay { a: w.a, dt: w.dt }),
        ];
        self.step("delta in", Op::MatMul { x, parts });
        let conv = self.buffer("conv", channels);
        self.step("delta conv", Op::CausalConv { x: qkv, weight: w.conv, history: w.history, out: conv, dilation: 1 });
        let out = self.buffer("delta", inner);
        self.step(
            "delta rule",
            Op::DeltaRule {
                q: conv.columns(0, key_width).heads(d.key_heads),
                k: conv.columns(key_width, key_width).heads(d.key_heads),
                v: conv.columns(2 * key_width, inner).heads(d.value_heads),
                decay,
                beta,
                gate,
                norm: w.norm,
                eps: self.config.eps,
                state: w.state,
                out,
            },
        );
        let y = self.buffer("delta out", self.config.width);
        self.step("delta out", Op::MatMul { x: out, parts: vec![w.out.part(y, Epilogue::None)] });
        y
    }

    /// Sparse attention (2.2).
    fn attention(&mut self, w: &AttentionWeights, x: View) -> View {
        let a = &self.config.attention;
        let (heads, dim, eps) = (a.heads, a.head_dim, self.config.eps);
        let query = self.buffer("q and gate", 2 * heads * dim);
        let k = self.buffer("k", a.kv_heads * dim);
        let v = self.buffer("v", a.kv_heads * dim);
        let mut parts = vec![w.q.part(query, Epilogue::None), w.k.part(k, Epilogue::None), w.v.part(v, Epilogue::None)];
        let index = w.indexer.as_ref().zip(self.config.indexer.as_ref()).map(|(weights, config)| {
            let query = self.buffer("index q", config.heads * config.dim);
            let key = self.buffer("index k", config.dim);
            parts.extend([weights.q.part(query, Epilogue::None), weights.k.part(key, Epilogue::None)]);
            (weights, query.heads(config.heads), key)
        });
        self.step("attn in", Op::MatMul { x, parts });

        let rope = Some(self.rope);
        let q = Heads { buffer: query.buffer, offset: 0, count: heads, dim, stride: 2 * dim };
        let gate = Heads { offset: dim, ..q };
        self.step("attn q norm", Op::HeadNormRope { heads: q, weight: Some(w.q_norm), eps, rope });
        self.step("attn k norm", Op::HeadNormRope { heads: k.heads(a.kv_heads), weight: Some(w.k_norm), eps, rope });
        self.step("attn store", Op::KvAppend { k, v, cache: w.cache });
        let selection = index.map(|(weights, query, key)| {
            let cache = weights.cache;
            self.step("index q norm", Op::HeadNormRope { heads: query, weight: Some(weights.q_norm), eps, rope });
            self.step("index store", Op::IndexAppend { key, cache, weight: weights.k_norm, eps, rope: self.rope });
            let budget_blocks = weights.budget_blocks;
            let chosen = self.p.ids(format!("{} selection", self.label), budget_blocks + 1);
            self.step("index select", Op::BlockSelect { query, cache, budget_blocks, out: chosen });
            (chosen, weights.ratio)
        });
        let out = self.buffer("attention", heads * dim);
        self.step(
            "attention",
            Op::Attention {
                q,
                cache: w.cache,
                out: out.heads(heads),
                scale: 1.0 / (dim as f32).sqrt(),
                window: None,
                selection,
                gate: Some(gate),
            },
        );
        let y = self.buffer("attn out", self.config.width);
        self.step("attn out", Op::MatMul { x: out, parts: vec![w.out.part(y, Epilogue::None)] });
        y
    }

    /// N-gram injection into the streams (2.4).
    fn ple(&mut self, w: &PleWeights, x: View, rows: View) {
        let (width, wide, streams) = (self.config.width, self.config.wide(), self.config.streams);
        let key = self.buffer("n-gram key", wide);
        let value = self.buffer("n-gram value", width);
        let parts = vec![w.key.part(key, Epilogue::None), w.value.part(value, Epilogue::None)];
        self.step("n-gram in", Op::MatMul { x: rows, parts });
        let gated = self.buffer("n-gram gated", wide);
        let normed = self.buffer("n-gram normed", wide);
        let [norm_key, norm_query, norm_conv] = w.norms;
        let eps = self.config.eps;
        self.step("n-gram gate", Op::NgramGate { x, key, value, norm_key, norm_query, norm_conv, streams, eps, gated, normed });
        let conv = self.buffer("n-gram conv", wide);
        let dilation = self.config.ple.as_ref().map_or(1, |ple| ple.ngram.ngram_size);
        self.step("n-gram conv", Op::CausalConv { x: normed, weight: w.conv, history: w.history, out: conv, dilation });
        self.step("n-gram add", Op::Add { x, y: gated, scale: None });
        self.step("n-gram add conv", Op::Add { x, y: conv, scale: None });
    }
}
