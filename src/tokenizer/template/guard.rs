//! Keeps apart what the template wrote and what it was given, through arbitrary template code.
//!
//! A *mark* is a private-use character that stands for one special token. Marks are put into the template's source,
//! into the variables that hold special tokens, and (markup only) into the model's own earlier text; nowhere else. They
//! are chosen for each rendering among characters that occur in none of the inputs, so no input can contain one.
//!
//! Marking the source makes the guarantee independent of what the template does. The one thing it cannot see is a
//! template that builds a token from pieces. [`buildable`] finds, from the text next to string quotes and expression
//! braces, which tokens a source could build around a role name; those are recognised in the result as well. To keep
//! users from writing them, their occurrences in all inputs are broken by a *wedge* (another private character after
//! the first one), which is removed from the result. What remains open, for such templates and such tokens only: input
//! that becomes a token by being joined to the template's own pieces or by a change the template makes to it.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value as Json};

use crate::tokenizer::special::SpecialMatcher;
use crate::tokenizer::{PICTURE_PLACE, Tokenizer};
use crate::units::TokenId;

use super::{Segment, TemplateError};

/// Who wrote a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// The template or the file: special tokens are special.
    Template,
    /// The model: markup is special, control tokens are text.
    Model,
    /// Anybody else: all is text.
    User,
}

/// What templates get of a message's content that is a list of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// The list.
    AsTheyAre,
    /// One text, with the places of pictures in it.
    AsText,
}

/// Role names a template may put between the pieces of a token.
const ROLES: &[&str] =
    &["", "system", "user", "assistant", "tool", "developer", "function", "model", "ipython", "observation", "context"];

/// Keys of an assistant message that hold what the model wrote.
const MODEL_KEYS: &[&str] = &["content", "reasoning_content", "reasoning", "thinking"];

