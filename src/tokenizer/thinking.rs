//! Separates a model's reasoning from its answer while text arrives.

/// A piece of generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Answer(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only blanks so far; an opening tag may follow.
    Undecided,
    Reasoning,
    /// After the closing tag, before the first character that is not a blank.
    Between,
    Answer,
}

/// Splits `<think>…</think>` from what follows. Reasoning is looked for at the very beginning only: an answer that
/// *talks about* the tag stays an answer. Blanks around the reasoning belong to the format and are dropped.
#[derive(Debug, Clone)]
pub struct ThinkSplitter {
    open: String,
    close: String,
    state: State,
    held: String,
    reasoning_begun: bool,
}

impl ThinkSplitter {
    /// `inside`: the prompt has already opened the reasoning.
    pub fn new(inside: bool) -> Self {
        Self::with_tags("<think>", "</think>", inside)
    }

    pub fn with_tags(open: &str, close: &str, inside: bool) -> Self {
        let state = if inside { State::Reasoning } else { State::Undecided };
        Self { open: open.to_owned(), close: close.to_owned(), state, held: String::new(), reasoning_begun: false }
    }

    /// Looks at the end of the rendered prompt to see whether it opened the reasoning.
    pub fn after_prompt(rendered: &str) -> Self {
        Self::new(rendered.trim_end().ends_with("<think>"))
    }

    /// True while the text that arrives is reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Takes more text; returns what is decided, in order.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the text; what was held back is returned.
    pub fn finish(mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Reasoning => {
                let text = if self.reasoning_begun { rest.trim_end() } else { rest.trim() };
                part(Part::Reasoning, text).into_iter().collect()
            }
            State::Between => Vec::new(),
            State::Undecided | State::Answer => part(Part::Answer, &rest).into_iter().collect(),
        }
    }

    /// One transition; false if more text is needed.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Undecided => {
                let trimmed = self.held.trim_start();
                if let Some(rest) = trimmed.strip_prefix(self.open.as_str()) {
                    self.held = rest.to_owned();
                    self.state = State::Reasoning;
                    return true;
                }
                if self.open.starts_with(trimmed) {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Reasoning => self.step_reasoning(parts),
            State::Between => {
                let trimmed = self.held.trim_start();
                if trimmed.is_empty() {
                    self.held.clear();
                    return false;
                }
                self.held = trimmed.to_owned();
                self.state = State::Answer;
                true
            }
            State::Answer => {
                parts.extend(part(Part::Answer, &self.held));
                self.held.clear();
                false
            }
        }
    }

    fn step_reasoning(&mut self, parts: &mut Vec<Part>) -> bool {
        if !self.reasoning_begun {
            self.held = self.held.trim_start().to_owned();
        }
        if let Some(at) = self.held.find(self.close.as_str()) {
            parts.extend(part(Part::Reasoning, self.held[..at].trim_end()));
            self.held.drain(..at + self.close.len());
            self.state = State::Between;
            return true;
        }
        // Keep a possible beginning of the closing tag, and the blanks before it, until it is clear what they are.
        let keep = partial_suffix(&self.held, &self.close);
        let sure = self.held[..self.held.len() - keep].trim_end().len();
        if sure > 0 {
            parts.extend(part(Part::Reasoning, &self.held[..sure]));
            self.held.drain(..sure);
            self.reasoning_begun = true;
        }
        false
    }
}

fn part(make: fn(String) -> Part, text: &str) -> Option<Part> {
    (!text.is_empty()).then(|| make(text.to_owned()))
}

/// Length of the longest end of `text` that is a proper beginning of `tag`.
pub fn partial_suffix(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len().saturating_sub(1));
    (1..=longest).rev().find(|len| tag.is_char_boundary(*len) && text.ends_with(&tag[..*len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str, inside: bool, chunk: usize) -> (String, String) {
        let mut splitter = ThinkSplitter::new(inside);
        let chars: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for piece in chars.chunks(chunk) {
            parts.extend(splitter.push(&piece.iter().collect::<String>()));
        }
        parts.extend(splitter.finish());
        let mut out = (String::new(), String::new());
        for part in parts {
            match part {
                Part::Reasoning(text) => out.0.push_str(&text),
                Part::Answer(text) => out.1.push_str(&text),
            }
        }
        out
    }

    #[test]
    fn splits_at_any_chunking() {
        let cases = [
            ("<think>\nwhy\n\nnot\n</think>\n\nYes.\n", false, "why\n\nnot", "Yes.\n"),
            ("\nwhy </thin k\n</think>\nYes <think>x</think>", true, "why </thin k", "Yes <think>x</think>"),
            ("plain <think>", false, "", "plain <think>"),
            ("  <thin", false, "", "  <thin"),
            ("<think>\n\n</think>\n\nok", false, "", "ok"),
            ("cut off in thou", true, "cut off in thou", ""),
            ("", false, "", ""),
        ];
        for (text, inside, reasoning, answer) in cases {
            for chunk in 1..12 {
                assert_eq!(run(text, inside, chunk), (reasoning.to_owned(), answer.to_owned()), "{text:?} by {chunk}");
            }
        }
    }

    #[test]
    fn prompt_decides() {
        assert!(ThinkSplitter::after_prompt("assistant\n<think>\n").is_reasoning());
        assert!(!ThinkSplitter::after_prompt("assistant\n<think>\n\n</think>\n\n").is_reasoning());
    }
}
