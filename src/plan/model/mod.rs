//! A model as the planner sees it: bytes and shapes by layer, nothing that needs the weights themselves.

mod bounds;
mod extract;
mod header;
mod programs;
mod work;

pub use header::{MetaValue, ModelHeader, TensorRow};
pub use programs::{LayerWork, WorkBuffer, WorkForms};

use thiserror::Error;

use crate::program::{ARENA_ALIGN_BYTES, Row, align_up};
use crate::quant::Format;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModelFactsError {
    #[error("metadata key '{key}' {problem}")]
    Metadata { key: String, problem: String },
    #[error("tensor '{tensor}' {problem}")]
    Tensor { tensor: String, problem: String },
    #[error("{what} is {found}; no model has more than {most}")]
    TooLarge { what: &'static str, found: u128, most: u64 },
    #[error("the model has no layers or no width")]
    TooFew,
    #[error("architecture '{arch}' is not known to the planner; known are {known}")]
    Architecture { arch: String, known: String },
    #[error("its programs cannot be made: {problem}")]
    Programs { problem: String },
    #[error("it holds only the draft block of a model: give it with --draft-file, beside the model's own file")]
    DraftOnly,
    #[error("{file} does not belong to this model: {problem}")]
    Companion { file: &'static str, problem: String },
}

/// Weights that always lie on the card of their layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DenseFacts {
    /// Every tensor rounded up to the arena alignment.
    pub bytes: u64,
    /// The largest tensor: it cannot be cut.
    pub largest_bytes: u64,
    pub params: u64,
}

/// Bytes of weights by their block format.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FormatBytes(pub Vec<(Format, u64)>);

impl FormatBytes {
    pub fn add(&mut self, format: Format, bytes: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == format) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => self.0.push((format, bytes)),
        }
    }

    /// Time to read all of them, each at the rate (bytes a second) of its format.
    pub fn seconds(&self, rate: impl Fn(Format) -> f64) -> f64 {
        self.0.iter().map(|(format, bytes)| *bytes as f64 / rate(*format)).sum()
    }
}

/// The experts of a layer. A slab is one expert: gate, up and down together, each part aligned.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertFacts {
    pub count: u32,
    pub used: u32,
    pub slab_bytes: u64,
    /// Weights of one expert.
    pub params: u64,
    /// `IQ3_S/IQ3_S/IQ4_NL`, for the report.
    pub formats: String,
    /// Of one expert.
    pub by_format: FormatBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexFacts {
    pub dim: u32,
    /// Tokens of a block.
    pub ratio: u32,
    /// Tokens that are attended at most, beside the open block.
    pub budget: u32,
    /// Of the layer's dense weights, those that only the indexer needs.
    pub weights_bytes: u64,
}

impl IndexFacts {
    /// Whether a cache of so many cells is large enough for the indexer ever to leave out a block. Otherwise the layer attends to
    /// everything, and nothing of the indexer is loaded.
    pub fn is_needed(&self, cells: u64) -> bool {
        let ratio = u64::from(self.ratio.max(1));
        cells / ratio > u64::from(self.budget) / ratio
    }
}

/// What a layer remembers of the tokens before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    Attention { q_heads: u32, kv_heads: u32, head_dim: u32, index: Option<IndexFacts> },
    Delta { value_heads: u32, key_dim: u32, value_dim: u32, conv: ConvFacts },
}

/// Inputs of a causal convolution that must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvFacts {
    pub rows: u32,
    pub channels: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LayerFacts {
    pub dense: DenseFacts,
    pub dense_formats: FormatBytes,
    pub experts: Option<ExpertFacts>,
    pub mixer: Mixer,
    /// Convolution of the n-gram embedding, on its layer.
    pub ngram_conv: Option<ConvFacts>,
    /// Buffers of its programs, in [`PlanModel::work`].
    pub work: WorkForms,
}

impl LayerFacts {
    /// The indexer, if a cache of so many cells needs one.
    pub fn index(&self, cells: u64) -> Option<IndexFacts> {
        match self.mixer {
            Mixer::Attention { index, .. } => index.filter(|i| i.is_needed(cells)),
            Mixer::Delta { .. } => None,
        }
    }

    /// Dense weights as they are loaded for a cache of so many cells.
    pub fn dense_bytes(&self, cells: u64) -> u64 {
        let unused = match self.mixer {
            Mixer::Attention { index: Some(i), .. } if !i.is_needed(cells) => i.weights_bytes,
            _ => 0,
        };
        self.dense.bytes.saturating_sub(unused)
    }