/// Markup models write themselves, also where a file calls it a control token.
const MARKUP: &[&str] = &["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];

/// Longest piece of a token that is looked for beside a quote.
const MAX_PIECE_CHARS: usize = 32;

/// Special tokens that may be parsed in the model's own earlier text.
pub(super) fn model_markup(tokenizer: &Tokenizer) -> Vec<TokenId> {
    MARKUP.iter().filter_map(|text| tokenizer.special_id(text)).filter(|id| !tokenizer.is_eog(*id)).collect()
}

pub(super) struct Guard<'a> {
    specials: &'a SpecialMatcher,
    markup: &'a [TokenId],
    mark_of: BTreeMap<TokenId, char>,
    token_of: BTreeMap<char, (TokenId, &'a str)>,
    buildable: HashSet<TokenId>,
    wedge: char,
    input_bytes: usize,
    pub(super) contents: Contents,
}

impl<'a> Guard<'a> {
    /// Chooses marks for one rendering of `source` with `inputs` and `extra`.
    pub(super) fn new(
        specials: &'a SpecialMatcher,
        source: &str,
        variables: &[(&'static str, String)],
        markup: &'a [TokenId],
        inputs: &[&Json],
        extra: &Map<String, Json>,
    ) -> Result<Self, TemplateError> {
        let mut scan = Scan::default();
        scan.text(source);
        inputs.iter().for_each(|input| scan.value(input));
        for (name, value) in extra {
            scan.text(name);
            scan.value(value);
        }
        // Marks are needed for what occurs in the source, in the variables, in a picture's place, and for markup.
        let in_source = [source, PICTURE_PLACE].into_iter().chain(variables.iter().map(|(_, text)| text.as_str()));
        let mut ids: Vec<TokenId> = in_source.flat_map(|text| specials.find_iter(text)).map(|found| found.id).collect();
        ids.extend(markup);
        ids.sort_unstable();
        ids.dedup();

        let mut free = private_characters().filter(|c| !scan.private.contains(c));
        let wedge = free.next().ok_or(TemplateError::NoPrivateCharacters)?;
        let mut mark_of = BTreeMap::new();
        for id in &ids {
            mark_of.insert(*id, free.next().ok_or(TemplateError::NoPrivateCharacters)?);
        }
        let text_of = specials.iter().filter(|(_, id)| mark_of.contains_key(id));
        let token_of = text_of.filter_map(|(text, id)| Some((*mark_of.get(&id)?, (id, text)))).collect();
        let (buildable, input_bytes) = (buildable(specials, source), scan.bytes);
        Ok(Self { specials, markup, mark_of, token_of, buildable, wedge, input_bytes, contents: Contents::AsTheyAre })
    }

    /// Bytes of all inputs and the source.
    pub(super) fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    /// The source with marks in place of special tokens.
    pub(super) fn template(&self, source: &str) -> String {
        self.string(source, Trust::Template)
    }

    /// A message, each part with the trust it deserves.
    pub(super) fn message(&self, message: &Json) -> Json {
        let Json::Object(fields) = message else {
            return self.value(message, Trust::User);
        };
        let assistant = fields.get("role").and_then(Json::as_str) == Some("assistant");
        let guarded = fields.iter().map(|(key, value)| {
            let trust = if assistant && MODEL_KEYS.contains(&key.as_str()) { Trust::Model } else { Trust::User };
            let guarded = match value {
                Json::Array(parts) if key == "content" && self.contents == Contents::AsText => self.parts_as_text(parts, trust),
                _ => self.value(value, trust),
            };
            (key.clone(), guarded)
        });
        Json::Object(guarded.collect())
    }

    /// The parts of a content in one string.
    fn parts_as_text(&self, parts: &[Json], trust: Trust) -> Json {
        let part = |part: &Json| match part["type"].as_str() {
            Some("image") => self.string(PICTURE_PLACE, Trust::Template),
            _ => self.string(part["text"].as_str().unwrap_or_default(), trust),
        };
        Json::String(parts.iter().map(part).collect())
    }

    /// All strings of a value, keys included. Depth is bounded by the JSON parser, and here for values made otherwise.
    pub(super) fn value(&self, value: &Json, trust: Trust) -> Json {
        self.value_at(value, trust, 0)
    }

    fn value_at(&self, value: &Json, trust: Trust, depth: usize) -> Json {
        match value {
            _ if depth > MAX_DEPTH => Json::Null,
            Json::String(text) => Json::String(self.string(text, trust)),
            Json::Array(items) => Json::Array(items.iter().map(|item| self.value_at(item, trust, depth + 1)).collect()),
            Json::Object(fields) => {
                let pairs =
                    fields.iter().map(|(key, value)| (self.string(key, Trust::User), self.value_at(value, trust, depth + 1)));
                Json::Object(pairs.collect())
            }
            other => other.clone(),
        }
    }

    /// A string with marks for the tokens `trust` allows, and wedges in others that could be taken for real.
    pub(super) fn string(&self, text: &str, trust: Trust) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = 0;
        for found in self.specials.find_iter(text) {
            let allowed = match trust {
                Trust::Template => true,
                Trust::Model => self.markup.contains(&found.id),
                Trust::User => false,
            };
            let mark = self.mark_of.get(&found.id).filter(|_| allowed);
            if mark.is_none() && (trust == Trust::Template || !self.buildable.contains(&found.id)) {
                continue;
            }
            out.push_str(&text[rest..found.start]);
            rest = found.end;
            match mark {
                Some(mark) => out.push(*mark),
                None => {
                    let first = text[found.start..].chars().next().map_or(0, char::len_utf8);
                    out.push_str(&text[found.start..found.start + first]);
                    out.push(self.wedge);
                    out.push_str(&text[found.start + first..found.end]);
                }
            }
        }
        out.push_str(&text[rest..]);
        out
    }

    /// The rendered text for people, and its segments for the encoder.
    pub(super) fn segments(&self, rendered: &str) -> (String, Vec<Segment>) {
        let mut result = Segments { text: String::with_capacity(rendered.len()), segments: Vec::new() };
        let mut rest = 0;
        for (at, c) in rendered.char_indices() {
            if let Some((id, text)) = self.token_of.get(&c) {
                self.unmarked(&rendered[rest..at], &mut result);
                result.push_token(text, *id);
                rest = at + c.len_utf8();
            }
        }
        self.unmarked(&rendered[rest..], &mut result);
        (result.text, result.segments)
    }

    /// Text without marks: finds tokens the template built from pieces, removes wedges.
    fn unmarked(&self, text: &str, result: &mut Segments) {
        let mut rest = 0;
        if !self.buildable.is_empty() {
            for found in self.specials.find_iter(text).filter(|found| self.buildable.contains(&found.id)) {
                result.push_text(&text[rest..found.start], self.wedge);
                result.push_token(&text[found.start..found.end], found.id);
                rest = found.end;
            }
        }
        result.push_text(&text[rest..], self.wedge);
    }
}

/// The result while it grows: text for people and segments in step.
struct Segments {
    text: String,
    segments: Vec<Segment>,
}

impl Segments {
    fn push_token(&mut self, text: &str, id: TokenId) {
        self.text.push_str(text);
        self.segments.push(Segment::Token(id));
    }

    fn push_text(&mut self, text: &str, wedge: char) {
        let from = self.text.len();
        self.text.extend(text.chars().filter(|c| *c != wedge));
        let clean = &self.text[from..];
        match self.segments.last_mut() {
            _ if clean.is_empty() => {}
            Some(Segment::Text(last)) => last.push_str(clean),
            _ => self.segments.push(Segment::Text(clean.to_owned())),
        }
    }
}

const MAX_DEPTH: usize = 200;

/// The private-use characters of planes 15 and 16.
fn private_characters() -> impl Iterator<Item = char> {
    ('\u{F0000}'..='\u{FFFFD}').chain('\u{100000}'..='\u{10FFFD}')
}

/// Which private characters the inputs use, and how much there is.
#[derive(Default)]
struct Scan {
    private: HashSet<char>,
    bytes: usize,
}

impl Scan {
    fn text(&mut self, text: &str) {
        self.bytes += text.len();
        self.private.extend(text.chars().filter(|c| *c >= '\u{F0000}'));
    }

    fn value(&mut self, value: &Json) {
        let mut stack = vec![value];
        while let Some(value) = stack.pop() {
            match value {
                Json::String(text) => self.text(text),
                Json::Array(items) => stack.extend(items),
                Json::Object(fields) => {
                    for (key, value) in fields {
                        self.text(key);
                        stack.push(value);
                    }
                }
                _ => self.bytes += 8,
            }
        }
    }
}

/// Special tokens that `source` may put together from a piece, a role name or nothing, and another piece.
fn buildable(specials: &SpecialMatcher, source: &str) -> HashSet<TokenId> {
    let chars: Vec<(usize, char)> = source.char_indices().collect();
    let (mut heads, mut tails): (HashSet<&str>, HashSet<&str>) = (HashSet::new(), HashSet::new());
    for (index, (at, c)) in chars.iter().enumerate() {
        let opens = *c == '\'' || *c == '"' || source[*at..].starts_with("{{") || source[*at..].starts_with("{%");
        if opens {
            // A quote also closes a string: what stands before it may begin a token.
            let from = index.saturating_sub(MAX_PIECE_CHARS);
            heads.extend(chars[from..index].iter().map(|(start, _)| &source[*start..*at]));
        }
        let after = at + c.len_utf8();
        let closes = *c == '\'' || *c == '"' || (*c == '}' && (source[..*at].ends_with('}') || source[..*at].ends_with('%')));
        if closes {
            let ends = chars[index + 1..].iter().take(MAX_PIECE_CHARS).map(|(start, c)| start + c.len_utf8());
            tails.extend(ends.map(|end| &source[after..end]));
        }
    }
    let can_build = |text: &str| {
        text.char_indices().skip(1).any(|(at, _)| {
            let (head, rest) = text.split_at(at);
            heads.contains(head)
                && ROLES.iter().any(|role| rest.strip_prefix(role).is_some_and(|tail| !tail.is_empty() && tails.contains(tail)))
        })
    };
    specials.iter().filter(|(text, _)| can_build(text)).map(|(_, id)| id).collect()
}
