//! `strata plan`: what would lie where, before anything is taken.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::args::{ModelArgs, PromptChunk, prompt_chunk};
use super::error::CliError;
use super::open::{is_sheet, open_files};
use super::output::{Output, note};
use super::read::{MOST_TEXT_BYTES, read_file};
use super::wishes::{WishArgs, matrix_formats};
use crate::gguf::ModelFiles;
use crate::launch::cannot_run_yet;
use crate::plan::{
    Limits, ModelHeader, Plan, PlanFlags, PlanModel, Refusal, RefusalKind, plan as make_plan, read_sheet, render_refusal,
    render_report, why,
};

const EXAMPLES: &str = "\
Examples:
  strata plan -m model.gguf                                    on this PC
  strata plan -m model.gguf --context 131072 --kv int8
  strata plan -m model.sheet.json --machine my-next-pc.toml    without having either
  strata plan -m model.gguf --why cpu/kv-cache                 how a number came about
  strata plan -m model.gguf --json | jq '.plan.predicted'

Nothing is loaded and no card is touched. Exit code 0: it fits. 3: it does not; what would help is shown.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// GGUF file or model sheet ('strata model-sheet' writes one). Without it the small built-in model is planned
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Tokens of a conversation; 0 is what the model was trained for [default: 32768, at most what it was trained for]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N")]
    context: Option<u32>,
    /// Type of cached keys and values: f32, f16, int8, k8v4, q4_0 [default: f16]
    #[arg(long, value_name = "TYPE")]
    kv: Option<String>,
    /// Tokens of a prompt that are read at once; 'auto' leaves it to the plan
    #[arg(long, visible_alias = "ubatch-size", value_name = "N", default_value = "auto", value_parser = prompt_chunk)]
    prefill: PromptChunk,
    /// Conversations at the same time [default: 1]
    #[arg(long, visible_alias = "parallel", value_name = "N")]
    slots: Option<u32>,
    /// Conversation checkpoints that are kept in RAM [default: 0]
    #[arg(long, value_name = "N")]
    checkpoints: Option<u32>,
    /// RAM for conversations whose slots others need: 2GiB [default: 0]
    #[arg(long, value_name = "SIZE")]
    cache_ram: Option<String>,
    /// GGUF file or sheet of the draft block, where the model has none inside
    #[arg(long, value_name = "FILE")]
    draft_file: Option<PathBuf>,
    /// Explain one row: cpu/kv-cache, ram/process
    #[arg(long, value_name = "ROW", conflicts_with = "json")]
    why: Option<String>,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wishes: WishArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct JsonOutcome<'a> {
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a Plan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a Refusal>,
}

pub fn plan(args: &PlanArgs) -> Result<(), CliError> {
    let header = model_header(args)?;
    let model = plan_model(args, &header)?;
    let limits = limits(args, &model)?;
    let machine = args.wishes.machine(args.model.as_deref(), matrix_formats(&header))?;
    let outcome = make_plan(&model, &machine, &limits);
    let wrong = outcome.as_ref().err().filter(|refusal| refusal.kind == RefusalKind::Invalid);
    let mut out = Output::new();
    match &outcome {
        _ if args.json => {
            let (plan, refusal) = (outcome.as_ref().ok(), outcome.as_ref().err().map(|r| &**r));
            out.json(&JsonOutcome { fits: plan.is_some(), plan, refusal })?;
        }
        Ok(plan) => match &args.why {
            None => {
                out.write(&render_report(plan))?;
                if let Some(missing) = cannot_run_yet(plan) {
                    note(format!("note: {missing}"));
                }
            }
            Some(row) => out.write(&why(plan, row).ok_or_else(|| no_such_row(plan, row))?)?,
        },
        Err(refusal) if wrong.is_some() => return Err(CliError::Usage(refusal.message.clone())),
        Err(refusal) => out.write(&render_refusal(refusal))?,
    }
    out.flush()?;
    match &outcome {
        Ok(_) => Ok(()),
        Err(_) if wrong.is_some() => Err(CliError::WrongAndTold),
        Err(_) => Err(CliError::RefusedAndTold),
    }
}

fn model_header(args: &PlanArgs) -> Result<ModelHeader, CliError> {
    match &args.model {
        Some(path) => read_header(path),
        None => Ok(ModelHeader::from(&*open_files(&ModelArgs { model: None })?)),
    }
}

fn plan_model(args: &PlanArgs, header: &ModelHeader) -> Result<PlanModel, CliError> {
    let name = args.model.as_ref().map_or_else(|| "built-in model".to_owned(), |path| path.display().to_string());
    let wrong = |e| CliError::in_file(&name, e);
    let model = PlanModel::from_header(header).map_err(wrong)?;
    add_companions(args, model)
}

/// Draft block and vision encoder from files of their own; an error names the file that it is in.
fn add_companions(args: &PlanArgs, mut model: PlanModel) -> Result<PlanModel, CliError> {
    let flags = args.wishes.flags();
    for (file, flag, wish) in [(&args.draft_file, "draft", flags.draft), (&args.wishes.vision_file, "vision", flags.vision)] {
        let Some(path) = file else { continue };
        let header = read_header(path)?;
        let added = if flag == "draft" { model.add_draft(&header) } else { model.add_vision(&header) };
        added.map_err(|e| CliError::in_file(&path.display().to_string(), e))?;
        if wish.as_deref() != Some("on") {
            note(format!("note: --{flag}-file makes no difference without --{flag} on"));
        }
    }
    Ok(model)
}

/// Metadata and tensor table of a GGUF file or of a sheet.
fn read_header(path: &Path) -> Result<ModelHeader, CliError> {
    if !is_sheet(path) {
        return Ok(ModelHeader::from(&ModelFiles::open(path)?));
    }
    let text = read_file(path, MOST_TEXT_BYTES)?;
    read_sheet(&text).map_err(|e| CliError::in_file(&path.display().to_string(), e))
}

fn limits(args: &PlanArgs, model: &PlanModel) -> Result<Limits, CliError> {
    let flags = PlanFlags {
        context: args.context.map(|tokens| if tokens == 0 { model.trained_context } else { tokens }),
        kv: args.kv.clone(),
        prefill: args.prefill.0,
        slots: args.slots,
        checkpoints: args.checkpoints,
        cache_ram: args.cache_ram.clone(),
        ..args.wishes.flags()
    };
    Ok(Limits::from_flags(&flags)?)
}

fn no_such_row(plan: &Plan, row: &str) -> CliError {
    let rows: Vec<&str> = plan.rows.iter().map(|r| r.id.as_str()).collect();
    CliError::Usage(format!("the plan has no row '{row}'; it has {}", rows.join(", ")))
}
