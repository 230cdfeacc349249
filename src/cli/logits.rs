//! `strata logits`: every token's score at every position, in a file that any tool can read. The instrument with which
//! engines are compared.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};

use super::args::{ComputeArgs, ModelArgs};
use super::error::CliError;
use super::interrupt::Interrupt;
use super::npy::{NpyMatrix, not_the_model};
use super::open::{Loaded, OpenModel, Opening, Stopping};
use super::output::note;
use super::report::{arithmetic, short};
use super::text::{open_tokenizer, raw_prompt};
use super::tokens::{parse_tokens, read_tokens};
use crate::engine::Want;
use crate::program::Element;
use crate::schedule::{TraceStep, Watch};
use crate::state::Sequence;
use crate::units::{HumanBytes, TokenId};

const EXAMPLES: &str = "\
Examples:
  strata logits -m model.gguf --tokens 1,2,3 -o logits.npy
  strata logits -m model.gguf --tokens-file ids.txt --reference -o reference.npy
  strata logits -m model.gguf --text \"The capital of France is\" --step -o steps.npy
  strata logits -m model.gguf --tokens 1,2,3 --dump tensors/ -o logits.npy

The file holds float32 [positions, vocabulary]; numpy.load reads it. With --dump every step of the program leaves what it
wrote as FOLDER/wWINDOW.STEP.NAME.BUFFER.npy, float32 [rows, width]; 'strata inspect --program' lists the steps.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("input").required(true))]
pub struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The tokens to read, as numbers
    #[arg(long, value_name = "1,2,3", group = "input")]
    tokens: Option<String>,
    /// A file of such numbers (commas, blanks or lines between them, or a JSON list)
    #[arg(long, value_name = "FILE", group = "input")]
    tokens_file: Option<PathBuf>,
    /// A text to read, without the chat template; special tokens in it count as such
    #[arg(long, value_name = "TEXT", group = "input")]
    text: Option<String>,
    /// Where to write the scores
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// Feed one token at a time, as in decoding
    #[arg(long, conflicts_with_all = ["chunk", "ubatch_size"])]
    step: bool,
    /// Feed this many tokens at a time; the same as --ubatch-size [default: 64]
    #[arg(long, value_name = "N", conflicts_with = "ubatch_size", value_parser = clap::value_parser!(u32).range(1..=65536))]
    chunk: Option<u32>,
    /// Run step by step and write every intermediate tensor into this folder (slow and large)
    #[arg(long, value_name = "FOLDER")]
    dump: Option<PathBuf>,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// All scores of a window are kept at once, so it is smaller than what reads a prompt.
const USUAL_CHUNK_TOKENS: u32 = 64;

pub fn logits(args: &LogitsArgs) -> Result<(), CliError> {
    let opened = OpenModel::open(&args.model)?;
    opened.must_write_text()?;
    let tokens = input_tokens(args, &opened)?;
    let vocab = opened.model.dims().vocab;
    if let Some((at, token)) = tokens.iter().enumerate().find(|(_, t)| t.0 >= vocab) {
        return Err(CliError::Usage(format!("token {token} at position {at} is not in the vocabulary of {vocab} tokens")));
    }
    let interrupt = Interrupt::install()?;
    let chunk = if args.step { 1 } else { args.chunk.or(args.compute.ubatch_size.0).unwrap_or(USUAL_CHUNK_TOKENS) };
    let rows = chunk.min(tokens.len() as u32);
    let context = opened.context_of_all(tokens.len())?;
    not_the_model(&opened.files, &args.output)?;
    // Found out before a large model is loaded. The folder first: the output may lie in it.
    let mut dump = args.dump.as_deref().map(Dump::create).transpose()?;
    let mut file = NpyMatrix::create::<f32>(&args.output, tokens.len() as u64, vocab as usize)?;
    let opening = Opening { prefill: Some(rows), max_outputs: rows, ..Opening::new(context, &args.compute, Stopping::AtOnce) };
    let mut loaded = opened.load(&args.compute, opening, &interrupt)?;
    let mut sequence = loaded.engine.start()?;
    let start = std::time::Instant::now();
    for window in tokens.chunks(rows as usize) {
        feed(&mut loaded, &mut sequence, window, &mut file, dump.as_mut())?;
        if interrupt.is_set() {
            return Err(CliError::Interrupted { told: false });
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    file.finish()?;
    note(format!(
        "{} positions of {vocab} tokens, {} at a time, {} tok/s ({}); {} in '{}'",
        tokens.len(),
        rows,
        short(tokens.len() as f64 / seconds.max(1e-9)),
        arithmetic(&loaded),
        HumanBytes(tokens.len() as u64 * u64::from(vocab) * 4),
        args.output.display(),
    ));
    Ok(())
}

fn input_tokens(args: &LogitsArgs, opened: &OpenModel) -> Result<Vec<TokenId>, CliError> {
    if let Some(list) = &args.tokens {
        return parse_tokens("--tokens", list);
    }
    if let Some(path) = &args.tokens_file {
        return read_tokens(path);
    }
    let tokenizer = open_tokenizer(&opened.files)?;
    let prompt = raw_prompt(&tokenizer, args.text.as_deref().unwrap_or_default())?;
    if prompt.tokens.is_empty() {
        return Err(CliError::Usage("--text is empty".into()));
    }
    Ok(prompt.tokens)
}

/// Computes one window and writes its rows.
fn feed(
    loaded: &mut Loaded,
    sequence: &mut Sequence,
    window: &[TokenId],
    file: &mut NpyMatrix,
    dump: Option<&mut Dump>,
) -> Result<(), CliError> {
    let mut written = Ok(());
    let mut see = |_: usize, row: &mut [f32]| {
        if written.is_ok() {
            written = file.push::<f32>(row);
        }
    };
    match dump {
        None => loaded.engine.feed(sequence, window, Want::All, &mut see)?,
        Some(dump) => {
            dump.window += 1;
            let mut failed = Ok(());
            let mut watch = |step: &TraceStep<'_>| {
                if failed.is_ok() {
                    failed = dump.write(step);
                }
            };
            let watch: &mut Watch<'_> = &mut watch;
            loaded.engine.feed_watched(sequence, window, Want::All, &mut see, Some(watch))?;
            failed?;
        }
    }
    written
}

/// A folder that receives what every step wrote.
struct Dump {
    folder: PathBuf,
    window: usize,
}

impl Dump {
    fn create(folder: &Path) -> Result<Dump, CliError> {
        std::fs::create_dir_all(folder).map_err(|e| CliError::io("make the folder", folder, e))?;
        Ok(Dump { folder: folder.to_owned(), window: 0 })
    }

    fn write(&self, step: &TraceStep<'_>) -> Result<(), CliError> {
        let buffer = step.program.buffer(step.buffer);
        let width = buffer.width.max(1) as usize;
        let name = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.', "-");
        let step_name = step.program.steps.get(step.step).map_or("", |s| s.name.as_str());
        let suffix = if buffer.element == Element::U32 { ".ids" } else { "" };
        let file = format!("w{:04}.{:04}.{}.{}{suffix}.npy", self.window - 1, step.step, name(step_name), name(&buffer.name));
        let mut npy = NpyMatrix::create::<f32>(&self.folder.join(file), (step.values.len() / width) as u64, width)?;
        npy.push::<f32>(step.values)?;
        npy.finish()
    }
}
