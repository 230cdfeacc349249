//! A call in Qwen's tags: `<function=f><parameter=p>value</parameter></function>`. Values are text; which of them are
//! numbers or objects says the tool's schema.

use std::sync::Arc;

use serde_json::Value as Json;

use super::ToolSpec;
use super::parser::{CLOSE, CallEvent, FUNCTION, OPEN};
use crate::tokenizer::partial_suffix;

const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
const END_FUNCTION: &str = "</function>";

enum At {
    /// Before the function's tag.
    Open,
    /// Inside `<function=`.
    Name,
    /// Between parameters.
    Body,
    /// Inside `<parameter=`.
    Key,
    /// A value that is text and is passed on as it comes.
    Text { begun: bool },
    /// A value that must be seen whole.
    Typed,
}

pub(super) struct QwenCall {
    tools: Arc<Vec<ToolSpec>>,
    /// What to give back if this is no call.
    opening: String,
    at: At,
    name: String,
    key: String,
    parameters: usize,
}

impl QwenCall {
    pub fn new(tools: Arc<Vec<ToolSpec>>, opener: &str) -> QwenCall {
        let opening = if opener == OPEN { OPEN.to_owned() } else { String::new() };
        QwenCall { tools, opening, at: At::Open, name: String::new(), key: String::new(), parameters: 0 }
    }

    /// Reads on; returns how many bytes it has used.
    pub fn push(&mut self, text: &str) -> (usize, Vec<CallEvent>) {
        let mut used = 0;
        let mut events = Vec::new();
        loop {
            let (more, last) = self.step(&text[used..], &mut events);
            used += more;
            if last {
                return (used, events);
            }
        }
    }

    /// The answer ends inside the call, of which `rest` was not yet used: what there is becomes valid JSON.
    pub fn finish(&mut self, rest: &str) -> Vec<CallEvent> {
        let mut events = Vec::new();
        match self.at {
            At::Open | At::Name => return vec![CallEvent::NotACall(format!("{}{rest}", self.lost_tag()))],
            At::Body | At::Key => {}
            At::Text { begun } => {
                let text = if begun { rest } else { rest.strip_prefix('\n').unwrap_or(rest) };
                events.push(CallEvent::Args(escaped(text.strip_suffix('\n').unwrap_or(text)) + "\""));
            }
            At::Typed => events.push(CallEvent::Args(self.typed(rest))),
        }
        self.close(&mut events);
        events
    }

    fn lost_tag(&self) -> String {
        let function = if matches!(self.at, At::Name) { FUNCTION } else { "" };
        format!("{}{function}", self.opening)
    }

    /// One transition: bytes used, and whether to stop (for more text, or for good).
    fn step(&mut self, text: &str, events: &mut Vec<CallEvent>) -> (usize, bool) {
        match self.at {
            At::Open => self.open(text, events),
            At::Name => {
                let Some(end) = text.find(['>', '\n']) else { return (0, true) };
                self.name = text[..end].trim().to_owned();
                events.push(CallEvent::Start(self.name.clone()));
                self.at = At::Body;
                (end + 1, false)
            }
            At::Body => self.body(text, events),
            At::Key => {
                let Some(end) = text.find(['>', '\n']) else { return (0, true) };
                self.key = text[..end].trim().to_owned();
                self.begin_value(events);
                (end + 1, false)
            }
            At::Text { begun } => self.text(begun, text, events),
            At::Typed => {
                let Some(end) = text.find(END_PARAMETER) else { return (0, true) };
                events.push(CallEvent::Args(self.typed(&text[..end])));
                self.at = At::Body;
                (end + END_PARAMETER.len(), false)
            }
        }
    }

    fn open(&mut self, text: &str, events: &mut Vec<CallEvent>) -> (usize, bool) {
        let begin = text.trim_start();
        let blanks = text.len() - begin.len();
        if begin.starts_with(FUNCTION) {
            self.at = At::Name;
            return (blanks + FUNCTION.len(), false);
        }
        if begin.len() < FUNCTION.len() && FUNCTION.starts_with(begin) {
            return (0, true);
        }
        if begin.starts_with('{') {
            events.push(CallEvent::IsJson);
            return (blanks, true);
        }
        events.push(CallEvent::NotACall(self.opening.clone()));
        (0, true)
    }

