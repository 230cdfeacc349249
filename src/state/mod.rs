//! What a sequence remembers on the host: its tokens, which version of the recurrent state belongs to which length, and
//! its checkpoints. The bytes themselves lie in the state arenas of the devices.

mod pictures;
mod versions;

pub use pictures::{Pictures, Text, common_prefix};
pub use versions::VersionRing;

use crate::picture::Span;
use crate::program::{Earlier, MAX_BLOCK_TOKENS, Row};
use crate::units::TokenId;

/// Copies of one sequence's recurrent state at one length, one buffer a stage.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Tokens that the state has seen.
    pub length: usize,
    pub stages: Vec<Vec<u8>>,
}

impl Checkpoint {
    pub fn bytes(&self) -> usize {
        self.stages.iter().map(Vec::len).sum()
    }
}

/// What a sequence remembers on the host, its slot and versions apart.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    pub tokens: Vec<TokenId>,
    pub pictures: Pictures,
    pub checkpoints: Vec<Checkpoint>,
}

impl Memory {
    pub fn text(&self) -> Text<'_> {
        Text { tokens: &self.tokens, pictures: self.pictures.spans() }
    }

    /// Bytes on the host.
    pub fn bytes(&self) -> usize {
        let checkpoints: usize = self.checkpoints.iter().map(Checkpoint::bytes).sum();
        checkpoints + size_of_val(self.tokens.as_slice()) + size_of_val(self.pictures.spans())
    }

    /// The longest prefix of at most `length` tokens that no picture is cut by. The whole of a sequence is one, even if it ends
    /// within a picture, which it can go on with.
    fn whole(&self, length: usize) -> usize {
        if length >= self.tokens.len() { self.tokens.len() } else { self.pictures.whole(length) }
    }

    /// The longest checkpoint of at most `length` tokens that cuts no picture.
    fn checkpoint(&self, length: usize) -> Option<(usize, usize)> {
        let usable = self.checkpoints.iter().map(|c| c.length).enumerate();
        let usable = usable.filter(|(_, held)| *held <= length && self.whole(*held) == *held);
        usable.max_by_key(|(_, held)| *held).map(|(i, held)| (held, i))
    }

    /// The longest prefix of at most `length` tokens that needs no computing where nothing else is kept.
    pub fn restorable(&self, length: usize, recurrent: bool) -> usize {
        match self.whole(length) {
            whole if whole == self.tokens.len() || !recurrent => whole,
            shorter => self.checkpoint(shorter).map_or(0, |(held, _)| held),
        }
    }
}

/// Where a sequence can go back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// Cells are counted, nothing else is kept.
    Truncate,
    /// A version of the recurrent state that is still in the arena.
    Version(u32),
    /// Index of a checkpoint to be copied back.
    Checkpoint(usize),
    /// The state before the first token.
    Empty,
}

/// One sequence: a slot in the state arenas and what is needed to interpret it.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) slot: u32,
    memory: Memory,
    /// `None` for families whose whole state truncates by counting.
    versions: Option<VersionRing>,
    /// What every token of a picture counts as; `None`: what was fed.
    picture_token: Option<TokenId>,
}

impl Sequence {
    /// An empty sequence. `versions` is `None` where there is no recurrent state.
    pub fn new(slot: u32, versions: Option<u32>, capacity_tokens: usize) -> Sequence {
        let memory = Memory { tokens: Vec::with_capacity(capacity_tokens), ..Memory::default() };
        Sequence { slot, memory, versions: versions.map(VersionRing::new), picture_token: None }
    }

    /// The tokens of pictures shall count as `token`.
    pub(crate) fn with_picture_token(self, token: Option<TokenId>) -> Sequence {
        Sequence { picture_token: token, ..self }
    }

    /// Tokens fed so far; those of pictures as n-grams see them.
    pub fn tokens(&self) -> &[TokenId] {
        &self.memory.tokens
    }

