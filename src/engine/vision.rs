//! The vision encoder beside a model: reads one picture at a time, a block of layers at a step, and keeps the rows of the last
//! pictures, so that a conversation that comes back to them need not look again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::EngineError;
use super::load::{LoadProgress, Tiered, load_bytes, load_stage};
use crate::backend::cpu::{CpuBackend, CpuOptions};
use crate::backend::{ArenaSizes, Backend, BackendError, PreparedId};
use crate::gguf::ModelFiles;
use crate::model::{Model, ModelError, PlaceTable, Tensors, VisionConfig};
use crate::picture::{Identity, Patches, Preprocess};
use crate::program::{BufferId, InputKind, OutputKind, Row, RunParams, Stage, check_stage};
use crate::schedule::fill_floats;
use crate::units::TokenId;

/// Where an encoder runs. The processor is the one place now; a card would be another, with its own rows in the plan.
#[derive(Debug, Clone)]
pub enum VisionPlace {
    Processor(CpuOptions),
}

/// Which encoder shall be opened, and how much room it has.
#[derive(Debug, Clone)]
pub struct VisionOptions {
    pub files: Arc<ModelFiles>,
    /// Most tokens of one picture.
    pub max_tokens: u32,
    /// Tokens of pictures whose rows are kept; at least `max_tokens` are.
    pub kept_tokens: u32,
}

/// An encoder with its stage and its device, which has no memory yet.
pub struct BuiltVision {
    options: VisionOptions,
    config: VisionConfig,
    stage: Arc<Stage>,
    backend: Box<dyn Backend>,
}

impl BuiltVision {
    /// # Errors
    /// The file is no encoder, belongs to another model, or the model reads no pictures.
    pub fn new(options: VisionOptions, model: &Model, place: VisionPlace) -> Result<BuiltVision, EngineError> {
        if model.config.pictures().is_none() {
            let problem = format!("models of the family '{}' read no pictures", model.architecture);
            return Err(ModelError::Unsupported { problem }.into());
        }
        let config = VisionConfig::open(&options.files)?;
        config.fits(model.dims())?;
        let stage = config.stage(&Tensors::new(&options.files), options.max_tokens)?;
        check_stage(&stage).map_err(|e| ModelError::Unsupported { problem: e.to_string() })?;
        let VisionPlace::Processor(cpu) = place;
        let backend: Box<dyn Backend> = Box::new(CpuBackend::new(cpu)?);
        Ok(BuiltVision { options, config, stage: Arc::new(stage), backend })
    }

    /// RAM of weights and learned places.
    pub fn weights_bytes(&self) -> u64 {
        let places = u64::from(self.config.table_side).pow(2) * u64::from(self.config.width) * 4;
        self.stage.weights_bytes + places
    }

    /// RAM of buffers for the largest picture, with the scratch of the processor's threads.
    ///
    /// # Errors
    /// The device cannot run the encoder.
    pub fn work_bytes(&self) -> Result<u64, BackendError> {
        let shape = self.stage.programs[0].shape;
        let lists = u64::from(shape.max_rows) * size_of::<Row>() as u64 + u64::from(shape.max_outputs) * 4;
        Ok(self.stage.work_bytes + lists + self.backend.host_scratch_bytes(&self.stage)?)
    }

    /// Takes all memory that looking at pictures needs.
    ///
    /// # Errors
    /// Memory cannot be had, or the learned places cannot be read.
    pub(super) fn open(self) -> Result<Vision, EngineError> {
        let BuiltVision { options, config, stage, mut backend } = self;
        backend.open(ArenaSizes { scratch_bytes: backend.scratch_bytes(&stage)?, ..ArenaSizes::of(&stage) })?;
        let prepared = backend.prepare(&stage, 0)?;
        let program = &stage.programs[0];
        let rejected = || BackendError::Rejected { device: backend.facts().id.clone(), problem: "no encoder's program".into() };
        let input = |kind| program.input(|k| k == kind).ok_or_else(rejected);
        let (patches, places) = (input(InputKind::Patches)?, input(InputKind::PatchPlaces)?);
        let rows = program.output(OutputKind::Picture).ok_or_else(rejected)?;
        let shape = program.shape;
        let preprocess = config.preprocess(options.max_tokens);
        let kept_tokens = options.kept_tokens.max(options.max_tokens) as usize;
        Ok(Vision {
            table: config.places(&Tensors::new(&options.files))?,
            files: options.files,
            preprocess,
            kept: Kept { rows: VecDeque::new(), tokens: 0, most_tokens: kept_tokens },
            window: Vec::with_capacity(shape.max_rows as usize),
            outputs: Vec::with_capacity(shape.max_outputs as usize),
            staging: Vec::new(),
            current: None,
            ports: Ports { patches, places, rows },
            stats: VisionStats::default(),
            config,
            stage,
            backend,
            prepared,
        })
    }
}

/// Rows of pictures, the one that was wanted last at the end.
struct Kept {
    rows: VecDeque<(Identity, Vec<f32>)>,
    tokens: usize,
    most_tokens: usize,
}

impl Kept {
    fn has(&self, picture: &Identity) -> bool {
        self.rows.iter().any(|(identity, _)| identity == picture)
    }

    /// The rows of a picture, which is now the last that was wanted.
    fn get(&mut self, picture: &Identity) -> Option<&[f32]> {
        let at = self.rows.iter().position(|(identity, _)| identity == picture)?;
        let found = self.rows.remove(at)?;
        self.rows.push_back(found);
        self.rows.back().map(|(_, rows)| rows.as_slice())
    }

