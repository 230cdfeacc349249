//! Models on cards: logits, windows, rolling back, splits, and what the drivers must not notice.

use std::sync::Arc;

use super::common::gpu::{open_card, software_card};
use super::common::npz::Npz;
use super::common::pictures::{PAD, logits, picture, seeing, text};
use super::common::*;
use super::sim_support::*;
use strata::backend::Backend;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::engine::{Engine, OpenOptions, Placement};
use strata::gguf::ModelFiles;
use strata::model::Model;
use strata::program::KvFormat;
use strata::units::TokenId;

const CONTEXT: u32 = 64;
/// More rows than vector kernels take.
const CHUNK: u32 = 10;
const LAYERS: u32 = 8;

/// Opens a model on devices, each with the layers up to one of `ends`.
fn open_on(name: &str, devices: Vec<(u32, Box<dyn Backend>)>) -> Engine {
    open_with(name, devices, options(Mode::Fast, CONTEXT, CHUNK).kv)
}

fn open_with(name: &str, devices: Vec<(u32, Box<dyn Backend>)>, kv: KvFormat) -> Engine {
    let files = Arc::new(ModelFiles::open(model_path(name)).unwrap());
    let model = Arc::new(Model::open(&files).unwrap());
    let mut start = 0;
    let placements = devices.into_iter().map(|(end, backend)| {
        let layers = std::mem::replace(&mut start, end)..end;
        Placement { layers, backend }
    });
    let options = OpenOptions { undo_tokens: 2, kv, ..options(Mode::Fast, CONTEXT, CHUNK) };
    Engine::open_split(files, model, placements.collect(), options, &mut |_| ()).unwrap()
}

fn processor() -> Box<dyn Backend> {
    Box::new(CpuBackend::new(CpuOptions { pin_threads: false, ..CpuOptions::new(Mode::Fast) }).unwrap())
}

fn layers(name: &str) -> u32 {
    if name == RANDOM { 4 } else { LAYERS }
}

/// The first tokens of a reference prompt: longer than a chunk.
fn prompt(name: &str, tokens: usize) -> Vec<TokenId> {
    let mut all = ids(&Npz::open(&fixture(&format!("{name}.reference.npz"))).ints("p2_tokens"));
    all.truncate(tokens);
    all
}

/// Logits of a prompt of more than a chunk, of a window that is taken back, and of decoded tokens.
fn session(engine: &mut Engine, name: &str) -> Vec<Vec<f32>> {
    let tokens = prompt(name, CHUNK as usize + 5);
    let mut s = engine.start().unwrap();
    let (head, tail) = tokens.split_at(tokens.len() - 2);
    let mut rows = all_logits(engine, &mut s, head, head.len());
    rows.extend(all_logits(engine, &mut s, &[TokenId(7), TokenId(8)], 2));
    assert_eq!(engine.rollback(&mut s, head.len()).unwrap(), head.len());
    rows.extend(all_logits(engine, &mut s, tail, 1));
    engine.end(s);
    assert_eq!(engine.late_allocations(), 0);
    rows
}

fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    assert_eq!(a.len(), b.len());
    relative_l2(a.iter().map(Vec::as_slice).zip(b.iter().map(Vec::as_slice)))
}

/// Kernels round activations as the processor's fast mode does; sums are added in another order, and caches hold float16.
#[test]
fn every_fixture_gives_on_every_kind_of_card_what_the_processor_gives() {
    let zoo = Zoo::new("");
    for name in [RANDOM].iter().chain(&TRAINED) {
        let expected = session(&mut open_on(name, vec![(layers(name), processor())]), name);
        for (kind, card) in zoo.kinds() {
            let found = session(&mut open_on(name, vec![(layers(name), card)]), name);
            let d = distance(&found, &expected);
            println!("{name} on {kind}: relative L2 {d:.2e} from the processor");
            assert!(d <= 1e-3, "{name} on {kind}: {d:.2e}");
        }
    }
    zoo.assert_given_back("after all models");
}

/// The processor reads the pictures, the card the text, in windows that cut the pictures and the blocks of the indexer.
#[test]
fn a_text_with_pictures_gives_on_every_kind_of_card_what_the_processor_gives() {
    let zoo = Zoo::new("");
    let (tokens, pictures) = text(PAD, &[(9, Some(&picture(6, 4))), (6, Some(&picture(2, 10))), (24, None)]);
    let read = |device: Box<dyn Backend>| {
        let files = Arc::new(ModelFiles::open(model_path(RANDOM)).unwrap());
        let model = Arc::new(Model::open(&files).unwrap());
        let options = seeing(options(Mode::Fast, CONTEXT, CHUNK), 64);
        let mut engine = Engine::open(files, model, device, options, &mut |_| ()).unwrap();
        let mut s = engine.start().unwrap();
        logits(&mut engine, &mut s, (&tokens, &pictures), CHUNK as usize)
    };
    let expected = read(processor());
    for (kind, card) in zoo.kinds() {
        let d = distance(&read(card), &expected);
        println!("pictures on {kind}: relative L2 {d:.2e} from the processor");
        assert!(d <= 1e-3, "pictures on {kind}: {d:.2e}");
    }
    zoo.assert_given_back("after the pictures");
}

