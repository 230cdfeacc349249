//! Opens a model on devices and feeds tokens to sequences. Knows nothing of HTTP or of the command line.

mod embed;
mod feed;
mod generate;
mod joint;
mod load;
mod open;
mod park;
mod process;
pub mod service;
mod tables;
mod vision;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thiserror::Error;

pub use embed::{Embedding, EmbeddingProgress};
pub use generate::{Finish, GenerateError, GenerateOptions, Generation, GenerationStats, Progress};
pub use load::{LoadProgress, Tiered, experts_bytes, load_bytes, load_card, load_ram, load_stage};
pub use park::Parked;
pub use process::{ProcessMemory, available_memory_bytes, process_memory};
pub use tables::RowTable;
pub use vision::{BuiltVision, Look, VisionOptions, VisionPlace, VisionStats};

use self::vision::Vision;
use crate::backend::cpu::{CpuOptions, Mode};
use crate::backend::{Backend, BackendError, DeviceFacts, MemoryReport};
use crate::experts::{ExpertError, ExpertOptions, Experts, TierStats};
use crate::gguf::{GgufError, ModelFiles};
use crate::model::{Dims, Model, ModelError, NgramConfig, StageOptions, Tensors};
use crate::picture::Preprocess;
use crate::program::{Earlier, KvFormat, MAX_BLOCK_TOKENS, Row, ShapeClass, Stage, decode_row_bytes};
use crate::schedule::{Pipeline, ScheduleError};
use crate::state::{Checkpoint, Restore, Sequence};
use crate::units::TokenId;

#[derive(Debug, Error)]
pub enum EngineError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Experts(#[from] ExpertError),
    #[error("all {slots} sequence slots are in use")]
    NoSlot { slots: u32 },
    #[error(
        "the context is full: {length} tokens are held, {added} more were given, and there is room for {capacity}; \
         a larger --ctx-size would hold them"
    )]
    ContextFull { length: usize, added: usize, capacity: usize },
    #[error("token {token} is not in the vocabulary of {vocab} tokens")]
    NoSuchToken { token: TokenId, vocab: u32 },
    #[error("picture {number} of the prompt: {problem}")]
    Picture { number: usize, problem: String },
    #[error("the layer split {split} does not hold the model's {layers} layers in order")]
    Split { split: String, layers: u32 },
    #[error("interrupted")]
    Interrupted,
}

impl EngineError {
    /// Whether only the request has failed: an expert could not be read, and devices and tiers are as they were.
    pub fn spares_the_engine(&self) -> bool {
        let (EngineError::Experts(error) | EngineError::Schedule(ScheduleError::Experts(error))) = self else { return false };
        matches!(error, ExpertError::Read { .. } | ExpertError::Deadline { .. })
    }

    /// Whether somebody asked for this end.
    pub fn is_interruption(&self) -> bool {
        let backend = match self {
            EngineError::Interrupted | EngineError::Schedule(ScheduleError::Interrupted) => return true,
            EngineError::Backend(error)
            | EngineError::Experts(ExpertError::Backend(error))
            | EngineError::Schedule(ScheduleError::Backend(error) | ScheduleError::Experts(ExpertError::Backend(error))) => error,
            _ => return false,
        };
        matches!(backend, BackendError::Interrupted { .. })
    }
}

/// How a model shall be opened.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Tokens a sequence can hold.
    pub context: u32,
    pub slots: u32,
    /// Rows of a prompt chunk.
    pub prompt_rows: u32,
    /// Rows of a decode window.
    pub decode_rows: u32,
    /// Logit rows that one window may ask for.
    pub max_outputs: u32,
    pub kv: KvFormat,
    /// Newest tokens that can be taken back without recomputing, for models with recurrent state.
    pub undo_tokens: u32,
    /// Slots for the experts of each layer of the model, found by a table. `None`, or a layer with `u32::MAX`: the device holds
    /// all of them.
    pub expert_slots: Option<Vec<u32>>,
    /// Of these, how many of the last of each layer lie on bytes that buffers of prompts use as well; `None`: none.
    pub lent_slots: Option<Vec<u32>>,
    pub experts: ExpertOptions,
    /// How the processor computes experts that no device holds, and reads pictures.
    pub host: CpuOptions,
    /// The encoder that reads pictures.
    pub vision: Option<VisionOptions>,
    /// Set by others to stop loading and computing.
    pub cancel: Arc<AtomicBool>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            context: 4096,
            slots: 1,
            prompt_rows: 512,
            decode_rows: 8,
            max_outputs: 8,
            kv: KvFormat::F16,
            undo_tokens: 0,
            expert_slots: None,
            lent_slots: None,
            experts: ExpertOptions::default(),
            host: CpuOptions::new(Mode::Fast),
            vision: None,
            cancel: Arc::new(AtomicBool::new(false)),
        }
    }
}

