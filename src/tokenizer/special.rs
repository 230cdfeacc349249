//! Finding special tokens in text, and deciding which tokens are special.

use crate::units::TokenId;

use super::spec::{Kind, TokenType, TokenizerSpec};

/// Turn markers that some vocabularies list as ordinary user-defined pieces.
const TURN_MARKERS: &[&str] = &["<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<think>", "</think>"];

/// Whether a token steers the model, so that text typed by a user must never produce it.
///
/// Control and unknown tokens always do, and whatever ends a generation. Of the user-defined ones, byte-level BPE
/// vocabularies list markup (`<think>`, `<tool_call>`) and runs of blanks; SentencePiece vocabularies list pieces of
/// ordinary text (runs of line breaks, HTML tags), which belong to the text model, and rarely markup.
pub(super) fn is_structural(spec: &TokenizerSpec, kind: &Kind, id: usize, eog: &[TokenId]) -> bool {
    let text = spec.tokens[id].as_str();
    if text.is_empty() {
        return false;
    }
    let id = id as u32;
    let named = [spec.bos_id, spec.eos_id, spec.eot_id, spec.eom_id, spec.pad_id, spec.unk_id].contains(&Some(id));
    if named || eog.binary_search(&TokenId(id)).is_ok() {
        return true;
    }
    match spec.token_type(id as usize) {
        TokenType::Control | TokenType::Unknown => true,
        TokenType::UserDefined => {
            let blank = text.chars().all(|c| c.is_whitespace() || c == '\u{2581}');
            let bars = (text.starts_with("<|") && text.ends_with("|>")) || (text.starts_with("<｜") && text.ends_with("｜>"));
            match kind {
                Kind::Bpe => !blank,
                Kind::Spm { .. } => bars || TURN_MARKERS.contains(&text),
            }
        }
        _ => false,
    }
}

/// A special token found in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub start: usize,
    pub end: usize,
    pub id: TokenId,
}

/// Finds a fixed set of byte strings: leftmost first, longest among those, as the published tokenizers do.
#[derive(Debug, Default, Clone)]
pub(crate) struct SpecialMatcher {
    /// Sorted by text.
    entries: Vec<(Vec<u8>, TokenId)>,
    /// For every first byte the lengths that occur, longest first. Vocabularies have thousands of special tokens that
    /// begin alike, but only a few dozen lengths.
    lengths: Vec<Vec<usize>>,
}

impl SpecialMatcher {
    /// The first of several tokens with the same text counts.
    pub(super) fn new(mut entries: Vec<(Vec<u8>, TokenId)>) -> Self {
        entries.retain(|(text, _)| !text.is_empty());
        entries.sort();
        entries.dedup_by(|later, first| later.0 == first.0);
        let mut lengths = vec![Vec::new(); 256];
        for (text, _) in &entries {
            lengths[text[0] as usize].push(text.len());
        }
        for lengths in &mut lengths {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        Self { entries, lengths }
    }

    /// The id of the token written as exactly `text`.
    pub(super) fn exact(&self, text: &str) -> Option<TokenId> {
        self.lookup(text.as_bytes())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, TokenId)> {
        self.entries.iter().filter_map(|(text, id)| Some((std::str::from_utf8(text).ok()?, *id)))
    }

    fn lookup(&self, text: &[u8]) -> Option<TokenId> {
        let index = self.entries.binary_search_by(|(entry, _)| entry.as_slice().cmp(text)).ok()?;
        Some(self.entries[index].1)
    }

    /// The longest token at the beginning of `bytes`.
    fn at_start(&self, bytes: &[u8]) -> Option<(usize, TokenId)> {
        let lengths = self.lengths.get(*bytes.first()? as usize)?;
        lengths.iter().find_map(|length| Some((*length, self.lookup(bytes.get(..*length)?)?)))
    }

    pub(super) fn find_iter<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Found> + 'a {
        let bytes = text.as_bytes();
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < bytes.len() {
                if let Some((length, id)) = self.at_start(&bytes[at..]) {
                    let found = Found { start: at, end: at + length, id };
                    at = found.end;
                    return Some(found);
                }
                at += 1;
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftmost_then_longest() {
        let entry = |text: &str, id| (text.as_bytes().to_vec(), TokenId(id));
        let matcher = SpecialMatcher::new(vec![entry("<a>", 1), entry("<a><b>", 2), entry("<b>", 3), entry("", 4)]);
        let ids = |text| matcher.find_iter(text).map(|found| found.id.0).collect::<Vec<_>>();
        assert_eq!(ids("<a><b>"), [2]);
        assert_eq!(ids("<a> <b><a>"), [1, 3, 1]);
        assert_eq!(ids("<a"), Vec::<u32>::new());
        assert_eq!(matcher.exact("<b>"), Some(TokenId(3)));
        assert_eq!(matcher.exact(""), None);
        assert_eq!(SpecialMatcher::default().find_iter("abc").count(), 0);
    }
}
