//! Promise: the engine sees pictures as the model's authors meant it, whatever the windows, and what a sequence remembers of them
//! survives rolling back, checkpoints and RAM.

mod common;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::npz::Npz;
use common::pictures::{PAD, TRAINED_PAD, encoder, logits, other, picture, pixels, read_by_the_authors_model, seeing, text};
use common::*;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::backend::{ArenaSizes, Backend};
use strata::engine::{
    Engine, EngineError, Finish, GenerateOptions, Generation, GenerationStats, Look, OpenOptions, Progress, Tiered, Want,
    load_stage,
};
use strata::gguf::ModelFiles;
use strata::model::{Model, Tensors, VisionConfig};
use strata::picture::{Grid, Patches, Placed};
use strata::program::{BufferId, InputKind, OutputKind, Row, RunParams};
use strata::sample::SamplingParams;
use strata::state::Sequence;
use strata::tokenizer::Tokenizer;
use strata::units::TokenId;

const CONTEXT: u32 = 256;

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

fn opened(name: &str, mode: Mode, rows: u32, undo_tokens: u32) -> Engine {
    let options = OpenOptions { slots: 2, undo_tokens, ..options(mode, CONTEXT, rows) };
    open_with(name, mode, 2, seeing(options, 64))
}

/// What the encoder makes of a picture: after the embeddings, and in the end.
fn encoded(mode: Mode, threads: usize, grid: Grid) -> (Vec<f32>, Vec<f32>) {
    let files = encoder();
    let (config, tensors) = (VisionConfig::open(&files).unwrap(), Tensors::new(&files));
    let stage = Arc::new(config.stage(&tensors, 35).unwrap());
    let options = CpuOptions::new(mode).with_threads(NonZeroUsize::new(threads).unwrap());
    let mut device = CpuBackend::new(options).unwrap();
    device.open(ArenaSizes::of(&stage)).unwrap();
    let id = device.prepare(&stage, 0).unwrap();
    load_stage(&files, &stage, &Tiered::default(), &mut device, &Default::default(), &mut |_| ()).unwrap();
    let program = &stage.programs[0];
    let mut places = vec![0.0; grid.patches() * config.width as usize];
    config.places(&tensors).unwrap().fill(grid, config.merge, &mut places);
    for (kind, values) in [(InputKind::Patches, &pixels(grid)), (InputKind::PatchPlaces, &places)] {
        let input = program.input(|k| k == kind).unwrap();
        let slice = program.buffer_slice(input, grid.patches() as u32);
        device.upload(slice, bytemuck::cast_slice(values)).unwrap();
    }
    let row = |(i, (y, x)): (usize, (u32, u32))| Row { position: [0, y, x], ..Row::text(0, i as u32, TokenId(0)) };
    let rows: Vec<Row> = grid.places(config.merge).enumerate().map(row).collect();
    let outputs: Vec<u32> = (0..rows.len() as u32).step_by(4).collect();
    let params = RunParams { rows: &rows, outputs: &outputs, earlier: &[] };
    let (wanted, embedded_at) =
        (program.output(OutputKind::Picture).unwrap(), program.steps.iter().position(|s| s.name == "places"));
    let (mut embedded, mut found) = (vec![], vec![]);
    for segment in 0..=program.host_steps().count() {
        let mut see = |step: usize, buffer: BufferId, values: &[f32]| {
            if Some(step) == embedded_at {
                embedded = values.to_vec();
            }
            if buffer == wanted {
                found = values.to_vec();
            }
        };
        device.trace(id, segment, &params, &mut see).unwrap();
    }
    (embedded, found)
}

#[test]
fn the_encoder_gives_the_reference_rows() {
    let mut npz = Npz::open(&fixture("vision/tiny-vision.npz"));
    for (rows, columns) in [(2, 2), (6, 4), (2, 10), (14, 10)] {
        let grid = Grid { rows, columns };
        let expected = npz.floats(&format!("rows_{rows}x{columns}"));
        for (mode, most) in [(Mode::Reference, 1e-5), (Mode::Fast, 1e-3)] {
            let (embedded, found) = encoded(mode, 2, grid);
            let distance = relative_l2([(found.as_slice(), expected.as_slice())].into_iter());
            assert!(distance <= most, "{grid:?}, {mode:?}: relative L2 {distance:.2e}");
            if rows < 14 {
                let expected = npz.floats(&format!("embedded_{rows}x{columns}"));
                let distance = relative_l2([(embedded.as_slice(), expected.as_slice())].into_iter());
                assert!(distance <= 1e-5, "{grid:?}, {mode:?}, embeddings: relative L2 {distance:.2e}");
            }
            assert_eq!(encoded(mode, 3, grid).1, found, "{grid:?}, {mode:?}: threads make no difference");
        }
    }
}

