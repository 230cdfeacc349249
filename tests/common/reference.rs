//! Logits and greedy texts of the fixtures' float32 reference, and how far ours are from them.

use strata::engine::Engine;
use strata::units::TokenId;

use super::npz::Npz;
use super::*;

const GREEDY_TOKENS: usize = 48;

pub fn references(name: &str) -> Npz {
    Npz::open(&fixture(&format!("{name}.reference.npz")))
}

/// One prompt's logits at every position, with a sequence of its own.
pub fn prompt_logits(engine: &mut Engine, tokens: &[TokenId], piece: usize) -> Vec<Vec<f32>> {
    let mut sequence = engine.start().expect("a free slot");
    let rows = all_logits(engine, &mut sequence, tokens, piece);
    engine.end(sequence);
    rows
}

/// Distance of one prompt's stored rows, its KL per stored row, and how many of all positions have the reference's top token.
pub struct Distance {
    pub relative_l2: f64,
    pub kl: Vec<f64>,
    pub same_top: usize,
    pub positions: usize,
}

pub fn distance(npz: &mut Npz, prompt: usize, logits: &[Vec<f32>]) -> Distance {
    let positions = npz.ints(&format!("p{prompt}_positions"));
    let expected = npz.rows(&format!("p{prompt}_hf_logits"));
    let argmaxes = npz.ints(&format!("p{prompt}_hf_argmax"));
    assert_eq!(argmaxes.len(), logits.len());
    let stored = || positions.iter().map(|p| logits[*p as usize].as_slice());
    Distance {
        relative_l2: relative_l2(stored().zip(expected.iter().map(Vec::as_slice))),
        kl: stored().zip(&expected).map(|(ours, theirs)| kl(theirs, ours)).collect(),
        same_top: logits.iter().zip(&argmaxes).filter(|(row, top)| argmax(row) == **top as usize).count(),
        positions: logits.len(),
    }
}

/// Greedy tokens equal the reference's as long as its margin between the two best tokens is above the noise.
pub fn check_greedy(engine: &mut Engine, npz: &mut Npz, prompt: usize, tokens: &[TokenId], name: &str) {
    let expected = npz.ints(&format!("p{prompt}_hf_greedy"));
    let margins = npz.floats(&format!("p{prompt}_hf_greedy_margin"));
    assert_eq!(expected.len(), GREEDY_TOKENS);
    let mut sequence = engine.start().expect("a free slot");
    let mut logits = last_logits(engine, &mut sequence, tokens);
    for (i, (token, margin)) in expected.iter().zip(margins).enumerate() {
        if margin <= 1e-3 {
            break;
        }
        assert_eq!(argmax(&logits), *token as usize, "{name} prompt {prompt}, greedy token {i}, margin {margin}");
        logits = last_logits(engine, &mut sequence, &[TokenId(*token as u32)]);
    }
    engine.end(sequence);
}