/// A key or value between two codes may fall to the one on the processor and to the other on a card: a step of 1/127 or 1/8 of the
/// largest of its block.
#[test]
fn caches_of_blocks_give_on_every_kind_of_card_what_they_give_on_the_processor() {
    let zoo = Zoo::new("");
    let name = TRAINED[0];
    let halves = session(&mut open_on(name, vec![(LAYERS, processor())]), name);
    for kv in [KvFormat::Q8_0, KvFormat::K8V4, KvFormat::Q4_0] {
        let expected = session(&mut open_with(name, vec![(LAYERS, processor())], kv), name);
        assert!(distance(&expected, &halves) > 0.0, "{} changes nothing", kv.name());
        for (kind, card) in zoo.kinds() {
            let found = session(&mut open_with(name, vec![(LAYERS, card)], kv), name);
            let d = distance(&found, &expected);
            println!("{name}, {} on {kind}: relative L2 {d:.2e} from the processor", kv.name());
            assert!(d <= 5e-4, "{name}, {} on {kind}: {d:.2e}", kv.name());
        }
    }
}

/// The bounds of the processor's fast mode: no further from the float32 reference than the peer.
#[test]
fn every_fixture_is_as_close_to_its_reference_as_on_the_processor() {
    let zoo = Zoo::new("");
    for (name, peer) in [(RANDOM, 0.0118), (TRAINED[0], 0.0159), (TRAINED[1], 0.0312), (TRAINED[2], 0.0334), (TRAINED[3], 0.0256)]
    {
        let mut npz = Npz::open(&fixture(&format!("{name}.reference.npz")));
        let tokens: Vec<TokenId> = ids(&npz.ints("p0_tokens")).into_iter().take(2 * CHUNK as usize).collect();
        let positions = npz.ints("p0_positions");
        let expected = npz.rows("p0_hf_logits");
        for (kind, card) in zoo.kinds() {
            let mut engine = open_on(name, vec![(layers(name), card)]);
            let mut s = engine.start().unwrap();
            let found = all_logits(&mut engine, &mut s, &tokens, CHUNK as usize);
            let stored = positions.iter().zip(&expected).filter(|(p, _)| (**p as usize) < found.len());
            let pairs: Vec<_> = stored.map(|(p, row)| (found[*p as usize].as_slice(), row.as_slice())).collect();
            assert!(!pairs.is_empty());
            let d = relative_l2(pairs.into_iter());
            println!("{name} on {kind}: relative L2 {d:.4} from the reference (peer {peer})");
            assert!(d <= peer, "{name} on {kind}: {d:.4}, the peer has {peer}");
        }
    }
}

#[test]
fn a_split_over_cards_gives_the_bits_of_one_card() {
    let zoo = Zoo::new("");
    for name in [RANDOM, TRAINED[2]] {
        let layers = layers(name);
        let at = |end: u32| end * layers / 8;
        let one = session(&mut open_on(name, vec![(layers, zoo.cuda(0))]), name);
        let two = vec![(at(4), zoo.cuda(0)), (layers, zoo.cuda(1))];
        let four = vec![(at(2), zoo.cuda(0)), (at(4), zoo.cuda(3)), (at(6), zoo.cuda(1)), (layers, zoo.cuda(2))];
        // Where as many threads go in step, both vendors' kernels add in the same order.
        let mixed = vec![(at(6), zoo.cuda(0)), (layers, zoo.hip())];
        for (what, split) in [("two cards", two), ("four cards", four), ("CUDA and HIP", mixed)] {
            assert!(session(&mut open_on(name, split), name) == one, "{name}: {what} differ from one");
        }
    }
}

#[test]
fn a_split_over_all_kinds_of_devices_stays_within_rounding() {
    let zoo = Zoo::new("");
    let name = TRAINED[2];
    let one = session(&mut open_on(name, vec![(8, zoo.cuda(0))]), name);
    let split = vec![(2, zoo.hip_64()), (4, zoo.cuda(0)), (6, processor()), (8, zoo.hip())];
    let mixed = session(&mut open_on(name, split), name);
    let d = distance(&mixed, &one);
    let worst = mixed.iter().zip(&one).map(|(a, b)| kl(b, a)).fold(0.0, f64::max);
    println!("HIP 64 + CUDA + CPU + HIP: relative L2 {d:.2e}, worst KL {worst:.2e} from one CUDA card");
    assert!(d <= 1e-3 && worst <= 1e-5, "relative L2 {d:.2e}, KL {worst:.2e}");
}

