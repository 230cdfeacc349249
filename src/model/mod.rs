//! Model families: metadata and tensor table → validated configuration → [`Stage`]. One file per family; the building
//! blocks that families share are in `blocks`. Nothing here knows a backend or the memory of a machine.

mod blocks;
mod decoder;
mod ngram;
mod qwen4exp;
mod rope;
mod tensors;
mod vision;

use std::fmt;
use std::ops::Range;

use thiserror::Error;

pub use ngram::NgramConfig;
pub use tensors::Tensors;
pub use vision::{MAX_PICTURE_TOKENS, MIN_PICTURE_TOKENS, PlaceTable, VisionConfig};

use crate::gguf::{GgufError, MetadataError, ModelFiles};
use crate::program::{KvFormat, ShapeClass, SlotRoom, Stage};
use crate::units::TokenId;

/// A model file that cannot be run, with the key or tensor at fault.
#[derive(Debug, Error)]
pub enum ModelError {
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("architecture '{found}' is not supported; supported are {}", supported_names())]
    Architecture { found: String },
    #[error("the model has no tensor '{tensor}', which is needed")]
    MissingTensor { tensor: String },
    #[error("tensor '{tensor}' has shape {found}, expected {expected}")]
    Shape { tensor: String, expected: String, found: String },
    #[error("tensor '{tensor}' is stored as {format}, which cannot be used there: {reason}")]
    Format { tensor: String, format: &'static str, reason: String },
    #[error("tensor '{tensor}': {problem}")]
    Values { tensor: String, problem: String },
    #[error("metadata key '{key}' is {found}: {problem}")]
    Invalid { key: String, found: String, problem: String },
    #[error("{problem}")]
    Unsupported { problem: String },
    #[error(transparent)]
    Read(#[from] GgufError),
}

impl ModelError {
    fn invalid(key: impl Into<String>, found: impl fmt::Display, problem: impl Into<String>) -> ModelError {
        ModelError::Invalid { key: key.into(), found: found.to_string(), problem: problem.into() }
    }
}

/// Most elements of a row of activations. Sums and products of a few such sizes, which builders form, cannot overflow.
const MAX_ROW: u64 = 1 << 28;
const MAX_LAYERS: u32 = 4096;
const MAX_HEAD_DIM: u32 = 1 << 16;
const MAX_EXPERTS: u32 = 1 << 16;

/// The length of a row made of `factors`, if a row may be so long.
fn row_len(key: impl Into<String>, found: u32, factors: &[u32]) -> Result<u32, ModelError> {
    let len = factors.iter().fold(1u64, |p, f| p.saturating_mul(u64::from(*f)));
    if len > MAX_ROW {
        return Err(ModelError::invalid(
            key,
            found,
            format!("this makes rows of {len} elements; at most {MAX_ROW} are supported"),
        ));
    }
    Ok(len as u32)
}

fn check_layers(key: String, layers: u32) -> Result<(), ModelError> {
    if layers > MAX_LAYERS {
        return Err(ModelError::invalid(key, layers, format!("at most {MAX_LAYERS} layers are supported")));
    }
    Ok(())
}

fn check_experts(key: String, count: u32) -> Result<(), ModelError> {
    if count > MAX_EXPERTS {
        return Err(ModelError::invalid(key, count, format!("at most {MAX_EXPERTS} experts are supported")));
    }
    Ok(())
}

fn check_head_dim(key: String, dim: u32) -> Result<(), ModelError> {
    if dim > MAX_HEAD_DIM {
        return Err(ModelError::invalid(key, dim, format!("heads of at most {MAX_HEAD_DIM} elements are supported")));
    }
    Ok(())
}

/// How an embedding model makes one vector of the rows of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    Mean,
    Last,
}

/// Sizes that every family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    pub layers: u32,
    /// Elements of an embedding row.
    pub width: u32,
    /// Elements of a row handed from one stage to the next.
    pub hand_off_width: u32,
    pub vocab: u32,
    /// Tokens the model was trained for.
    pub context: u32,
    /// Of embedding models. Their outputs are the normed rows of the residual, and there is no head.
    pub pooling: Option<Pooling>,
}

impl Dims {
    /// Elements of a row that a window gives: a score for every token, or a row to be pooled.
    pub fn output_width(&self) -> u32 {
        if self.pooling.is_some() { self.width } else { self.vocab }
    }
}

/// What a stage shall hold and run.
#[derive(Debug, Clone, PartialEq)]
pub struct StageOptions {
    pub layers: Range<u32>,
    /// Sequences that have state at the same time.
    pub slots: u32,
    /// Tokens a sequence can hold.
    pub cells: u32,
    pub kv: KvFormat,
    /// Versions of recurrent state kept per slot; `versions - 1` newest tokens can be taken back without a checkpoint.
    pub versions: u32,
    /// Shape classes, each with a name: `decode`, `prompt`.
    pub programs: Vec<(String, ShapeClass)>,
    /// Slots for the experts of each of the layers, found by a table. `None`, or a layer with `u32::MAX` or without an entry,
    /// holds all of them in order.
    pub expert_slots: Option<Vec<u32>>,
    /// Of these slots, how many of the last of each layer lie on bytes that buffers of the largest program use as well. `None`:
    /// slots and buffers lie apart.
    pub lent_slots: Option<Vec<u32>>,
}

