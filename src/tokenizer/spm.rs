//! SentencePiece BPE: of all neighbours that join to a piece, the pair with the best score is joined first, the
//! leftmost on ties; what is left without a piece becomes byte tokens.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::units::TokenId;

use super::TokenizerError;
use super::spec::{TokenType, TokenizerSpec};
use super::vocab::parse_byte_token;

pub(super) struct SpmModel {
    /// Id and score of every piece that joining may produce.
    pieces: HashMap<Box<str>, (u32, f32)>,
    byte_ids: [Option<TokenId>; 256],
    space_prefix: bool,
}

/// A stretch of the text, linked to its neighbours. Length 0: joined into the one on its left.
struct Symbol {
    start: u32,
    len: u32,
    prev: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

struct Pair {
    score: f32,
    left: u32,
    right: u32,
    len: u32,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl SpmModel {
    pub(super) fn new(spec: &TokenizerSpec, space_prefix: bool) -> Result<Self, TokenizerError> {
        let mut pieces = HashMap::with_capacity(spec.tokens.len());
        let mut byte_ids = [None; 256];
        for (id, text) in spec.tokens.iter().enumerate() {
            let score = spec.scores.as_ref().map_or(0.0, |scores| scores[id]);
            if score.is_nan() {
                return Err(TokenizerError::BadScore { id });
            }
            match spec.token_type(id) {
                TokenType::Byte => {
                    if let Some(byte) = parse_byte_token(text) {
                        byte_ids[byte as usize] = Some(TokenId(id as u32));
                    }
                }
                // Special and user-defined tokens are matched before this model runs and must not arise from joins.
                TokenType::Control | TokenType::Unknown | TokenType::UserDefined => {}
                TokenType::Normal | TokenType::Unused => {
                    if !text.is_empty() {
                        pieces.entry(text.as_str().into()).or_insert((id as u32, score));
                    }
                }
            }
        }
        Ok(Self { pieces, byte_ids, space_prefix })
    }

    pub(super) fn space_prefix(&self) -> bool {
        self.space_prefix
    }

    pub(super) fn encode(
        &self,
        text: &str,
        after_special: bool,
        unk: Option<TokenId>,
        out: &mut Vec<TokenId>,
    ) -> Result<(), TokenizerError> {
        let mut escaped = String::with_capacity(text.len() + 8);
        if self.space_prefix && after_special {
            escaped.push('\u{2581}');
        }
        escaped.extend(text.chars().map(|c| if c == ' ' { '\u{2581}' } else { c }));
        // Positions are kept in 32 bits; a text beyond that is cut where SentencePiece itself would give up.
        let mut rest = escaped.as_str();
        while !rest.is_empty() {
            let mut end = rest.len().min(1 << 30);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            self.join(&rest[..end], unk, out)?;
            rest = &rest[end..];
        }
        Ok(())
    }

    fn join(&self, text: &str, unk: Option<TokenId>, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (index, (start, c)) in text.char_indices().enumerate() {
            let index = index as u32;
            let prev = if index == 0 { NONE } else { index - 1 };
            symbols.push(Symbol { start: start as u32, len: c.len_utf8() as u32, prev, next: index + 1 });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut queue = BinaryHeap::new();
        for left in 1..symbols.len() as u32 {
            self.propose(text, &symbols, left - 1, left, &mut queue);
        }
        while let Some(pair) = queue.pop() {
            let (left, right) = (&symbols[pair.left as usize], &symbols[pair.right as usize]);
            // Stale if either side has been joined with something else since.
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            let (prev, next) = (left.prev, right.next);
            symbols[pair.left as usize].len = pair.len;
            symbols[pair.left as usize].next = next;
            symbols[pair.right as usize].len = 0;
            if next != NONE {
                symbols[next as usize].prev = pair.left;
                self.propose(text, &symbols, pair.left, next, &mut queue);
            }
            if prev != NONE {
                self.propose(text, &symbols, prev, pair.left, &mut queue);
            }
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            self.emit(&text[symbol.start as usize..(symbol.start + symbol.len) as usize], unk, out)?;
        }
        Ok(())
    }

    fn propose(&self, text: &str, symbols: &[Symbol], left: u32, right: u32, queue: &mut BinaryHeap<Pair>) {
        let (a, b) = (&symbols[left as usize], &symbols[right as usize]);
        let joined = &text[a.start as usize..(b.start + b.len) as usize];
        if let Some((_, score)) = self.pieces.get(joined) {
            queue.push(Pair { score: *score, left, right, len: a.len + b.len });
        }
    }

    fn emit(&self, piece: &str, unk: Option<TokenId>, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        if let Some((id, _)) = self.pieces.get(piece) {
            out.push(TokenId(*id));
            return Ok(());
        }
        let before = out.len();
        for byte in piece.bytes() {
            match (self.byte_ids[byte as usize], unk) {
                (Some(id), _) => out.push(id),
                (None, Some(unk)) => {
                    // Without byte tokens the whole character is one unknown token.
                    out.truncate(before);
                    out.push(unk);
                    return Ok(());
                }
                (None, None) => return Err(TokenizerError::NoTokenForByte { byte }),
            }
        }
        Ok(())
    }
}