    /// The place of its buffers in [`PlanModel::work`] for a cache of so many cells.
    pub fn work_at(&self, cells: u64) -> usize {
        match self.mixer {
            Mixer::Attention { index: Some(i), .. } if !i.is_needed(cells) => self.work.short,
            _ => self.work.usual,
        }
    }
}

/// A table of rows that stays in the model files; the host reads single rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFacts {
    pub row_bytes: u64,
    pub rows: u64,
}

impl TableFacts {
    pub fn bytes(&self) -> u64 {
        self.row_bytes.saturating_mul(self.rows)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramFacts {
    pub layer: u32,
    pub table: TableFacts,
    pub rows_per_token: u32,
    /// Floats that arrive for each token.
    pub floats_per_token: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DraftFacts {
    pub block: LayerFacts,
    /// Bytes of a head of its own; 0 where it uses the model's.
    pub head_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionFacts {
    /// Every tensor but the learned places.
    pub weights: DenseFacts,
    /// The learned places, f32.
    pub places_bytes: u64,
    pub width: u32,
    /// Width inside a feed-forward layer.
    pub inner: u32,
    /// Numbers of a patch.
    pub patch_floats: u64,
    /// Patches of a token.
    pub joined: u64,
}

impl VisionFacts {
    pub fn weights_bytes(&self) -> u64 {
        self.weights.bytes.saturating_add(self.places_bytes)
    }

    /// Buffers for a picture of so many tokens, before the program is built: the residual, and what lives beside it at one time.
    pub fn work_bytes(&self, tokens: u32) -> u64 {
        let patches = u64::from(tokens).saturating_mul(self.joined);
        let of = |floats: u64| align_up(patches.saturating_mul(floats).saturating_mul(4), ARENA_ALIGN_BYTES);
        let (width, inner) = (u64::from(self.width), u64::from(self.inner));
        let beside = [self.patch_floats, 3 * width, inner].map(of).into_iter().max().unwrap_or(0);
        let lists = patches.saturating_mul(size_of::<Row>() as u64).saturating_add(4 * u64::from(tokens));
        [of(width), of(width), beside, lists].into_iter().fold(0, u64::saturating_add)
    }

    /// Rows of the last pictures, each as large as one may be.
    pub fn kept_bytes(&self, tokens: u32, model_width: u32) -> u64 {
        u64::from(tokens).saturating_mul(crate::plan::rules::KEPT_PICTURES.into()).saturating_mul(4 * u64::from(model_width))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct PlanModel {
    pub name: String,
    pub arch: String,
    pub width: u32,
    /// Residual streams: 1 for ordinary models.
    pub streams: u32,
    pub vocab: u32,
    pub trained_context: u32,
    pub layers: Vec<LayerFacts>,
    /// Final norms and the output matrix, on the last stage.
    pub head: DenseFacts,
    pub head_formats: FormatBytes,
    /// The output matrix is a copy of the embedding.
    pub tied_head: bool,
    /// Buffers of layers, each form once. Those of the first and the last layer include what comes before and after the layers.
    pub work: Vec<LayerWork>,
    /// Every row of a window gives an output, whatever is asked for: embeddings that are a mean.
    pub wants_all_rows: bool,
    pub embedding: TableFacts,
    pub ngram: Option<NgramFacts>,
    pub draft: Option<DraftFacts>,
    pub vision: Option<VisionFacts>,
    /// All tensors as they lie in the files.
    pub file_bytes: u64,
}

impl PlanModel {
    pub fn experts_bytes(&self) -> u64 {
        self.layers.iter().filter_map(|l| l.experts.as_ref()).map(|e| e.slab_bytes * u64::from(e.count)).sum()
    }

    pub fn experts_count(&self) -> u64 {
        self.layers.iter().filter_map(|l| l.experts.as_ref()).map(|e| u64::from(e.count)).sum()
    }

    pub fn dense_bytes(&self) -> u64 {
        self.layers.iter().map(|l| l.dense.bytes).sum::<u64>() + self.head.bytes
    }

    /// Floats of the residual streams of a row.
    pub fn stream_floats(&self) -> u64 {
        u64::from(self.streams) * u64::from(self.width)
    }
}
