//! The loan of slots: buffers of prompts lie on the last slots of a card. Which slots a window needs is a pure function of its
//! rows, shared by engine and replay.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::program::{Rows, Stage};

/// A buffer of a program, as far as it lies on slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Piece {
    from_bytes: u64,
    /// Bytes of a row of the window.
    row_bytes: u64,
    /// Bytes whatever the window's rows are.
    fixed_bytes: u64,
}

/// A program of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Borrower {
    max_rows: u32,
    pieces: Vec<Piece>,
}

/// What the programs of a stage borrow, in bytes from the beginning of the work arena.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    programs: Vec<Borrower>,
}

impl Loan {
    pub fn of(stage: &Stage) -> Loan {
        let programs = stage.programs.iter().map(|program| {
            let on_slots = program.buffers.iter().filter(|b| b.offset_bytes < stage.lent_bytes);
            let pieces = on_slots.map(|b| match b.rows {
                Rows::Batch => Piece { from_bytes: b.offset_bytes, row_bytes: b.bytes(1), fixed_bytes: 0 },
                Rows::Outputs => {
                    let fixed_bytes = b.bytes(program.shape.max_outputs);
                    Piece { from_bytes: b.offset_bytes, row_bytes: 0, fixed_bytes }
                }
            });
            Borrower { max_rows: program.shape.max_rows, pieces: pieces.collect() }
        });
        Loan { programs: programs.collect() }
    }

    /// The program that a window of so many rows runs.
    pub fn program_for(&self, rows: u32) -> Option<usize> {
        let fits = self.programs.iter().enumerate().filter(|(_, p)| rows <= p.max_rows);
        fits.min_by_key(|(_, p)| p.max_rows).map(|(i, _)| i)
    }

    /// Whether a program borrows at all. Those that do not leave time for the slots to be filled again.
    pub fn borrows(&self, program: usize) -> bool {
        self.programs.get(program).is_some_and(|p| !p.pieces.is_empty())
    }

    /// Whether a window of `rows` rows writes any of the bytes.
    pub fn needs(&self, program: usize, rows: u32, bytes: &Range<u64>) -> bool {
        let pieces = self.programs.get(program).into_iter().flat_map(|p| &p.pieces);
        pieces.into_iter().any(|p| {
            let end = p.from_bytes.saturating_add(p.row_bytes.saturating_mul(rows.into())).saturating_add(p.fixed_bytes);
            p.from_bytes < bytes.end && bytes.start < end
        })
    }
}

/// Where the lent slots of a layer lie, in bytes from the beginning of the work arena.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentSlots {
    pub count: u32,
    pub first_bytes: u64,
    pub stride_bytes: u64,
    pub slab_bytes: u64,
}

impl LentSlots {
    /// Bytes of the `nth` lent slot.
    pub fn bytes(&self, nth: u32) -> Range<u64> {
        let start = self.first_bytes.saturating_add(self.stride_bytes.saturating_mul(nth.into()));
        start..start.saturating_add(self.slab_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loan() -> Loan {
        let piece = |from_bytes, row_bytes, fixed_bytes| Piece { from_bytes, row_bytes, fixed_bytes };
        let prompt = Borrower { max_rows: 100, pieces: vec![piece(0, 10, 0), piece(1000, 2, 0), piece(1400, 0, 50)] };
        Loan { programs: vec![Borrower { max_rows: 8, pieces: vec![] }, prompt] }
    }

    #[test]
    fn a_window_needs_the_slots_that_its_rows_reach() {
        let l = loan();
        assert_eq!([1, 8, 9, 100, 101].map(|rows| l.program_for(rows)), [Some(0), Some(0), Some(1), Some(1), None]);
        assert!(!l.borrows(0) && l.borrows(1) && !l.borrows(2));
        let slots = LentSlots { count: 5, first_bytes: 0, stride_bytes: 300, slab_bytes: 300 };
        let needed = |rows| (0..5).filter(|n| l.needs(1, rows, &slots.bytes(*n))).collect::<Vec<u32>>();
        assert_eq!(needed(9), [0, 3, 4]);
        assert_eq!(needed(31), [0, 1, 3, 4], "a buffer reaches into the next slot");
        assert_eq!(needed(30), [0, 3, 4], "and not before");
        assert_eq!(needed(100), [0, 1, 2, 3, 4]);
        assert!((0..5).all(|n| !l.needs(0, 8, &slots.bytes(n))));
    }
}
