//! What a message says: text and pictures in their order, in the form that chat templates expect.

use std::borrow::Cow;

use serde_json::{Value as Json, json};

/// The key under which a part of a message keeps the number of its picture among those of the conversation.
const NUMBER: &str = "picture";

/// A content while it is read.
#[derive(Debug, Default)]
pub struct Content {
    parts: Vec<Part>,
    /// Stands between texts that follow each other.
    separator: &'static str,
}

#[derive(Debug)]
enum Part {
    Text(String),
    /// The number of a picture.
    Picture(usize),
}

impl Content {
    pub fn new(separator: &'static str) -> Content {
        Content { parts: Vec::new(), separator }
    }

    pub fn text(text: impl Into<String>) -> Content {
        Content { parts: vec![Part::Text(text.into())], separator: "" }
    }

    pub fn push_text(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(Part::Text(last)) => {
                last.push_str(self.separator);
                last.push_str(text);
            }
            _ => self.parts.push(Part::Text(text.to_owned())),
        }
    }

    /// `number`: of the picture among those of the conversation.
    pub fn push_picture(&mut self, number: usize) {
        self.parts.push(Part::Picture(number));
    }

    /// Puts a text before everything else.
    pub fn begin_with(&mut self, text: &str) {
        match self.parts.first_mut() {
            Some(Part::Text(first)) => first.insert_str(0, text),
            _ => self.parts.insert(0, Part::Text(text.to_owned())),
        }
    }

    /// There are no parts.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// There is not even a blank.
    pub fn says_nothing(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(text) if text.is_empty()))
    }

    /// Nothing but blanks.
    pub fn is_blank(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(text) if text.trim().is_empty()))
    }

    /// As templates expect it: text, or with pictures a list of parts.
    pub fn into_json(self) -> Json {
        let mut parts = self.parts;
        match parts.as_mut_slice() {
            [] => json!(""),
            [Part::Text(text)] => Json::String(std::mem::take(text)),
            _ => Json::Array(parts.into_iter().map(Part::into_json).collect()),
        }
    }
}

impl Part {
    fn into_json(self) -> Json {
        match self {
            Part::Text(text) => text_part(&text),
            Part::Picture(number) => json!({ "type": "image", NUMBER: number }),
        }
    }
}

fn text_part(text: &str) -> Json {
    json!({ "type": "text", "text": text })
}

/// What a message's content says in words.
pub fn words(content: &Json) -> Cow<'_, str> {
    match content {
        Json::String(text) => Cow::Borrowed(text),
        Json::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n").into(),
        _ => Cow::Borrowed(""),
    }
}

/// The content with a text before it and one behind it.
pub fn enclosed(content: &Json, before: &str, behind: &str) -> Json {
    match content {
        Json::Array(parts) => {
            let (first, last) = (text_part(before), text_part(behind));
            Json::Array([first].into_iter().chain(parts.iter().cloned()).chain([last]).collect())
        }
        other => json!(format!("{before}{}{behind}", words(other))),
    }
}

/// Numbers of the pictures of a conversation, in the order in which a template comes upon them.
pub fn picture_numbers(messages: &[Json]) -> Vec<usize> {
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    parts.filter_map(|part| usize::try_from(part[NUMBER].as_u64()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_join_and_pictures_keep_their_places() {
        let mut content = Content::new("\n");
        content.push_text("a");
        content.push_text("b");
        assert_eq!(words(&Content::text("x").into_json()), "x");
        content.push_picture(4);
        content.push_text("c");
        let json = content.into_json();
        let expected =
            json!([{ "type": "text", "text": "a\nb" }, { "type": "image", "picture": 4 }, { "type": "text", "text": "c" }]);
        assert_eq!(json, expected);
        assert_eq!(words(&json), "a\nb\nc");
        assert_eq!(picture_numbers(&[json!({ "content": "x" }), json!({ "content": json })]), [4]);
        assert_eq!(enclosed(&json!("x"), "<", ">"), json!("<x>"));
        assert_eq!(enclosed(&json, "<", ">").as_array().map(Vec::len), Some(5));
    }

    #[test]
    fn only_blanks_are_blank() {
        let mut content = Content::new("\n");
        assert!(content.is_empty() && content.is_blank());
        content.push_text(" \n");
        assert!(content.is_blank() && !content.is_empty());
        content.push_picture(0);
        assert!(!content.is_blank());
        assert_eq!(Content::default().into_json(), json!(""));
    }
}
