//! Flags of the memory plan, shared by `plan` and by every verb that opens a model, and the machine they are planned for.

use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliError;
use super::output::note;
use super::read::{MOST_SETTINGS_BYTES, read_file};
use crate::plan::{FlagError, Machine, ModelHeader, PlanFlags};
use crate::probe::{Effort, Probe};
use crate::quant::Format;

/// Where things shall lie. Everything is optional: the plan chooses.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Memory plan")]
pub struct WishArgs {
    /// Plan for the PC that this file describes instead of this one ('strata devices --save' writes such a file)
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Cards to use, all of them: cuda:0,cuda:1; 'strata devices' lists them [default: auto]
    #[arg(long, value_name = "ID,...")]
    pub device: Option<String>,
    /// Layers of each card, in the order of the cards: 0-23,24-47 [default: auto]
    #[arg(long, value_name = "A-B,...")]
    pub layer_split: Option<String>,
    /// Memory that stays free on every card, where the plan would keep less: 1.5GiB
    #[arg(long, value_name = "SIZE")]
    pub reserve: Option<String>,
    /// Most experts on all cards together
    #[arg(long, value_name = "N")]
    pub expert_slots: Option<u32>,
    /// Cells of keys and values that stay on the card; the others lie in RAM [default: all]
    #[arg(long, value_name = "N")]
    pub resident_kv: Option<u32>,
    /// Most RAM for everything [default: none]
    #[arg(long, value_name = "SIZE")]
    pub ram_budget: Option<String>,
    /// What RAM keeps of the experts: auto, all, complement, disk
    #[arg(long, value_name = "WHAT")]
    pub ram_experts: Option<String>,
    /// What to do with a card whose memory other programs hold: refuse, use
    #[arg(long, value_name = "WHAT")]
    pub held_cards: Option<String>,
    /// Use the model's draft block: on, off
    #[arg(long, value_name = "ON|OFF")]
    pub draft: Option<String>,
    /// Tokens that are drafted at a time
    #[arg(long, value_name = "N")]
    pub draft_window: Option<u32>,
    /// Read pictures: on, off [default: on where --vision-file is given]
    #[arg(long, value_name = "ON|OFF")]
    pub vision: Option<String>,
    /// GGUF file of the vision encoder that belongs to the model (mmproj-....gguf)
    #[arg(long, visible_alias = "mmproj", value_name = "FILE")]
    pub vision_file: Option<PathBuf>,
    /// Most tokens of one picture; larger ones are scaled down [default: 1024]
    #[arg(long, value_name = "N")]
    pub vision_tokens: Option<u32>,
}

impl WishArgs {
    pub fn flags(&self) -> PlanFlags {
        PlanFlags {
            draft: self.draft.clone(),
            draft_window: self.draft_window,
            vision: self.vision.clone().or_else(|| self.vision_file.as_ref().map(|_| "on".into())),
            vision_tokens: self.vision_tokens,
            device: self.device.clone(),
            reserve: self.reserve.clone(),
            expert_slots: self.expert_slots,
            layer_split: self.layer_split.clone(),
            resident_kv: self.resident_kv,
            ram_budget: self.ram_budget.clone(),
            ram_experts: self.ram_experts.clone(),
            held_cards: self.held_cards.clone(),
            ..PlanFlags::default()
        }
    }

    /// The PC of the machine file, or this one with the disk that the model lies on.
    pub fn machine(&self, model: Option<&Path>, formats: Vec<Format>) -> Result<Machine, CliError> {
        self.machine.as_deref().map_or_else(|| Ok(this_pc(model, formats)), read_machine)
    }
}

/// Formats of a model's matrices, without the embedding, of which single rows are read.
pub fn matrix_formats(header: &ModelHeader) -> Vec<Format> {
    let matrices = header.tensors.iter().filter(|t| t.shape.len() > 1 && t.name.starts_with("blk.") || t.name == "output.weight");
    let mut formats: Vec<Format> = matrices.map(|t| t.format).collect();
    formats.sort_unstable();
    formats.dedup();
    formats
}

/// This PC, with what was measured of it; what never was is measured now.
pub fn this_pc(model: Option<&Path>, formats: Vec<Format>) -> Machine {
    let probed = Probe::new(Effort::Known).with_file(model).with_formats(formats).look();
    probed.notes.iter().for_each(note);
    probed.machine
}

impl From<FlagError> for CliError {
    fn from(error: FlagError) -> CliError {
        CliError::Usage(error.to_string())
    }
}

pub fn read_machine(path: &Path) -> Result<Machine, CliError> {
    let text = read_file(path, MOST_SETTINGS_BYTES)?;
    Machine::from_toml(&text).map_err(|e| CliError::in_file(&path.display().to_string(), e.to_string().trim_end()))
}
