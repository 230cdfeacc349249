//! Versions of recurrent state. A delta-rule state cannot be shortened, so each slot keeps the states after its last few
//! tokens in a ring; taking tokens back is a change of the current version.

use crate::program::Row;

/// Which length of the sequence each version holds.
#[derive(Debug, Clone)]
pub struct VersionRing {
    held: Vec<Option<usize>>,
    current: u32,
}

impl VersionRing {
    /// `versions` ≥ 1; all but the first are unset.
    pub fn new(versions: u32) -> VersionRing {
        let mut held = vec![None; versions.max(1) as usize];
        held[0] = Some(0);
        VersionRing { held, current: 0 }
    }

    pub fn current(&self) -> u32 {
        self.current
    }

    fn next(&self, version: u32) -> u32 {
        (version + 1) % self.held.len() as u32
    }

    /// Sets the versions that rows of tokens `first..` read and write: the last `versions - 1` rows leave a version each,
    /// those before them share one.
    pub fn advance(&mut self, first: usize, rows: &mut [Row]) {
        let kept = self.held.len() - 1;
        let shared = rows.len().saturating_sub(kept);
        for (i, row) in rows.iter_mut().enumerate() {
            let starts_new = i == 0 || i >= shared;
            row.state_read = self.current;
            if starts_new {
                self.current = self.next(self.current);
            }
            row.state_write = self.current;
            self.held[self.current as usize] = Some(first + i + 1);
        }
    }

    /// The version with the greatest length not above `length`.
    pub fn best(&self, length: usize) -> Option<(usize, u32)> {
        self.best_of(length, |_| true)
    }

    /// The same among those lengths that are `allowed`.
    pub fn best_of(&self, length: usize, allowed: impl Fn(usize) -> bool) -> Option<(usize, u32)> {
        let held = self.held.iter().enumerate().filter_map(|(v, held)| held.map(|h| (h, v as u32)));
        held.filter(|(h, _)| *h <= length && allowed(*h)).max()
    }

    /// Makes `version` current with `length` tokens; versions of longer prefixes are forgotten.
    pub fn reset(&mut self, length: usize, version: u32) {
        for held in &mut self.held {
            if held.is_some_and(|h| h > length) {
                *held = None;
            }
        }
        self.held[version as usize] = Some(length);
        self.current = version;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::TokenId;
    use proptest::prelude::*;

    fn rows(n: usize) -> Vec<Row> {
        (0..n).map(|i| Row::text(0, i as u32, TokenId(0))).collect()
    }

    #[test]
    fn one_version_updates_in_place() {
        let mut ring = VersionRing::new(1);
        let mut window = rows(3);
        ring.advance(0, &mut window);
        assert!(window.iter().all(|r| (r.state_read, r.state_write) == (0, 0)));
        assert_eq!(ring.best(3), Some((3, 0)));
        assert_eq!(ring.best(2), None);
    }

    proptest! {
        /// Against a model that remembers what every version really contains.
        #[test]
        fn versions_hold_what_they_say(versions in 1u32..6, script in proptest::collection::vec((1usize..12, 0usize..6), 1..30)) {
            let mut ring = VersionRing::new(versions);
            let mut content = vec![Vec::<usize>::new(); versions as usize];
            let mut sequence: Vec<usize> = vec![];
            let mut stamp = 0;
            for (added, back) in script {
                let mut window = rows(added);
                ring.advance(sequence.len(), &mut window);
                for row in &window {
                    stamp += 1;
                    let mut state = content[row.state_read as usize].clone();
                    prop_assert_eq!(&state, &sequence, "a row reads the state of everything before it");
                    state.push(stamp);
                    sequence.push(stamp);
                    content[row.state_write as usize] = state;
                }
                let least = sequence.len() - added.min(versions as usize - 1);
                for length in least..=sequence.len() {
                    prop_assert_eq!(ring.best(length).map(|b| b.0), Some(length), "the newest tokens can be taken back");
                }
                if let Some((length, version)) = ring.best(sequence.len().saturating_sub(back)) {
                    sequence.truncate(length);
                    ring.reset(length, version);
                    prop_assert_eq!(&content[version as usize], &sequence);
                }
            }
        }
    }
}
