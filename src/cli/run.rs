//! `strata run`: one prompt, one answer.

use std::io::{self, IsTerminal};
use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::answer::{Answer, Show, generate_error};
use super::args::{ComputeArgs, ContextArgs, ModelArgs, SamplingArgs, TemplateArgs};
use super::error::CliError;
use super::interrupt::Interrupt;
use super::open::{Loaded, OpenModel, Opening, Stopping};
use super::output::{Output, note};
use super::pictures::{PictureArgs, prepare, show};
use super::read::read_stdin;
use super::report::Report;
use super::text::{Chat, Form, Prompt, first_messages, open_tokenizer, raw_prompt};
use super::trace::{keep_trace, trace_file};
use crate::engine::{Finish, GenerateOptions, Generation};
use crate::plan::DEFAULT_VISION_TOKENS;
use crate::tokenizer::{ShowSpecial, Tokenizer};

const EXAMPLES: &str = "\
Examples:
  strata run \"What is the capital of France?\"
  strata run -m model.gguf --temp 0 -n 100 \"Explain rust to a cat\"
  cat notes.txt | strata run -m model.gguf --system \"Summarise in one sentence\"
  strata run -m model.gguf --raw \"Once upon a time\" --stop \"The end\"
  strata run -m model.gguf --json \"Name a colour\" | jq .text
  strata run -m model.gguf --vision-file mmproj.gguf --picture cat.jpg \"What is this?\"

The answer goes to standard output, thinking and the summary to standard error.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt; '-' or nothing reads it from standard input
    #[arg(value_name = "PROMPT")]
    words: Vec<String>,
    /// The prompt, as llama.cpp names it
    #[arg(short, long, value_name = "TEXT", conflicts_with = "words")]
    prompt: Option<String>,
    /// Continue the text as it is, without the chat template
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    pictures: PictureArgs,
    #[command(flatten)]
    template: TemplateArgs,
    /// One JSON object at the end instead of text
    #[arg(long)]
    json: bool,
    /// Show the prompt as the model sees it
    #[arg(long)]
    verbose_prompt: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct JsonAnswer<'a> {
    model: &'a str,
    file: String,
    text: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    tokens: Vec<u32>,
    finish: &'static str,
    seed: u64,
    report: Report,
}

pub fn run(args: &RunArgs) -> Result<(), CliError> {
    answer(args, None)
}

/// Answers the prompt, and keeps what the router chose in the file `trace`.
pub fn answer(args: &RunArgs, trace: Option<&Path>) -> Result<(), CliError> {
    let text = read_prompt(args)?;
    let pixels = args.pictures.read(&args.compute)?;
    let opened = OpenModel::open(&args.model)?;
    opened.must_write_text()?;
    let tokenizer = open_tokenizer(&opened.files)?;
    let (mut prompt, stops) = make_prompt(args, &opened, &tokenizer, &text)?;
    let interrupt = Interrupt::install()?;
    let most = args.sampling.max_tokens();
    // A new answer should have room even where the prompt alone fills the usual context.
    let most_seen = args.compute.wishes.vision_tokens.unwrap_or(DEFAULT_VISION_TOKENS) as usize;
    let seen = pixels.len().saturating_mul(most_seen);
    let needed = prompt.tokens.len().saturating_add(seen).saturating_add(most.unwrap_or(USUAL_ANSWER_TOKENS));
    let context = opened.context(args.context.ctx_size, needed, USUAL_CONTEXT_TOKENS);
    check_room(&opened, prompt.tokens.len(), context)?;
    let trace = trace.map(|path| trace_file(&opened.files, path)).transpose()?;
    let opening = Opening { record: trace.is_some(), ..Opening::new(context, &args.compute, Stopping::AtOnce) };
    let mut loaded = opened.load(&args.compute, opening, &interrupt)?;
    let pictures = pixels.iter().map(|pixels| prepare(&loaded.engine, pixels)).collect::<Result<Vec<_>, _>>()?;
    prompt.place(&tokenizer, &pictures)?;
    check_room(&opened, prompt.tokens.len(), context)?;
    if args.verbose_prompt {
        note(format!("{}\n({} tokens)", prompt.text, prompt.tokens.len()));
    }
    let mut answer = Answer::new(&prompt.form, if args.json { Show::Nothing } else { Show::Stream });
    let mut generation = start(args, &loaded, &tokenizer, (prompt, stops), &interrupt)?;
    let mut sequence = loaded.engine.start()?;
    let finish = answer.generate(&mut generation, &mut loaded.engine, &mut sequence)?;
    let report = Report::new(&loaded, &generation.stats());
    if let Some(file) = trace {
        keep_trace(&mut loaded, &generation.stats(), file)?;
    }
    let stopped = finish == Finish::Interrupted;
    if args.json {
        Output::new().json(&JsonAnswer {
            model: &opened.model.name,
            file: opened.files.name(),
            text: &answer.text,
            thinking: &answer.thinking,
            tokens: generation.generated().iter().map(|t| t.0).collect(),
            finish: finish.name(),
            seed: generation.seed(),
            report,
        })?;
    } else {
        match finish {
            Finish::ContextFull => note("note: the context is full; a larger --ctx-size holds a longer answer"),
            Finish::Interrupted => note("interrupted"),
            Finish::EndToken(_) | Finish::StopText(_) | Finish::MaxTokens => {}
        }
        note(report.line());
        if let Some(tiers) = &report.tiers {
            note(tiers.line());
        }
    }
    if stopped { Err(CliError::Interrupted { told: true }) } else { Ok(()) }
}

