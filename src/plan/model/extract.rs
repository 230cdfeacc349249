//! From metadata and tensor table to [`PlanModel`].

use std::collections::HashMap;

use super::bounds::{MAX_DIM, MAX_EXPERTS, MAX_LAYERS, MAX_STREAMS};
use super::programs::{self, BuiltLayer, WorkForms, place_of};
use super::work::{WorkShapes, draft_work};
use super::{
    ConvFacts, DenseFacts, DraftFacts, ExpertFacts, FormatBytes, IndexFacts, LayerFacts, Mixer, ModelFactsError, ModelHeader,
    NgramFacts, PlanModel, TableFacts, TensorRow, VisionFacts,
};
use crate::plan::bounds::one_line;
use crate::program::{ARENA_ALIGN_BYTES, align_up};
use crate::quant::Format;

type Facts<T> = Result<T, ModelFactsError>;

/// Architectures whose layers the planner understands.
const KNOWN: [&str; 6] = ["qwen4exp", "llama", "qwen2", "qwen3", "qwen3moe", "gemma3"];

impl DenseFacts {
    fn add(&mut self, tensor: &TensorRow) -> Facts<()> {
        let bytes = if is_held_as_floats(tensor) { tensor.elements().unwrap_or(0) * 4 } else { tensor_bytes(tensor)? };
        self.bytes = checked_add(tensor, self.bytes, align_up(bytes, ARENA_ALIGN_BYTES))?;
        self.params = checked_add(tensor, self.params, tensor.elements().unwrap_or(0))?;
        self.largest_bytes = self.largest_bytes.max(bytes);
        Ok(())
    }
}

fn bad(tensor: &TensorRow, problem: &str) -> ModelFactsError {
    ModelFactsError::Tensor { tensor: tensor.name.clone(), problem: problem.into() }
}

/// No tensor of a real model is larger; the bound keeps every sum far from overflow.
const MAX_TENSOR_BYTES: u64 = 1 << 46;
const MAX_MODEL_BYTES: u64 = 1 << 50;

/// Vectors, norms and convolutions are small; devices hold them as F32, whatever float format the file has.
fn is_held_as_floats(tensor: &TensorRow) -> bool {
    let small = tensor.shape.len() == 1 || tensor.name.contains("conv1d") || tensor.name.contains("norm");
    small && matches!(tensor.format, Format::F16 | Format::BF16) && tensor_bytes(tensor).is_ok()
}

fn tensor_bytes(tensor: &TensorRow) -> Facts<u64> {
    let bytes = tensor.bytes().ok_or_else(|| bad(tensor, "has rows that are no whole number of blocks, or is too large"))?;
    if bytes == 0 || bytes > MAX_TENSOR_BYTES || tensor.elements().is_none() {
        return Err(bad(tensor, "is empty or too large"));
    }
    Ok(bytes)
}

fn checked_add(tensor: &TensorRow, a: u64, b: u64) -> Facts<u64> {
    a.checked_add(b).ok_or_else(|| bad(tensor, "makes the model too large"))
}

/// Splits `blk.7.attn_q.weight` into 7 and `attn_q.weight`.
fn block_of(name: &str) -> Option<(u32, &str)> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

struct Reader<'a> {
    header: &'a ModelHeader,
    arch: String,
    blocks: HashMap<u32, Vec<(&'a str, &'a TensorRow)>>,
}

