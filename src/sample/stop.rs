//! Stop strings in streamed text.

use super::SampleError;
use crate::tokenizer::partial_suffix;

/// What came of a piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that is safe to show.
    pub text: String,
    /// The stop string that was found, by its index; generation ends here.
    pub stopped: Option<usize>,
}

/// Finds stop strings wherever they fall between tokens. Shows text at once, except for an end that may be the
/// beginning of a stop string. The stop string itself is never shown.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    pub fn new(stops: Vec<String>) -> Result<Self, SampleError> {
        match stops.iter().any(String::is_empty) {
            true => Err(SampleError::EmptyStop),
            false => Ok(Self { stops, held: String::new(), stopped: None }),
        }
    }

    /// Takes more text. After a stop everything is swallowed.
    pub fn push(&mut self, text: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped: self.stopped };
        }
        self.held.push_str(text);
        // The earliest one wins, the first listed of those that begin at the same place.
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| Some((self.held.find(stop.as_str())?, index))).min();
        if let Some((at, index)) = found {
            self.stopped = Some(index);
            self.held.truncate(at);
            return StopOutcome { text: std::mem::take(&mut self.held), stopped: self.stopped };
        }
        let keep = self.stops.iter().map(|stop| partial_suffix(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopOutcome { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// Ends the text: what was held back did not become a stop string.
    pub fn finish(self) -> String {
        if self.stopped.is_some() { String::new() } else { self.held }
    }
}
