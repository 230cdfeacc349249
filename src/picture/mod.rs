//! Pictures: from the bytes of a file to plain data for a vision encoder. This room knows neither devices nor models: the engine
//! says by [`Preprocess`] what its encoder wants, and gets [`Patches`].

mod decode;
mod error;
mod place;
mod prepare;
mod resize;

use std::sync::Arc;

pub use decode::{MAX_SIDE_PIXELS, MAX_UNPACKED_BYTES, Pixels, decode};
pub use error::PictureError;
pub use place::{PlaceError, place};
pub use prepare::{MAX_RATIO, read_picture};
pub use resize::resize;

/// A picture's size in patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    pub rows: u32,
    pub columns: u32,
}

impl Grid {
    pub fn patches(self) -> usize {
        self.rows as usize * self.columns as usize
    }

    /// Row and column of every patch in the order in which patches lie in [`Patches::values`]: squares of `merge` x `merge` row by
    /// row, and within each its patches row by row.
    pub fn places(self, merge: u32) -> impl Iterator<Item = (u32, u32)> {
        let merge = merge.max(1);
        let squares = self.merged(merge);
        let square = move |i: u32| (i / squares.columns * merge, i % squares.columns * merge);
        let within = move |(y, x): (u32, u32)| (0..merge * merge).map(move |i| (y + i / merge, x + i % merge));
        (0..squares.rows * squares.columns).map(square).flat_map(within)
    }

    /// The grid of tokens, of which each takes the place of `merge` x `merge` patches.
    pub fn merged(self, merge: u32) -> Grid {
        let merge = merge.max(1);
        Grid { rows: self.rows / merge, columns: self.columns / merge }
    }
}

/// What a vision encoder wants of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocess {
    /// Side of a patch in pixels.
    pub patch_size: u32,
    /// Side in patches of the square that becomes a token. A picture's sides are multiples of it.
    pub merge: u32,
    /// Of red, green and blue, of pixels from 0 to 1: a value is `(pixel - mean) / std`.
    pub mean: [f32; 3],
    pub std: [f32; 3],
    /// Tokens of a picture. Smaller and larger ones are scaled. `max_tokens` is what was planned for: the encoder has no room for more.
    pub min_tokens: u32,
    pub max_tokens: u32,
}

impl Preprocess {
    /// Both sides of a picture are multiples of so many pixels.
    pub fn side_pixels(&self) -> u32 {
        self.patch_size * self.merge
    }
}

/// A picture as its vision encoder reads it.
#[derive(Clone, PartialEq)]
pub struct Patches {
    pub grid: Grid,
    /// As of [`Preprocess::merge`].
    pub merge: u32,
    /// `[patch][channel][y][x]`. Patches lie in groups of `merge` x `merge`: groups row by row, and within a group its patches row by
    /// row. A still is one frame; the encoder uses it for both of its temporal slices.
    pub values: Vec<f32>,
    /// SHA-256 over what the picture shows, the size apart: equal digests and grids are the same picture.
    pub digest: [u8; 32],
}

impl Patches {
    /// Places that the picture takes in a prompt.
    pub fn tokens(&self) -> usize {
        self.grid.merged(self.merge).patches()
    }

    /// What tells this picture from others of as many tokens.
    pub fn identity(&self) -> Identity {
        Identity { digest: self.digest, grid: self.grid }
    }
}

impl std::fmt::Debug for Patches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patches").field("grid", &self.grid).field("merge", &self.merge).finish_non_exhaustive()
    }
}

/// Equal pictures have equal identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    pub digest: [u8; 32],
    pub grid: Grid,
}

/// A picture and its place in a prompt.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Index of its first token in the prompt. There and behind, the prompt holds [`Patches::tokens`] ids of the model's picture
    /// token (`<|image_pad|>`).
    pub at: usize,
    pub patches: Arc<Patches>,
}

/// Which picture stands where in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index of its first token.
    pub at: usize,
    /// Its tokens, row by row.
    pub merged: Grid,
    pub identity: Identity,
}

impl Span {
    pub fn tokens(&self) -> usize {
        self.merged.patches()
    }

    pub fn range(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.tokens()
    }
}

impl Placed {
    pub fn span(&self) -> Span {
        let Patches { grid, merge, .. } = *self.patches;
        Span { at: self.at, merged: grid.merged(merge), identity: self.patches.identity() }
    }

    /// The places of the prompt that the picture takes.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.patches.tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_lie_in_squares() {
        let places: Vec<_> = Grid { rows: 2, columns: 4 }.places(2).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
    }

    #[test]
    fn a_picture_takes_a_token_for_every_merged_square() {
        let patches = Patches { grid: Grid { rows: 6, columns: 10 }, merge: 2, values: vec![], digest: [0; 32] };
        let placed = Placed { at: 7, patches: Arc::new(patches) };
        assert_eq!(placed.range(), 7..22);
    }
}
