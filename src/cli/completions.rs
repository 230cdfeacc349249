//! `strata completions`: a script that teaches a shell our verbs and flags.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::error::CliError;
use super::output::Output;

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell to write for
    shell: Shell,
}

pub fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "strata", &mut script);
    let mut out = Output::new();
    out.write(&String::from_utf8_lossy(&script))?;
    out.flush()
}
