//! A call written as a JSON object: `{"name": "f", "arguments": {…}}`, in any order of its keys.

use std::sync::Arc;

use super::ToolSpec;
use super::parser::CallEvent;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the object.
    Start,
    /// Before a key, a comma or the end of the object.
    Key,
    InKey,
    Colon,
    Value,
    InValue(Kind),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// An object or a list.
    Nested,
    /// A number or a word.
    Plain,
}

pub(super) struct JsonCall {
    /// Everything since the opening, as long as it may still turn out not to be a call.
    raw: String,
    /// If given, only these names are calls.
    known: Option<Arc<Vec<ToolSpec>>>,
    at: At,
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// The text of the key or value under way.
    token: String,
    key: String,
    name: Option<String>,
    started: bool,
    /// Arguments that came before the name.
    early: String,
    has_args: bool,
}

impl JsonCall {
    pub fn new(opening: &str, known: Option<Arc<Vec<ToolSpec>>>) -> JsonCall {
        JsonCall {
            raw: opening.to_owned(),
            known,
            at: At::Start,
            depth: 0,
            in_text: false,
            escaped: false,
            token: String::new(),
            key: String::new(),
            name: None,
            started: false,
            early: String::new(),
            has_args: false,
        }
    }

    /// Reads on; returns how many bytes it has used.
    pub fn push(&mut self, text: &str) -> (usize, Vec<CallEvent>) {
        let mut events = Vec::new();
        for (at, c) in text.char_indices() {
            let used = at + c.len_utf8();
            if !self.started {
                self.raw.push(c);
            }
            match self.char(c, &mut events) {
                Next::More => {}
                Next::Done => {
                    self.end(&mut events);
                    return (used, join(events));
                }
                Next::Bad => {
                    let event = if self.started { CallEvent::End } else { CallEvent::NotACall(std::mem::take(&mut self.raw)) };
                    events.push(event);
                    return (used, join(events));
                }
            }
        }
        (text.len(), join(events))
    }

    /// The answer ends inside the call.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        match self.started {
            true => vec![CallEvent::End],
            false => vec![CallEvent::NotACall(std::mem::take(&mut self.raw))],
        }
    }

    fn end(&mut self, events: &mut Vec<CallEvent>) {
        if let Some(name) = self.name.take().filter(|_| !self.started) {
            events.push(CallEvent::Start(name));
            events.push(CallEvent::Args(std::mem::take(&mut self.early)));
            self.started = true;
        }
        if !self.started {
            events.push(CallEvent::NotACall(std::mem::take(&mut self.raw)));
            return;
        }
        if !self.has_args {
            events.push(CallEvent::Args("{}".into()));
        }
        events.push(CallEvent::End);
    }

    fn is_args(&self) -> bool {
        self.key == "arguments" || self.key == "parameters"
    }

    fn char(&mut self, c: char, events: &mut Vec<CallEvent>) -> Next {
        match self.at {
            At::Start if c.is_whitespace() => {}
            At::Start if c == '{' => self.at = At::Key,
            At::Key if c.is_whitespace() || c == ',' => {}
            At::Key if c == '}' => return Next::Done,
            At::Key if c == '"' => {
                self.token = String::from('"');
                self.at = At::InKey;
            }
            At::InKey => {
                if self.text_char(c) {
                    self.key = serde_json::from_str(&self.token).unwrap_or_default();
                    self.at = At::Colon;
                }
            }
            At::Colon if c.is_whitespace() => {}
            At::Colon if c == ':' => self.at = At::Value,
            At::Value if c.is_whitespace() => {}
            At::Value => return self.begin_value(c, events),
            At::InValue(kind) => return self.value_char(kind, c, events),
            At::Start | At::Key | At::Colon => return Next::Bad,
        }
        Next::More
    }

    /// A character inside quotes; true at the closing one.
    fn text_char(&mut self, c: char) -> bool {
        self.token.push(c);
        if self.escaped {
            self.escaped = false;
            return false;
        }
        self.escaped = c == '\\';
        c == '"'
    }

    fn begin_value(&mut self, c: char, events: &mut Vec<CallEvent>) -> Next {
        self.token.clear();
        let kind = match c {
            '"' => Kind::Text,
            '{' | '[' => Kind::Nested,
            '-' | '0'..='9' | 'a'..='z' => Kind::Plain,
            _ => return Next::Bad,
        };
        self.at = At::InValue(kind);
        match kind {
            Kind::Nested => {
                self.depth = 1;
                self.nested_out(c, events);
            }
            Kind::Text | Kind::Plain => self.token.push(c),
        }
        Next::More
    }

    fn value_char(&mut self, kind: Kind, c: char, events: &mut Vec<CallEvent>) -> Next {
        match kind {
            Kind::Text => {
                if self.text_char(c) {
                    let text: String = serde_json::from_str(&self.token).unwrap_or_default();
                    self.at = At::Key;
                    return self.text_value(text, events);
                }
            }
            Kind::Nested => {
                self.nested_out(c, events);
                if self.in_text {
                    let escaped = std::mem::replace(&mut self.escaped, false);
                    self.escaped = !escaped && c == '\\';
                    self.in_text = escaped || c != '"';
                    return Next::More;
                }
                match c {
                    '"' => self.in_text = true,
                    '{' | '[' => self.depth += 1,
                    '}' | ']' => self.depth -= 1,
                    _ => {}
                }
                if self.depth == 0 {
                    self.at = At::Key;
                }
            }
            Kind::Plain => {
                if c == ',' || c == '}' || c.is_whitespace() {
                    // A call without arguments may say null.
                    self.at = At::Key;
                    return if c == '}' { Next::Done } else { Next::More };
                }
            }
        }
        Next::More
    }

    /// A character of an object or list: passed on at once if it is part of the arguments.
    fn nested_out(&mut self, c: char, events: &mut Vec<CallEvent>) {
        if self.is_args() {
            self.has_args = true;
            self.args(c.encode_utf8(&mut [0; 4]), events);
        }
    }

    fn text_value(&mut self, text: String, events: &mut Vec<CallEvent>) -> Next {
        if self.key == "name" && self.name.is_none() && !self.started {
            if self.known.as_ref().is_some_and(|tools| tools.iter().all(|tool| tool.name != text)) {
                return Next::Bad;
            }
            if self.early.is_empty() {
                self.name = Some(text);
                return Next::More;
            }
            events.push(CallEvent::Start(text));
            events.push(CallEvent::Args(std::mem::take(&mut self.early)));
            self.started = true;
        } else if self.is_args() {
            // Some models write the arguments as text that holds JSON.
            self.has_args = true;
            self.args(&text, events);
        }
        Next::More
    }

    fn args(&mut self, text: &str, events: &mut Vec<CallEvent>) {
        if let Some(name) = self.name.take() {
            events.push(CallEvent::Start(name));
            self.started = true;
        }
        match self.started {
            true => events.push(CallEvent::Args(text.to_owned())),
            false => self.early.push_str(text),
        }
    }
}

enum Next {
    More,
    Done,
    Bad,
}

/// Joins neighbouring arguments, which come character by character.
fn join(events: Vec<CallEvent>) -> Vec<CallEvent> {
    let mut joined: Vec<CallEvent> = Vec::with_capacity(events.len().min(8));
    for event in events {
        match (joined.last_mut(), event) {
            (Some(CallEvent::Args(last)), CallEvent::Args(more)) => last.push_str(&more),
            (_, event) => joined.push(event),
        }
    }
    joined
}
