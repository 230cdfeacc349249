//! Pictures among the tokens of a text: which ones stand where, and the rotary positions that follow (specification 1.3).

use crate::picture::Span;
use crate::units::TokenId;

/// Tokens with the pictures among them, in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Text<'a> {
    pub tokens: &'a [TokenId],
    pub pictures: &'a [Span],
}

/// Tokens that two texts have in common at their beginning. A picture's tokens are the same where the picture is.
pub fn common_prefix(a: Text<'_>, b: Text<'_>) -> usize {
    let end = a.tokens.len().min(b.tokens.len());
    let (mut a_pictures, mut b_pictures) = (a.pictures.iter().peekable(), b.pictures.iter().peekable());
    let mut at = 0;
    while at < end {
        let mine = a_pictures.next_if(|span| span.at == at);
        let other = b_pictures.next_if(|span| span.at == at);
        at += match (mine, other) {
            (None, None) if a.tokens[at] == b.tokens[at] => 1,
            (Some(mine), Some(other)) if mine == other => mine.tokens(),
            _ => return at,
        };
    }
    end
}

/// The pictures of a sequence, in order.
#[derive(Debug, Clone, Default)]
pub struct Pictures {
    spans: Vec<Span>,
    /// The position of each one's first token.
    starts: Vec<u32>,
}

impl Pictures {
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Adds a picture that begins behind all others.
    pub fn push(&mut self, span: Span) {
        self.starts.push(self.position(span.at)[0]);
        self.spans.push(span);
    }

    /// The last picture that begins at or before a token, and its number.
    fn before(&self, index: usize) -> Option<(usize, &Span)> {
        let number = self.spans.partition_point(|span| span.at <= index).checked_sub(1)?;
        Some((number, &self.spans[number]))
    }

    /// The picture that a token belongs to.
    pub fn at(&self, index: usize) -> Option<&Span> {
        self.before(index).map(|(_, span)| span).filter(|span| span.range().contains(&index))
    }

    /// Time, row and column of a token. The tokens of a picture share a time, and what follows goes on behind its longer side.
    pub fn position(&self, index: usize) -> [u32; 3] {
        let Some((number, span)) = self.before(index) else { return [index as u32; 3] };
        let (start, within) = (self.starts[number], index - span.at);
        let grid = span.merged;
        if within < span.tokens() {
            let within = within as u32;
            return [start, start + within / grid.columns, start + within % grid.columns];
        }
        [start + grid.rows.max(grid.columns) + (within - span.tokens()) as u32; 3]
    }

    /// The longest prefix of at most `length` tokens that cuts no picture.
    pub fn whole(&self, length: usize) -> usize {
        match self.at(length) {
            Some(span) if span.at < length => span.at,
            _ => length,
        }
    }

    /// Forgets the pictures that begin at or behind a length.
    pub fn truncate(&mut self, length: usize) {
        let kept = self.spans.partition_point(|span| span.at < length);
        self.spans.truncate(kept);
        self.starts.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Grid, Identity};
    use proptest::prelude::*;

    fn span(at: usize, rows: u32, columns: u32, name: u8) -> Span {
        let merged = Grid { rows, columns };
        let grid = Grid { rows: 2 * rows, columns: 2 * columns };
        Span { at, merged, identity: Identity { digest: [name; 32], grid } }
    }

    fn pictures(spans: &[Span]) -> Pictures {
        let mut pictures = Pictures::default();
        spans.iter().for_each(|span| pictures.push(*span));
        pictures
    }

    #[test]
    fn positions_of_a_picture_are_its_rows_and_columns() {
        let pictures = pictures(&[span(2, 2, 3, 1), span(9, 1, 1, 2)]);
        let found: Vec<_> = (0..12).map(|i| pictures.position(i)).collect();
        let text = |p: u32| [p; 3];
        let expected = [
            text(0),
            text(1),
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
            text(5),
            text(6),
            text(7),
            text(8),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_prefix_is_as_long_as_the_same_pictures() {
        let ids = |n: u32| (0..n).map(|_| TokenId(9)).collect::<Vec<_>>();
        let (long, short) = (ids(12), ids(5));
        let (one, same, other) = ([span(2, 2, 3, 1)], [span(2, 2, 3, 1)], [span(2, 2, 3, 2)]);
        let turned = [span(2, 3, 2, 1)];
        let text = |tokens, pictures| Text { tokens, pictures };
        assert_eq!(common_prefix(text(&long, &one), text(&long, &same)), 12);
        assert_eq!(common_prefix(text(&short, &one), text(&long, &same)), 5, "half of a picture that is held");
        assert_eq!(common_prefix(text(&long, &one), text(&long, &other)), 2);
        assert_eq!(common_prefix(text(&long, &one), text(&long, &turned)), 2, "the same content in another shape");
        assert_eq!(common_prefix(text(&long, &one), text(&long, &[])), 2, "placeholders without a picture");
    }

    proptest! {
        /// The specification's counter, token by token.
        #[test]
        fn positions_follow_the_counter(parts in prop::collection::vec((0usize..5, 1u32..5, 1u32..5), 0..6)) {
            let (mut expected, mut spans, mut counter) = (vec![], vec![], 0u32);
            for (text, rows, columns) in parts {
                for _ in 0..text {
                    expected.push([counter; 3]);
                    counter += 1;
                }
                spans.push(span(expected.len(), rows, columns, 0));
                for j in 0..rows * columns {
                    expected.push([counter, counter + j / columns, counter + j % columns]);
                }
                counter += rows.max(columns);
            }
            expected.extend([[counter; 3], [counter + 1; 3]]);
            let pictures = pictures(&spans);
            for (index, expected) in expected.iter().enumerate() {
                prop_assert_eq!(pictures.position(index), *expected);
            }
            // Forgetting pictures changes nothing before them.
            for length in 0..expected.len() {
                let mut shorter = pictures.clone();
                let whole = pictures.whole(length);
                shorter.truncate(whole);
                prop_assert!(whole <= length && shorter.spans().iter().all(|span| span.range().end <= whole));
                for (index, expected) in expected.iter().enumerate().take(whole) {
                    prop_assert_eq!(shorter.position(index), *expected);
                }
            }
        }
    }
}
