//! Pictures that go with a prompt.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::args::ComputeArgs;
use super::error::CliError;
use super::read::read_bytes;
use super::text::Prompt;
use crate::engine::{Engine, Generation};
use crate::picture::{Patches, Pixels, decode};

/// More than any camera writes.
const MOST_PICTURE_BYTES: u64 = 256 << 20;

#[derive(Debug, Args)]
pub struct PictureArgs {
    /// A picture that goes before the prompt: PNG, JPEG, WebP or GIF; may be given several times. Needs --vision-file
    #[arg(long, value_name = "FILE")]
    picture: Vec<PathBuf>,
}

impl PictureArgs {
    pub fn is_empty(&self) -> bool {
        self.picture.is_empty()
    }

    pub fn len(&self) -> usize {
        self.picture.len()
    }

    /// Unpacks the files. What is wrong with one is found before a model is loaded.
    pub fn read(&self, compute: &ComputeArgs) -> Result<Vec<Pixels>, CliError> {
        if !self.is_empty() && compute.wishes.vision_file.is_none() {
            return Err(CliError::Usage(format!("--picture {NEEDS_EYE}")));
        }
        self.picture.iter().map(|path| read_picture(path)).collect()
    }
}

const NEEDS_EYE: &str = "needs the model's vision encoder: give its file (mmproj-....gguf) with --vision-file";

pub fn read_picture(path: &Path) -> Result<Pixels, CliError> {
    let bytes = read_bytes(path, MOST_PICTURE_BYTES)?;
    decode(&bytes).map_err(|error| CliError::in_file(&path.display().to_string(), error))
}

/// A picture as the open model reads it.
pub fn prepare(engine: &Engine, pixels: &Pixels) -> Result<Arc<Patches>, CliError> {
    let wanted = engine.vision().ok_or_else(|| CliError::Usage(format!("a picture {NEEDS_EYE}")))?;
    wanted.prepare(pixels).map(Arc::new).map_err(|error| CliError::Usage(error.to_string()))
}

/// Hands the prompt's pictures to its answer.
pub fn show(generation: &mut Generation<'_>, engine: &Engine, prompt: &Prompt) -> Result<(), CliError> {
    engine.check_pictures(prompt.tokens.len(), &prompt.pictures)?;
    generation.show(prompt.pictures.clone());
    Ok(())
}