/// HF's whole model, in float32: its own encoder, merging of rows, positions, n-grams and selection of blocks.
#[test]
fn a_text_with_pictures_has_the_logits_of_the_authors_model() {
    let (tokens, pictures, expected) = read_by_the_authors_model();
    let mut engine = opened(RANDOM, Mode::Reference, 64, 0);
    let mut sequence = engine.start().unwrap();
    let found = logits(&mut engine, &mut sequence, (&tokens, &pictures), 64);
    let distance = relative_l2(found.iter().map(Vec::as_slice).zip(expected.iter().map(Vec::as_slice)));
    assert!(distance <= 1e-4, "relative L2 {distance:.2e}");
    let worst = found.iter().zip(&expected).map(|(f, e)| kl(e, f)).fold(0.0, f64::max);
    assert!(worst <= 1e-6, "Kullback-Leibler divergence {worst:.2e}");
}

/// An encoder whose every row is the embedding row of one token.
fn parrot(token: u32) -> Arc<ModelFiles> {
    let model = ModelFiles::open(model_path(RANDOM)).unwrap();
    let table = model.tensor("token_embd.weight").unwrap();
    let mut stored = vec![0; table.row_bytes() as usize];
    model.read_at(table, u64::from(token) * table.row_bytes(), &mut stored).unwrap();
    let mut row = vec![0f32; table.row_len() as usize];
    table.format.decode_row(&stored, &mut row).unwrap();
    let files = encoder();
    let mut bytes = std::fs::read(fixture("vision/tiny-vision.gguf")).unwrap();
    let mut put = |name: &str, with: &dyn Fn(usize) -> u8| {
        let tensor = files.tensor(name).unwrap();
        let at = tensor.offset as usize;
        bytes[at..at + tensor.bytes as usize].iter_mut().enumerate().for_each(|(i, byte)| *byte = with(i));
    };
    put("mm.2.weight", &|_| 0);
    put("mm.2.bias", &|i| bytemuck::cast_slice::<f32, u8>(&row)[i]);
    Arc::new(ModelFiles::from_bytes("parrot", bytes).unwrap())
}

/// Pictures of one token stand where words stand, so rows are all that could differ.
#[test]
fn a_picture_that_looks_like_a_word_is_read_as_the_word() {
    for mode in [Mode::Reference, Mode::Fast] {
        let mut options = seeing(options(mode, CONTEXT, 16), 64);
        if let Some(vision) = &mut options.vision {
            vision.files = parrot(PAD);
        }
        let mut engine = open_with(RANDOM, mode, 2, options);
        let small = picture(2, 2);
        let parts = [(5, Some(&small)), (0, Some(&small)), (3, Some(&small)), (9, None)];
        let (tokens, pictures) = text(PAD, &parts);
        let mut seen = engine.start().unwrap();
        let found = logits(&mut engine, &mut seen, (&tokens, &pictures), 16);
        engine.end(seen);
        let mut read = engine.start().unwrap();
        let expected = logits(&mut engine, &mut read, (&tokens, &[]), 16);
        assert_eq!(bits(&found), bits(&expected), "{mode:?}");
    }
}

/// Text, a large picture, text, two small ones side by side, and more text than the indexer's budget.
fn long_text(pad: u32) -> (Vec<TokenId>, Vec<Placed>) {
    let (large, wide) = (picture(14, 10), picture(2, 10));
    text(pad, &[(9, Some(&large)), (6, Some(&wide)), (0, Some(&wide)), (61, None)])
}

