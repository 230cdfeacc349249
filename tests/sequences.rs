//! Promise: sequences do not disturb one another. Computed together in one window they give what each gives alone; moved to
//! RAM and back, into another slot, they go on as if nothing had happened.

mod common;

use common::*;
use strata::backend::cpu::Mode;
use strata::engine::{Engine, EngineError, OpenOptions, Want};
use strata::state::Sequence;
use strata::units::TokenId;

const CONTEXT: u32 = 512;

fn opened(name: &str, mode: Mode, slots: u32, joint_rows: u32) -> Engine {
    let options = OpenOptions { slots, decode_rows: joint_rows, max_outputs: joint_rows, ..options(mode, CONTEXT, 32) };
    open_with(name, mode, 2, options)
}

fn prompt(seed: u32, length: u32) -> Vec<TokenId> {
    (0..length).map(|i| TokenId((seed * 37 + i * (seed + 11)) % 200)).collect()
}

fn last_row(engine: &mut Engine, sequence: &mut Sequence, tokens: &[TokenId]) -> Vec<f32> {
    let mut scores = Vec::new();
    engine.feed(sequence, tokens, Want::Last, &mut |_, row| scores = row.to_vec()).expect("the tokens are read");
    scores
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Prompts of different lengths in one engine, then `steps` tokens each: together in windows of at most `joint_rows` if
/// `jointly`, else one after the other.
fn decode(name: &str, mode: Mode, joint_rows: u32, jointly: bool) -> Vec<Vec<Vec<u32>>> {
    const COUNT: usize = 5;
    let mut engine = opened(name, mode, COUNT as u32, joint_rows);
    let mut sequences: Vec<Sequence> = (0..COUNT).map(|_| engine.start().expect("a slot")).collect();
    for (i, sequence) in sequences.iter_mut().enumerate() {
        last_row(&mut engine, sequence, &prompt(i as u32, 20 + 33 * i as u32));
    }
    let mut seen = vec![Vec::new(); COUNT];
    for step in 0..6 {
        let token = |i: usize| TokenId((step * 17 + i as u32 * 5) % 200);
        if jointly {
            let mut feeds: Vec<_> = sequences.iter_mut().enumerate().map(|(i, s)| (s, token(i))).collect();
            engine.feed_each(&mut feeds, &mut |i, row| seen[i].push(bits(row))).expect("a joint window");
        } else {
            for (i, sequence) in sequences.iter_mut().enumerate() {
                let row = last_row(&mut engine, sequence, &[token(i)]);
                seen[i].push(bits(&row));
            }
        }
    }
    seen
}

#[test]
fn sequences_in_one_window_are_computed_as_alone() {
    for (name, mode) in [(RANDOM, Mode::Reference), (TRAINED[0], Mode::Reference), (RANDOM, Mode::Fast), (TRAINED[2], Mode::Fast)]
    {
        let alone = decode(name, mode, 1, false);
        for joint_rows in [2, 3, 8] {
            let together = decode(name, mode, joint_rows, true);
            assert!(together == alone, "{name}, {mode:?}, windows of {joint_rows}");
        }
    }
}

#[test]
fn a_joint_window_that_cannot_be_leaves_the_sequences_as_they_were() {
    let mut engine = opened(RANDOM, Mode::Reference, 2, 2);
    let (mut a, mut b) = (engine.start().expect("a slot"), engine.start().expect("a slot"));
    last_row(&mut engine, &mut a, &prompt(1, 9));
    let vocab = engine.dims().vocab;
    let error = engine.feed_each(&mut [(&mut a, TokenId(1)), (&mut b, TokenId(vocab))], &mut |_, _| ());
    assert!(matches!(error, Err(EngineError::NoSuchToken { .. })));
    assert_eq!((a.len(), b.len()), (9, 0));
    let full: Vec<TokenId> = prompt(2, CONTEXT);
    last_row(&mut engine, &mut b, &full);
    let error = engine.feed_each(&mut [(&mut a, TokenId(1)), (&mut b, TokenId(1))], &mut |_, _| ());
    assert!(matches!(error, Err(EngineError::ContextFull { .. })));
    assert_eq!((a.len(), b.len()), (9, CONTEXT as usize));
}

#[test]
fn a_parked_conversation_goes_on_in_any_slot() {
    for (name, mode) in [(RANDOM, Mode::Reference), (TRAINED[0], Mode::Fast)] {
        let mut engine = opened(name, mode, 2, 1);
        let (mut a, mut b) = (engine.start().expect("a slot"), engine.start().expect("a slot"));
        let (first, other) = (prompt(1, 150), prompt(2, 70));
        last_row(&mut engine, &mut a, &first[..100]);
        engine.checkpoint(&mut a).expect("a checkpoint");
        last_row(&mut engine, &mut a, &first[100..]);
        let expected = engine.parked_bytes(&a);
        let parked = engine.park(&mut a).expect("room in RAM");
        assert_eq!((parked.bytes(), parked.text().tokens), (expected, first.as_slice()));
        assert!(a.is_empty());

        // Both slots are used by others meanwhile.
        let noise = last_row(&mut engine, &mut a, &other);
        assert_eq!(bits(&noise), bits(&last_row(&mut engine, &mut b, &other)), "an emptied slot is like a new one");
        engine.unpark(&mut b, parked).expect("the conversation is back");
        assert_eq!(b.tokens(), first);
        let back = last_row(&mut engine, &mut b, &[TokenId(7)]);

        let mut fresh = opened(name, mode, 2, 1);
        let mut whole = fresh.start().expect("a slot");
        last_row(&mut fresh, &mut whole, &first[..100]);
        last_row(&mut fresh, &mut whole, &first[100..]);
        assert_eq!(bits(&back), bits(&last_row(&mut fresh, &mut whole, &[TokenId(7)])), "{name}");

        // Its checkpoint came along.
        assert_eq!(engine.rollback(&mut b, 100).expect("a way back"), 100, "{name}");
    }
}
