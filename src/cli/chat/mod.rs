//! `strata chat`: a conversation. What the model has read stays in its state, so only what is new is read each turn.

mod commands;
mod input;
mod session;
mod settings;

use clap::Args;

use self::commands::{Command, help};
use self::input::{Input, Line};
use self::session::Session;
use super::args::{ComputeArgs, ContextArgs, ModelArgs, SamplingArgs, TemplateArgs};
use super::error::CliError;
use super::interrupt::Interrupt;
use super::open::{Keeps, OpenModel, Opening, Stopping};
use super::output::note;
use super::pictures::PictureArgs;
use super::text::{Chat, open_tokenizer};

const EXAMPLES: &str = "\
Examples:
  strata chat
  strata chat -m model.gguf --system \"You are a patient teacher\" -c 16384
  strata chat -m model.gguf --vision-file mmproj.gguf --picture cat.jpg
  printf 'Hello\\nAnd in French?\\n' | strata chat -m model.gguf      one turn a line

In the conversation: /help lists the commands, a line that ends in \\ goes on in the next, text between \"\"\" may have many
lines, ctrl-C stops an answer, ctrl-D ends.";

/// Without `--ctx-size` a conversation has room for this many tokens, or for as many as the model was trained for.
const USUAL_CONTEXT_TOKENS: u32 = 8192;

/// Places in the conversation that one can go back to without reading it again.
const CHECKPOINTS: u32 = 4;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    pictures: PictureArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn chat(args: &ChatArgs) -> Result<(), CliError> {
    let pixels = args.pictures.read(&args.compute)?;
    let opened = OpenModel::open(&args.model)?;
    opened.must_write_text()?;
    let tokenizer = open_tokenizer(&opened.files)?;
    let chat = Chat::open(&opened.files, &tokenizer)?;
    let interrupt = Interrupt::install()?;
    let context = opened.context(args.context.ctx_size, 0, USUAL_CONTEXT_TOKENS);
    let keeps = Keeps { checkpoints: CHECKPOINTS, ..Keeps::default() };
    // An answer that is stopped must not cost what was read before it.
    let opening = Opening { keeps, ..Opening::new(context, &args.compute, Stopping::BetweenWindows) };
    let loaded = opened.load(&args.compute, opening, &interrupt)?;
    let mut session = Session::new(&tokenizer, &chat, loaded, &interrupt, args)?;
    pixels.iter().try_for_each(|pixels| session.attach(pixels))?;
    let mut input = Input::open()?;
    if input.is_interactive() {
        note(format!(
            "{} - context of {context} tokens. /help lists the commands, ctrl-C stops an answer, ctrl-D ends.",
            opened.model.name
        ));
    }
    loop {
        interrupt.reset();
        let line = match input.read(&interrupt)? {
            Line::Text(line) => line,
            Line::Cancelled => continue,
            Line::End => return Ok(()),
        };
        if line.trim().is_empty() {
            continue;
        }
        let result = match Command::parse(&line) {
            None => session.ask(&line),
            Some(Ok(Command::Quit)) => return Ok(()),
            Some(Ok(Command::Help)) => {
                note(help());
                Ok(())
            }
            Some(Ok(command)) => session.command(command),
            Some(Err(problem)) => Err(CliError::Usage(problem)),
        };
        match result {
            // A person can try again; a script should know.
            Err(error) if input.is_interactive() && !matches!(error, CliError::OutputClosed) => note(format!("error: {error}")),
            Err(error) => return Err(error),
            Ok(()) if interrupt.is_set() && !input.is_interactive() => return Err(CliError::Interrupted { told: true }),
            Ok(()) => {}
        }
    }
}