impl StageOptions {
    /// Slots for the experts of layer `i`, where they are found by a table.
    pub fn slots_of_layer(&self, i: u32) -> Option<SlotRoom> {
        let of_layer = |list: &Vec<u32>| list.get(i.checked_sub(self.layers.start)? as usize).copied();
        let slots = of_layer(self.expert_slots.as_ref()?).filter(|slots| *slots != u32::MAX)?;
        let lent = self.lent_slots.as_ref().filter(|lent| lent.iter().any(|n| *n > 0));
        Some(SlotRoom { slots, lent: lent.map(|lent| of_layer(lent).unwrap_or(0)) })
    }
}

/// What a family makes of the places of a picture's tokens: positions by row and column, and one token id for n-grams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PicturePlaces {
    /// What n-grams take for each of the picture's tokens; `None`: what the prompt holds there.
    pub token: Option<TokenId>,
}

/// A part of the file that is recognised but not used by text generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    pub what: &'static str,
    pub tensors: usize,
    pub bytes: u64,
}

/// A validated configuration that can write stages.
pub trait Architecture: fmt::Debug + Send + Sync {
    fn dims(&self) -> Dims;

    /// Factor on embedding rows.
    fn embedding_scale(&self) -> f32 {
        1.0
    }

    /// The hashed n-gram embedding, for families that have one.
    fn ngram(&self) -> Option<&NgramConfig> {
        None
    }

    /// How pictures stand in a text; `None` for families that read none.
    fn pictures(&self) -> Option<PicturePlaces> {
        None
    }

    /// Programs, weights and state of a range of layers.
    ///
    /// # Errors
    /// A tensor is missing or has the wrong shape.
    fn stage(&self, tensors: &Tensors<'_>, options: &StageOptions) -> Result<Stage, ModelError>;

    /// What a user should know about the configuration.
    fn warnings(&self) -> Vec<String> {
        vec![]
    }

    /// Whether a tensor of the file belongs to this family's text model (others are counted as extras).
    fn uses(&self, tensor: &str) -> bool;
}

type Open = fn(&ModelFiles) -> Result<Box<dyn Architecture>, ModelError>;

/// The one list of families: `general.architecture` and what reads it.
const FAMILIES: &[(&str, Open)] = &[
    ("qwen4exp", qwen4exp::open),
    ("llama", decoder::open),
    ("qwen2", decoder::open),
    ("qwen3", decoder::open),
    ("qwen3moe", decoder::open),
    ("gemma3", decoder::open),
];

fn supported_names() -> String {
    FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// A model: its configuration and what was noticed while reading it.
#[derive(Debug)]
pub struct Model {
    pub name: String,
    pub architecture: String,
    pub config: Box<dyn Architecture>,
    pub extras: Vec<Extra>,
    /// Lines a user should see once.
    pub warnings: Vec<String>,
}

impl Model {
    /// Reads and validates the configuration. No tensor data is read, apart from small rotary factors.
    ///
    /// # Errors
    /// Unknown architecture, missing or invalid metadata, missing or misshapen tensors.
    pub fn open(files: &ModelFiles) -> Result<Model, ModelError> {
        let metadata = files.metadata();
        let architecture = metadata.str("general.architecture")?.to_string();
        let open = FAMILIES.iter().find(|(name, _)| *name == architecture).map(|(_, open)| open);
        let open = open.ok_or_else(|| ModelError::Architecture { found: architecture.clone() })?;
        let config = open(files)?;
        if let Some(tokens) = metadata.opt_strings("tokenizer.ggml.tokens")?
            && tokens.len() as u64 != u64::from(config.dims().vocab)
        {
            let problem = format!("the tensor 'token_embd.weight' has {} rows", config.dims().vocab);
            return Err(ModelError::invalid("tokenizer.ggml.tokens", format!("a list of {}", tokens.len()), problem));
        }
        let name = metadata.opt_str("general.name")?.unwrap_or("unnamed").to_string();
        let (extras, warnings) = extras(files, config.as_ref());
        Ok(Model { name, architecture, config, extras, warnings })
    }

    pub fn dims(&self) -> Dims {
        self.config.dims()
    }
}

/// Sorts the tensors that the text model does not use into what they are known to be for, or a warning.
fn extras(files: &ModelFiles, config: &dyn Architecture) -> (Vec<Extra>, Vec<String>) {
    const KNOWN: &[(&str, &str)] = &[("draft layer", "draft"), ("v.", "vision encoder"), ("mm.", "vision projector")];
    let mut found: Vec<Extra> = Vec::new();
    let mut unknown: Vec<&str> = Vec::new();
    for t in files.tensors().iter().filter(|t| !config.uses(&t.name)) {
        let block = t.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()).and_then(|n| n.parse::<u32>().ok());
        let what = match block {
            Some(n) if n >= config.dims().layers => Some("draft layer"),
            _ => KNOWN.iter().skip(1).find(|(prefix, _)| t.name.starts_with(prefix)).map(|(_, what)| *what),
        };
        match what {
            None => unknown.push(&t.name),
            Some(what) => match found.iter_mut().find(|e| e.what == what) {
                Some(extra) => {
                    extra.tensors += 1;
                    extra.bytes += t.bytes;
                }
                None => found.push(Extra { what, tensors: 1, bytes: t.bytes }),
            },
        }
    }
    let mut warnings = config.warnings();
    if let [first, rest @ ..] = unknown.as_slice() {
        warnings.push(format!("ignoring {} unknown tensors, the first is '{first}'", rest.len() + 1));
    }
    if let Some(fused) = files.tensors().iter().find(|t| t.name.ends_with(".ffn_gate_up_exps.weight"))
        && files.tensor(&fused.name.replace("gate_up", "gate")).is_some()
    {
        warnings.push(format!("using '{}', and not the separate matrices that are also there", fused.name));
    }
    (found, warnings)
}
