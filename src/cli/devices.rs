//! `strata devices`: what this PC has, and machine files of it.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::npy::write_whole;
use super::output::{Output, note};
use super::wishes::matrix_formats;
use crate::gguf::ModelFiles;
use crate::plan::ModelHeader;
use crate::probe::{Effort, Probe};

const EXAMPLES: &str = "\
Examples:
  strata devices
  strata devices --save machine.toml       then: strata plan -m model.gguf --machine machine.toml
  strata devices --json | jq .host.ram_available.bytes

A machine file can be changed by hand: plan for a PC that you only think of buying.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DevicesArgs {
    /// Write a machine file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Measure the disk on which this model file lies, too, and how fast the CPU multiplies its formats
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn devices(args: &DevicesArgs) -> Result<(), CliError> {
    // Any file names its disk; a model has formats.
    let files = args.model.as_deref().and_then(|path| ModelFiles::open(path).ok());
    let formats = files.map_or_else(Vec::new, |files| matrix_formats(&ModelHeader::from(&files)));
    let probed = Probe::new(Effort::Measure).with_file(args.model.as_deref()).with_formats(formats).look();
    probed.notes.iter().for_each(note);
    if let Some(path) = &args.save {
        let text = probed.machine.to_toml().map_err(|e| CliError::Failed(e.to_string()))?;
        write_whole(path, &text)?;
        note(format!("saved in '{}'", path.display()));
    }
    let mut out = Output::new();
    if args.json {
        return out.json(&probed.report());
    }
    out.write(&probed.render())?;
    out.flush()
}
