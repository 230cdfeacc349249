//! Promise: every fixture gives the float32 reference's logits in reference mode, and logits no further from it than the
//! peer's in fast mode, however the prompt is cut into windows, and rolling back leaves no trace.

mod common;

use common::reference::*;
use common::*;
use strata::backend::cpu::Mode;
use strata::engine::{Engine, Want};
use strata::units::TokenId;

const PROMPTS: usize = 9;
/// Rows of the widest window used here.
const CHUNK: u32 = 512;
/// Longest prompt plus the greedy continuation.
const CONTEXT: u32 = 560;

fn check_reference_mode(name: &str) {
    let mut npz = references(name);
    let mut engine = open(name, Mode::Reference, CONTEXT, CHUNK);
    for prompt in 0..PROMPTS {
        let tokens = ids(&npz.ints(&format!("p{prompt}_tokens")));
        let logits = prompt_logits(&mut engine, &tokens, CHUNK as usize);
        let d = distance(&mut npz, prompt, &logits);
        assert!(d.relative_l2 <= 1e-4, "{name} prompt {prompt}: relative L2 {:.2e}", d.relative_l2);
        check_greedy(&mut engine, &mut npz, prompt, &tokens, name);
    }
}

#[test]
fn reference_mode_equals_the_float32_reference_on_the_random_model() {
    check_reference_mode(RANDOM);
}

#[test]
fn reference_mode_equals_the_float32_reference_on_q8_0() {
    check_reference_mode(TRAINED[0]);
}

#[test]
fn reference_mode_equals_the_float32_reference_on_q4_k_m() {
    check_reference_mode(TRAINED[1]);
}

#[test]
fn reference_mode_equals_the_float32_reference_on_iq3_xxs() {
    check_reference_mode(TRAINED[2]);
}

#[test]
fn reference_mode_equals_the_float32_reference_on_iq2_xs_in_two_shards() {
    check_reference_mode(TRAINED[3]);
}

/// The peer's worst prompt in relative L2 over all positions, from the fixtures' table.
const PEER_RELATIVE_L2: [(&str, f64); 5] =
    [(RANDOM, 0.0118), (TRAINED[0], 0.0159), (TRAINED[1], 0.0312), (TRAINED[2], 0.0334), (TRAINED[3], 0.0256)];

#[test]
fn fast_mode_is_no_further_from_the_reference_than_the_peer() {
    for (name, peer) in PEER_RELATIVE_L2 {
        let mut npz = references(name);
        let mut engine = open(name, Mode::Fast, CONTEXT, CHUNK);
        let (mut same_top, mut positions, mut worst, mut kls) = (0, 0, 0f64, vec![]);
        for prompt in 0..PROMPTS {
            let tokens = ids(&npz.ints(&format!("p{prompt}_tokens")));
            let logits = prompt_logits(&mut engine, &tokens, CHUNK as usize);
            let d = distance(&mut npz, prompt, &logits);
            worst = worst.max(d.relative_l2);
            kls.extend(d.kl);
            same_top += d.same_top;
            positions += d.positions;
        }
        let mean_kl = kls.iter().sum::<f64>() / kls.len() as f64;
        let share = same_top as f64 / positions as f64;
        println!("{name}: worst relative L2 {worst:.4} (peer {peer}), top-1 {:.2} %, mean KL {mean_kl:.2e}", share * 100.0);
        assert!(worst <= peer, "{name}: relative L2 {worst:.4}, the peer has {peer}");
        assert!(share >= 0.98, "{name}: the same top token on {:.2} % of positions", share * 100.0);
        assert!(name == RANDOM || mean_kl <= 2e-3, "{name}: mean KL {mean_kl:.2e}");
    }
}

/// Largest relative distance between two rows of the same position.
fn worst_row(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| relative_l2([(x.as_slice(), y.as_slice())].into_iter())).fold(0.0, f64::max)
}

fn check_windows(name: &str, mode: Mode, pieces: &[usize]) {
    let tokens = ids(&references(name).ints("p2_tokens"));
    let mut engine = open(name, mode, CONTEXT, CHUNK);
    let whole = prompt_logits(&mut engine, &tokens, CHUNK as usize);
    for piece in pieces {
        let found = prompt_logits(&mut engine, &tokens, *piece);
        let worst = worst_row(&found, &whole);
        assert!(found == whole, "{name} {mode:?}: windows of {piece} rows differ from one of all rows by {worst:.2e}");
    }
}

#[test]
fn the_size_of_the_windows_does_not_change_a_bit_in_fast_mode() {
    for name in TRAINED.into_iter().chain([RANDOM]) {
        check_windows(name, Mode::Fast, &[1, 2, 3, 7, 8, 9, 33, 64]);
    }
}

