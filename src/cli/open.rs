//! Opens a model for a verb: files, checks, device, memory, weights, with a progress bar.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{ComputeArgs, ModelArgs};
use super::error::CliError;
use super::interrupt::Interrupt;
use super::output::note;
use crate::backend::ArenaSizes;
use crate::backend::cpu::{CpuBackend, CpuOptions, Mode};
use crate::engine::{Engine, LoadProgress, OpenOptions, available_memory_bytes, physical_cores};
use crate::gguf::ModelFiles;
use crate::model::{Model, Tensors};
use crate::units::HumanBytes;

/// A trained model small enough to be part of the program, so that the first try needs no download.
static BUILT_IN: &[u8] = include_bytes!("../../assets/tiny-flash-next-IQ3_XXS.gguf");
const BUILT_IN_NAME: &str = "built-in tiny-flash-next";

/// A model whose files are open and whose configuration is sound. No weights are loaded.
pub struct OpenModel {
    pub files: Arc<ModelFiles>,
    pub model: Arc<Model>,
}

/// The files of the model that the user named, or the built-in one.
pub fn open_files(args: &ModelArgs) -> Result<Arc<ModelFiles>, CliError> {
    let files = match &args.model {
        Some(path) => ModelFiles::open(path)?,
        None => ModelFiles::from_static(BUILT_IN_NAME, BUILT_IN)?,
    };
    Ok(Arc::new(files))
}

impl OpenModel {
    pub fn open(args: &ModelArgs) -> Result<OpenModel, CliError> {
        let files = open_files(args)?;
        let model = Model::open(&files).map_err(|source| CliError::Model { file: files.name(), source })?;
        for warning in &model.warnings {
            note(format!("warning: {}: {warning}", files.name()));
        }
        Ok(OpenModel { files, model: Arc::new(model) })
    }

    /// Tokens that the sequence shall hold. `wish` is the user's `--ctx-size`; without it, `needed` tokens, at least
    /// `usual`, and never more than the model was trained for.
    pub fn context(&self, wish: Option<u32>, needed: usize, usual: u32) -> u32 {
        let trained = self.model.dims().context.max(1);
        match wish {
            Some(0) => trained,
            Some(tokens) => {
                if tokens > trained {
                    note(format!(
                        "warning: a context of {tokens} tokens is more than the {trained} that the model was trained for; \
                         what it writes beyond them may be bad"
                    ));
                }
                tokens
            }
            None => {
                let needed = u32::try_from(needed.next_multiple_of(CONTEXT_STEP)).unwrap_or(u32::MAX);
                needed.max(usual).min(trained)
            }
        }
    }

    /// Takes memory and loads the weights.
    pub fn load(
        &self,
        compute: &ComputeArgs,
        options: OpenOptions,
        interrupt: &Interrupt,
        stopping: Stopping,
    ) -> Result<Loaded, CliError> {
        let options = OpenOptions { kv: compute.kv.format(), cancel: interrupt.flag(), ..options };
        self.check_memory(&options)?;
        let threads = compute.threads.and_then(|n| NonZeroUsize::new(n as usize)).unwrap_or_else(physical_cores);
        let mode = if compute.reference { Mode::Reference } else { Mode::Fast };
        let mut cpu = CpuOptions::new(mode).with_threads(threads);
        if stopping == Stopping::AtOnce {
            cpu.cancel = interrupt.flag();
        }
        let backend = CpuBackend::new(cpu).map_err(|e| CliError::Failed(format!("the CPU backend cannot start: {e}")))?;
        let start = Instant::now();
        let bar = LoadBar::new();
        let (files, model) = (Arc::clone(&self.files), Arc::clone(&self.model));
        let opened = Engine::open(files, model, Box::new(backend), options, &mut |p| bar.show(p));
        bar.clear();
        let engine = opened.map_err(|error| match CliError::from(error) {
            CliError::Engine(crate::engine::EngineError::Model(source)) => CliError::Model { file: self.files.name(), source },
            other => other,
        })?;
        Ok(Loaded { engine, threads: threads.get(), load_time: start.elapsed() })
    }

    /// Refuses before anything is loaded what the memory of this machine cannot hold.
    fn check_memory(&self, options: &OpenOptions) -> Result<(), CliError> {
        let Some(available) = available_memory_bytes() else { return Ok(()) };
        let layers = self.model.dims().layers;
        let stage = self.model.config.stage(&Tensors::new(&self.files), &options.stage_options(0..layers));
        let stage = stage.map_err(|source| CliError::Model { file: self.files.name(), source })?;
        let sizes = ArenaSizes::of(&stage);
        if sizes.total_bytes() <= available {
            return Ok(());
        }
        let remedy = if sizes.weights_bytes > available {
            "Close other programs, or get the model in a smaller quantisation".to_owned()
        } else {
            format!(
                "Close other programs, or give a --ctx-size below {} or a --ubatch-size below {}",
                options.context, options.prompt_rows
            )
        };
        Err(CliError::Refused(format!(
            "'{}' needs {} of memory (weights {}, state of {} tokens {}, work {}), and {} is available. {remedy}. Nothing was loaded",
            self.files.name(),
            HumanBytes(sizes.total_bytes()),
            HumanBytes(sizes.weights_bytes),
            options.context,
            HumanBytes(sizes.state_bytes),
            HumanBytes(sizes.work_bytes),
            HumanBytes(available),
        )))
    }
}

/// Where an interruption takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopping {
    /// In the middle of a window. What the sequence held is lost.
    AtOnce,
    /// After the window at hand, so that the conversation can go on.
    BetweenWindows,
}

/// Contexts are chosen in steps of this many tokens.
const CONTEXT_STEP: usize = 256;

/// A model ready to compute.
pub struct Loaded {
    pub engine: Engine,
    pub threads: usize,
    pub load_time: Duration,
}

/// A progress bar on a terminal, nothing elsewhere.
struct LoadBar {
    bar: ProgressBar,
}

impl LoadBar {
    fn new() -> LoadBar {
        // Hidden by itself where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = "loading {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        LoadBar { bar }
    }

    fn show(&self, progress: LoadProgress) {
        self.bar.set_length(progress.total_bytes);
        self.bar.set_position(progress.done_bytes);
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