fn check_room(opened: &OpenModel, tokens: usize, context: u32) -> Result<(), CliError> {
    if tokens <= context as usize {
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "the prompt has {tokens} tokens and the context holds {context}; give a larger --ctx-size (the model was trained for {})",
        opened.model.dims().context,
    )))
}

/// Without `-n` and `--ctx-size`, room for an answer of this length.
const USUAL_ANSWER_TOKENS: usize = 2048;
const USUAL_CONTEXT_TOKENS: u32 = 4096;

fn read_prompt(args: &RunArgs) -> Result<String, CliError> {
    let words = args.prompt.clone().or_else(|| (!args.words.is_empty()).then(|| args.words.join(" ")));
    let text = match words {
        Some(text) if text != "-" => text,
        None if io::stdin().is_terminal() => {
            return Err(CliError::Usage("no prompt; write one after the flags, in quotes: strata run \"...\"".into()));
        }
        _ => {
            let text = read_stdin()?;
            // The line end that a shell's echo adds belongs to nobody.
            text.strip_suffix('\n').map(str::to_owned).unwrap_or(text)
        }
    };
    if text.is_empty() && !args.raw {
        return Err(CliError::Usage("the prompt is empty".into()));
    }
    Ok(text)
}

/// The prompt, and the texts that end its answer besides those the user named.
fn make_prompt(args: &RunArgs, opened: &OpenModel, tokenizer: &Tokenizer, text: &str) -> Result<(Prompt, Vec<String>), CliError> {
    if args.raw {
        if args.template.system.is_some() {
            return Err(CliError::Usage("--system needs the chat template, which --raw leaves out".into()));
        }
        if !args.pictures.is_empty() {
            return Err(CliError::Usage("--picture needs the chat template, which --raw leaves out".into()));
        }
        return Ok((raw_prompt(tokenizer, text)?, Vec::new()));
    }
    let chat = Chat::open(&opened.files, tokenizer)?;
    let prompt = chat.prompt(tokenizer, &first_messages(&args.template, args.pictures.len(), text), args.template.thinking())?;
    Ok((prompt, chat.stops()))
}

fn start<'a>(
    args: &RunArgs,
    loaded: &Loaded,
    tokenizer: &'a Tokenizer,
    (prompt, stops): (Prompt, Vec<String>),
    interrupt: &Interrupt,
) -> Result<Generation<'a>, CliError> {
    let options = GenerateOptions {
        max_tokens: args.sampling.max_tokens(),
        stop: args.sampling.reverse_prompt.iter().cloned().chain(stops).collect(),
        ignore_eos: args.sampling.ignore_eos,
        show: if matches!(prompt.form, Form::Raw) { ShowSpecial::Yes } else { ShowSpecial::ExceptEog },
        interrupt: interrupt.flag(),
        ..GenerateOptions::default()
    };
    let tokens = prompt.tokens.clone();
    let generation = Generation::new(tokenizer, loaded.engine.dims(), args.sampling.params(), tokens, options);
    let mut generation = generation.map_err(generate_error)?;
    show(&mut generation, &loaded.engine, &prompt)?;
    Ok(generation)
}
