//! Tokens to text while they arrive.

use crate::units::TokenId;

use super::{Tokenizer, TokenizerError};

/// Turns bytes into text, holding back a character that is not complete yet. What can never become a character turns
/// into U+FFFD exactly as `String::from_utf8_lossy` does it for the whole.
#[derive(Debug, Default, Clone)]
pub struct Utf8Assembler {
    pending: Vec<u8>,
}

impl Utf8Assembler {
    /// Appends what is certain now to `out`.
    pub fn push_into(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            // The usual case: a whole number of characters, no copy.
            let held = drain_valid(bytes, out);
            self.pending.extend_from_slice(&bytes[bytes.len() - held..]);
            return;
        }
        self.pending.extend_from_slice(bytes);
        let held = drain_valid(&self.pending, out);
        let done = self.pending.len() - held;
        self.pending.drain(..done);
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn finish_into(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            out.push_str(&String::from_utf8_lossy(&self.pending));
            self.pending.clear();
        }
    }

    /// True if bytes are held back.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// Appends all decided text to `out` and returns how many bytes at the end are still undecided.
fn drain_valid(mut bytes: &[u8], out: &mut String) -> usize {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return 0;
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                out.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    None => return rest.len(),
                    Some(bad) => {
                        out.push(char::REPLACEMENT_CHARACTER);
                        bytes = &rest[bad..];
                    }
                }
            }
        }
    }
}

/// Whether special tokens appear in decoded text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShowSpecial {
    Yes,
    No,
    /// Markup of an answer (`<think>`, `<tool_call>`) appears, tokens that end the generation do not.
    ExceptEog,
}

/// Where the first token stands; decides whether a SentencePiece blank in front of it is the text's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamStart {
    /// At the beginning of a text, as after encoding.
    Text,
    /// After other text, which the tokens go on from.
    Continuation,
}

/// Decodes a stream of tokens; the concatenated output equals decoding all tokens at once.
pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    utf8: Utf8Assembler,
    show: ShowSpecial,
    /// The next piece of text loses the blank that encoding put in front of it.
    drop_blank: bool,
}

impl<'a> TokenStream<'a> {
    pub fn new(tokenizer: &'a Tokenizer, start: StreamStart, show: ShowSpecial) -> Self {
        let drop_blank = start == StreamStart::Text && tokenizer.space_prefix();
        Self { tokenizer, utf8: Utf8Assembler::default(), show, drop_blank }
    }

    /// For the answer to a prompt: continues the text if the prompt ends in text, begins one after a special token.
    pub fn after_prompt(tokenizer: &'a Tokenizer, prompt: &[TokenId], show: ShowSpecial) -> Self {
        let start = match prompt.last() {
            Some(last) if !tokenizer.is_special(*last) => StreamStart::Continuation,
            _ => StreamStart::Text,
        };
        Self::new(tokenizer, start, show)
    }

    /// Adds a token and returns the text that is certain now (often empty inside a character).
    pub fn push(&mut self, id: TokenId) -> Result<String, TokenizerError> {
        let mut out = String::new();
        self.push_into(id, &mut out)?;
        Ok(out)
    }

    /// Like [`Self::push`], appending to a buffer that can be reused.
    pub fn push_into(&mut self, id: TokenId, out: &mut String) -> Result<(), TokenizerError> {
        let tokens = self.tokenizer.vocab_len();
        let mut bytes = self.tokenizer.token_bytes(id).ok_or(TokenizerError::UnknownToken { id: id.0, tokens })?;
        if self.tokenizer.vocab().is_matched_whole(id) {
            let hidden = match self.show {
                ShowSpecial::Yes => false,
                ShowSpecial::No => self.tokenizer.is_special(id),
                ShowSpecial::ExceptEog => self.tokenizer.is_eog(id) || Some(id) == self.tokenizer.bos(),
            };
            if !hidden {
                self.utf8.push_into(bytes, out);
            }
            self.drop_blank = self.tokenizer.space_prefix();
            return Ok(());
        }
        if self.drop_blank {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.drop_blank = false;
        self.utf8.push_into(bytes, out);
        Ok(())
    }

    /// Ends the stream; an incomplete character becomes U+FFFD.
    pub fn finish(mut self) -> String {
        let mut out = String::new();
        self.finish_into(&mut out);
        out
    }

    pub fn finish_into(&mut self, out: &mut String) {
        self.utf8.finish_into(out);
    }
}
