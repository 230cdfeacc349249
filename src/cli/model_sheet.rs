//! `strata model-sheet`: a model's metadata and tensor table in a small file, for planning without the model.

use std::path::PathBuf;

use clap::Args;

use super::args::ModelArgs;
use super::error::CliError;
use super::npy::{not_the_model, write_whole};
use super::open::open_files;
use super::output::{Output, note};
use crate::plan::{ModelHeader, write_sheet};
use crate::units::HumanBytes;

const EXAMPLES: &str = "\
Examples:
  strata model-sheet model.gguf -o model.sheet.json
  strata plan -m model.sheet.json --machine machine.toml";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ModelSheetArgs {
    /// GGUF file; of a model in several files the first
    #[arg(value_name = "FILE", required_unless_present = "model")]
    file: Option<PathBuf>,
    /// The same, as other verbs name it
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    model: Option<PathBuf>,
    /// Where to write the sheet [default: standard output]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
}

pub fn model_sheet(args: &ModelSheetArgs) -> Result<(), CliError> {
    let path = args.file.as_ref().or(args.model.as_ref());
    let files = open_files(&ModelArgs { model: path.cloned() })?;
    let text = write_sheet(&ModelHeader::from(&*files)).map_err(|e| CliError::in_file(&files.name(), e))?;
    let Some(path) = &args.output else {
        let mut out = Output::new();
        out.write(&text)?;
        return out.flush();
    };
    not_the_model(&files, path)?;
    write_whole(path, &text)?;
    let sizes = (HumanBytes(files.total_bytes()), HumanBytes(text.len() as u64));
    note(format!("{} tensors, {} of model, {} of sheet in '{}'", files.tensors().len(), sizes.0, sizes.1, path.display()));
    Ok(())
}