impl<'a> Reader<'a> {
    fn new(header: &'a ModelHeader) -> Facts<Reader<'a>> {
        let arch = header.text("general.architecture").unwrap_or("").to_string();
        if !KNOWN.contains(&arch.as_str()) {
            return Err(ModelFactsError::Architecture { arch, known: KNOWN.join(", ") });
        }
        let mut blocks: HashMap<u32, Vec<(&str, &TensorRow)>> = HashMap::new();
        for tensor in &header.tensors {
            if let Some((block, rest)) = block_of(&tensor.name) {
                blocks.entry(block).or_default().push((rest, tensor));
            }
        }
        Ok(Reader { header, arch, blocks })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn u32(&self, name: &str) -> Facts<u32> {
        self.header.u32(&self.key(name))
    }

    fn opt(&self, name: &str) -> Facts<Option<u32>> {
        self.header.opt_u32(&self.key(name))
    }

    fn or(&self, name: &str, default: u32) -> Facts<u32> {
        Ok(self.opt(name)?.unwrap_or(default))
    }

    fn need(&self, name: &str) -> Facts<&'a TensorRow> {
        self.header.tensor(name).ok_or_else(|| ModelFactsError::Tensor { tensor: name.to_string(), problem: "is missing".into() })
    }

    /// Layers of the trunk: blocks without draft blocks.
    fn trunk_layers(&self) -> Facts<u32> {
        let blocks = self.u32("block_count")?;
        let draft = self.or("nextn_predict_layers", 0)?;
        let layers = blocks.checked_sub(draft).filter(|n| (1..=MAX_LAYERS).contains(n));
        layers.ok_or_else(|| ModelFactsError::Metadata {
            key: self.key("block_count"),
            problem: format!("is {blocks} with {draft} draft blocks: that leaves no usable number of layers"),
        })
    }

    fn table(&self, tensor: &TensorRow) -> Facts<TableFacts> {
        tensor_bytes(tensor)?;
        let row_bytes = tensor.row_bytes().ok_or_else(|| bad(tensor, "has rows that are no whole number of blocks"))?;
        Ok(TableFacts { row_bytes, rows: tensor.shape.iter().skip(1).product() })
    }

    fn mixer(&self, layer: u32, tensors: &[(&str, &TensorRow)]) -> Facts<Mixer> {
        if tensors.iter().any(|(name, _)| name.starts_with("ssm_")) {
            return self.delta();
        }
        let at = layer as usize;
        let q_heads = self.header.opt_u32_of_layer(&self.key("attention.head_count"), at)?;
        let q_heads = self.bounded("attention.head_count", q_heads.unwrap_or(0))?;
        let kv_heads = self.header.opt_u32_of_layer(&self.key("attention.head_count_kv"), at)?.unwrap_or(q_heads);
        let kv_heads = self.bounded("attention.head_count_kv", kv_heads)?;
        let head_dim = self.bounded("attention.key_length", self.or("attention.key_length", self.width()? / q_heads)?)?;
        let indexed = tensors.iter().any(|(name, _)| name.starts_with("indexer."));
        let ratio = self.header.opt_u32_of_layer(&self.key("attention.compress_ratios"), at)?.unwrap_or(0);
        let index = if indexed && ratio > 0 {
            let (dim, budget) = (self.dim("attention.indexer.key_length")?, self.dim("attention.indexer.top_k")?);
            Some(IndexFacts { dim, ratio, budget, weights_bytes: 0 })
        } else {
            None
        };
        Ok(Mixer::Attention { q_heads, kv_heads, head_dim, index })
    }

    fn delta(&self) -> Facts<Mixer> {
        let dim = self.dim("ssm.state_size")?;
        let value_heads = self.dim("ssm.time_step_rank")?;
        let key_heads = self.dim("ssm.group_count")?;
        let channels = u64::from(dim) * (2 * u64::from(key_heads) + u64::from(value_heads));
        let channels = u32::try_from(channels).map_err(|_| ModelFactsError::Metadata {
            key: self.key("ssm.state_size"),
            problem: "makes the convolution too wide".into(),
        })?;
        let conv = ConvFacts { rows: self.dim("ssm.conv_kernel")?.saturating_sub(1), channels };
        Ok(Mixer::Delta { value_heads, key_dim: dim, value_dim: dim, conv })
    }

    fn experts(&self, tensors: &[(&str, &TensorRow)]) -> Facts<Option<ExpertFacts>> {
        let parts: Vec<&TensorRow> = tensors.iter().filter(|(n, _)| is_expert_matrix(n)).map(|(_, t)| *t).collect();
        let Some(first) = parts.first() else { return Ok(None) };
        let count = first.shape.get(2).copied().unwrap_or(0);
        let (mut slab, mut params) = (0, 0);
        for part in &parts {
            if part.shape.len() != 3 || part.shape[2] != count || count == 0 {
                return Err(bad(part, "does not have the number of experts that the others have"));
            }
            slab = align_up(slab + tensor_bytes(part)? / count, ARENA_ALIGN_BYTES);
            params += part.elements().unwrap_or(0) / count;
        }
        let count = u32::try_from(count).ok().filter(|n| u64::from(*n) <= MAX_EXPERTS);
        let count = count.ok_or_else(|| bad(first, "has too many experts"))?;
        if self.opt("expert_count")?.is_some_and(|stated| stated != count) {
            return Err(bad(
                first,
                &format!("has {count} experts, which is not what the key '{}' says", self.key("expert_count")),
            ));
        }
        let used = self.u32("expert_used_count")?;
        if !(1..=count).contains(&used) {
            let problem = format!("is {used}, outside 1 to the {count} experts of a layer");
            return Err(ModelFactsError::Metadata { key: self.key("expert_used_count"), problem });
        }
        let formats = parts.iter().map(|t| t.format.name()).collect::<Vec<_>>().join("/");
        let mut by_format = FormatBytes::default();
        for part in &parts {
            by_format.add(part.format, tensor_bytes(part)? / u64::from(count));
        }
        Ok(Some(ExpertFacts { count, used, slab_bytes: slab, params, formats, by_format }))
    }

    fn tensors_of(&self, layer: u32) -> Facts<&[(&'a str, &'a TensorRow)]> {
        let missing = || ModelFactsError::Tensor { tensor: format!("blk.{layer}.*"), problem: "is missing".into() };
        self.blocks.get(&layer).map(Vec::as_slice).ok_or_else(missing)
    }

    /// A layer by its metadata. Its weights and buffers are what its own code makes of them.
    fn layer(&self, layer: u32, ngram: Option<&NgramFacts>, built: BuiltLayer) -> Facts<LayerFacts> {
        let mut mixer = self.mixer(layer, self.tensors_of(layer)?)?;
        if let Mixer::Attention { index: Some(index), .. } = &mut mixer {
            index.weights_bytes = built.index_bytes;
        }
        let ngram_conv = match ngram.filter(|n| n.layer == layer) {
            Some(_) => Some(ConvFacts {
                rows: self.dim("ple.conv_kernel")?.saturating_sub(1) * self.dim("ple.ngram_size")?,
                channels: self.width()? * self.streams()?,
            }),
            None => None,
        };
        let BuiltLayer { work, dense, dense_formats, experts, .. } = built;
        Ok(LayerFacts { dense, dense_formats, experts, mixer, ngram_conv, work })
    }

    /// The draft block: no code of ours builds it yet, so its tensors count as they are and its buffers are an estimate.
    fn draft(&self, block: u32, work: &mut Vec<programs::LayerWork>) -> Facts<DraftFacts> {
        let tensors = self.tensors_of(block)?;
        let (mut dense, mut dense_formats) = (DenseFacts::default(), FormatBytes::default());
        for (_, tensor) in tensors.iter().filter(|(n, _)| !is_expert_matrix(n) && !n.ends_with(".input_scale")) {
            dense.add(tensor)?;
            dense_formats.add(tensor.format, tensor_bytes(tensor)?);
        }
        let (mixer, experts) = (self.mixer(block, tensors)?, self.experts(tensors)?);
        let place = place_of(work, draft_work(&self.work_shapes(experts.as_ref())?, &mixer));
        let work = WorkForms { usual: place, short: place };
        let block = LayerFacts { dense, dense_formats, experts, mixer, ngram_conv: None, work };
        Ok(DraftFacts { block, head_bytes: 0 })
    }

    /// A required width or count, small enough that products of three stay far from overflow.
    fn dim(&self, name: &str) -> Facts<u32> {
        self.bounded(name, self.u32(name)?)
    }

    fn bounded(&self, name: &str, value: u32) -> Facts<u32> {
        if (1..=MAX_DIM).contains(&value) {
            return Ok(value);
        }
        Err(ModelFactsError::Metadata { key: self.key(name), problem: format!("is {value}, outside 1 to {MAX_DIM}") })
    }

    fn width(&self) -> Facts<u32> {
        self.dim("embedding_length")
    }

    fn streams(&self) -> Facts<u32> {
        let streams = self.or("hyper_connection.count", 1)?;
        if (1..=MAX_STREAMS).contains(&streams) {
            return Ok(streams);
        }
        Err(ModelFactsError::Metadata { key: self.key("hyper_connection.count"), problem: format!("is {streams}") })
    }

    fn work_shapes(&self, experts: Option<&ExpertFacts>) -> Facts<WorkShapes> {
        let dense_width = self.or("feed_forward_length", 0)?;
        let shared = self.or("expert_shared_feed_forward_length", 0)?;
        Ok(WorkShapes {
            width: self.width()?.into(),
            streams: self.streams()?.into(),
            rank: self.or("hyper_connection.low_rank", 0)?.into(),
            feed_forward: if experts.is_some() { shared } else { dense_width }.into(),
            experts: experts.map_or(0, |e| e.count.into()),
            used: experts.map_or(0, |e| e.used.into()),
            expert_width: self.or("expert_feed_forward_length", 0)?.into(),
            gated_attention: self.arch == "qwen4exp",
        })
    }

    fn ngram(&self) -> Facts<Option<NgramFacts>> {
        let Some(tensor) = self.header.tensor("per_layer_token_embd.weight").filter(|_| self.arch == "qwen4exp") else {
            return Ok(None);
        };
        let key = self.key("ple.layers");
        let Some(layer) = self.header.opt_u32(&key)? else { return Ok(None) };
        let rows_per_token = self.dim("ple.ngram_size")?.saturating_sub(1) * self.dim("ple.heads_per_ngram")?;
        let floats_per_token = rows_per_token.saturating_mul(self.dim("embedding_length_per_layer_input")?);
        Ok(Some(NgramFacts { layer, table: self.table(tensor)?, rows_per_token, floats_per_token }))
    }
}

/// `ffn_gate_exps.weight`, but not its companion scales.
fn is_expert_matrix(name: &str) -> bool {
    name.ends_with("_exps.weight")
}

fn file_bytes(header: &ModelHeader) -> Facts<u64> {
    header.tensors.iter().try_fold(0u64, |sum, t| match checked_add(t, sum, tensor_bytes(t)?)? {
        total if total <= MAX_MODEL_BYTES => Ok(total),
        _ => Err(bad(t, "makes the model larger than any computer")),
    })
}

impl PlanModel {
    pub fn from_header(header: &ModelHeader) -> Facts<PlanModel> {
        let reader = Reader::new(header)?;
        let count = reader.trunk_layers()?;
        if header.tensor("token_embd.weight").is_none() && reader.or("nextn_predict_layers", 0)? > 0 {
            return Err(ModelFactsError::DraftOnly);
        }
        let embedding_tensor = reader.need("token_embd.weight")?;
        let embedding = reader.table(embedding_tensor)?;
        let ngram = reader.ngram()?;
        // What the metadata says of a layer is looked at first: it names the key.
        for layer in 0..count {
            let tensors = reader.tensors_of(layer)?;
            reader.mixer(layer, tensors)?;
            reader.experts(tensors)?;
        }
        let (width, streams) = (reader.width()?, reader.streams()?);
        let vocab = u32::try_from(embedding.rows).map_err(|_| bad(embedding_tensor, "has too many rows"))?;
        let file_bytes = file_bytes(header)?;
        let built = programs::build(header, count, reader.or("expert_used_count", 0)?)?;
        let layers = built.layers.into_iter().zip(0..);
        let layers = layers.map(|(built, l)| reader.layer(l, ngram.as_ref(), built)).collect::<Facts<Vec<_>>>()?;
        let scores_all = built.head.params >= u64::from(width) * u64::from(vocab);
        let mut model = PlanModel {
            name: one_line(header.text("general.name").unwrap_or(&reader.arch)),
            arch: reader.arch.clone(),
            width,
            streams,
            vocab,
            trained_context: reader.u32("context_length")?,
            layers,
            head: built.head,
            head_formats: built.head_formats,
            tied_head: scores_all && header.tensor("output.weight").is_none(),
            work: built.work,
            wants_all_rows: built.wants_all_rows,
            embedding,
            ngram,
            draft: None,
            vision: None,
            file_bytes,
        };
        if reader.blocks.contains_key(&count) && reader.or("nextn_predict_layers", 0)? > 0 {
            model.draft = Some(reader.draft(count, &mut model.work)?);
        }
        model.check()?;
        Ok(model)
    }