impl OpenOptions {
    /// What a stage of `layers` holds under these options.
    pub fn stage_options(&self, layers: std::ops::Range<u32>) -> StageOptions {
        let programs = ShapeClass::of_programs(self.decode_rows, self.prompt_rows, self.max_outputs);
        let programs = programs.into_iter().map(|(name, shape)| (name.to_string(), shape)).collect();
        let of_layers = |list: &Option<Vec<u32>>, other: u32| {
            let list = list.as_ref()?;
            Some(layers.clone().map(|l| list.get(l as usize).copied().unwrap_or(other)).collect())
        };
        let (expert_slots, lent_slots) = (of_layers(&self.expert_slots, u32::MAX), of_layers(&self.lent_slots, 0));
        StageOptions {
            layers,
            slots: self.slots,
            cells: self.context,
            kv: self.kv,
            versions: self.undo_tokens.saturating_add(1),
            programs,
            expert_slots,
            lent_slots,
        }
    }
}

/// Which rows of a feed have their logits computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    Nothing,
    Last,
    All,
}

impl Want {
    /// The wanted rows of a window of `rows` rows.
    fn of_window(self, rows: usize, is_last: bool) -> std::ops::Range<usize> {
        match self {
            Want::All => 0..rows,
            Want::Last if is_last => rows.saturating_sub(1)..rows,
            Want::Last | Want::Nothing => 0..0,
        }
    }
}

/// Bytes in use once everything is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    pub weights_bytes: u64,
    pub state_bytes: u64,
    pub work_bytes: u64,
    pub scratch_bytes: u64,
    /// RAM of experts that no device holds, with what computes them.
    pub experts_bytes: u64,
    /// Arenas and scratch of the encoder that reads pictures.
    pub vision_bytes: u64,
}

/// A model on its devices.
pub struct Engine {
    model: Arc<Model>,
    pipeline: Pipeline,
    embedding: RowTable,
    ngram: Option<(NgramConfig, RowTable)>,
    vision: Option<Vision>,
    options: OpenOptions,
    recurrent: bool,
    free_slots: Vec<u32>,
    rows: Vec<Row>,
    /// 0, 1, 2, ...: wanted rows of a window are a piece of it.
    outputs: Vec<u32>,
    earlier: Vec<Earlier>,
    guards: Vec<Box<dyn Send>>,
}

/// A range of layers and the device they shall run on.
pub struct Placement {
    pub layers: std::ops::Range<u32>,
    pub backend: Box<dyn Backend>,
}

/// A stage that has been built, and the device it shall run on.
pub struct BuiltStage {
    pub layers: std::ops::Range<u32>,
    pub stage: Arc<Stage>,
    pub backend: Box<dyn Backend>,
}

/// Stages must hold all layers, in order.
fn check_layers(ranges: &[std::ops::Range<u32>], layers: u32) -> Result<(), EngineError> {
    let mut next = 0;
    let in_order = ranges.iter().all(|r| std::mem::replace(&mut next, r.end) == r.start && !r.is_empty());
    if in_order && next == layers {
        return Ok(());
    }
    let split: Vec<String> = ranges.iter().map(|r| format!("{}-{}", r.start, r.end.wrapping_sub(1))).collect();
    Err(EngineError::Split { split: split.join(","), layers })
}

