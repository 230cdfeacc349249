//! Standard output that copes with a reader who leaves, and text of files made safe for a terminal.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};

use serde::Serialize;

use super::error::CliError;

/// Standard output. Everything that is not the result itself goes to standard error.
pub struct Output {
    out: io::BufWriter<io::Stdout>,
}

impl Output {
    pub fn new() -> Output {
        Output { out: io::BufWriter::new(io::stdout()) }
    }

    /// Writes and shows at once: a piece of generated text.
    pub fn stream(&mut self, text: &str) -> Result<(), CliError> {
        self.write(text)?;
        self.flush()
    }

    pub fn write(&mut self, text: &str) -> Result<(), CliError> {
        self.out.write_all(text.as_bytes()).map_err(output_error)
    }

    pub fn line(&mut self, text: impl AsRef<str>) -> Result<(), CliError> {
        self.write(text.as_ref())?;
        self.write("\n")
    }

    /// One JSON document, indented, and a line end.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(value).map_err(|e| CliError::Failed(format!("cannot write JSON: {e}")))?;
        self.line(text)?;
        self.flush()
    }

    pub fn flush(&mut self) -> Result<(), CliError> {
        self.out.flush().map_err(output_error)
    }
}

impl Default for Output {
    fn default() -> Output {
        Output::new()
    }
}

fn output_error(error: io::Error) -> CliError {
    match error.kind() {
        ErrorKind::BrokenPipe => CliError::OutputClosed,
        _ => CliError::io("write", "standard output", error),
    }
}

/// A line on standard error. A closed one is nothing to fail over.
pub fn note(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr(), "{}", text.as_ref());
}

/// Text on standard error without a line end.
pub fn note_part(text: &str) {
    let mut err = io::stderr();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Whether standard error is a terminal that understands colours.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Text from a file with control characters shown instead of obeyed.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) { text.escape_debug().to_string().into() } else { text.into() }
}

/// Rows of cells as lines; the first column to the left, the others to the right.
pub fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let pad = |(c, cell): (usize, &String)| {
        let blanks = " ".repeat(widths[c] - cell.chars().count());
        if c == 0 { format!("{cell}{blanks}") } else { format!("{blanks}{cell}") }
    };
    rows.iter().map(|row| row.iter().enumerate().map(pad).collect::<Vec<_>>().join("  ").trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb"), "a\\u{1b}[31mb");
        assert_eq!(printable("plain ü"), "plain ü");
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "100".into()], vec!["long".into(), "7".into()]];
        assert_eq!(columns(&rows), ["a     100", "long    7"]);
    }
}