    fn body(&mut self, text: &str, events: &mut Vec<CallEvent>) -> (usize, bool) {
        let Some(tag) = text.find('<') else { return (text.len(), true) };
        let rest = &text[tag..];
        if rest.starts_with(PARAMETER) {
            self.at = At::Key;
            return (tag + PARAMETER.len(), false);
        }
        if rest.starts_with(END_FUNCTION) {
            self.close(events);
            return (tag + END_FUNCTION.len(), true);
        }
        if rest.starts_with(CLOSE) {
            self.close(events);
            return (tag, true);
        }
        let may_become = [PARAMETER, END_FUNCTION, CLOSE].iter().any(|tag| tag.starts_with(rest));
        // Anything else between parameters means nothing.
        if may_become { (tag, true) } else { (tag + 1, false) }
    }

    fn begin_value(&mut self, events: &mut Vec<CallEvent>) {
        let before = if self.parameters == 0 { "{" } else { ", " };
        self.parameters += 1;
        let key = Json::String(self.key.clone());
        self.at = if self.is_text() { At::Text { begun: false } } else { At::Typed };
        let quote = if matches!(self.at, At::Text { .. }) { "\"" } else { "" };
        events.push(CallEvent::Args(format!("{before}{key}: {quote}")));
    }

    fn text(&mut self, begun: bool, text: &str, events: &mut Vec<CallEvent>) -> (usize, bool) {
        if text.is_empty() {
            return (0, true);
        }
        if !begun {
            self.at = At::Text { begun: true };
            return (usize::from(text.starts_with('\n')), false);
        }
        if let Some(end) = text.find(END_PARAMETER) {
            let value = &text[..end];
            events.push(CallEvent::Args(escaped(value.strip_suffix('\n').unwrap_or(value)) + "\""));
            self.at = At::Body;
            return (end + END_PARAMETER.len(), false);
        }
        // The line break before the closing tag is not part of the value.
        let sure = &text[..text.len() - partial_suffix(text, END_PARAMETER)];
        let sure = sure.strip_suffix('\n').unwrap_or(sure);
        events.push(CallEvent::Args(escaped(sure)));
        (sure.len(), true)
    }

    fn close(&mut self, events: &mut Vec<CallEvent>) {
        events.push(CallEvent::Args(if self.parameters == 0 { "{}" } else { "}" }.to_owned()));
        events.push(CallEvent::End);
    }

    fn schema(&self) -> Option<&Json> {
        let tool = self.tools.iter().find(|tool| tool.name == self.name)?;
        tool.parameters.get("properties")?.get(&self.key)
    }

    /// Whether the schema says that the value is text and nothing else.
    fn is_text(&self) -> bool {
        let Some(schema) = self.schema() else { return false };
        match schema.get("type") {
            Some(Json::String(kind)) => kind == "string",
            Some(Json::Array(kinds)) => kinds.iter().all(|kind| kind == "string"),
            _ => schema.get("enum").and_then(Json::as_array).is_some_and(|words| words.iter().all(Json::is_string)),
        }
    }

    /// A value that is not known to be text: JSON if it can be read as such.
    fn typed(&self, raw: &str) -> String {
        let value = raw.trim();
        let python = match value {
            "True" => Some("true"),
            "False" => Some("false"),
            "None" => Some("null"),
            _ => None,
        };
        if let Some(word) = python {
            return word.to_owned();
        }
        match serde_json::from_str::<Json>(value) {
            Ok(json) => json.to_string(),
            Err(_) => {
                let text = raw.strip_prefix('\n').unwrap_or(raw);
                Json::String(text.strip_suffix('\n').unwrap_or(text).to_owned()).to_string()
            }
        }
    }
}

/// The inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Json::String(text.to_owned()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
