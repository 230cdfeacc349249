//! Promise: the GPU kernels give every fixture's float32 reference within the tolerances of the CPU's reference mode, alone and as
//! stages of a split, whatever the size of windows; cards that refuse memory or vanish end in errors that say so.

mod common;

use std::sync::Arc;

use common::gpu::{open_card, software_card};
use common::pictures::{logits, read_by_the_authors_model, seeing};
use common::reference::*;
use common::skip::skipped;
use common::*;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::backend::discovery::{CardOptions, NamedCard};
use strata::backend::webgpu::{Tile, Tuning, VULKAN, WebGpuBackend, fastest};
use strata::backend::{ArenaSizes, Backend, BackendError, CardUse, Faults, VirtualCard, VirtualFacts};
use strata::gguf::ModelFiles;
use strata::model::{Model, Tensors};
use strata::program::{ArenaKind, KvFormat};
use strata::units::TokenId;

/// Rows of the widest window used here.
const CHUNK: u32 = 64;
const CONTEXT: u32 = 560;
/// A short prompt, one beyond the budget of sparse attention, and one of another kind. A processor that plays a card is slow:
/// most models read the short one only.
const PROMPTS: [usize; 3] = [0, 2, 6];

fn device(card: &NamedCard) -> Box<dyn Backend> {
    Box::new(open_card(card, None))
}

fn exact_options() -> strata::engine::OpenOptions {
    options(Mode::Reference, CONTEXT, CHUNK)
}

fn check_fixture(name: &str, prompts: &[usize]) {
    let Some(card) = software_card() else { return };
    let mut npz = references(name);
    let mut engine = open_on(&model_path(name), device(&card), exact_options());
    for prompt in prompts.iter().copied() {
        let tokens = ids(&npz.ints(&format!("p{prompt}_tokens")));
        let logits = prompt_logits(&mut engine, &tokens, CHUNK as usize);
        let d = distance(&mut npz, prompt, &logits);
        assert!(d.relative_l2 <= 1e-4, "{name} prompt {prompt}: relative L2 {:.2e}", d.relative_l2);
        check_greedy(&mut engine, &mut npz, prompt, &tokens, name);
    }
    let memory = engine.pipeline().stages[0].backend.memory();
    assert_eq!(memory.late_allocations, 0);
}

#[test]
fn the_random_model() {
    check_fixture(RANDOM, &PROMPTS);
}

/// The processor reads the pictures, the card the text: positions by row and column, in windows that cut the pictures.
#[test]
fn a_text_with_pictures() {
    let Some(card) = software_card() else { return };
    let (tokens, pictures, expected) = read_by_the_authors_model();
    for piece in [CHUNK as usize, 7] {
        let mut engine = open_on(&model_path(RANDOM), device(&card), seeing(exact_options(), 64));
        let mut sequence = engine.start().unwrap();
        let found = logits(&mut engine, &mut sequence, (&tokens, &pictures), piece);
        let distance = relative_l2(found.iter().map(Vec::as_slice).zip(expected.iter().map(Vec::as_slice)));
        assert!(distance <= 1e-4, "pieces of {piece}: relative L2 {distance:.2e}");
    }
}

#[test]
fn q8_0() {
    check_fixture(TRAINED[0], &PROMPTS[..2]);
}

#[test]
fn q4_k_m() {
    check_fixture(TRAINED[1], &PROMPTS[..1]);
}

#[test]
fn iq3_xxs() {
    check_fixture(TRAINED[2], &PROMPTS[..1]);
}

#[test]
fn iq2_xs_in_two_shards() {
    check_fixture(TRAINED[3], &PROMPTS[..1]);
}

/// Kernels that cards choose from. Rounding to 15 bits moves logits as on the processor's fast mode: by 1e-4 for this file.
#[test]
fn tiles_of_f16_and_of_packed_bytes_give_the_reference() {
    let Some(card) = software_card() else { return };
    let name = TRAINED[0];
    let mut npz = references(name);
    let tokens = ids(&npz.ints("p0_tokens"));
    for (tile, most) in [(Tile::Half, 1e-4), (Tile::Bytes, 3e-4)] {
        let backend = open_card(&card, Some(Tuning::plain(32).with_tile(tile)));
        let mut engine = open_on(&model_path(name), Box::new(backend), exact_options());
        let logits = prompt_logits(&mut engine, &tokens, CHUNK as usize);
        let d = distance(&mut npz, 0, &logits);
        println!("{name}, {} tiles: relative L2 {:.2e}", tile.name(), d.relative_l2);
        assert!(d.relative_l2 <= most, "{name}, {} tiles: relative L2 {:.2e}", tile.name(), d.relative_l2);
    }
}