/// Vulkan's kernels multiply float32 activations, the others round them to two bytes, so a part of the layers on such a card is
/// within that rounding of one card. Where the arithmetic is the same the bits are: with HIP in CUDA's place, or another card.
#[test]
fn a_split_over_cuda_vulkan_and_the_processor_gives_the_tokens_of_one_card() {
    let Some(vulkan) = software_card() else { return };
    let zoo = Zoo::new("");
    for (name, most_kl) in [(RANDOM, 1e-9), (TRAINED[2], 1e-5)] {
        let layers = layers(name);
        let (first, second) = (layers / 4, layers / 4 * 3);
        let split = |card: Box<dyn Backend>| {
            let vulkan: Box<dyn Backend> = Box::new(open_card(&vulkan, None));
            session(&mut open_on(name, vec![(first, card), (second, vulkan), (layers, processor())]), name)
        };
        let one = session(&mut open_on(name, vec![(layers, zoo.cuda(0))]), name);
        let mixed = split(zoo.cuda(0));
        let d = distance(&mixed, &one);
        let worst = mixed.iter().zip(&one).map(|(a, b)| kl(b, a)).fold(0.0, f64::max);
        println!("{name} on CUDA + Vulkan + CPU: relative L2 {d:.2e}, worst KL {worst:.2e} from one CUDA card");
        assert!(worst <= most_kl, "{name}: KL {worst:.2e}");
        let tokens = |rows: &[Vec<f32>]| rows.iter().map(|row| argmax(row)).collect::<Vec<_>>();
        assert_eq!(tokens(&mixed), tokens(&one), "{name}: other tokens");
        assert!(split(zoo.cuda(1)) == mixed, "{name}: another card of the same kind changes the bits");
        assert!(split(zoo.hip()) == mixed, "{name}: HIP in CUDA's place changes the bits");
    }
}

/// Windows of one row each of several sequences are captured like those of one sequence.
#[test]
fn sequences_that_go_on_together_are_served_by_graphs_and_get_the_bits_they_get_alone() {
    let zoo = Zoo::new("");
    let name = TRAINED[2];
    let open = |card| {
        let files = Arc::new(ModelFiles::open(model_path(name)).unwrap());
        let model = Arc::new(Model::open(&files).unwrap());
        let options = OpenOptions { slots: 3, decode_rows: 4, max_outputs: 4, ..options(Mode::Fast, CONTEXT, 4) };
        Engine::open(files, model, card, options, &mut |_| ()).unwrap()
    };
    let prompts = [prompt(name, 3), prompt(name, 6), prompt(name, 9)];
    let mut engine = open(zoo.cuda(0));
    let mut sequences: Vec<_> = prompts.iter().map(|_| engine.start().unwrap()).collect();
    for (s, tokens) in sequences.iter_mut().zip(&prompts) {
        last_logits(&mut engine, s, tokens);
    }
    let before = (zoo.counter("graph-launches"), zoo.counter("taking-calls"));
    let mut together = vec![vec![]; 3];
    let mut feeds: Vec<_> = sequences.iter_mut().map(|s| (s, TokenId(7))).collect();
    engine.feed_each(&mut feeds, &mut |n, row| together[n] = row.to_vec()).unwrap();
    assert_eq!(zoo.counter("graph-launches"), before.0 + 1, "one window, one graph");
    assert_eq!(zoo.counter("taking-calls"), before.1);
    for (tokens, expected) in prompts.iter().zip(&together) {
        let mut s = engine.start().unwrap_or_else(|_| {
            sequences.drain(..).for_each(|s| engine.end(s));
            engine.start().unwrap()
        });
        last_logits(&mut engine, &mut s, tokens);
        let alone = last_logits(&mut engine, &mut s, &[TokenId(7)]);
        let d = relative_l2([(alone.as_slice(), expected.as_slice())].into_iter());
        assert!(d <= 1e-5, "{} tokens: {d:.2e}", tokens.len());
        engine.end(s);
    }
}

/// Streams that only run when somebody waits, or by themselves, show a missing synchronisation; threads in reverse order a missing barrier; pages
/// that fault a byte too far.
#[test]
fn lazy_streams_reversed_threads_and_guard_pages_change_nothing() {
    let name = RANDOM;
    let plain = {
        let zoo = Zoo::new("");
        zoo.kinds().map(|(_, card)| session(&mut open_on(name, vec![(4, card)]), name))
    };
    for settings in ["lazy 1", "background 1", "reversed 1", "guard 1", "lazy 1\nreversed 1\nfill 127"] {
        let zoo = Zoo::new(settings);
        for ((kind, card), expected) in zoo.kinds().into_iter().zip(&plain) {
            let found = session(&mut open_on(name, vec![(4, card)]), name);
            assert!(found == *expected, "{kind}: {settings:?} changes the bits");
        }
        zoo.assert_given_back(settings);
    }
}

#[test]
fn decoding_takes_nothing_from_the_driver() {
    let zoo = Zoo::new("");
    let name = TRAINED[2];
    let mut engine = open_on(name, vec![(4, zoo.cuda(0)), (8, zoo.hip())]);
    let mut s = engine.start().unwrap();
    last_logits(&mut engine, &mut s, &prompt(name, 12));
    let before = (zoo.counter("taking-calls"), zoo.counter("launches"));
    for token in prompt(name, 4) {
        last_logits(&mut engine, &mut s, &[token]);
    }
    assert_eq!(zoo.counter("taking-calls"), before.0);
    assert!(zoo.counter("launches") > before.1, "the kernels did run");
    assert!(zoo.counter("graphs") > 0, "decode windows are captured");
}
