//! Metadata of `qwen4exp` (8.1) and its validation (8.3).

use crate::gguf::Metadata;
use crate::model::rope::{RopeConfig, Scaling, interleaved_components, uncovered_pair};
use crate::model::{ModelError, NgramConfig, Tensors, check_experts, check_head_dim, check_layers, row_len};
use crate::program::{MAX_BLOCK_TOKENS, RopePairing};
use crate::units::TokenId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mixer {
    DeltaNet,
    /// Attention; `ratio` is the block length of sparse selection, `None` for dense attention.
    Attention {
        ratio: Option<u32>,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct DeltaNet {
    pub key_heads: u32,
    pub value_heads: u32,
    pub head_dim: u32,
    pub conv_kernel: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Attention {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub rope: RopeConfig,
}

#[derive(Debug, Clone)]
pub(crate) struct Indexer {
    pub heads: u32,
    pub dim: u32,
    pub budget_tokens: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Experts {
    pub count: u32,
    pub used: u32,
    pub hidden: u32,
    pub shared_hidden: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Ple {
    pub layer: u32,
    pub conv_kernel: u32,
    pub ngram: NgramConfig,
}

/// A validated `qwen4exp` model.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub width: u32,
    pub vocab: u32,
    pub context: u32,
    pub eps: f32,
    pub streams: u32,
    pub rank: u32,
    pub layers: Vec<Mixer>,
    pub delta: DeltaNet,
    pub attention: Attention,
    pub indexer: Option<Indexer>,
    pub experts: Experts,
    pub ple: Option<Ple>,
    pub warnings: Vec<String>,
}

/// Keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
}

impl Keys<'_> {
    fn key(name: &str) -> String {
        format!("qwen4exp.{name}")
    }

    fn positive(&self, name: &str) -> Result<u32, ModelError> {
        let key = Self::key(name);
        match self.metadata.u32(&key)? {
            0 => Err(ModelError::invalid(key, 0, "it must be above 0")),
            value => Ok(value),
        }
    }

    /// A positive number of elements of a row.
    fn row(&self, name: &str) -> Result<u32, ModelError> {
        let len = self.positive(name)?;
        row_len(Self::key(name), len, &[len])
    }

    fn conv_kernel(&self, name: &str) -> Result<u32, ModelError> {
        let kernel = self.positive(name)?;
        let problem = format!("at most {MAX_CONV_KERNEL} are supported");
        ensure(kernel <= MAX_CONV_KERNEL, name, kernel, &problem)?;
        Ok(kernel)
    }
}

/// Longest convolution; the released models have 4.
const MAX_CONV_KERNEL: u32 = 1 << 10;

fn ensure(condition: bool, key: &str, found: impl std::fmt::Display, problem: &str) -> Result<(), ModelError> {
    if condition { Ok(()) } else { Err(ModelError::invalid(Keys::key(key), found, problem)) }
}

impl Config {
    /// Elements of the residual: all streams side by side. Validation has checked the product.
    pub fn wide(&self) -> u32 {
        self.streams * self.width
    }

    /// # Errors
    /// A key or tensor that breaks a rule of section 8.3.
    pub fn read(metadata: &Metadata, tensors: &Tensors<'_>) -> Result<Config, ModelError> {
        let keys = Keys { metadata };
        let width = keys.positive("embedding_length")?;
        let context = keys.positive("context_length")?;
        let blocks = keys.positive("block_count")?;
        check_layers(Keys::key("block_count"), blocks)?;
        let layers = read_layers(&keys, blocks, tensors)?;
        let streams = keys.positive("hyper_connection.count")?;
        ensure(streams > 1, "hyper_connection.count", streams, "hyper-connections need at least 2 streams")?;
        row_len(Keys::key("embedding_length"), width, &[width, streams])?;
        let rank = keys.row("hyper_connection.low_rank")?;
        let vocab = tensors.rows_of("token_embd.weight")?;
        let vocab = u32::try_from(vocab).map_err(|_| ModelError::invalid("token_embd.weight", vocab, "too many rows"))?;
        tensors.shaped("token_embd.weight", &[width, vocab])?;
        let eps = metadata.f32(&Keys::key("attention.layer_norm_rms_epsilon"))?;
        ensure(eps.is_finite() && eps > 0.0, "attention.layer_norm_rms_epsilon", eps, "it must be above 0")?;
        let attention = read_attention(&keys, context)?;
        let indexer = read_indexer(&keys, &layers, &attention)?;
        let mut config = Config {
            width,
            vocab,
            context,
            eps,
            streams,
            rank,
            delta: read_delta(&keys)?,
            attention,
            indexer,
            experts: read_experts(&keys, blocks)?,
            ple: None,
            layers,
            warnings: vec![],
        };
        if !metadata.contains_key(&Keys::key("rope.freq_base")) {
            let warning = "the file has no qwen4exp.rope.freq_base, 10000 is used; the released model has 10000000";
            config.warnings.push(warning.into());
        }
        config.ple = read_ple(&keys, &config, tensors)?;
        if let Some(ple) = &config.ple {
            let highest = u64::from(vocab - 1);
            if ple.ngram.multipliers.iter().any(|m| m.checked_mul(highest).is_none_or(|x| x >= 1 << 63)) {
                config.warnings.push("qwen4exp.ple.layer_multipliers times a token id exceeds 63 bits; the hash wraps".into());
            }
        }
        Ok(config)
    }
}

fn read_layers(keys: &Keys<'_>, blocks: u32, tensors: &Tensors<'_>) -> Result<Vec<Mixer>, ModelError> {
    let drafts = keys.metadata.opt_u32(&Keys::key("nextn_predict_layers"))?.unwrap_or(0);
    ensure(drafts <= 1 && drafts < blocks, "nextn_predict_layers", drafts, "0 or 1 is supported, below the block count")?;
    let trunk = (blocks - drafts) as usize;
    if drafts > 0 && !tensors.has("blk.0.hc_attn_norm.weight") {
        let problem = "this file holds only the draft layer of a model; give the model's own file";
        return Err(ModelError::Unsupported { problem: problem.into() });
    }
    let count = blocks as usize;
    let recurrent = match keys.metadata.opt_bool_per_layer(&Keys::key("attention.recurrent_layers"), count)? {
        Some(flags) => flags,
        None => {
            let interval = keys.metadata.opt_u32(&Keys::key("full_attention_interval"))?.unwrap_or(4);
            ensure(interval > 0, "full_attention_interval", interval, "it must be above 0")?;
            (0..blocks).map(|i| (i + 1) % interval != 0).collect()
        }
    };
    let ratios = keys.metadata.opt_u32_per_layer(&Keys::key("attention.compress_ratios"), count)?;
    let ratios = ratios.unwrap_or_else(|| vec![0; count]);
    let mixer = |i: usize| match (recurrent[i], ratios[i]) {
        (true, _) => Mixer::DeltaNet,
        (false, 0) => Mixer::Attention { ratio: None },
        (false, ratio) => Mixer::Attention { ratio: Some(ratio) },
    };
    Ok((0..trunk).map(mixer).collect())
}

fn read_delta(keys: &Keys<'_>) -> Result<DeltaNet, ModelError> {
    let delta = DeltaNet {
        key_heads: keys.positive("ssm.group_count")?,
        value_heads: keys.positive("ssm.time_step_rank")?,
        head_dim: keys.positive("ssm.state_size")?,
        conv_kernel: keys.conv_kernel("ssm.conv_kernel")?,
    };
    check_head_dim(Keys::key("ssm.state_size"), delta.head_dim)?;
    row_len(Keys::key("ssm.time_step_rank"), delta.value_heads, &[delta.value_heads, delta.head_dim])?;
    row_len(Keys::key("ssm.group_count"), delta.key_heads, &[delta.key_heads, delta.head_dim])?;
    let inner = keys.positive("ssm.inner_size")?;
    let expected = u64::from(delta.value_heads) * u64::from(delta.head_dim);
    ensure(u64::from(inner) == expected, "ssm.inner_size", inner, "it must be time_step_rank * state_size")?;
    let whole = delta.value_heads.is_multiple_of(delta.key_heads);
    ensure(whole, "ssm.time_step_rank", delta.value_heads, "it must be a multiple of ssm.group_count")?;
    Ok(delta)
}

fn read_attention(keys: &Keys<'_>, context: u32) -> Result<Attention, ModelError> {
    let heads = keys.positive("attention.head_count")?;
    let kv_heads = keys.metadata.opt_u32(&Keys::key("attention.head_count_kv"))?.unwrap_or(heads);
    let whole = kv_heads > 0 && heads.is_multiple_of(kv_heads);
    ensure(whole, "attention.head_count_kv", kv_heads, "it must divide attention.head_count")?;
    let head_dim = keys.positive("attention.key_length")?;
    let value_dim = keys.positive("attention.value_length")?;
    check_head_dim(Keys::key("attention.key_length"), head_dim)?;
    row_len(Keys::key("attention.head_count"), heads, &[heads, head_dim])?;
    ensure(head_dim == value_dim, "attention.value_length", value_dim, "it must equal attention.key_length")?;
    let dims = keys.positive("rope.dimension_count")?;
    let fits = dims.is_multiple_of(2) && dims <= head_dim;
    ensure(fits, "rope.dimension_count", dims, "it must be even and not above the head size")?;
    let sections = keys.metadata.u32s(&Keys::key("rope.dimension_sections"))?;
    ensure((3..=4).contains(&sections.len()), "rope.dimension_sections", sections.len(), "it must have 3 or 4 entries")?;
    if let Some(pair) = uncovered_pair(&sections, dims / 2) {
        let problem = format!("the sections do not cover rotary pair {pair} of {}", dims / 2);
        return Err(ModelError::invalid(Keys::key("rope.dimension_sections"), format!("{sections:?}"), problem));
    }
    let base = keys.metadata.opt_f32(&Keys::key("rope.freq_base"))?.unwrap_or(10_000.0);
    ensure(base.is_finite() && base > 1.0, "rope.freq_base", base, "it must be above 1")?;
    let rope = RopeConfig {
        dims,
        base: f64::from(base),
        scaling: Scaling::from_metadata(keys.metadata, "qwen4exp", context)?,
        pairing: RopePairing::Half,
        factors: None,
        component: interleaved_components(&sections, dims / 2),
    };
    Ok(Attention { heads, kv_heads, head_dim, rope })
}

fn read_indexer(keys: &Keys<'_>, layers: &[Mixer], attention: &Attention) -> Result<Option<Indexer>, ModelError> {
    let ratios: Vec<u32> = layers.iter().filter_map(|l| if let Mixer::Attention { ratio } = l { *ratio } else { None }).collect();
    if ratios.is_empty() {
        return Ok(None);
    }
    let indexer = Indexer {
        heads: keys.positive("attention.indexer.head_count")?,
        dim: keys.positive("attention.indexer.key_length")?,
        budget_tokens: keys.positive("attention.indexer.top_k")?,
    };
    check_head_dim(Keys::key("attention.indexer.key_length"), indexer.dim)?;
    row_len(Keys::key("attention.indexer.head_count"), indexer.heads, &[indexer.heads, indexer.dim])?;
    let fits = attention.rope.dims <= indexer.dim;
    ensure(fits, "attention.indexer.key_length", indexer.dim, "it must not be below rope.dimension_count")?;
    for ratio in ratios {
        ensure(ratio <= MAX_BLOCK_TOKENS, "attention.compress_ratios", ratio, "blocks of more than 64 tokens are not supported")?;
        let whole = indexer.budget_tokens.is_multiple_of(ratio);
        ensure(whole, "attention.indexer.top_k", indexer.budget_tokens, "it must be a multiple of the compress ratio")?;
    }
    Ok(Some(indexer))
}

fn read_experts(keys: &Keys<'_>, blocks: u32) -> Result<Experts, ModelError> {
    let same = |name: &str| -> Result<u32, ModelError> {
        let values = keys.metadata.u32_per_layer(&Keys::key(name), blocks as usize)?;
        let first = values[0];
        ensure(
            values.iter().all(|v| *v == first),
            name,
            format!("{values:?}"),
            "layers with different values are not supported",
        )?;
        ensure(first > 0, name, first, "it must be above 0")?;
        Ok(first)
    };
    let experts = Experts {
        count: same("expert_count")?,
        used: same("expert_used_count")?,
        hidden: same("expert_feed_forward_length")?,
        shared_hidden: keys.row("expert_shared_feed_forward_length")?,
    };
    ensure(experts.used <= experts.count, "expert_used_count", experts.used, "it must not exceed expert_count")?;
    check_experts(Keys::key("expert_count"), experts.count)?;
    row_len(Keys::key("expert_feed_forward_length"), experts.hidden, &[experts.used, experts.hidden])?;
    Ok(experts)
}

fn read_ple(keys: &Keys<'_>, config: &Config, tensors: &Tensors<'_>) -> Result<Option<Ple>, ModelError> {
    let Some(layers) = keys.metadata.opt_u32s(&Keys::key("ple.layers"))? else { return Ok(None) };
    let [layer] = layers[..] else {
        return Err(ModelError::invalid(Keys::key("ple.layers"), format!("{layers:?}"), "exactly one layer is supported"));
    };
    let on_delta = config.layers.get(layer as usize) == Some(&Mixer::DeltaNet);
    ensure(on_delta, "ple.layers", layer, "it must name a delta-net layer of the model")?;
    let ngram_size = keys.positive("ple.ngram_size")?;
    ensure((2..=8).contains(&ngram_size), "ple.ngram_size", ngram_size, "2 to 8 are supported")?;
    let heads_per_ngram = keys.positive("ple.heads_per_ngram")?;
    let heads = u64::from(ngram_size - 1) * u64::from(heads_per_ngram);
    ensure(heads <= 64, "ple.heads_per_ngram", heads_per_ngram, "more than 64 heads are not supported")?;
    let row_width = keys.positive("embedding_length_per_layer_input")?;
    let joined = heads * u64::from(row_width);
    let wide = "heads times row width must be the embedding length";
    ensure(joined == u64::from(config.width), "embedding_length_per_layer_input", row_width, wide)?;
    let eos = keys.metadata.u32(&Keys::key("ple.eos_token_id"))?;
    ensure(eos < config.vocab, "ple.eos_token_id", eos, "it must be a token of the vocabulary")?;
    let image = keys.metadata.opt_u32(&Keys::key("ple.image_token_id"))?.filter(|id| *id != 0).unwrap_or(eos);
    ensure(image < config.vocab, "ple.image_token_id", image, "it must be a token of the vocabulary")?;

    let table = "per_layer_token_embd.weight";
    let rows = tensors.rows_of(table)?;
    let constants = |name: &str, len: u64| -> Result<Vec<u64>, ModelError> {
        let values = keys.metadata.u64s_exact(&Keys::key(name))?;
        ensure(values.len() as u64 >= len, name, values.len(), &format!("at least {len} entries are needed"))?;
        Ok(values[..len as usize].to_vec())
    };
    let multipliers = constants("ple.layer_multipliers", u64::from(ngram_size))?;
    let offsets = constants("ple.head_offsets", heads)?;
    let sizes = constants("ple.head_vocab_sizes", heads)?;
    for (offset, size) in offsets.iter().zip(&sizes) {
        let end = offset.checked_add(*size);
        let inside = *size > 0 && end.is_some_and(|end| end <= rows && end < 1 << 31);
        ensure(
            inside,
            "ple.head_vocab_sizes",
            size,
            &format!("head rows {offset}+{size} must lie inside the table of {rows} rows"),
        )?;
    }
    tensors.shaped(table, &[row_width, u32::try_from(rows).unwrap_or(u32::MAX)])?;
    let ngram = NgramConfig {
        tensor: table.into(),
        row_width,
        ngram_size,
        heads_per_ngram,
        eos: TokenId(eos),
        image: TokenId(image),
        multipliers,
        offsets,
        sizes,
    };
    Ok(Some(Ple { layer, conv_kernel: keys.conv_kernel("ple.conv_kernel")?, ngram }))
}