#[test]
fn windows_of_any_size_read_a_picture_alike() {
    for (name, mode, pad) in [(RANDOM, Mode::Reference, PAD), (RANDOM, Mode::Fast, PAD), (TRAINED[2], Mode::Fast, TRAINED_PAD)] {
        let (tokens, pictures) = long_text(pad);
        let read = |rows: u32, piece: usize| {
            let mut engine = opened(name, mode, rows, 0);
            let mut sequence = engine.start().unwrap();
            bits(&logits(&mut engine, &mut sequence, (&tokens, &pictures), piece))
        };
        let whole = read(128, 128);
        assert_eq!(whole.len(), tokens.len());
        for (rows, piece) in [(1, 1), (7, 7), (64, 64), (7, 128), (128, 10)] {
            assert!(read(rows, piece) == whole, "{name}, {mode:?}: windows of {rows}, pieces of {piece}");
        }
    }
}

#[test]
fn two_pictures_are_told_apart() {
    let mut engine = opened(RANDOM, Mode::Fast, 64, 0);
    let one = picture(6, 4);
    let rows = |engine: &mut Engine, patches: &Arc<Patches>| {
        let (tokens, pictures) = text(PAD, &[(4, Some(patches)), (4, None)]);
        let mut sequence = engine.start().unwrap();
        let rows = bits(&logits(engine, &mut sequence, (&tokens, &pictures), 64));
        engine.end(sequence);
        rows
    };
    let (first, second) = (rows(&mut engine, &one), rows(&mut engine, &other(&one)));
    assert_eq!(first[..4], second[..4], "what comes before a picture does not know it");
    assert_ne!(first[4..], second[4..]);
    assert_eq!(rows(&mut engine, &one), first);
    let stats = engine.vision_stats().unwrap();
    assert_eq!(stats.pictures, 2, "rows of the first were still there");
}

/// More pictures than are kept: each is looked at again, and the answers stay.
#[test]
fn rows_that_had_no_room_are_made_again() {
    let (tokens, pictures) = long_text(PAD);
    let read = |kept_tokens: u32| {
        let options = seeing(options(Mode::Fast, CONTEXT, 16), kept_tokens);
        let mut engine = open_with(RANDOM, Mode::Fast, 2, options);
        let mut sequence = engine.start().unwrap();
        let rows = bits(&logits(&mut engine, &mut sequence, (&tokens, &pictures), 16));
        (rows, engine.vision_stats().unwrap().pictures)
    };
    let (rows, looked) = read(64);
    assert_eq!(looked, 2, "the wide one stands there twice");
    assert_eq!(read(0), (rows, 2), "room for one is always there");
}

#[test]
fn a_sequence_can_be_taken_back_across_pictures() {
    for mode in [Mode::Reference, Mode::Fast] {
        let (tokens, pictures) = long_text(PAD);
        let mut engine = opened(RANDOM, mode, 64, 3);
        let mut fresh = engine.start().unwrap();
        let expected = bits(&logits(&mut engine, &mut fresh, (&tokens, &pictures), 64));
        engine.end(fresh);
        let (large, wide, next) = (pictures[0].range(), pictures[1].range(), pictures[2].range());
        // Where the sequence is to go back to, and the checkpoint that lies before.
        for (length, checkpoint) in [
            (tokens.len() - 2, None),
            (wide.end + 1, Some(large.end + 2)),
            (wide.start + 3, Some(large.end)),
            (next.start, Some(wide.start)),
            (large.start + 17, Some(large.start)),
            (large.start + 17, Some(large.start - 3)),
            (large.end, None),
            (3, None),
        ] {
            let mut sequence = engine.start().unwrap();
            if let Some(at) = checkpoint {
                logits(&mut engine, &mut sequence, (&tokens[..at], &pictures), 64);
                engine.checkpoint(&mut sequence).unwrap();
            }
            logits(&mut engine, &mut sequence, (&tokens, &pictures), 64);
            let reached = engine.rollback(&mut sequence, length).unwrap();
            assert!(reached <= length && sequence.len() == reached);
            assert!(pictures.iter().all(|p| !(p.range().start < reached && reached < p.range().end)), "no picture is cut");
            if let Some(at) = checkpoint {
                assert_eq!(reached, at, "back to {length}");
            }
            let rows = bits(&logits(&mut engine, &mut sequence, (&tokens, &pictures), 64));
            assert!(rows == expected[reached..], "{mode:?}: back to {length}, reached {reached}");
            engine.end(sequence);
        }
    }
}

