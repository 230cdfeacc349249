//! Finds tool calls in an answer while it arrives. However the text is cut, the pieces joined are the same.

use std::sync::Arc;

use super::json_call::JsonCall;
use super::qwen::QwenCall;
use super::{ToolFormat, ToolSpec};
use crate::tokenizer::partial_suffix;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    /// A call begins. Calls are numbered from 0.
    Start {
        index: usize,
        name: String,
    },
    /// More of the call's arguments, a JSON object in text.
    Args {
        index: usize,
        json: String,
    },
    End {
        index: usize,
    },
}

/// What a call under way makes of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallEvent {
    Start(String),
    Args(String),
    End,
    /// This was no call: the text from its opening on is answer.
    NotACall(String),
    /// A JSON call where the other form was expected.
    IsJson,
}

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
const PYTHON_TAG: &str = "<|python_tag|>";

enum State {
    /// At the very beginning of a Llama 3 answer, or between its calls.
    LlamaStart,
    Text,
    /// Text in which no call is looked for any more.
    Plain,
    Json(JsonCall),
    Qwen(QwenCall),
    /// After a call, before what closes it.
    Closing,
}

pub struct ToolParser {
    format: ToolFormat,
    tools: Arc<Vec<ToolSpec>>,
    state: State,
    held: String,
    /// Blanks before the call under way, which are dropped if it is one.
    blanks: String,
    calls: usize,
}

impl ToolParser {
    pub fn new(format: ToolFormat, tools: Arc<Vec<ToolSpec>>) -> ToolParser {
        let state = if format == ToolFormat::Llama3 { State::LlamaStart } else { State::Text };
        ToolParser { format, tools, state, held: String::new(), blanks: String::new(), calls: 0 }
    }

    pub fn calls(&self) -> usize {
        self.calls
    }

    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// The end of the answer: an unfinished call is closed where its format allows.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let rest = std::mem::take(&mut self.held);
        let events = match &mut self.state {
            State::Json(call) => call.finish(),
            State::Qwen(call) => call.finish(&rest),
            State::Closing => Vec::new(),
            State::LlamaStart | State::Text | State::Plain => {
                // Blanks after a call belong to the format.
                let text = if self.calls > 0 { rest.trim_end() } else { rest.as_str() };
                push_text(&mut pieces, text);
                Vec::new()
            }
        };
        self.take(events, &mut pieces);
        self.state = State::Plain;
        self.held.clear();
        pieces
    }

    /// One transition; false if more text is needed.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match &mut self.state {
            State::Plain => {
                push_text(pieces, &std::mem::take(&mut self.held));
                false
            }
            State::Text => self.step_text(pieces),
            State::LlamaStart => self.step_llama(pieces),
            State::Closing => self.step_closing(),
            State::Json(call) => {
                let (used, events) = call.push(&self.held);
                self.held.drain(..used);
                self.take(events, pieces)
            }
            State::Qwen(call) => {
                let (used, events) = call.push(&self.held);
                self.held.drain(..used);
                self.take(events, pieces)
            }
        }
    }

    fn openers(&self) -> &'static [&'static str] {
        if self.format == ToolFormat::QwenXml { &[OPEN, FUNCTION] } else { &[OPEN] }
    }

    fn step_text(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let openers = self.openers();
        let found = openers.iter().filter_map(|opener| Some((self.held.find(opener)?, *opener))).min();
        if let Some((at, opener)) = found {
            let sure = self.held[..at].trim_end().len();
            self.blanks = self.held[sure..at].to_owned();
            push_text(pieces, &self.held[..sure]);
            // The tag of a function is part of the call itself.
            let skip = if opener == FUNCTION { 0 } else { opener.len() };
            self.held.drain(..at + skip);
            self.state = match self.format {
                ToolFormat::QwenXml => State::Qwen(QwenCall::new(Arc::clone(&self.tools), opener)),
                ToolFormat::Hermes | ToolFormat::Llama3 => State::Json(JsonCall::new(OPEN, None)),
            };
            return true;
        }
        let keep = openers.iter().map(|opener| partial_suffix(&self.held, opener)).max().unwrap_or(0);
        // Blanks are dropped if a call follows, so they wait too.
        let sure = self.held[..self.held.len() - keep].trim_end().len();
        let rest = self.held.split_off(sure);
        push_text(pieces, &std::mem::replace(&mut self.held, rest));
        false
    }

    fn step_llama(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let between = |c: char| c.is_whitespace() || (self.calls > 0 && c == ';');
        let begin = self.held.trim_start_matches(between);
        if begin.is_empty() || (begin.len() < PYTHON_TAG.len() && PYTHON_TAG.starts_with(begin)) {
            return false;
        }
        let skipped = self.held.len() - begin.len();
        let tag = if begin.starts_with(PYTHON_TAG) { PYTHON_TAG.len() } else { 0 };
        let body = begin[tag..].trim_start();
        if body.is_empty() && tag > 0 {
            return false;
        }
        if !body.starts_with('{') {
            if self.calls > 0 {
                self.held.drain(..skipped);
            }
            self.state = State::Plain;
            push_text(pieces, &std::mem::take(&mut self.held));
            return true;
        }
        let opening = self.held[..self.held.len() - body.len()].to_owned();
        self.held.drain(..opening.len());
        self.state = State::Json(JsonCall::new(&opening, Some(Arc::clone(&self.tools))));
        true
    }

    /// Skips to the closing tag, or to whatever stands in its place.
    fn step_closing(&mut self) -> bool {
        if self.format == ToolFormat::Llama3 {
            self.state = State::LlamaStart;
            return true;
        }
        let begin = self.held.trim_start();
        if begin.len() < CLOSE.len() && CLOSE.starts_with(begin) {
            return false;
        }
        let skip = self.held.len() - begin.len() + if begin.starts_with(CLOSE) { CLOSE.len() } else { 0 };
        self.held.drain(..skip);
        self.state = State::Text;
        true
    }

    /// Passes on what a call made of the text; true if the state has changed.
    fn take(&mut self, events: Vec<CallEvent>, pieces: &mut Vec<Piece>) -> bool {
        let mut changed = false;
        for event in events {
            match event {
                CallEvent::Start(name) => {
                    self.blanks.clear();
                    pieces.push(Piece::Start { index: self.calls, name });
                    self.calls += 1;
                }
                CallEvent::Args(json) if json.is_empty() => {}
                CallEvent::Args(json) => pieces.push(Piece::Args { index: self.calls.saturating_sub(1), json }),
                CallEvent::End => {
                    pieces.push(Piece::End { index: self.calls.saturating_sub(1) });
                    self.state = State::Closing;
                    changed = true;
                }
                CallEvent::NotACall(text) => {
                    push_text(pieces, &std::mem::take(&mut self.blanks));
                    push_text(pieces, &text);
                    self.state = if self.format == ToolFormat::Llama3 { State::Plain } else { State::Text };
                    changed = true;
                }
                CallEvent::IsJson => {
                    self.state = State::Json(JsonCall::new(OPEN, None));
                    changed = true;
                }
            }
        }
        changed
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    if text.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(Piece::Text(last)) => last.push_str(text),
        _ => pieces.push(Piece::Text(text.to_owned())),
    }
}

#[cfg(test)]
#[path = "parser_tests.rs"]
mod tests;
