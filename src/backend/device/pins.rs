//! Host memory of others that a card copies from without a detour.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Context;
use super::owned::HostPin;
use crate::backend::{Pinned, Pinner};

/// The pieces that are pinned for one card.
#[derive(Debug, Default)]
pub struct PinnedPieces(Mutex<Vec<Range<usize>>>);

/// How bytes begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// So many lie in one pinned piece.
    Pinned(usize),
    /// So many lie in none.
    Pageable(usize),
}

impl PinnedPieces {
    fn all(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How `bytes` begin. A copy must not go from one piece into another.
    pub fn lead(&self, bytes: &[u8]) -> Lead {
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let all = self.all();
        match all.iter().find(|piece| piece.contains(&start)) {
            Some(piece) => Lead::Pinned(piece.end.min(end) - start),
            None => {
                let next = all.iter().map(|piece| piece.start).filter(|at| *at > start).min();
                Lead::Pageable(next.map_or(end, |at| at.min(end)) - start)
            }
        }
    }
}

/// Pins for one card.
#[derive(Debug)]
pub struct CardPinner {
    pub context: Arc<Context>,
    pub pieces: Arc<PinnedPieces>,
}

impl Pinner for CardPinner {
    unsafe fn pin(&self, memory: *mut [u8]) -> Result<Pinned, String> {
        // SAFETY: the caller's.
        let pin = unsafe { HostPin::new(&self.context, memory) }.map_err(|error| error.to_string())?;
        let start = memory.cast::<u8>() as usize;
        let piece = start..start + memory.len();
        self.pieces.all().push(piece.clone());
        Ok(Box::new(Entry { pieces: Arc::clone(&self.pieces), piece, _pin: pin }))
    }
}

/// A pinned piece, which is forgotten before it is given back.
#[derive(Debug)]
struct Entry {
    pieces: Arc<PinnedPieces>,
    piece: Range<usize>,
    _pin: HostPin,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.pieces.all().retain(|piece| *piece != self.piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_in_one_piece_or_before_the_next() {
        let bytes = [0; 100];
        let at = bytes.as_ptr() as usize;
        let pieces = PinnedPieces(Mutex::new(vec![at + 50..at + 80, at + 20..at + 50]));
        let lead = |range: Range<usize>| pieces.lead(&bytes[range]);
        assert_eq!(lead(0..10), Lead::Pageable(10));
        assert_eq!(lead(0..60), Lead::Pageable(20));
        assert_eq!(lead(20..40), Lead::Pinned(20));
        assert_eq!(lead(40..100), Lead::Pinned(10), "a copy stays within a piece");
        assert_eq!(lead(50..100), Lead::Pinned(30));
        assert_eq!(lead(80..100), Lead::Pageable(20));
    }
}
