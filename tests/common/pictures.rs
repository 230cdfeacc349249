//! The tiny vision encoder and pictures for it.

use std::sync::Arc;

use strata::engine::{Engine, OpenOptions, VisionOptions, Want};
use strata::gguf::ModelFiles;
use strata::picture::{Grid, Patches, Placed};
use strata::state::Sequence;
use strata::units::TokenId;

use super::npz::Npz;
use super::{fixture, ids};

pub const MERGE: u32 = 2;
/// `<|image_pad|>` of the random model, and of the trained one.
pub const PAD: u32 = 505;
pub const TRAINED_PAD: u32 = 2041;

pub fn encoder() -> Arc<ModelFiles> {
    Arc::new(ModelFiles::open(fixture("vision/tiny-vision.gguf")).expect("the encoder opens"))
}

/// The same pixels as `pixels` of tests/tools/vision_reference.py.
pub fn pixels(grid: Grid) -> Vec<f32> {
    let count = grid.patches() as u64 * 3 * 16 * 16;
    (0..count).map(|i| (((i * 7919 + 31 * u64::from(grid.rows)) % 2003) as f32 - 1001.0) / 1001.0).collect()
}

pub fn picture(rows: u32, columns: u32) -> Arc<Patches> {
    let grid = Grid { rows, columns };
    Arc::new(Patches { grid, merge: MERGE, values: pixels(grid), digest: [rows as u8; 32] })
}

/// Another one of the same shape.
pub fn other(picture: &Patches) -> Arc<Patches> {
    let values = picture.values.iter().rev().copied().collect();
    Arc::new(Patches { grid: picture.grid, merge: MERGE, values, digest: [0xEE; 32] })
}

/// Room for pictures of up to 35 tokens, of which `kept_tokens` are kept.
pub fn seeing(options: OpenOptions, kept_tokens: u32) -> OpenOptions {
    OpenOptions { vision: Some(VisionOptions { files: encoder(), max_tokens: 35, kept_tokens }), ..options }
}

/// A text with pictures: each part is so many words, and a picture behind them.
pub fn text(pad: u32, parts: &[(u32, Option<&Arc<Patches>>)]) -> (Vec<TokenId>, Vec<Placed>) {
    let (mut tokens, mut pictures) = (vec![], vec![]);
    for (words, picture) in parts {
        for _ in 0..*words {
            tokens.push(TokenId((tokens.len() as u32 * 37 + 11) % 400));
        }
        if let Some(patches) = picture {
            pictures.push(Placed { at: tokens.len(), patches: Arc::clone(patches) });
            tokens.extend(std::iter::repeat_n(TokenId(pad), patches.tokens()));
        }
    }
    (tokens, pictures)
}

/// Logits of every token of a text, fed on from where the sequence is, in pieces of `piece` tokens.
pub fn logits(
    engine: &mut Engine,
    sequence: &mut Sequence,
    (tokens, pictures): (&[TokenId], &[Placed]),
    piece: usize,
) -> Vec<Vec<f32>> {
    let mut rows = vec![];
    for tokens in tokens[sequence.len()..].chunks(piece) {
        let see = &mut |_, row: &mut [f32]| rows.push(row.to_vec());
        engine.feed_seeing(sequence, tokens, pictures, Want::All, see).expect("feeding succeeds");
    }
    rows
}

/// A text with two pictures that HF's whole model has read in float32: tokens, pictures, and the logits of every token, for the
/// random model.
pub fn read_by_the_authors_model() -> (Vec<TokenId>, Vec<Placed>, Vec<Vec<f32>>) {
    let mut npz = Npz::open(&fixture("vision/tiny-random-pictures.npz"));
    let (tokens, grids) = (ids(&npz.ints("tokens")), npz.ints("grids"));
    let (mut pictures, mut at) = (vec![], 0);
    for grid in grids.chunks(2) {
        let patches = picture(grid[0] as u32, grid[1] as u32);
        at += tokens[at..].iter().position(|t| t.0 == PAD).expect("a place for the picture");
        pictures.push(Placed { at, patches: Arc::clone(&patches) });
        at += patches.tokens();
    }
    let logits = npz.floats("logits");
    let width = logits.len() / tokens.len();
    (tokens, pictures, logits.chunks(width).map(<[f32]>::to_vec).collect())
}
