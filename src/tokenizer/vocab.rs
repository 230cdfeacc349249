//! What each token stands for, as bytes.

use crate::units::TokenId;

use super::TokenizerError;
use super::spec::{Kind, TokenType, TokenizerSpec};

/// Byte-level BPE writes every byte as one printable character; this is the way back.
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        // The bytes without a printable character of their own follow from U+0100 in ascending order.
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The printable character of every byte.
pub(super) fn char_of_byte() -> [char; 256] {
    let mut table = ['\0'; 256];
    for c in ('\u{21}'..='\u{143}').filter(|c| byte_of_char(*c).is_some()) {
        if let Some(byte) = byte_of_char(c) {
            table[byte as usize] = c;
        }
    }
    table
}

/// The value of a byte token such as `<0x0A>`.
pub(super) fn parse_byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// Bytes of all tokens in one allocation.
pub(crate) struct Vocab {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    structural: Vec<bool>,
    /// Tokens the encoder matches as a whole before the model runs.
    matched_whole: Vec<bool>,
}

impl Vocab {
    pub(super) fn new(spec: &TokenizerSpec, kind: &Kind, structural: &[bool]) -> Result<Self, TokenizerError> {
        let total: usize = spec.tokens.iter().map(String::len).sum();
        if total > u32::MAX as usize {
            return Err(TokenizerError::TooManyTokens { count: total, limit: u32::MAX as usize });
        }
        let mut bytes = Vec::with_capacity(total);
        let mut ends = Vec::with_capacity(spec.tokens.len());
        for (id, text) in spec.tokens.iter().enumerate() {
            push_bytes(kind, spec.token_type(id), structural[id], text, &mut bytes);
            ends.push(bytes.len() as u32);
        }
        let matched_whole =
            (0..spec.tokens.len()).map(|id| structural[id] || spec.token_type(id) == TokenType::UserDefined).collect();
        Ok(Self { bytes, ends, structural: structural.to_vec(), matched_whole })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Empty for an id outside the vocabulary.
    pub(super) fn bytes_of(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends.get(id - 1).map_or(0, |end| *end as usize) };
        let end = self.ends.get(id).map_or(start, |end| *end as usize);
        &self.bytes[start..end]
    }

    pub(super) fn is_structural(&self, id: TokenId) -> bool {
        self.structural.get(id.index()).copied().unwrap_or(false)
    }

    pub(super) fn is_matched_whole(&self, id: TokenId) -> bool {
        self.matched_whole.get(id.index()).copied().unwrap_or(false)
    }
}

fn push_bytes(kind: &Kind, token_type: TokenType, structural: bool, text: &str, out: &mut Vec<u8>) {
    if structural {
        return out.extend_from_slice(text.as_bytes());
    }
    match (kind, token_type) {
        (_, TokenType::Byte) => match parse_byte_token(text) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text.as_bytes()),
        },
        (Kind::Spm { .. }, _) => out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
        (Kind::Bpe, TokenType::UserDefined) => out.extend_from_slice(text.as_bytes()),
        (Kind::Bpe, _) => {
            for c in text.chars() {
                match byte_of_char(c) {
                    Some(byte) => out.push(byte),
                    None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let table = char_of_byte();
        for byte in 0..=255u8 {
            assert_eq!(byte_of_char(table[byte as usize]), Some(byte));
        }
        assert_eq!(table[b' ' as usize], 'Ġ');
        assert_eq!(table[b'\n' as usize], 'Ċ');
    }

    #[test]
    fn byte_tokens_are_read() {
        assert_eq!(parse_byte_token("<0x0A>"), Some(10));
        assert_eq!(parse_byte_token("<0xA>"), None);
        assert_eq!(parse_byte_token("<0x+A>"), None, "a sign is not a hexadecimal digit");
    }
}
