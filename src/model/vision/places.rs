//! What is added to a patch for its place in the picture.

use crate::picture::Grid;

/// A square of learned vectors, stretched over pictures of any shape.
#[derive(Debug, Clone, PartialEq)]
pub struct PlaceTable {
    side: u32,
    width: usize,
    /// `[y][x][width]`
    values: Vec<f32>,
}

/// Where a coordinate lies between two of the table: both, and the second one's share.
fn between(i: u32, count: u32, side: u32) -> (usize, usize, f32) {
    let at = if count > 1 { f64::from(i) * f64::from(side - 1) / f64::from(count - 1) } else { 0.0 };
    let low = at.floor();
    let high = (low as u32 + 1).min(side - 1);
    (low as usize, high as usize, (at - low) as f32)
}

impl PlaceTable {
    /// `values` are `side * side` rows of `width` elements.
    pub(super) fn new(side: u32, width: u32, values: Vec<f32>) -> PlaceTable {
        PlaceTable { side, width: width as usize, values }
    }

    /// Writes the row of every patch of a picture, in the order of [`Grid::places`]: the table stretched so that its corners are
    /// those of the picture, bilinear between its points.
    pub fn fill(&self, grid: Grid, merge: u32, to: &mut [f32]) {
        let row = |y: usize, x: usize| {
            let at = (y * self.side as usize + x) * self.width;
            &self.values[at..at + self.width]
        };
        for ((y, x), to) in grid.places(merge).zip(to.chunks_exact_mut(self.width)) {
            let (top, bottom, down) = between(y, grid.rows, self.side);
            let (left, right, across) = between(x, grid.columns, self.side);
            let corners = [row(top, left), row(top, right), row(bottom, left), row(bottom, right)];
            let shares = [(1.0 - down) * (1.0 - across), (1.0 - down) * across, down * (1.0 - across), down * across];
            for (i, to) in to.iter_mut().enumerate() {
                *to = corners.iter().zip(shares).map(|(corner, share)| corner[i] * share).sum();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_are_those_of_the_table_and_the_middle_is_their_mean() {
        let table = PlaceTable::new(2, 1, vec![0.0, 1.0, 10.0, 11.0]);
        let mut found = [0.0; 9];
        table.fill(Grid { rows: 3, columns: 3 }, 1, &mut found);
        assert_eq!(found, [0.0, 0.5, 1.0, 5.0, 5.5, 6.0, 10.0, 10.5, 11.0]);
        let mut one = [7.0; 1];
        table.fill(Grid { rows: 1, columns: 1 }, 1, &mut one);
        assert_eq!(one, [0.0], "a picture of one patch takes the first point");
    }
}
