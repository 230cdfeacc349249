//! Opens a model for a verb: files, plan, devices, memory, weights, with a progress bar.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{ComputeArgs, ModelArgs};
use super::error::CliError;
use super::interrupt::Interrupt;
use super::output::note;
use super::roofs::Roofs;
use super::wishes::{matrix_formats, read_machine, this_pc};
use crate::backend::FINDERS;
use crate::backend::cpu::{CpuOptions, Mode, Rounding};
use crate::engine::service::Opened;
use crate::engine::{Engine, GenerateError, LoadProgress, OpenOptions, process_memory};
use crate::experts::ExpertOptions;
use crate::gguf::ModelFiles;
use crate::launch::{Audience, Launch, LaunchError, Launched, default_lock_folder, open_planned, within_this_pc};
use crate::model::Model;
use crate::plan::{CardCheck, Limits, ModelHeader, Plan, PlanFlags, Pool, Unexplained, render_short};
use crate::units::HumanBytes;

/// A trained model small enough to be part of the program, so that the first try needs no download.
static BUILT_IN: &[u8] = include_bytes!("../../assets/tiny-flash-next-IQ3_XXS.gguf");
const BUILT_IN_NAME: &str = "built-in tiny-flash-next";

/// A model whose files are open and whose configuration is sound. No weights are loaded.
pub struct OpenModel {
    pub files: Arc<ModelFiles>,
    pub model: Arc<Model>,
    /// `None` is the built-in model.
    path: Option<PathBuf>,
}

/// What a verb needs of the engine; the plan settles everything else.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    pub context: u32,
    pub slots: u32,
    /// Tokens of a prompt that are read at once; `None` leaves it to the plan.
    pub prefill: Option<u32>,
    /// Rows of a window for which the kernels of decoding are made.
    pub decode_rows: u32,
    /// Rows of a window whose scores are wanted, at most.
    pub max_outputs: u32,
    pub keeps: Keeps,
    /// Write down which experts are used.
    pub record: bool,
    pub stopping: Stopping,
}

impl Opening {
    /// One conversation that keeps nothing beside its state and wants the scores of one row.
    pub fn new(context: u32, compute: &ComputeArgs, stopping: Stopping) -> Opening {
        Opening {
            context,
            slots: 1,
            prefill: compute.ubatch_size.0,
            decode_rows: 1,
            max_outputs: 1,
            keeps: Keeps::default(),
            record: false,
            stopping,
        }
    }
}

/// The files of the model that the user named, or the built-in one.
pub fn open_files(args: &ModelArgs) -> Result<Arc<ModelFiles>, CliError> {
    let files = match &args.model {
        Some(path) if is_sheet(path) => {
            let problem = "it is a model sheet, which holds no weights; only 'strata plan' reads those";
            return Err(CliError::in_file(&path.display().to_string(), problem));
        }
        Some(path) => ModelFiles::open(path)?,
        None => ModelFiles::from_static(BUILT_IN_NAME, BUILT_IN)?,
    };
    Ok(Arc::new(files))
}

/// Whether a file begins as model sheets do, and no GGUF does.
pub fn is_sheet(path: &Path) -> bool {
    let mut first = [0];
    // A pipe is left as it is: what is read of it is gone.
    path.is_file() && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"{"
}

impl OpenModel {
    pub fn open(args: &ModelArgs) -> Result<OpenModel, CliError> {
        let files = open_files(args)?;
        let model = Model::open(&files).map_err(|source| CliError::Model { file: files.name(), source })?;
        for warning in &model.warnings {
            note(format!("warning: {}: {warning}", files.name()));
        }
        Ok(OpenModel { files, model: Arc::new(model), path: args.model.clone() })
    }

