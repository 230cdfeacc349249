//! What a sequence remembers on the host: its tokens, which version of the recurrent state belongs to which length, and
//! its checkpoints. The bytes themselves lie in the state arenas of the devices.

mod versions;

pub use versions::VersionRing;

use crate::program::Row;
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

/// Tokens that two texts have in common at their beginning.
pub fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
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
    tokens: Vec<TokenId>,
    /// `None` for families whose whole state truncates by counting.
    versions: Option<VersionRing>,
    checkpoints: Vec<Checkpoint>,
}

impl Sequence {
    /// An empty sequence. `versions` is `None` where there is no recurrent state.
    pub fn new(slot: u32, versions: Option<u32>, capacity_tokens: usize) -> Sequence {
        Sequence {
            slot,
            tokens: Vec::with_capacity(capacity_tokens),
            versions: versions.map(VersionRing::new),
            checkpoints: Vec::new(),
        }
    }

    /// Tokens fed so far.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn checkpoints(&self) -> &[Checkpoint] {
        &self.checkpoints
    }

    /// The version of the recurrent state that belongs to the whole sequence.
    pub fn current_version(&self) -> u32 {
        self.versions.as_ref().map_or(0, VersionRing::current)
    }

    /// Appends `tokens` and their rows; the rows must then be run, or [`Sequence::abandon`] called.
    pub(crate) fn advance(&mut self, tokens: &[TokenId], rows: &mut Vec<Row>) {
        let first = self.tokens.len();
        rows.extend(tokens.iter().enumerate().map(|(i, t)| Row::text(self.slot, (first + i) as u32, *t)));
        let added = rows.len() - tokens.len();
        if let Some(versions) = &mut self.versions {
            versions.advance(first, &mut rows[added..]);
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// After a failed run the recurrent state is unknown: the sequence is empty again.
    pub(crate) fn abandon(&mut self) {
        self.tokens.clear();
        self.checkpoints.clear();
        if let Some(versions) = &mut self.versions {
            versions.reset(0, 0);
        }
    }

    /// Empties the sequence and hands out what it held on the host.
    pub(crate) fn take(&mut self) -> (Vec<TokenId>, Vec<Checkpoint>) {
        let held = (self.tokens.clone(), std::mem::take(&mut self.checkpoints));
        self.abandon();
        held
    }

    /// The reverse of [`Sequence::take`]. The devices hold the state after `tokens`, the recurrent part as version 0.
    pub(crate) fn put_back(&mut self, tokens: Vec<TokenId>, checkpoints: Vec<Checkpoint>) {
        self.tokens.clear();
        self.tokens.extend_from_slice(&tokens);
        self.checkpoints = checkpoints;
        if let Some(versions) = &mut self.versions {
            versions.reset(tokens.len(), 0);
        }
    }

    /// The longest prefix of at most `length` tokens that can be restored without computing, and how.
    pub fn restorable(&self, length: usize) -> (usize, Restore) {
        let length = length.min(self.tokens.len());
        let Some(versions) = &self.versions else { return (length, Restore::Truncate) };
        let version = versions.best(length).map(|(held, version)| (held, Restore::Version(version)));
        let checkpoint = self
            .checkpoints
            .iter()
            .enumerate()
            .filter(|(_, c)| c.length <= length)
            .max_by_key(|(_, c)| c.length)
            .map(|(i, c)| (c.length, Restore::Checkpoint(i)));
        // A version costs nothing to restore, so it wins a tie.
        [checkpoint, version].into_iter().flatten().max_by_key(|(held, _)| *held).unwrap_or((0, Restore::Empty))
    }

    /// Forgets everything after the first `length` tokens; `restore` says what the devices' state now is.
    pub(crate) fn shorten(&mut self, length: usize, restore: Restore) {
        self.tokens.truncate(length);
        if let Some(versions) = &mut self.versions {
            match restore {
                Restore::Version(version) => versions.reset(length, version),
                Restore::Checkpoint(_) | Restore::Empty | Restore::Truncate => versions.reset(length, versions.current()),
            }
        }
        self.checkpoints.retain(|c| c.length <= length);
    }

    pub(crate) fn add_checkpoint(&mut self, checkpoint: Checkpoint) {
        self.checkpoints.retain(|c| c.length != checkpoint.length);
        self.checkpoints.push(checkpoint);
    }

    /// Drops checkpoints until at most `count` are left: the oldest go, but for the very first, which lies where other
    /// conversations begin alike.
    pub fn keep_checkpoints(&mut self, count: usize) {
        let excess = self.checkpoints.len().saturating_sub(count);
        let spared = usize::from(count > 1);
        self.checkpoints.drain(spared..spared + excess);
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
