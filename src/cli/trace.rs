//! `strata trace`: which experts a model chooses, kept in a file. `strata replay`: what another number of slots or another policy
//! would have made of it.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::npy::{AtomicFile, not_the_model};
use super::open::Loaded;
use super::output::{Output, note};
use super::report::short;
use super::run::{RunArgs, answer};
use super::tiers::expert_error;
use crate::engine::GenerationStats;
use crate::experts::{Policy, Prediction, Profile, Replay, Trace, replay};
use crate::gguf::ModelFiles;

const TRACE_EXAMPLES: &str = "\
Examples:
  strata trace -m model.gguf -o routing.trace -n 500 \"Write a story about a lighthouse\"
  cat long.txt | strata trace -m model.gguf -o routing.trace --raw -n 100

'strata replay routing.trace' then tells what other numbers of slots would have given.";

#[derive(Debug, Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub struct TraceArgs {
    /// The file that is written
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    run: RunArgs,
}

pub fn trace(args: &TraceArgs) -> Result<(), CliError> {
    answer(&args.run, Some(&args.output))
}

/// The file of a trace. Made before a large model is loaded, and never in the place of the model.
///
/// # Errors
/// A file that cannot be written, or that is one of the model's.
pub fn trace_file(files: &ModelFiles, path: &Path) -> Result<AtomicFile, CliError> {
    not_the_model(files, path)?;
    AtomicFile::create(path)
}

/// Writes what was chosen for an answer.
///
/// # Errors
/// A model without experts, or a file that cannot be written.
pub fn keep_trace(loaded: &mut Loaded, stats: &GenerationStats, mut file: AtomicFile) -> Result<(), CliError> {
    let window_s = stats.decode_time.as_secs_f64() / stats.decode_steps.max(1) as f64;
    let kept = loaded.engine.pipeline_mut().experts.as_mut().and_then(|e| e.take_trace(window_s));
    let Some(kept) = kept else {
        return Err(CliError::Usage("the model has no experts, so there is nothing to trace".into()));
    };
    kept.write(&mut file).map_err(|e| file.failed(e))?;
    let told = format!("{} windows of {} layers in '{}'", kept.windows(), kept.header.layers.len(), file.target().display());
    file.finish()?;
    note(told);
    Ok(())
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  strata replay routing.trace
  strata replay routing.trace --slots 32,64,128 --swaps 4
  strata replay routing.trace --slots 64 --ram-slots 200 --json

Hit rates are what the engine would have had, choice for choice. Tokens a second come from the rates that were measured when the
trace was recorded; reading from disk is not in them.";

#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES)]
pub struct ReplayArgs {
    /// A file that 'strata trace' has written
    trace: PathBuf,
    /// Slots of each layer on the card [default: those of the trace, then shares of all experts]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    slots: Vec<u32>,
    /// Slots of each layer in RAM [default: those of the trace]
    #[arg(long, value_name = "N")]
    ram_slots: Option<u32>,
    /// Most exchanges between two windows, for each token [default: as recorded]
    #[arg(long, value_name = "N")]
    swaps: Option<u32>,
    /// How much more often an expert must be used than the one whose slot it takes, in uses a token [default: as recorded]
    #[arg(long, value_name = "X")]
    margin: Option<f32>,
    /// Begin with the experts of this profile
    #[arg(long, value_name = "FILE")]
    expert_profile: Option<PathBuf>,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Line {
    slots: u32,
    card_hit_rate: f64,
    ram_calls: u64,
    disk_calls: u64,
    swaps: u64,
    tokens: u64,
    decode_tokens_per_second: Option<f64>,
}

pub fn replay_trace(args: &ReplayArgs) -> Result<(), CliError> {
    let trace = Trace::load(&args.trace).map_err(expert_error)?;
    let profile = args.expert_profile.as_deref().map(Profile::load).transpose().map_err(expert_error)?;
    let recorded = trace.header.policy;
    let policy = Policy {
        margin: args.margin.unwrap_or(recorded.margin),
        swaps_per_token: args.swaps.unwrap_or(recorded.swaps_per_token),
        ..recorded
    };
    let mut lines = vec![];
    for slots in wanted_slots(args, &trace) {
        let wishes =
            Replay { card_slots: Some(slots), ram_slots: args.ram_slots, policy, profile: profile.clone(), ..Replay::of(&trace) };
        lines.push(line(slots, &replay(&trace, &wishes).map_err(expert_error)?));
    }
    let mut out = Output::new();
    if args.json {
        return out.json(&lines);
    }
    out.line("| slots a layer | on the card | RAM calls | disk calls | exchanges | decode tok/s |")?;
    out.line("| ------------: | ----------: | --------: | ---------: | --------: | -----------: |")?;
    for l in &lines {
        let rate = l.decode_tokens_per_second.map_or("-".to_owned(), short);
        out.line(format!(
            "| {:>13} | {:>9.2} % | {:>9} | {:>10} | {:>9} | {rate:>12} |",
            l.slots,
            100.0 * l.card_hit_rate,
            l.ram_calls,
            l.disk_calls,
            l.swaps
        ))?;
    }
    Ok(())
}

fn line(slots: u32, p: &Prediction) -> Line {
    Line {
        slots,
        card_hit_rate: p.card_hit_rate(),
        ram_calls: p.ram_calls,
        disk_calls: p.disk_calls,
        swaps: p.swaps,
        tokens: p.tokens,
        decode_tokens_per_second: p.decode_rate(),
    }
}

/// What was asked for; else the trace's own number, and steps up to all experts.
fn wanted_slots(args: &ReplayArgs, trace: &Trace) -> Vec<u32> {
    if !args.slots.is_empty() {
        return args.slots.clone();
    }
    let most = trace.header.layers.iter().map(|l| l.experts).max().unwrap_or(0);
    let mut slots: Vec<u32> = trace.header.layers.iter().map(|l| l.card_slots).collect();
    slots.extend((0..=8u64).map(|eighth| (u64::from(most) * eighth / 8) as u32));
    slots.sort_unstable();
    slots.dedup();
    slots
}