/// The newest tokens are taken back by versions, which reach into a picture: it goes back to the picture's beginning or further.
#[test]
fn taking_back_the_newest_tokens_cuts_no_picture() {
    let small = picture(2, 4);
    let (tokens, pictures) = text(PAD, &[(12, Some(&small)), (1, None)]);
    let mut engine = opened(RANDOM, Mode::Fast, 16, 8);
    let mut fresh = engine.start().unwrap();
    let expected = bits(&logits(&mut engine, &mut fresh, (&tokens, &pictures), 1));
    let mut sequence = engine.start().unwrap();
    logits(&mut engine, &mut sequence, (&tokens, &pictures), 1);
    assert_eq!(engine.rollback(&mut sequence, 13).unwrap(), 12, "the picture has two tokens, the second is not enough");
    let rows = bits(&logits(&mut engine, &mut sequence, (&tokens, &pictures), 1));
    assert_eq!(rows, expected[12..]);
}

#[test]
fn a_conversation_with_pictures_comes_back_from_ram() {
    let (tokens, pictures) = long_text(PAD);
    let mut engine = opened(RANDOM, Mode::Fast, 64, 0);
    let mut sequence = engine.start().unwrap();
    let expected = bits(&logits(&mut engine, &mut sequence, (&tokens, &pictures), 64));
    engine.rollback(&mut sequence, 0).unwrap();
    for length in [pictures[0].at + 5, pictures[1].range().end, pictures[2].range().end + 2] {
        logits(&mut engine, &mut sequence, (&tokens[..length], &pictures), 64);
        let parked = engine.park(&mut sequence).unwrap();
        assert!(sequence.is_empty() && parked.len() == length);
        assert_eq!(parked.restorable(length, true), length);
        assert_eq!(parked.restorable(pictures[0].at + 1, false), pictures[0].at, "no picture is cut in RAM either");
        // Something else passes through the slot.
        logits(&mut engine, &mut sequence, text(PAD, &[(20, None)]).as_parts(), 64);
        engine.unpark(&mut sequence, parked).unwrap();
        let rows = bits(&logits(&mut engine, &mut sequence, (&tokens, &pictures), 64));
        assert!(rows == expected[length..], "from {length}");
        engine.rollback(&mut sequence, 0).unwrap();
    }
}

trait AsParts {
    fn as_parts(&self) -> (&[TokenId], &[Placed]);
}

impl AsParts for (Vec<TokenId>, Vec<Placed>) {
    fn as_parts(&self) -> (&[TokenId], &[Placed]) {
        (&self.0, &self.1)
    }
}

/// Answers to several texts with pictures go on in one window.
#[test]
fn sequences_with_pictures_decode_together() {
    let (tokens, pictures) = long_text(PAD);
    let cut = pictures[2].range().end + 1;
    let mut engine = opened(RANDOM, Mode::Fast, 64, 0);
    let (mut seeing, mut reading) = (engine.start().unwrap(), engine.start().unwrap());
    let expected = bits(&logits(&mut engine, &mut seeing, (&tokens, &pictures), 64));
    engine.rollback(&mut seeing, 0).unwrap();
    logits(&mut engine, &mut seeing, (&tokens[..cut], &pictures), 64);
    logits(&mut engine, &mut reading, text(PAD, &[(33, None)]).as_parts(), 64);
    for (i, token) in tokens[cut..].iter().enumerate() {
        let mut rows = vec![vec![]; 2];
        let mut feeds = [(&mut reading, TokenId(7)), (&mut seeing, *token)];
        engine.feed_each(&mut feeds, &mut |n, row| rows[n] = row.to_vec()).unwrap();
        assert_eq!(bits(&rows)[1], expected[cut + i], "token {i}");
    }
}

