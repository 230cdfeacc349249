//! What can go wrong at the edge, and the exit code that tells a script about it.

use std::io;
use std::path::Path;

use thiserror::Error;

use crate::engine::EngineError;
use crate::gguf::GgufError;
use crate::launch::LaunchError;
use crate::model::ModelError;

/// Exit codes, as `strata --help` lists them.
pub mod exit {
    pub const OK: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const REFUSED: u8 = 3;
    pub const INTERRUPTED: u8 = 130;
}

/// An error as the command line reports it: what failed, on what, what to do.
#[derive(Debug, Error)]
pub enum CliError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("'{file}' cannot be run: {source}")]
    Model { file: String, source: ModelError },
    #[error("'{file}': {problem}")]
    File { file: String, problem: String },
    #[error(transparent)]
    Engine(EngineError),
    #[error(transparent)]
    Launch(LaunchError),
    /// The arguments contradict each other or the model. A user who reads `--help` can mend them.
    #[error("{0}")]
    Usage(String),
    /// The model does not fit the machine; the reasons are on standard output.
    #[error("it does not fit")]
    RefusedAndTold,
    /// The arguments contradict the model or the machine; the reasons are on standard output.
    #[error("the arguments are wrong")]
    WrongAndTold,
    #[error("{0}")]
    Failed(String),
    #[error("cannot {action} '{path}': {source}")]
    Io { action: &'static str, path: String, source: io::Error },
    /// `told` if the user has been told already.
    #[error("interrupted")]
    Interrupted { told: bool },
    /// Whoever read our standard output has gone. Not an error: `strata ... | head` is fine.
    #[error("standard output was closed")]
    OutputClosed,
}

impl CliError {
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> CliError {
        CliError::Io { action, path: path.as_ref().display().to_string(), source }
    }

    /// An error of something found inside a model file.
    pub fn in_file(file: &str, problem: impl std::fmt::Display) -> CliError {
        CliError::File { file: file.to_owned(), problem: problem.to_string() }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::OutputClosed => exit::OK,
            CliError::Usage(_) => exit::USAGE,
            CliError::WrongAndTold => exit::USAGE,
            CliError::Launch(error) if error.is_usage() => exit::USAGE,
            CliError::RefusedAndTold => exit::REFUSED,
            CliError::Launch(error) if error.is_refusal() => exit::REFUSED,
            CliError::Interrupted { .. } => exit::INTERRUPTED,
            CliError::Gguf(_)
            | CliError::Model { .. }
            | CliError::File { .. }
            | CliError::Engine(_)
            | CliError::Launch(_)
            | CliError::Failed(_)
            | CliError::Io { .. } => exit::ERROR,
        }
    }

    /// Whether a line on standard error is due.
    pub fn is_silent(&self) -> bool {
        matches!(
            self,
            CliError::OutputClosed | CliError::RefusedAndTold | CliError::WrongAndTold | CliError::Interrupted { told: true }
        )
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> CliError {
        if error.is_interruption() { CliError::Interrupted { told: false } } else { CliError::Engine(error) }
    }
}
