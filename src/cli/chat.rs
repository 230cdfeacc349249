//! `strata chat`.
use clap::Args;
use super::error::CliError;
#[derive(Debug, Args)]
pub struct ChatArgs {}
pub fn chat(_args: &ChatArgs) -> Result<(), CliError> { Ok(()) }