    /// # Errors
    /// The model gives embeddings.
    pub fn must_write_text(&self) -> Result<(), CliError> {
        match self.model.dims().pooling {
            None => Ok(()),
            Some(_) => Err(CliError::in_file(&self.files.name(), GenerateError::NoText)),
        }
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

    /// Tokens for a sequence that must hold `needed`, whatever the model was trained for; beyond that with a warning.
    pub fn context_of_all(&self, needed: usize) -> Result<u32, CliError> {
        let trained = self.model.dims().context.max(1);
        let all = u32::try_from(needed.next_multiple_of(CONTEXT_STEP));
        let all = all.map_err(|_| CliError::Usage(format!("{needed} tokens are more than any context holds")))?;
        if needed > trained as usize {
            note(format!(
                "warning: {needed} tokens are more than the {trained} that the model was trained for; what it says beyond them \
                 may mean nothing"
            ));
        }
        Ok(all)
    }

    /// Plans, takes memory and loads the weights.
    pub fn load(&self, compute: &ComputeArgs, opening: Opening, interrupt: &Interrupt) -> Result<Loaded, CliError> {
        let here = this_pc(self.path.as_deref(), matrix_formats(&ModelHeader::from(&*self.files)));
        let threads = compute.threads.unwrap_or_else(|| here.host.workers.unwrap_or(here.host.cores));
        let threads = NonZeroUsize::new(threads as usize).unwrap_or(NonZeroUsize::MIN);
        let mode = if compute.reference { Mode::Reference } else { Mode::Fast };
        let rounding = if compute.activation_bits == "8" { Rounding::Bits8 } else { Rounding::Bits15 };
        let mut cpu = CpuOptions { rounding, ..CpuOptions::new(mode).with_threads(threads) };
        if opening.stopping == Stopping::AtOnce {
            cpu.cancel = interrupt.flag();
        }
        let machine = match &compute.wishes.machine {
            Some(file) => within_this_pc(read_machine(file)?, &here),
            None => here.clone(),
        };
        let vision = compute.wishes.vision_file.as_ref().map(ModelFiles::open).transpose()?.map(Arc::new);
        let launch = Launch {
            files: Arc::clone(&self.files),
            model: Arc::clone(&self.model),
            vision,
            machine: machine.clone(),
            limits: limits(compute, &opening)?,
            options: OpenOptions {
                decode_rows: opening.decode_rows,
                max_outputs: opening.max_outputs,
                cancel: interrupt.flag(),
                experts: experts(compute, opening.record)?,
                ..OpenOptions::default()
            },
            cpu,
            locks: Some(default_lock_folder()),
            finders: FINDERS,
            faults: Arc::default(),
            in_use: Arc::default(),
        };
        let start = Instant::now();
        let mut show = Show { bar: LoadBar::new(), quiet: compute.quiet };
        let opened = open_planned(launch, &mut show);
        show.bar.clear();
        let launched = opened.map_err(|error| match error {
            LaunchError::Model(source) => CliError::Model { file: self.files.name(), source },
            LaunchError::Engine(error) => error.into(),
            other => CliError::Launch(other),
        })?;
        if !compute.quiet {
            note(loaded_line(&launched));
        }
        for notice in launched.engine.pipeline().experts.iter().flat_map(|experts| experts.notices()) {
            note(format!("note: {notice}"));
        }
        let roofs = Roofs::of(&launched, &machine, &here.host);
        let Launched { engine, plan, cards } = launched;
        Ok(Loaded { engine, plan, cards, threads: threads.get(), load_time: start.elapsed(), roofs })
    }
}

/// The user's wishes for experts.
fn experts(compute: &ComputeArgs, record: bool) -> Result<ExpertOptions, CliError> {
    Ok(ExpertOptions { record, ..compute.tiers.options()? })
}

/// What the plan must heed: the verb's own numbers and the user's wishes.
fn limits(compute: &ComputeArgs, opening: &Opening) -> Result<Limits, CliError> {
    let flags = PlanFlags {
        context: Some(opening.context),
        prefill: opening.prefill.map(|rows| rows.min(opening.context.max(1))),
        slots: Some(opening.slots),
        ..compute.wishes.flags()
    };
    let Keeps { checkpoints, cache_ram } = opening.keeps;
    Ok(Limits { kv: compute.kv.planned(), checkpoints, cache_ram, ..Limits::from_flags(&flags)? })
}

/// What the devices and the system say of memory, against the plan.
fn loaded_line(launched: &Launched) -> String {
    let mut parts: Vec<String> = launched.cards.iter().map(|check| device_text(&check.card, &check.memory)).collect();
    let planned = launched.plan.pools.iter().find(|pool| pool.pool == Pool::Ram).map_or(0, |pool| pool.used);
    if let Some(process) = process_memory() {
        let used = process.resident_bytes;
        let beyond = used.saturating_sub(planned);
        let unexplained = if beyond > 0 { format!(", {} unexplained", HumanBytes(beyond)) } else { String::new() };
        parts.push(format!("host: {} resident of {} planned{unexplained}", HumanBytes(used), HumanBytes(planned)));
    }
    format!("loaded: {}", parts.join("; "))
}

fn device_text(card: &str, memory: &Unexplained) -> String {
    let beyond = memory.used.saturating_sub(memory.planned);
    let verdict = match () {
        () if memory.used == memory.planned => "as planned".to_owned(),
        () if beyond == 0 => format!("{} planned", HumanBytes(memory.planned)),
        () if memory.explained => {
            format!("{} beyond the plan, within the driver's bound of {}", HumanBytes(beyond), HumanBytes(memory.bound))
        }
        () => format!("{beyond} bytes unexplained: please report this"),
    };
    format!("{card}: {} in use, {verdict}", HumanBytes(memory.used))
}

/// Tells the user what happens while a model is opened.
struct Show {
    bar: LoadBar,
    quiet: bool,
}

impl Audience for Show {
    fn waiting(&mut self, message: &str) {
        note(message);
    }

    fn planned(&mut self, plan: &Plan) {
        if !self.quiet {
            note(render_short(plan).trim_end());
        }
    }

    fn loading(&mut self, progress: LoadProgress) {
        self.bar.show(progress);
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

/// What a verb keeps in RAM beside the engine, for the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keeps {
    /// Checkpoints of all conversations together.
    pub checkpoints: u32,
    /// Bytes for conversations that had to leave their slots.
    pub cache_ram: u64,
}

/// A model ready to compute.
pub struct Loaded {
    pub engine: Engine,
    pub plan: Plan,
    pub cards: Vec<CardCheck>,
    pub threads: usize,
    pub load_time: Duration,
    pub roofs: Roofs,
}

impl Loaded {
    /// For the service.
    pub fn opened(self) -> Opened {
        Opened { engine: self.engine, plan: Some(Arc::new(self.plan)), cards: self.cards }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_as_planned_is_said() {
        let text = |used, bound, explained| device_text("cuda:0", &Unexplained { planned: 1 << 20, used, bound, explained });
        assert_eq!(text(1 << 20, 0, true), "cuda:0: 1.00 MiB in use, as planned");
        assert_eq!(text(1 << 19, 0, true), "cuda:0: 512.00 KiB in use, 1.00 MiB planned");
        assert!(text(3 << 19, 1 << 20, true).ends_with("512.00 KiB beyond the plan, within the driver's bound of 1.00 MiB"));
        assert!(text((1 << 20) + 7, 0, false).ends_with("7 bytes unexplained: please report this"));
    }
}
