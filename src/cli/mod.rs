//! The command line: one file a verb, one enum of verbs. Results go to standard output, everything else to standard error.

mod answer;
mod args;
mod bench;
mod chat;
mod completions;
mod devices;
mod error;
mod inspect;
mod interrupt;
mod logits;
mod model_sheet;
mod npy;
mod open;
mod output;
mod pictures;
mod plan;
mod read;
mod report;
mod roofs;
mod run;
mod serve;
mod text;
mod tiers;
mod tokenize;
mod tokens;
mod trace;
mod wishes;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use error::{CliError, exit};

const EXAMPLES: &str = "\
Examples:
  strata run \"What is the capital of France?\"        a question to the small built-in model
  strata run -m model.gguf \"Tell me a story\" -n 200   to your own model
  strata chat -m model.gguf                           a conversation
  strata plan -m model.gguf                           what would lie where, and what would not fit
  strata serve -m model.gguf                          for other programs and the browser
  strata inspect model.gguf                           what is in a file
  strata bench -m model.gguf                          how fast it runs here

Exit codes: 0 done, 1 error, 2 wrong arguments, 3 the model does not fit this machine, 130 interrupted.";

/// Runs very large mixture-of-experts language models on ordinary PCs
#[derive(Debug, Parser)]
#[command(name = "strata", version, propagate_version = true, after_help = EXAMPLES, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// Everything `strata` can do.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Answer one prompt
    Run(Box<run::RunArgs>),
    /// Talk with a model
    Chat(Box<chat::ChatArgs>),
    /// Show where everything would lie, and how fast it would be, before anything is loaded
    Plan(Box<plan::PlanArgs>),
    /// Show what this PC has
    Devices(devices::DevicesArgs),
    /// Write a model's metadata and tensor table, without data, for planning
    ModelSheet(model_sheet::ModelSheetArgs),
    /// Serve a model over HTTP: the OpenAI and Anthropic APIs, and a page to chat on
    Serve(Box<serve::ServeArgs>),
    /// Show what is in a model file
    Inspect(inspect::InspectArgs),
    /// Measure speed
    Bench(Box<bench::BenchArgs>),
    /// Answer one prompt, and keep which experts were chosen in a file
    Trace(Box<trace::TraceArgs>),
    /// Tell what other numbers of expert slots, or another policy, would have made of a trace
    Replay(trace::ReplayArgs),
    /// Show the tokens of a text, or the text of tokens
    Tokenize(tokenize::TokenizeArgs),
    /// Write the scores of every token at every position to a file, for comparing engines
    Logits(Box<logits::LogitsArgs>),
    /// Write a script that completes our commands in a shell
    Completions(completions::CompletionsArgs),
}

impl Verb {
    fn run(&self) -> Result<(), CliError> {
        match self {
            Verb::Run(args) => run::run(args),
            Verb::Chat(args) => chat::chat(args),
            Verb::Plan(args) => plan::plan(args),
            Verb::Devices(args) => devices::devices(args),
            Verb::ModelSheet(args) => model_sheet::model_sheet(args),
            Verb::Serve(args) => serve::serve(args),
            Verb::Inspect(args) => inspect::inspect(args),
            Verb::Bench(args) => bench::bench(args),
            Verb::Trace(args) => trace::trace(args),
            Verb::Replay(args) => trace::replay_trace(args),
            Verb::Tokenize(args) => tokenize::tokenize(args),
            Verb::Logits(args) => logits::logits(args),
            Verb::Completions(args) => completions::completions(args),
        }
    }
}

/// Numbers below zero are values, also of flags that do not take them: the error then says what is wrong with the value.
fn parse(args: impl Iterator<Item = std::ffi::OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command().mut_subcommands(|verb| verb.allow_negative_numbers(true));
    let matches = command.try_get_matches_from_mut(args::expand_short_words(args))?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The whole program: reads the arguments, does the work, reports an error in one line.
pub fn main() -> ExitCode {
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are such "errors" too; a closed output is none.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    match cli.verb.run() {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            match error {
                _ if error.is_silent() => {}
                CliError::Interrupted { .. } => output::note("interrupted"),
                _ => output::note(format!("error: {error}")),
            }
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