#[test]
fn what_cannot_be_seen_is_refused_and_leaves_the_sequence() {
    let mut engine = opened(RANDOM, Mode::Fast, 64, 0);
    let mut sequence = engine.start().unwrap();
    let good = picture(6, 4);
    let (tokens, pictures) = text(PAD, &[(4, Some(&good)), (4, None)]);
    let placed = |at: usize, patches: Patches| Placed { at, patches: Arc::new(patches) };
    let patches = |rows, columns| Patches { grid: Grid { rows, columns }, ..(*picture(rows, columns)).clone() };
    let wrong = [
        vec![placed(4, patches(6, 5))],
        vec![placed(4, patches(16, 10))],
        vec![placed(4, Patches { values: vec![0.0; 7], ..patches(6, 4) })],
        vec![placed(4, Patches { merge: 1, ..patches(6, 4) })],
        vec![placed(4, patches(0, 4))],
        vec![placed(4, patches(6, 4)), placed(6, patches(6, 4))],
    ];
    for pictures in &wrong {
        let error = engine.feed_seeing(&mut sequence, &tokens, pictures, Want::Last, &mut |_, _| ()).unwrap_err();
        assert!(matches!(error, EngineError::Picture { .. }), "{error}");
        assert!(sequence.is_empty());
    }
    let behind = [placed(9, patches(6, 4))];
    assert!(matches!(engine.check_pictures(tokens.len(), &behind), Err(EngineError::Picture { number: 1, .. })));
    // Half a picture, and then something else.
    engine.feed_seeing(&mut sequence, &tokens[..6], &pictures, Want::Nothing, &mut |_, _| ()).unwrap();
    for pictures in [vec![], vec![placed(4, (*other(&good)).clone())]] {
        let error = engine.feed_seeing(&mut sequence, &tokens[6..], &pictures, Want::Last, &mut |_, _| ()).unwrap_err();
        assert!(matches!(error, EngineError::Picture { number: 1, .. }), "{error}");
    }
    assert!(matches!(engine.feed_each(&mut [(&mut sequence, TokenId(1))], &mut |_, _| ()), Err(EngineError::Picture { .. })));
    assert_eq!(sequence.len(), 6);
    engine.feed_seeing(&mut sequence, &tokens[6..], &pictures, Want::Last, &mut |_, _| ()).unwrap();
    let mut blind = open_with(RANDOM, Mode::Fast, 2, options(Mode::Fast, CONTEXT, 64));
    assert!(blind.vision().is_none());
    assert!(matches!(blind.check_pictures(tokens.len(), &pictures), Err(EngineError::Picture { number: 1, .. })));
    assert!(matches!(blind.look(&pictures[0]), Err(EngineError::Picture { .. })));
}

/// A picture is looked at in steps, between which others may compute.
#[test]
fn a_picture_is_looked_at_in_steps() {
    let mut engine = opened(RANDOM, Mode::Fast, 64, 0);
    let (first, second) = (picture(6, 4), picture(2, 10));
    let placed = |patches: &Arc<Patches>| Placed { at: 0, patches: Arc::clone(patches) };
    assert_eq!(engine.look(&placed(&first)).unwrap(), Look::Going { done: 1, total: 4 });
    // Another one gives the first up.
    assert_eq!(engine.look(&placed(&second)).unwrap(), Look::Going { done: 1, total: 4 });
    assert_eq!(engine.look(&placed(&first)).unwrap(), Look::Going { done: 1, total: 4 });
    let steps: Vec<Look> = (0..3).map(|_| engine.look(&placed(&first)).unwrap()).collect();
    assert_eq!(steps, [Look::Going { done: 2, total: 4 }, Look::Going { done: 3, total: 4 }, Look::Done]);
    assert!(engine.has_seen(&placed(&first)) && !engine.has_seen(&placed(&second)));
    assert_eq!(engine.late_allocations(), 0);
}

#[test]
fn a_file_that_is_no_encoder_of_this_model_is_refused() {
    let model = ModelFiles::open(model_path(RANDOM)).unwrap();
    let error = VisionConfig::open(&model).unwrap_err().to_string();
    assert!(error.contains("general.architecture") && error.contains("clip"), "{error}");
    let error = Model::open(&encoder()).unwrap_err().to_string();
    assert!(error.contains("clip"), "{error}");
    let files = Arc::new(ModelFiles::open(fixture("families/llama-gqa.gguf")).unwrap());
    let model = Arc::new(Model::open(&files).unwrap());
    let device = Box::new(CpuBackend::new(CpuOptions::new(Mode::Fast)).unwrap());
    let options = seeing(options(Mode::Fast, 64, 16), 64);
    let error = Engine::open(files, model, device, options, &mut |_| ()).map(drop).unwrap_err().to_string();
    assert!(error.contains("read no pictures"), "{error}");
}