#[test]
fn tiles_are_tried_on_a_card_and_the_fastest_with_right_answers_is_taken() {
    let Some(card) = software_card() else { return };
    let tried = VULKAN.try_tiles(&card).expect("the plain kernels run");
    let tiles: Vec<Tile> = tried.iter().map(|t| t.tile).collect();
    assert!(tiles.contains(&Tile::Float) && tiles.contains(&Tile::Bytes), "{tiles:?}");
    for t in &tried {
        let (time, distance) = t.outcome.as_ref().unwrap_or_else(|e| panic!("{}: {e}", t.tile.name()));
        println!("{} tiles: {time:?}, relative distance {distance:.1e}", t.tile.name());
        assert!(!time.is_zero() && *distance <= 1e-4, "{}: {distance:.1e}", t.tile.name());
    }
    assert!(tiles.contains(&fastest(&tried)));
    // A processor's kernels have no tiles, and nothing is tried.
    let (tuning, told) = VULKAN.tuning_for(&card, &CardOptions::default()).expect("the card is there");
    assert_eq!((tuning.tile, told.as_str()), (Tile::None, ""));
}

/// As on simulated cards, a key or value between two codes may fall to another one than on the processor.
#[test]
fn caches_of_blocks_give_what_they_give_on_the_processor() {
    let Some(card) = software_card() else { return };
    let name = TRAINED[0];
    let tokens: Vec<TokenId> = ids(&references(name).ints("p0_tokens")).into_iter().take(CHUNK as usize + 3).collect();
    let options = |kv| strata::engine::OpenOptions { kv, ..exact_options() };
    let logits = |mut engine: strata::engine::Engine| {
        let mut s = engine.start().expect("a free slot");
        all_logits(&mut engine, &mut s, &tokens, CHUNK as usize)
    };
    let apart = |a: &[Vec<f32>], b: &[Vec<f32>]| relative_l2(a.iter().map(Vec::as_slice).zip(b.iter().map(Vec::as_slice)));
    let exact = logits(open_with(name, Mode::Reference, 2, options(KvFormat::F32)));
    for kv in [KvFormat::Q8_0, KvFormat::K8V4, KvFormat::Q4_0] {
        let expected = logits(open_with(name, Mode::Reference, 2, options(kv)));
        assert!(apart(&expected, &exact) > 0.0, "{} changes nothing", kv.name());
        let d = apart(&logits(open_on(&model_path(name), device(&card), options(kv))), &expected);
        println!("{name}, {}: relative L2 {d:.2e} from the processor", kv.name());
        assert!(d <= 5e-4, "{name}, {}: {d:.2e}", kv.name());
    }
}

#[test]
fn the_size_of_the_windows_does_not_matter() {
    let Some(card) = software_card() else { return };
    let tokens = ids(&references(RANDOM).ints("p2_tokens"));
    let mut engine = open_on(&model_path(RANDOM), device(&card), exact_options());
    let whole = prompt_logits(&mut engine, &tokens, CHUNK as usize);
    for piece in [1, 7] {
        for (a, b) in prompt_logits(&mut engine, &tokens, piece).iter().zip(&whole) {
            let d = relative_l2([(a.as_slice(), b.as_slice())].into_iter());
            assert!(d <= 1e-3, "windows of {piece} differ by {d:.2e}");
        }
    }
}

