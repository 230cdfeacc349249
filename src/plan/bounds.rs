//! What a machine file may say. Sizes, rates and counts are inside what any PC has, so that no sum overflows and every predicted
//! speed is a number; texts are of one line, so that no file can forge a report.

use super::machine::{MachineError, invalid};
use super::size::{MAX_SIZE_BYTES, Size};

/// More than any PC has.
pub const MAX_CORES: u32 = 1 << 16;

/// GB/s, TFLOP/s, reads a second: from a thousandth of the slowest to more than the fastest of any of them.
const LEAST_RATE: f64 = 1e-3;
const MOST_RATE: f64 = 1e9;

const LONGEST_TEXT: usize = 256;

/// Names of pools begin rows as names of cards do; `auto` is no card.
const TAKEN_IDS: [&str; 5] = ["auto", "ram", "pinned", "commit", "disk"];

pub fn sizes(what: &str, sizes: &[(&str, Option<Size>)]) -> Result<(), MachineError> {
    match sizes.iter().find(|(_, size)| size.is_some_and(|size| size.0 > MAX_SIZE_BYTES)) {
        Some((key, _)) => invalid(&format!("{what}.{key}"), "is more than 1024 TiB, which no PC has"),
        None => Ok(()),
    }
}

pub fn rates(what: &str, rates: &[Option<f64>]) -> Result<(), MachineError> {
    match rates.iter().flatten().find(|rate| !is_usable_rate(**rate)) {
        Some(rate) => invalid(what, &format!("has a rate of {rate:e}, outside {LEAST_RATE} to {MOST_RATE:e}")),
        None => Ok(()),
    }
}

/// Whether a measured or stated rate is one that a PC can have.
pub fn is_usable_rate(rate: f64) -> bool {
    (LEAST_RATE..=MOST_RATE).contains(&rate)
}

/// Text of one line.
pub fn text(what: &str, text: &str) -> Result<(), MachineError> {
    if text.chars().any(is_control) {
        return invalid(what, &format!("has control characters: {text:?}"));
    }
    if text.chars().count() > LONGEST_TEXT { invalid(what, "has a text of more than 256 characters") } else { Ok(()) }
}

/// What `--device` and the names of rows can tell apart.
pub fn id(id: &str) -> Result<(), MachineError> {
    text("the id of a card", id)?;
    let readable = !id.is_empty() && !id.chars().any(|c| c.is_whitespace() || c == ',' || c == '/');
    if readable && !TAKEN_IDS.contains(&id) {
        return Ok(());
    }
    invalid("the id of a card", &format!("cannot be {id:?}: write a word such as cuda:0"))
}

/// Control characters, and those that turn the direction of writing or break lines.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text on one line of a length that reports have room for.
pub fn one_line(text: &str) -> String {
    harmless(text).replace('\n', "\u{fffd}").chars().take(LONGEST_TEXT).collect()
}

/// The text without what could move the cursor or forge lines; line breaks stay.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c != '\n' && is_control(c) { '\u{fffd}' } else { c }).collect()
}
