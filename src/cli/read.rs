//! Text that users hand in, from files and pipes: bounded, and UTF-8. A device without end is an error, not a full memory.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use super::error::CliError;
use crate::units::HumanBytes;

/// Settings: machine files, lists of keys.
pub const MOST_SETTINGS_BYTES: u64 = 1 << 20;
/// Prompts, conversations, lists of tokens, model sheets: more than any model reads.
pub const MOST_TEXT_BYTES: u64 = 256 << 20;

const STDIN: &str = "standard input";

/// A file of at most `most_bytes`.
pub fn read_file(path: &Path, most_bytes: u64) -> Result<String, CliError> {
    let file = File::open(path).map_err(|e| CliError::io("read", path, e))?;
    read_text(file, &path.display().to_string(), most_bytes)
}

/// A file of at most `most_bytes` that need not be text.
pub fn read_bytes(path: &Path, most_bytes: u64) -> Result<Vec<u8>, CliError> {
    let file = File::open(path).map_err(|e| CliError::io("read", path, e))?;
    read_limited(file, &path.display().to_string(), most_bytes)
}

/// Everything on standard input.
pub fn read_stdin() -> Result<String, CliError> {
    read_text(io::stdin().lock(), STDIN, MOST_TEXT_BYTES)
}

fn read_text(from: impl Read, name: &str, most_bytes: u64) -> Result<String, CliError> {
    as_text(read_limited(from, name, most_bytes)?, name)
}

fn read_limited(from: impl Read, name: &str, most_bytes: u64) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    from.take(most_bytes + 1).read_to_end(&mut bytes).map_err(|e| CliError::io("read", name, e))?;
    if bytes.len() as u64 > most_bytes {
        return Err(too_long(name, most_bytes));
    }
    Ok(bytes)
}

/// The next line with its end, appended to `text`; false at the end of the input.
pub fn read_line(from: &mut impl BufRead, text: &mut String) -> Result<bool, CliError> {
    let mut bytes = Vec::new();
    let left = MOST_TEXT_BYTES.saturating_sub(text.len() as u64);
    from.take(left + 1).read_until(b'\n', &mut bytes).map_err(|e| CliError::io("read", STDIN, e))?;
    if bytes.len() as u64 > left {
        return Err(too_long(STDIN, MOST_TEXT_BYTES));
    }
    text.push_str(&as_text(bytes, STDIN)?);
    Ok(!text.is_empty())
}

fn as_text(bytes: Vec<u8>, name: &str) -> Result<String, CliError> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        CliError::in_file(name, format!("it is not UTF-8 text: byte {at} begins no character"))
    })
}

fn too_long(name: &str, most_bytes: u64) -> CliError {
    CliError::in_file(name, format!("it is longer than {}, the most that is read", HumanBytes(most_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_without_end_are_errors() {
        let told = read_text(io::repeat(b'x'), "a device", 1000).unwrap_err().to_string();
        assert!(told.contains("a device") && told.contains("1000 B"), "{told}");
        assert_eq!(read_text(&b"fine"[..], "a file", 4).unwrap(), "fine");
    }

    #[test]
    fn what_is_no_text_is_told_with_its_place() {
        let told = read_text(&b"ab\xff"[..], "a file", 100).unwrap_err().to_string();
        assert!(told.contains("UTF-8") && told.contains("byte 2"), "{told}");
        let mut text = String::new();
        assert!(read_line(&mut &b"ok\nmore"[..], &mut text).unwrap());
        assert_eq!(text, "ok\n");
        assert!(read_line(&mut &b"\xfe\n"[..], &mut text).is_err());
    }
}