impl Engine {
    /// Opens the whole model on one device.
    ///
    /// # Errors
    /// As [`Engine::open_split`].
    pub fn open(
        files: Arc<ModelFiles>,
        model: Arc<Model>,
        backend: Box<dyn Backend>,
        options: OpenOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Engine, EngineError> {
        let layers = 0..model.dims().layers;
        Engine::open_split(files, model, vec![Placement { layers, backend }], options, progress)
    }

    /// Builds the stages, takes all memory on every device and prepares the programs, then loads the weights.
    ///
    /// # Errors
    /// A model that cannot be run, layers that do not follow one another, memory that cannot be had, a file that cannot be
    /// read, or an interruption. Whatever was taken is given back.
    pub fn open_split(
        files: Arc<ModelFiles>,
        model: Arc<Model>,
        placements: Vec<Placement>,
        options: OpenOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Engine, EngineError> {
        let layers: Vec<_> = placements.iter().map(|p| p.layers.clone()).collect();
        check_layers(&layers, model.dims().layers)?;
        let tensors = Tensors::new(&files);
        let build = |Placement { layers, backend }| {
            let stage = model.config.stage(&tensors, &options.stage_options(Range::clone(&layers)))?;
            Ok(BuiltStage { layers, stage: Arc::new(stage), backend })
        };
        let built = placements.into_iter().map(build).collect::<Result<_, ModelError>>()?;
        let vision = options.vision.clone();
        let vision = vision.map(|v| BuiltVision::new(v, &model, VisionPlace::Processor(options.host.clone()))).transpose()?;
        Engine::open_built(Arc::clone(&files), Arc::clone(&model), (built, vision), options, progress)
    }

    /// As [`Engine::open_split`], with stages and an encoder that were built before.
    ///
    /// # Errors
    /// As [`Engine::open_split`].
    pub fn open_built(
        files: Arc<ModelFiles>,
        model: Arc<Model>,
        (built, vision): (Vec<BuiltStage>, Option<BuiltVision>),
        options: OpenOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Engine, EngineError> {
        let layers: Vec<_> = built.iter().map(|b| b.layers.clone()).collect();
        check_layers(&layers, model.dims().layers)?;
        let recurrent = built.iter().flat_map(|b| &b.stage.states).any(|s| !s.kind.truncates());
        let (mut runners, mut experts) = open::take_memory(&files, built, &options)?;
        let mut vision = vision.map(BuiltVision::open).transpose()?;
        open::load(&files, &mut runners, experts.as_mut(), vision.as_mut(), &options, progress)?;
        if let Some(experts) = &mut experts {
            experts.measure(&mut open::devices(&mut runners))?;
        }
        let mut pipeline = Pipeline::new(runners, experts)?;
        pipeline.freeze();
        let table = |tensor: &str| RowTable::new(Arc::clone(&files), tensor);
        let ngram = match model.config.ngram() {
            Some(config) => Some((config.clone(), table(&config.tensor)?)),
            None => None,
        };
        Ok(Engine {
            embedding: table("token_embd.weight")?,
            ngram,
            vision,
            earlier: Vec::with_capacity((options.slots * MAX_BLOCK_TOKENS) as usize),
            pipeline,
            recurrent,
            free_slots: (0..options.slots).rev().collect(),
            model,
            rows: Vec::with_capacity(options.prompt_rows as usize),
            outputs: (0..options.prompt_rows.max(options.decode_rows)).collect(),
            options,
            guards: Vec::new(),
        })
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn dims(&self) -> Dims {
        self.model.dims()
    }

    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    pub fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    pub fn devices(&self) -> impl Iterator<Item = &DeviceFacts> {
        self.pipeline.stages.iter().map(|s| s.backend.facts())
    }

    /// Bytes that decoding one token reads when the sequence holds `cells` tokens.
    pub fn decode_row_bytes(&self, cells: u32) -> u64 {
        self.pipeline.stages.iter().map(|s| decode_row_bytes(&s.stage, &s.stage.programs[0], cells)).sum()
    }

    pub fn memory(&self) -> MemoryUse {
        let mut sum =
            MemoryUse { weights_bytes: 0, state_bytes: 0, work_bytes: 0, scratch_bytes: 0, experts_bytes: 0, vision_bytes: 0 };
        sum.vision_bytes = self.vision.as_ref().map(|v| v.backend().memory()).map_or(0, |m| m.arenas_bytes + m.scratch_bytes);
        sum.experts_bytes = self.pipeline.experts.as_ref().map_or(0, Experts::host_bytes);
        for s in &self.pipeline.stages {
            let MemoryReport { scratch_bytes, .. } = s.backend.memory();
            sum.weights_bytes += s.stage.weights_bytes;
            sum.state_bytes += s.stage.state_bytes;
            sum.work_bytes += s.stage.work_bytes - s.stage.lent_bytes;
            sum.scratch_bytes += scratch_bytes;
        }
        sum
    }

    /// How pictures shall be that a prompt brings; `None` where no vision encoder is open.
    pub fn vision(&self) -> Option<&Preprocess> {
        self.vision.as_ref().map(Vision::preprocess)
    }

    /// Allocations of the devices after everything was loaded: 0, or there is a defect.
    pub fn late_allocations(&self) -> u64 {
        let vision = self.vision.iter().map(|v| v.backend().memory().late_allocations);
        self.pipeline.stages.iter().map(|s| s.backend.memory().late_allocations).chain(vision).sum()
    }

    /// What the tiers did so far; `None` where devices hold all experts.
    pub fn tier_stats(&self) -> Option<TierStats> {
        self.pipeline.experts.as_ref().map(Experts::stats)
    }

    /// Keeps something (the locks of the cards) until the engine has given its memory back.
    pub fn keep(&mut self, guard: Box<dyn Send>) {
        self.guards.push(guard);
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    /// All slots are taken.
    pub fn start(&mut self) -> Result<Sequence, EngineError> {
        let slot = self.free_slots.pop().ok_or(EngineError::NoSlot { slots: self.options.slots })?;
        let versions = self.recurrent.then_some(self.options.undo_tokens + 1);
        let picture_token = self.model.config.pictures().and_then(|places| places.token);
        let sequence = Sequence::new(slot, versions, self.options.context as usize).with_picture_token(picture_token);
        self.pipeline.clear(slot, 0)?;
        Ok(sequence)
    }

    /// Gives a sequence's slot back.
    pub fn end(&mut self, sequence: Sequence) {
        self.free_slots.push(sequence.slot);
    }

    /// Tokens of a window when `want` of its rows are wanted.
    fn chunk_tokens(&self, want: Want) -> usize {
        let rows = self.options.prompt_rows.max(self.options.decode_rows);
        let largest = if want == Want::All { rows.min(self.options.max_outputs) } else { rows };
        largest.max(1) as usize
    }

    /// Tokens of a prompt that are best read at once: a chunk for every stage, so that all devices have work.
    pub fn prompt_step_tokens(&self) -> usize {
        self.chunk_tokens(Want::Last) * self.pipeline.stages.len()
    }

    /// Takes the sequence back to its first `length` tokens or to the nearest shorter prefix that needs no computing; returns
    /// the length reached. The caller feeds the tokens from there again if it wants `length`.
    ///
    /// # Errors
    /// A device error while a checkpoint is copied back.
    pub fn rollback(&mut self, sequence: &mut Sequence, length: usize) -> Result<usize, EngineError> {
        if length >= sequence.len() {
            return Ok(sequence.len());
        }
        let (reached, restore) = sequence.restorable(length);
        let version = sequence.current_version();
        match restore {
            Restore::Truncate | Restore::Version(_) => {}
            Restore::Checkpoint(i) => {
                let checkpoint = &sequence.checkpoints()[i];
                self.pipeline.restore(sequence.slot, version, &checkpoint.stages)?;
            }
            Restore::Empty => self.pipeline.clear(sequence.slot, version)?,
        }
        sequence.shorten(reached, restore);
        Ok(reached)
    }

    /// Remembers the sequence's recurrent state at its present length. A no-op for families without any.
    ///
    /// # Errors
    /// A device error while the state is copied out.
    pub fn checkpoint(&mut self, sequence: &mut Sequence) -> Result<(), EngineError> {
        if self.recurrent {
            let stages = self.pipeline.save(sequence.slot, sequence.current_version())?;
            sequence.add_checkpoint(Checkpoint { length: sequence.len(), stages });
        }
        Ok(())
    }
}
