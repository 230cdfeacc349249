//! `strata devices`: what this PC has, and machine files of it.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::npy::write_whole;
use super::output::{Output, note};
use crate::probe::{Effort, probe};

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
    /// JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn devices(args: &DevicesArgs) -> Result<(), CliError> {
    let probed = probe(Effort::Measure);
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
