//! Lines from the user: an editor with history on a terminal, plain lines elsewhere.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};

use super::commands::beginning_with;
use crate::cli::error::CliError;
use crate::cli::interrupt::Interrupt;
use crate::cli::output::note;
use crate::cli::read::read_line;

/// What the user typed.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Text(String),
    /// Ctrl-C: the line is thrown away.
    Cancelled,
    End,
}

pub struct Input {
    editor: Option<Box<Editor<Typing, FileHistory>>>,
}

impl Input {
    pub fn open() -> Result<Input, CliError> {
        if !io::stdin().is_terminal() {
            return Ok(Input { editor: None });
        }
        let fail = |e: ReadlineError| CliError::Failed(format!("cannot use the terminal: {e}"));
        let config = Config::builder().auto_add_history(true).history_ignore_space(true).build();
        let mut editor = Editor::with_config(config).map_err(fail)?;
        editor.set_helper(Some(Typing));
        if let Some(path) = history_file() {
            // The first time there is none.
            let _ = editor.load_history(&path);
        }
        Ok(Input { editor: Some(Box::new(editor)) })
    }

    pub fn is_interactive(&self) -> bool {
        self.editor.is_some()
    }

    /// The next message, of one or several lines.
    pub fn read(&mut self, interrupt: &Interrupt) -> Result<Line, CliError> {
        let Some(editor) = &mut self.editor else { return interrupt.while_idle(|| read_plain(&mut io::stdin().lock())) };
        match editor.readline("> ") {
            Ok(text) => {
                if let Some(path) = history_file() {
                    // A history that cannot be kept is a pity, not an error.
                    let _ = path.parent().map(std::fs::create_dir_all);
                    let _ = editor.append_history(&path);
                }
                Ok(Line::Text(joined(&text)))
            }
            Err(ReadlineError::Interrupted) => {
                note("(ctrl-D ends)");
                Ok(Line::Cancelled)
            }
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(CliError::Failed(format!("cannot read from the terminal: {error}"))),
        }
    }
}

/// Lines until the message is complete.
fn read_plain(from: &mut impl BufRead) -> Result<Line, CliError> {
    let mut text = String::new();
    loop {
        let before = text.len();
        if !read_line(from, &mut text)? {
            return Ok(Line::End);
        }
        let end = text.trim_end_matches(['\r', '\n']).len();
        if text.len() == before || is_complete(&text[..end]) {
            text.truncate(end);
            return Ok(Line::Text(joined(&text)));
        }
    }
}

const BLOCK: &str = "\"\"\"";

fn is_complete(text: &str) -> bool {
    let in_block = text.trim_start().starts_with(BLOCK) && text.matches(BLOCK).count() < 2;
    !in_block && !text.ends_with('\\')
}

/// The message without the signs that made it go on.
fn joined(text: &str) -> String {
    let trimmed = text.trim();
    let block = trimmed.strip_prefix(BLOCK).map(|rest| rest.strip_suffix(BLOCK).unwrap_or(rest));
    match block {
        Some(inside) => inside.trim_matches(['\r', '\n']).to_owned(),
        None => text.replace("\\\n", "\n").strip_suffix('\\').map_or_else(|| text.replace("\\\n", "\n"), str::to_owned),
    }
}

/// Where this system keeps a program's data, for the user alone.
fn history_file() -> Option<PathBuf> {
    let home = || std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = if cfg!(windows) {
        set("APPDATA")?
    } else if cfg!(target_os = "macos") {
        home()?.join("Library/Application Support")
    } else {
        set("XDG_DATA_HOME").or_else(|| Some(home()?.join(".local/share")))?
    };
    Some(data.join("strata").join("chat-history"))
}

/// What the editor knows of our lines: when they are complete, and the commands.
struct Typing;

impl Validator for Typing {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(context.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for Typing {
    type Candidate = String;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(..position).unwrap_or(line);
        let is_command = typed.starts_with('/') && !typed.contains(char::is_whitespace);
        Ok((0, if is_command { beginning_with(typed) } else { Vec::new() }))
    }
}

impl Hinter for Typing {
    type Hint = String;
}

impl Highlighter for Typing {}

impl Helper for Typing {}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<Line> {
        let mut from = text.as_bytes();
        let mut lines = Vec::new();
        loop {
            match read_plain(&mut from).unwrap() {
                Line::End => return lines,
                line => lines.push(line),
            }
        }
    }

    #[test]
    fn messages_may_have_several_lines() {
        let text = |t: &str| Line::Text(t.to_owned());
        assert_eq!(lines("one\ntwo\r\n"), [text("one"), text("two")]);
        assert_eq!(lines("one\\\ntwo\nthree"), [text("one\ntwo"), text("three")]);
        assert_eq!(lines("\"\"\"\na\n\nb\n\"\"\"\nc\n"), [text("a\n\nb"), text("c")]);
        assert_eq!(lines("\"\"\"open\n"), [text("open")]);
        assert_eq!(lines(""), []);
    }
}