/// Reads a prompt with pictures and two tokens more; the steps that looked at pictures, and what it came to.
fn answer(
    engine: &mut Engine,
    sequence: &mut Sequence,
    (tokens, pictures): (Vec<TokenId>, Vec<Placed>),
    options: GenerateOptions,
) -> (usize, Finish, GenerationStats) {
    let files = ModelFiles::open(model_path(RANDOM)).unwrap();
    let tokenizer = Tokenizer::from_metadata(files.metadata()).unwrap();
    let interrupt = Arc::clone(&options.interrupt);
    let interrupted = interrupt.load(Ordering::Relaxed);
    interrupt.store(false, Ordering::Relaxed);
    let mut generation = Generation::new(&tokenizer, engine.dims(), SamplingParams::default(), tokens, options).unwrap();
    generation.show(pictures);
    generation.rewind(engine, sequence).unwrap();
    let mut looked = 0;
    loop {
        let looks = generation.is_looking(engine, sequence);
        let progress = generation.step(engine, sequence).unwrap();
        let picture = matches!(progress, Progress::Picture { .. });
        let interrupted_now = matches!(progress, Progress::End { finish: Finish::Interrupted, .. });
        assert!(looks == picture || interrupted_now, "{progress:?}");
        looked += usize::from(picture);
        interrupt.store(interrupted && looked > 0, Ordering::Relaxed);
        if let Progress::End { finish, .. } = progress {
            return (looked, finish, generation.stats());
        }
    }
}

#[test]
fn a_later_turn_goes_on_behind_the_picture_and_looks_at_no_picture_again() {
    let mut engine = opened(RANDOM, Mode::Fast, 64, 0);
    let mut sequence = engine.start().unwrap();
    let one = picture(6, 4);
    let prompt = |patches: &Arc<Patches>, words: u32| text(PAD, &[(4, Some(patches)), (words, None)]);
    let options =
        || GenerateOptions { max_tokens: Some(2), checkpoints: vec![12], ignore_eos: true, ..GenerateOptions::default() };
    let mut turn = |prompt| {
        let (looked, finish, stats) = answer(&mut engine, &mut sequence, prompt, options());
        assert_eq!(finish, Finish::MaxTokens);
        (looked, stats.pictures, stats.reused_tokens, engine.vision_stats().unwrap().reused)
    };
    assert_eq!(turn(prompt(&one, 20)), (4, 1, 0, 0));
    assert_eq!(turn(prompt(&one, 30)), (0, 0, 12, 0), "the mark behind the picture");
    assert_eq!(turn(prompt(&other(&one), 30)), (4, 1, 0, 0), "the same ids, and another picture");
    assert_eq!(turn(prompt(&one, 20)), (0, 0, 0, 1), "the prefix is lost, the rows are not");
}

#[test]
fn a_request_can_be_ended_in_the_middle_of_a_picture() {
    let mut engine = opened(RANDOM, Mode::Fast, 64, 0);
    let mut sequence = engine.start().unwrap();
    let prompt = || text(PAD, &[(4, Some(&picture(6, 4))), (9, None)]);
    let options = GenerateOptions { max_tokens: Some(1), ignore_eos: true, ..GenerateOptions::default() };
    options.interrupt.store(true, Ordering::Relaxed);
    let (looked, finish, stats) = answer(&mut engine, &mut sequence, prompt(), options);
    assert_eq!((looked, finish, stats.pictures, sequence.len()), (1, Finish::Interrupted, 0, 0));
    let options = GenerateOptions { max_tokens: Some(1), ignore_eos: true, ..GenerateOptions::default() };
    let (looked, finish, stats) = answer(&mut engine, &mut sequence, prompt(), options);
    assert_eq!((looked, finish, stats.pictures), (3, Finish::MaxTokens, 1), "it goes on where it was");
}
