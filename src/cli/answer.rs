//! An answer on its way to the user: thinking to standard error, the rest to standard output.

use super::error::CliError;
use super::output::{Output, note_part, stderr_is_terminal};
use super::text::Form;
use crate::engine::{Engine, Finish, GenerateError, Generation, Progress};
use crate::state::Sequence;
use crate::tokenizer::{Part, ThinkSplitter};

/// What the user sees while an answer arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    Stream,
    Nothing,
}

pub fn generate_error(error: GenerateError) -> CliError {
    match error {
        GenerateError::Engine(error) => error.into(),
        GenerateError::EmptyPrompt => CliError::Usage(error.to_string()),
        other => CliError::Failed(other.to_string()),
    }
}

pub struct Answer {
    splitter: Option<ThinkSplitter>,
    /// Blanks before the answer belong to the form of the prompt.
    trims: bool,
    show: Show,
    out: Output,
    pub text: String,
    pub thinking: String,
}

impl Answer {
    pub fn new(form: &Form, show: Show) -> Answer {
        let (splitter, trims) = match form {
            Form::Chat(splitter) => (Some(splitter.clone()), false),
            Form::Dialogue => (None, true),
            Form::Raw => (None, false),
        };
        Answer { splitter, trims, show, out: Output::new(), text: String::new(), thinking: String::new() }
    }

    /// Pulls the generation to its end.
    pub fn generate(
        &mut self,
        generation: &mut Generation<'_>,
        engine: &mut Engine,
        sequence: &mut Sequence,
    ) -> Result<Finish, CliError> {
        let finish = loop {
            match generation.step(engine, sequence).map_err(generate_error)? {
                Progress::Prompt { .. } | Progress::Picture { .. } => {}
                Progress::Token { text, .. } => {
                    let parts = self.split(text);
                    self.take(parts)?;
                }
                Progress::End { finish, text } => {
                    let parts = self.split(text);
                    self.take(parts)?;
                    if let Some(splitter) = self.splitter.take() {
                        self.take(splitter.finish())?;
                    }
                    break finish;
                }
            }
        };
        if self.show == Show::Stream && !self.text.ends_with('\n') {
            self.out.stream("\n")?;
        }
        Ok(finish)
    }

    fn split(&mut self, text: String) -> Vec<Part> {
        match &mut self.splitter {
            Some(splitter) => splitter.push(&text),
            None if self.trims && self.text.is_empty() => vec![Part::Answer(text.trim_start().to_owned())],
            None => vec![Part::Answer(text)],
        }
    }

    fn take(&mut self, parts: Vec<Part>) -> Result<(), CliError> {
        for part in parts {
            match part {
                Part::Reasoning(text) => {
                    if self.show == Show::Stream {
                        note_part(&dim(&text));
                    }
                    self.thinking.push_str(&text);
                }
                Part::Answer(text) => {
                    if self.show == Show::Stream {
                        if self.text.is_empty() && !self.thinking.is_empty() {
                            note_part("\n\n");
                        }
                        self.out.stream(&text)?;
                    }
                    self.text.push_str(&text);
                }
            }
        }
        Ok(())
    }
}

/// Thinking stands back on a terminal.
fn dim(text: &str) -> String {
    if stderr_is_terminal() { format!("\u{1b}[2m{text}\u{1b}[0m") } else { text.to_owned() }
}