    /// What was fed so far.
    pub fn text(&self) -> Text<'_> {
        self.memory.text()
    }

    pub fn len(&self) -> usize {
        self.memory.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.memory.tokens.is_empty()
    }

    pub fn checkpoints(&self) -> &[Checkpoint] {
        &self.memory.checkpoints
    }

    /// Bytes that it takes on the host.
    pub fn host_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The picture that the next token belongs to, if that has begun.
    pub fn unfinished(&self) -> Option<&Span> {
        self.memory.pictures.at(self.len()).filter(|span| span.at < self.len())
    }

    /// The version of the recurrent state that belongs to the whole sequence.
    pub fn current_version(&self) -> u32 {
        self.versions.as_ref().map_or(0, VersionRing::current)
    }

    /// Says that a picture begins at or behind the end of the sequence; its tokens are fed like others.
    pub(crate) fn place(&mut self, span: Span) {
        self.memory.pictures.push(span);
    }

    /// Appends `tokens` and their rows; the rows must then be run, or [`Sequence::abandon`] called.
    pub(crate) fn advance(&mut self, tokens: &[TokenId], rows: &mut Vec<Row>) {
        let Sequence { slot, memory: Memory { tokens: held, pictures, .. }, versions, picture_token } = self;
        let first = held.len();
        for (index, token) in (first..).zip(tokens) {
            let token = picture_token.filter(|_| pictures.at(index).is_some()).unwrap_or(*token);
            rows.push(Row { position: pictures.position(index), ..Row::text(*slot, index as u32, token) });
            held.push(token);
        }
        let added = rows.len() - tokens.len();
        if let Some(versions) = versions {
            versions.advance(first, &mut rows[added..]);
        }
    }

    /// Adds what a window from token `first` must be told of the tokens before it ([`RunParams::earlier`](crate::program::RunParams)).
    pub(crate) fn earlier(&self, first: usize, to: &mut Vec<Earlier>) {
        let pictures = &self.memory.pictures;
        if pictures.is_empty() {
            return;
        }
        let counted = pictures.position(first);
        for back in 1..(MAX_BLOCK_TOKENS as usize).min(first + 1) {
            let (index, position) = (first - back, pictures.position(first - back));
            if position != counted.map(|p| p.saturating_sub(back as u32)) {
                to.push(Earlier { slot: self.slot, index: index as u32, position });
            }
        }
    }

    /// After a failed run the recurrent state is unknown: the sequence is empty again.
    pub(crate) fn abandon(&mut self) {
        self.memory.tokens.clear();
        self.memory.pictures.truncate(0);
        self.memory.checkpoints.clear();
        if let Some(versions) = &mut self.versions {
            versions.reset(0, 0);
        }
    }

    /// Empties the sequence and hands out what it held on the host.
    pub(crate) fn take(&mut self) -> Memory {
        let checkpoints = std::mem::take(&mut self.memory.checkpoints);
        let Memory { tokens, pictures, .. } = &self.memory;
        let held = Memory { tokens: tokens.clone(), pictures: pictures.clone(), checkpoints };
        self.abandon();
        held
    }

    /// The reverse of [`Sequence::take`]. The devices hold the state after its tokens, the recurrent part as version 0.
    pub(crate) fn put_back(&mut self, held: Memory) {
        // The capacity for the whole context stays.
        let mut tokens = std::mem::take(&mut self.memory.tokens);
        tokens.clear();
        tokens.extend_from_slice(&held.tokens);
        self.memory = Memory { tokens, ..held };
        if let Some(versions) = &mut self.versions {
            versions.reset(self.memory.tokens.len(), 0);
        }
    }

    /// The longest prefix of at most `length` tokens that can be restored without computing, and how. It cuts no picture.
    pub fn restorable(&self, length: usize) -> (usize, Restore) {
        let length = self.memory.whole(length);
        let Some(versions) = &self.versions else { return (length, Restore::Truncate) };
        let version = versions.best_of(length, |held| self.memory.whole(held) == held);
        let version = version.map(|(held, version)| (held, Restore::Version(version)));
        let checkpoint = self.memory.checkpoint(length).map(|(held, i)| (held, Restore::Checkpoint(i)));
        // A version costs nothing to restore, so it wins a tie.
        [checkpoint, version].into_iter().flatten().max_by_key(|(held, _)| *held).unwrap_or((0, Restore::Empty))
    }

    /// Forgets everything after the first `length` tokens; `restore` says what the devices' state now is.
    pub(crate) fn shorten(&mut self, length: usize, restore: Restore) {
        self.memory.tokens.truncate(length);
        self.memory.pictures.truncate(length);
        if let Some(versions) = &mut self.versions {
            match restore {
                Restore::Version(version) => versions.reset(length, version),
                Restore::Checkpoint(_) | Restore::Empty | Restore::Truncate => versions.reset(length, versions.current()),
            }
        }
        self.memory.checkpoints.retain(|c| c.length <= length);
    }

    pub(crate) fn add_checkpoint(&mut self, checkpoint: Checkpoint) {
        self.memory.checkpoints.retain(|c| c.length != checkpoint.length);
        self.memory.checkpoints.push(checkpoint);
    }

    /// Drops checkpoints until at most `count` are left: the oldest go, but for the very first, which lies where other
    /// conversations begin alike.
    pub fn keep_checkpoints(&mut self, count: usize) {
        let excess = self.memory.checkpoints.len().saturating_sub(count);
        let spared = usize::from(count > 1);
        self.memory.checkpoints.drain(spared..spared + excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: usize) -> Vec<TokenId> {
        (0..n as u32).map(TokenId).collect()
    }

    #[test]
    fn without_recurrent_state_every_length_is_restorable() {
        let mut s = Sequence::new(0, None, 8);
        s.advance(&tokens(5), &mut vec![]);
        assert_eq!(s.restorable(3), (3, Restore::Truncate));
        s.shorten(3, Restore::Truncate);
        assert_eq!(s.len(), 3);
    }

    #[test]
    fn a_checkpoint_serves_where_no_version_reaches() {
        let mut s = Sequence::new(0, Some(2), 32);
        s.advance(&tokens(4), &mut vec![]);
        s.add_checkpoint(Checkpoint { length: 4, stages: vec![] });
        s.advance(&tokens(10), &mut vec![]);
        assert_eq!(s.restorable(14).0, 14);
        assert_eq!(s.restorable(13).0, 13);
        assert_eq!(s.restorable(12), (4, Restore::Checkpoint(0)));
        assert_eq!(s.restorable(3), (0, Restore::Empty));
        s.shorten(4, Restore::Checkpoint(0));
        assert_eq!(s.restorable(9).0, 4);
    }

    #[test]
    fn of_many_checkpoints_the_first_and_the_newest_stay() {
        let kept = |count: usize| {
            let mut s = Sequence::new(0, Some(1), 32);
            (1..=5).for_each(|length| s.add_checkpoint(Checkpoint { length, stages: vec![] }));
            s.keep_checkpoints(count);
            s.checkpoints().iter().map(|c| c.length).collect::<Vec<_>>()
        };
        assert_eq!(kept(9), [1, 2, 3, 4, 5]);
        assert_eq!(kept(3), [1, 4, 5]);
        assert_eq!((kept(1), kept(0)), (vec![5], vec![]));
    }
}