    /// Adds the draft block of a file of its own.
    pub fn add_draft(&mut self, header: &ModelHeader) -> Facts<()> {
        let reader = Reader::new(header)?;
        let fail = |problem: String| Err(ModelFactsError::Companion { file: "the draft file", problem });
        if reader.arch != self.arch {
            return fail(format!("its architecture is {}, the model's is {}", reader.arch, self.arch));
        }
        if reader.width()? != self.width || reader.streams()? != self.streams {
            return fail(format!(
                "its width is {} x {}, the model's is {} x {}",
                reader.streams()?,
                reader.width()?,
                self.streams,
                self.width
            ));
        }
        let block = reader.trunk_layers()?;
        let mut draft = reader.draft(block, &mut self.work)?;
        if let Some(head) = header.tensor("output.weight") {
            draft.head_bytes = align_up(tensor_bytes(head)?, ARENA_ALIGN_BYTES);
        }
        self.draft = Some(draft);
        self.file_bytes += file_bytes(header)?;
        self.check()
    }

    /// Adds the vision encoder of an mmproj file.
    pub fn add_vision(&mut self, header: &ModelHeader) -> Facts<()> {
        if header.text("general.architecture") != Some("clip") {
            return Err(ModelFactsError::Companion { file: "the vision file", problem: "its architecture is not 'clip'".into() });
        }
        let (mut weights, mut places_bytes) = (DenseFacts::default(), 0);
        for tensor in &header.tensors {
            if tensor.name == "v.position_embd.weight" {
                // The host reads them as floats, whatever the file has.
                places_bytes = tensor_bytes(&TensorRow { format: Format::F32, ..tensor.clone() })?;
            } else {
                weights.add(tensor)?;
            }
        }
        // Encoders before this key was common say nothing of their output.
        let projected = header.opt_u32("clip.vision.projection_dim")?;
        if let Some(projected) = projected.filter(|projected| *projected != self.width) {
            let problem = format!("its output is {projected} wide, the model's width is {}", self.width);
            return Err(ModelFactsError::Companion { file: "the vision file", problem });
        }
        let patch = u64::from(header.u32("clip.vision.patch_size")?);
        let merge = u64::from(header.opt_u32("clip.vision.spatial_merge_size")?.unwrap_or(2));
        self.vision = Some(VisionFacts {
            weights,
            places_bytes,
            width: header.u32("clip.vision.embedding_length")?,
            inner: header.u32("clip.vision.feed_forward_length")?,
            patch_floats: patch.saturating_mul(patch).saturating_mul(3),
            joined: merge.saturating_mul(merge),
        });
        self.file_bytes += file_bytes(header)?;
        self.check()
    }

    /// This model with the draft block and the vision encoder of another description.
    pub fn with_companions(mut self, draft: Option<&ModelHeader>, vision: Option<&ModelHeader>) -> Facts<PlanModel> {
        if let Some(header) = draft {
            self.add_draft(header)?;
        }
        if let Some(header) = vision {
            self.add_vision(header)?;
        }
        Ok(self)
    }
}
