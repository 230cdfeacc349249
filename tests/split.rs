//! Promise: a model split over several devices gives the same bits as on one, prompts longer than a chunk included, and its
//! state can be taken back on all of them together.

mod common;

use common::npz::Npz;
use common::*;
use strata::backend::cpu::Mode;
use strata::engine::{Engine, EngineError};
use strata::units::TokenId;

const CHUNK: u32 = 64;

fn prompt(name: &str, prompt: usize) -> Vec<TokenId> {
    ids(&Npz::open(&fixture(&format!("{name}.reference.npz"))).ints(&format!("p{prompt}_tokens")))
}

/// Logits of all tokens of a long prompt, then of a few decoded tokens, with a step back in between.
fn session(engine: &mut Engine, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut s = engine.start().expect("a free slot");
    let (head, tail) = tokens.split_at(tokens.len() - 6);
    let mut rows = all_logits(engine, &mut s, head, head.len());
    engine.checkpoint(&mut s).expect("a checkpoint");
    rows.extend(all_logits(engine, &mut s, &[TokenId(7), TokenId(8), TokenId(9)], 3));
    assert_eq!(engine.rollback(&mut s, head.len()).expect("a rollback"), head.len());
    rows.extend(all_logits(engine, &mut s, tail, 1));
    engine.end(s);
    rows
}

#[test]
fn two_three_and_four_devices_give_the_bits_of_one() {
    for (name, prompt_index, splits) in [
        (TRAINED[1], 2, vec![vec![4, 8], vec![1, 5, 8], vec![2, 3, 7, 8]]),
        (RANDOM, 3, vec![vec![2, 4], vec![1, 3, 4], vec![1, 2, 3, 4]]),
    ] {
        let tokens = prompt(name, prompt_index);
        assert!(tokens.len() > 2 * CHUNK as usize);
        for mode in [Mode::Reference, Mode::Fast] {
            let options = options(mode, 560, CHUNK);
            let one = session(&mut open_with(name, mode, 2, options.clone()), &tokens);
            for ends in &splits {
                let mut engine = split_path(&model_path(name), mode, ends, options.clone()).expect("the split opens");
                assert!(session(&mut engine, &tokens) == one, "{name} {mode:?}: split before {ends:?} differs");
            }
        }
    }
}

#[test]
fn a_split_that_does_not_hold_every_layer_in_order_is_refused() {
    for ends in [vec![], vec![3], vec![2, 5], vec![4, 4], vec![2, 1, 4]] {
        match split_path(&model_path(RANDOM), Mode::Reference, &ends, options(Mode::Reference, 64, CHUNK)) {
            Err(EngineError::Split { layers: 4, .. }) => {}
            other => panic!("{ends:?}: {:?}", other.map(drop)),
        }
    }
}