    /// Lets pictures go until so many tokens more have room.
    fn make_room(&mut self, tokens: usize, width: usize) {
        while self.tokens + tokens > self.most_tokens {
            let Some((_, gone)) = self.rows.pop_front() else { break };
            self.tokens -= gone.len() / width;
        }
    }

    fn put(&mut self, picture: Identity, rows: Vec<f32>, tokens: usize) {
        self.tokens += tokens;
        self.rows.push_back((picture, rows));
    }
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    patches: BufferId,
    places: BufferId,
    rows: BufferId,
}

/// The picture at hand and how far it is.
struct Looking {
    picture: Identity,
    segment: usize,
}

/// What was looked at since the encoder was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VisionStats {
    pub pictures: u64,
    /// Pictures whose rows were still there.
    pub reused: u64,
    pub time: Duration,
}

/// How far a picture is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// `done` of the steps are taken.
    Going { done: usize, total: usize },
    /// Its rows are there.
    Done,
}

/// An encoder that is open.
pub(super) struct Vision {
    files: Arc<ModelFiles>,
    config: VisionConfig,
    preprocess: Preprocess,
    stage: Arc<Stage>,
    backend: Box<dyn Backend>,
    prepared: PreparedId,
    table: PlaceTable,
    ports: Ports,
    kept: Kept,
    current: Option<Looking>,
    window: Vec<Row>,
    outputs: Vec<u32>,
    staging: Vec<f32>,
    stats: VisionStats,
}

impl Vision {
    pub fn load_bytes(&self) -> u64 {
        load_bytes(&self.stage, &Tiered::default())
    }

    /// Reads the weights.
    pub fn load(&mut self, cancel: &AtomicBool, progress: &mut dyn FnMut(LoadProgress)) -> Result<(), EngineError> {
        load_stage(&self.files, &self.stage, &Tiered::default(), self.backend.as_mut(), cancel, progress)?;
        self.backend.freeze();
        Ok(())
    }

    pub fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    pub fn stats(&self) -> VisionStats {
        self.stats
    }

    pub fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// Whether it can look at such a picture; what is wrong in words.
    pub fn check(&self, patches: &Patches) -> Result<(), String> {
        self.config.check(patches, self.preprocess.max_tokens)
    }

    pub fn has(&self, patches: &Patches) -> bool {
        self.kept.has(&patches.identity())
    }

    /// Goes on with a picture by one step; a picture begun before and not finished is given up. It has been checked.
    ///
    /// # Errors
    /// A device error, or an interruption; the picture begins anew afterwards.
    pub fn step(&mut self, patches: &Patches) -> Result<Look, BackendError> {
        let picture = patches.identity();
        if self.kept.has(&picture) {
            return Ok(Look::Done);
        }
        let start = Instant::now();
        let total = self.stage.programs[0].host_steps().count() + 1;
        let segment = match self.current.take() {
            Some(Looking { picture: current, segment }) if current == picture => segment,
            _ => {
                self.begin(patches)?;
                0
            }
        };
        let params = RunParams { rows: &self.window, outputs: &self.outputs, earlier: &[] };
        let ticket = self.backend.run(self.prepared, segment, &params)?;
        self.backend.wait(ticket)?;
        let look = if segment + 1 == total {
            self.keep(picture)?;
            Look::Done
        } else {
            self.current = Some(Looking { picture, segment: segment + 1 });
            Look::Going { done: segment + 1, total }
        };
        self.stats.time += start.elapsed();
        Ok(look)
    }

    /// Writes the inputs of a picture.
    fn begin(&mut self, patches: &Patches) -> Result<(), BackendError> {
        let (grid, merge) = (patches.grid, self.config.merge);
        let row = |(i, (y, x)): (usize, (u32, u32))| Row { position: [0, y, x], ..Row::text(0, i as u32, TokenId(0)) };
        self.window.clear();
        self.window.extend(grid.places(merge).enumerate().map(row));
        let square = (merge * merge) as usize;
        self.outputs.clear();
        self.outputs.extend((0..self.window.len()).step_by(square).map(|row| row as u32));
        let rows = self.window.len() as u32;
        let program = &self.stage.programs[0];
        let values = bytemuck::cast_slice(&patches.values);
        self.backend.upload(program.buffer_slice(self.ports.patches, rows), values)?;
        let places = program.buffer_slice(self.ports.places, rows);
        fill_floats(self.backend.as_mut(), places, &mut self.staging, &mut |to| self.table.fill(grid, merge, to))
    }

    /// Takes the rows of the picture that has just been finished.
    fn keep(&mut self, picture: Identity) -> Result<(), BackendError> {
        let (tokens, width) = (self.outputs.len(), self.config.output_width as usize);
        self.kept.make_room(tokens, width);
        let mut rows = vec![0.0; tokens * width];
        let from = self.stage.programs[0].buffer_slice(self.ports.rows, tokens as u32);
        self.backend.download(from, bytemuck::cast_slice_mut(&mut rows))?;
        self.kept.put(picture, rows, tokens);
        self.stats.pictures += 1;
        Ok(())
    }

    /// The rows of a picture, one behind the other; it looks at it now if they are not there.
    ///
    /// # Errors
    /// As [`Vision::step`].
    pub fn rows(&mut self, patches: &Patches) -> Result<&[f32], BackendError> {
        while self.step(patches)? != Look::Done {}
        let lost = || BackendError::Rejected { device: "vision".into(), problem: "a picture's rows are gone".into() };
        self.kept.get(&patches.identity()).ok_or_else(lost)
    }

    pub fn count_reused(&mut self, pictures: u64) {
        self.stats.reused += pictures;
    }
}