#[test]
fn the_size_of_the_windows_does_not_change_a_bit_in_reference_mode() {
    for name in [RANDOM, TRAINED[1]] {
        check_windows(name, Mode::Reference, &[1, 7, 64]);
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    for mode in [Mode::Reference, Mode::Fast] {
        let tokens = ids(&references(TRAINED[1]).ints("p1_tokens"));
        let logits = |threads| {
            let mut engine = open_with(TRAINED[1], mode, threads, options(mode, CONTEXT, CHUNK));
            prompt_logits(&mut engine, &tokens, 20)
        };
        let one = logits(1);
        for threads in [2, 3] {
            assert!(logits(threads) == one, "{mode:?}: {threads} threads differ from one");
        }
    }
}

#[test]
fn rolling_back_and_decoding_again_gives_the_same_bits_as_never_having_gone_forward() {
    for mode in [Mode::Reference, Mode::Fast] {
        let tokens = ids(&references(TRAINED[0]).ints("p2_tokens"));
        let (prompt, rest) = tokens.split_at(100);
        let undo = 3;
        let opts = strata::engine::OpenOptions { undo_tokens: undo, ..options(mode, CONTEXT, CHUNK) };
        let mut engine = open_with(TRAINED[0], mode, 2, opts);

        let mut straight = engine.start().expect("a free slot");
        last_logits(&mut engine, &mut straight, prompt);
        let expected: Vec<_> = rest[..8].iter().map(|t| last_logits(&mut engine, &mut straight, &[*t])).collect();
        engine.end(straight);

        let mut s = engine.start().expect("a free slot");
        last_logits(&mut engine, &mut s, prompt);
        engine.checkpoint(&mut s).expect("a checkpoint");
        let mut got = vec![];
        for (i, token) in rest[..8].iter().enumerate() {
            // Wrong tokens, in one window and one by one, then back by version ...
            let wrong = [TokenId(1), TokenId(2), TokenId(3)];
            let length = s.len();
            match i % 3 {
                0 => drop(last_logits(&mut engine, &mut s, &wrong)),
                1 => wrong.iter().for_each(|t| drop(last_logits(&mut engine, &mut s, &[*t]))),
                _ => drop(last_logits(&mut engine, &mut s, &wrong[..1])),
            }
            assert_eq!(engine.rollback(&mut s, length).expect("a rollback"), length);
            got.push(last_logits(&mut engine, &mut s, &[*token]));
        }
        assert!(got == expected, "{mode:?}: bits differ after rolling back to a version");

        // ... and far back, to the checkpoint.
        last_logits(&mut engine, &mut s, &tokens[..60]);
        assert_eq!(engine.rollback(&mut s, prompt.len() + 2).expect("a rollback"), prompt.len());
        let again: Vec<_> = rest[..8].iter().map(|t| last_logits(&mut engine, &mut s, &[*t])).collect();
        assert!(again == expected, "{mode:?}: bits differ after rolling back to a checkpoint");
    }
}

/// What a step wrote last, by the step's name and by the buffer's, row after row.
type Traced = std::collections::HashMap<String, Vec<f32>>;

fn traced(engine: &mut Engine, tokens: &[TokenId]) -> Traced {
    let mut steps = Traced::new();
    let mut watch = |step: &strata::schedule::TraceStep<'_>| {
        steps.insert(step.program.steps[step.step].name.clone(), step.values.to_vec());
        steps.insert(step.program.buffer(step.buffer).name.clone(), step.values.to_vec());
    };
    let mut sequence = engine.start().expect("a free slot");
    engine.feed_watched(&mut sequence, tokens, Want::Last, &mut |_, _| (), Some(&mut watch)).expect("feeding succeeds");
    engine.end(sequence);
    steps
}

#[test]
fn the_activations_of_every_layer_equal_the_reference_on_the_random_model() {
    let mut npz = references(RANDOM);
    let tokens = ids(&npz.ints("p6_tokens"));
    let mut engine = open(RANDOM, Mode::Reference, CONTEXT, CHUNK);
    // The last step of the head sees only the last row, whose logits the other tests compare.
    let steps = traced(&mut engine, &tokens);
    let sum = |a: &str, b: &str| steps[a].iter().zip(&steps[b]).map(|(x, y)| x + y).collect::<Vec<f32>>();
    let mut compared = 0;
    let mut check = |name: &str, ours: &[f32]| {
        let theirs = npz.floats(&format!("hidden_p6_{name}"));
        let distance = relative_l2([(ours, theirs.as_slice())].into_iter());
        assert!(distance <= 1e-4, "{name}: relative L2 {distance:.2e}");
        compared += 1;
    };
    for layer in 0..4 {
        let mixer = if layer == 3 { "attn" } else { "delta" };
        for (name, step) in [
            ("attn_in", "attn mix gate".to_string()),
            ("attn_out", format!("{mixer} out")),
            ("ffn_in", "ffn mix gate".into()),
            ("ffn_out", "shared add".into()),
            ("out", "ffn combine".into()),
        ] {
            check(&format!("layer{layer}_{name}"), &steps[&format!("L{layer} {step}")]);
        }
    }
    check("layer1_ple_delta", &sum("L1 n-gram gated", "L1 n-gram conv"));
    assert_eq!(compared, 21);
}

#[test]
fn sequences_do_not_see_each_other() {
    let name = TRAINED[2];
    let mut npz = references(name);
    let a = ids(&npz.ints("p0_tokens"));
    let b = ids(&npz.ints("p1_tokens"));
    let opts = strata::engine::OpenOptions { slots: 2, ..options(Mode::Fast, CONTEXT, CHUNK) };
    let mut engine = open_with(name, Mode::Fast, 2, opts);
    let alone = prompt_logits(&mut engine, &a, 1);
    let (mut first, mut second) = (engine.start().expect("slot"), engine.start().expect("slot"));
    let mut mixed = vec![];
    for i in 0..a.len() {
        mixed.extend(all_logits(&mut engine, &mut first, &a[i..=i], 1));
        all_logits(&mut engine, &mut second, &b[i..=i], 1);
    }
    assert!(mixed == alone);
}
