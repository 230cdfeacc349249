//! Byte-level BPE: the crate `tokenizers` merges, this file cuts and maps.

use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab as BpeVocab};
use tokenizers::utils::SysRegex;
use tokenizers::{Model as _, NormalizedString};

use crate::units::TokenId;

use super::TokenizerError;
use super::pretokenizer::PreTokenizer;
use super::spec::TokenizerSpec;
use super::vocab::char_of_byte;

pub(super) struct ByteLevelBpe {
    model: BPE,
    patterns: Vec<SysRegex>,
    nfc: bool,
    char_of_byte: [char; 256],
    has_byte: [bool; 256],
}

fn library(context: &'static str) -> impl Fn(Box<dyn std::error::Error + Send + Sync>) -> TokenizerError {
    move |error| TokenizerError::Library { context, detail: error.to_string() }
}

impl ByteLevelBpe {
    pub(super) fn new(spec: &TokenizerSpec, pre: &PreTokenizer, structural: &[bool]) -> Result<Self, TokenizerError> {
        // Special tokens are left out: no sequence of merges may ever produce one.
        let ordinary = spec.tokens.iter().enumerate().filter(|(id, text)| !structural[*id] && !text.is_empty());
        let vocab: BpeVocab = ordinary.map(|(id, text)| (text.clone(), id as u32)).collect();
        let special: HashSet<&str> =
            spec.tokens.iter().enumerate().filter(|(id, _)| structural[*id]).map(|(_, text)| text.as_str()).collect();
        let merges = checked_merges(spec, &vocab, &special)?;

        let char_of_byte = char_of_byte();
        let has_byte = std::array::from_fn(|byte| vocab.contains_key(char_of_byte[byte].encode_utf8(&mut [0; 4]) as &str));
        let model = BpeBuilder::new()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(library("the merges cannot be used"))?;
        let patterns = pre.patterns.iter().map(|pattern| SysRegex::new(pattern).map_err(library("pre-tokenizer pattern")));
        Ok(Self { model, patterns: patterns.collect::<Result<_, _>>()?, nfc: pre.nfc, char_of_byte, has_byte })
    }

    pub(super) fn encode(&self, text: &str, unk: Option<TokenId>, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        if !self.nfc || text.is_ascii() {
            return self.encode_normalized(text, unk, out);
        }
        let mut normalized = NormalizedString::from(text);
        normalized.nfc();
        self.encode_normalized(normalized.get(), unk, out)
    }

    fn encode_normalized(&self, text: &str, unk: Option<TokenId>, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        let mut pieces = vec![(0, text.len())];
        for pattern in &self.patterns {
            let mut finer = Vec::with_capacity(pieces.len() * 2 + text.len() / 4);
            for (start, end) in pieces {
                split(pattern, text, start, end, &mut finer);
            }
            pieces = finer;
        }
        let mut mapped = String::new();
        for (start, end) in pieces {
            let bytes = &text.as_bytes()[start..end];
            if let Some(missing) = bytes.iter().find(|byte| !self.has_byte[**byte as usize]) {
                // Rare vocabularies lack bytes; the piece is then one unknown token, never silently shortened.
                out.push(unk.ok_or(TokenizerError::NoTokenForByte { byte: *missing })?);
                continue;
            }
            mapped.clear();
            mapped.extend(bytes.iter().map(|byte| self.char_of_byte[*byte as usize]));
            let tokens = self.model.tokenize(&mapped).map_err(library("a text cannot be encoded"))?;
            out.extend(tokens.iter().map(|token| TokenId(token.id)));
        }
        Ok(())
    }
}

/// Cuts `text[start..end]` at the matches of `pattern`; matches and what lies between are all pieces.
fn split(pattern: &SysRegex, text: &str, start: usize, end: usize, out: &mut Vec<(usize, usize)>) {
    let mut at = start;
    for (from, to) in pattern.find_iter(&text[start..end]) {
        let (from, to) = (start + from, start + to);
        if at < from {
            out.push((at, from));
        }
        if from < to {
            out.push((from, to));
        }
        at = to;
    }
    if at < end {
        out.push((at, end));
    }
}

/// Splits `left right`; both sides and their concatenation must be tokens. Merges that touch special tokens are
/// dropped together with those tokens.
fn checked_merges(
    spec: &TokenizerSpec,
    vocab: &BpeVocab,
    special: &HashSet<&str>,
) -> Result<Vec<(String, String)>, TokenizerError> {
    let mut merges = Vec::with_capacity(spec.merges.len());
    let mut joined = String::new();
    for (rank, merge) in spec.merges.iter().enumerate() {
        let bad = || TokenizerError::BadMerge { rank, merge: merge.chars().take(100).collect() };
        // A token may begin with a blank, so the first possible separator is the second character.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let at = merge[first..].find(' ').map(|at| at + first).ok_or_else(bad)?;
        let (left, right) = (&merge[..at], &merge[at + 1..]);
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if [left, right, &joined].iter().all(|part| vocab.contains_key(*part)) {
            merges.push((left.to_owned(), right.to_owned()));
        } else if ![left, right, &joined].iter().any(|part| special.contains(part)) {
            return Err(bad());
        }
    }
    Ok(merges)
}