/// Logits of a prompt in chunks, then of a few tokens one by one, with a step back in between.
fn session(engine: &mut strata::engine::Engine, tokens: &[TokenId]) -> Vec<Vec<f32>> {
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

fn virtual_card() -> Box<dyn Backend> {
    let facts = VirtualFacts {
        id: "virtual:0".into(),
        name: "a card".into(),
        limit_bytes: 1 << 30,
        max_piece_bytes: u64::MAX,
        faults: Arc::new(Faults::default()),
        in_use: Arc::new(CardUse::default()),
    };
    let cpu = CpuBackend::new(CpuOptions::new(Mode::Reference)).expect("the backend opens");
    Box::new(VirtualCard::new(cpu, facts))
}

#[test]
fn two_logical_devices_give_the_bits_of_one_and_a_cpu_beside_them_the_same_logits() {
    let Some(card) = software_card() else { return };
    let tokens = ids(&references(RANDOM).ints("p2_tokens"));
    let path = model_path(RANDOM);
    let one = session(&mut open_on(&path, device(&card), exact_options()), &tokens);
    let mut two = split_on(&path, &[2, 4], vec![device(&card), device(&card)], exact_options());
    assert!(session(&mut two, &tokens) == one, "a split over two logical devices differs");
    let mut mixed = split_on(&path, &[2, 4], vec![device(&card), virtual_card()], exact_options());
    for (a, b) in session(&mut mixed, &tokens).iter().zip(&one) {
        let d = relative_l2([(a.as_slice(), b.as_slice())].into_iter());
        assert!(d <= 1e-4, "a split over a card and a processor differs by {d:.2e}");
    }
}

#[test]
fn arenas_that_cannot_be_had_are_errors_that_name_card_and_arena() {
    let Some(card) = software_card() else { return };
    for arena in ArenaKind::ALL {
        let mut sizes = ArenaSizes { weights_bytes: 4096, state_bytes: 4096, work_bytes: 4096, scratch_bytes: 0, lent_bytes: 0 };
        let bytes = match arena {
            ArenaKind::Weights => &mut sizes.weights_bytes,
            ArenaKind::State => &mut sizes.state_bytes,
            ArenaKind::Work => &mut sizes.work_bytes,
        };
        *bytes = 1 << 50;
        match open_card(&card, None).open(sizes) {
            Err(BackendError::OutOfMemory { device, arena: found, .. }) => assert_eq!((device, found), (card.id.clone(), arena)),
            other => panic!("{arena:?}: {other:?}"),
        }
    }
}

#[test]
fn every_refused_buffer_is_an_error_that_names_card_and_row_and_the_device_lives_on() {
    let Some(card) = software_card() else { return };
    let files = ModelFiles::open(model_path(RANDOM)).expect("the model opens");
    let model = Model::open(&files).expect("the model is valid");
    let options = exact_options().stage_options(0..model.dims().layers);
    let stage = Arc::new(model.config.stage(&Tensors::new(&files), &options).expect("a stage"));
    let (mut refused, mut next) = (vec![], 1);
    loop {
        let mut backend = open_card(&card, None);
        let scratch_bytes = backend.scratch_bytes(&stage).expect("the kernels exist");
        backend.refuse_buffer(next);
        let sizes = ArenaSizes { scratch_bytes, ..ArenaSizes::of(&stage) };
        let outcome = backend.open(sizes).and_then(|()| backend.prepare(&stage, 0).map(drop));
        let Err(e) = outcome else { break };
        let BackendError::OutOfMemory { device, arena, .. } = &e else { panic!("buffer {next}: {e:?}") };
        assert_eq!(*device, card.id, "buffer {next}");
        refused.push(*arena);
        assert_eq!(backend.memory().late_allocations, 0, "buffer {next}");
        next += 1;
    }
    for arena in ArenaKind::ALL {
        assert!(refused.contains(&arena), "{arena:?} was never refused: {refused:?}");
    }
    assert!(refused.len() >= 8, "arenas, parameters, scratch, staging: {refused:?}");
}

#[test]
fn kept_kernels_are_used_again_and_a_damaged_file_costs_a_sentence() {
    let Some(card) = software_card() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let options = CardOptions { cache_folder: Some(folder.path().into()), ..CardOptions::default() };
    let open = || VULKAN.open_tuned(&card, &options, None).expect("the card opens");
    let tokens = ids(&references(RANDOM).ints("p0_tokens"));
    let logits = |backend: WebGpuBackend| {
        prompt_logits(&mut open_on(&model_path(RANDOM), Box::new(backend), exact_options()), &tokens, CHUNK as usize)
    };
    let first = logits(open());
    let files: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").map(|f| f.expect("a file").path()).collect();
    if files.is_empty() {
        return skipped("kept kernels: this Vulkan driver keeps none");
    }
    let [file] = files.as_slice() else { panic!("one file a card: {files:?}") };
    let second = open();
    assert!(!second.facts().detail.contains("compiled anew"), "{}", second.facts().detail);
    assert!(logits(second) == first, "kept kernels differ");
    let mut bytes = std::fs::read(file).expect("the file");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(file, bytes).expect("the file");
    let third = open();
    assert!(third.facts().detail.contains("compiled anew"), "{}", third.facts().detail);
    assert!(logits(third) == first, "kernels compiled anew differ");
    assert!(!open().facts().detail.contains("compiled anew"), "the damaged file was not replaced");
}

#[test]
fn a_lost_device_is_an_error_at_every_call_after() {
    let Some(card) = software_card() else { return };
    let mut backend = open_card(&card, None);
    let sizes = ArenaSizes { weights_bytes: 4096, state_bytes: 4096, work_bytes: 4096, scratch_bytes: 0, lent_bytes: 0 };
    backend.open(sizes).expect("a small arena");
    backend.lose();
    let slice = strata::program::Slice { arena: ArenaKind::Work, offset_bytes: 0, len_bytes: 16 };
    for _ in 0..2 {
        match backend.download(slice, &mut [0; 16]) {
            Err(BackendError::Lost { device, .. }) => assert_eq!(device, card.id),
            other => panic!("{other:?}"),
        }
    }
}
