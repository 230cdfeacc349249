//! Promise: it does not matter where an expert is. With all, half, a tenth or none of the experts on the card, with all of them in
//! RAM or some on disk, while they change places and through a ring of slots, the tokens are the same; no wrong byte is ever
//! read; what cannot be read fails one request and no more; and the routing of a session can be replayed exactly.

mod common;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::*;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::backend::{Backend, VirtualCard, VirtualFacts};
use strata::engine::service::{Event, OpenEngine, Opened, Request, Service, ServiceOptions};
use strata::engine::{Engine, EngineError, OpenOptions, Placement, Want};
use strata::experts::{ExpertError, ExpertOptions, Misses, Policy, Profile, Replay, Trace, replay};
use strata::gguf::ModelFiles;
use strata::model::Model;
use strata::schedule::ScheduleError;
use strata::tokenizer::Tokenizer;
use strata::units::TokenId;

const CONTEXT: u32 = 400;
const CHUNK: u32 = 48;
/// Experts and layers of the trained models.
const EXPERTS: u32 = 8;
const LAYERS: usize = 8;

fn cpu(mode: Mode) -> CpuOptions {
    CpuOptions { pin_threads: false, ..CpuOptions::new(mode).with_threads(NonZeroUsize::new(2).unwrap()) }
}

/// A card that the processor plays in `card` mode, one for each range of layers that ends before one of `ends`.
fn open_on(path: &Path, card: Mode, ends: &[u32], options: OpenOptions) -> Result<Engine, EngineError> {
    let files = Arc::new(ModelFiles::open(path).unwrap());
    let model = Arc::new(Model::open(&files).unwrap());
    let mut start = 0;
    let placements = ends.iter().enumerate().map(|(i, end)| {
        let facts = VirtualFacts {
            id: format!("virtual:{i}"),
            name: "a card".into(),
            limit_bytes: 1 << 30,
            max_piece_bytes: u64::MAX,
            faults: Arc::default(),
            in_use: Arc::default(),
        };
        let backend: Box<dyn Backend> = Box::new(VirtualCard::new(CpuBackend::new(cpu(card)).unwrap(), facts));
        Placement { layers: std::mem::replace(&mut start, *end)..*end, backend }
    });
    Engine::open_split(Arc::clone(&files), model, placements.collect(), options, &mut |_| ())
}

fn slots(count: u32) -> Option<Vec<u32>> {
    Some(vec![count; LAYERS])
}

fn options_with(mode: Mode, card_slots: Option<Vec<u32>>, experts: ExpertOptions) -> OpenOptions {
    OpenOptions { expert_slots: card_slots, experts, host: cpu(mode), ..options(mode, CONTEXT, CHUNK) }
}

fn open(mode: Mode, card_slots: Option<Vec<u32>>, experts: ExpertOptions) -> Engine {
    open_on(&model_path(TRAINED[0]), mode, &[LAYERS as u32], options_with(mode, card_slots, experts)).expect("it opens")
}

fn tokens(count: u32) -> Vec<TokenId> {
    (0..count).map(|i| TokenId(3 + (i * 37 + i * i % 11) % 200)).collect()
}

/// Logits of a prompt of several chunks, then of greedily decoded tokens.
fn session(engine: &mut Engine) -> Vec<Vec<f32>> {
    let prompt = tokens(2 * CHUNK + 19);
    let mut s = engine.start().unwrap();
    let mut rows = all_logits(engine, &mut s, &prompt, prompt.len());
    for _ in 0..24 {
        let next = TokenId(argmax(rows.last().unwrap()) as u32);
        rows.extend(all_logits(engine, &mut s, &[next], 1));
    }
    engine.end(s);
    rows
}

#[test]
fn all_half_a_tenth_and_none_of_the_experts_on_the_card_give_the_same_bits() {
    for mode in [Mode::Reference, Mode::Fast] {
        let whole = session(&mut open(mode, None, ExpertOptions::default()));
        for held in [EXPERTS, EXPERTS / 2, 1, 0] {
            let mut engine = open(mode, slots(held), ExpertOptions::default());
            assert!(session(&mut engine) == whole, "{mode:?}: {held} of {EXPERTS} on the card");
            let stats = engine.tier_stats().unwrap();
            assert_eq!(stats.card_calls > 0, held > 0);
            assert_eq!(stats.ram_calls > 0, held < EXPERTS);
            assert_eq!(engine.late_allocations(), 0);
        }
    }
}

/// Stages on several cards, RAM that lacks experts, and a layer that is held whole, all at once.
#[test]
fn cards_in_a_row_and_experts_on_disk_change_no_bit() {
    let path = model_path(TRAINED[0]);
    for mode in [Mode::Reference, Mode::Fast] {
        let whole = session(&mut open(mode, None, ExpertOptions::default()));
        let mut card = vec![3; LAYERS];
        (card[2], card[5], card[6]) = (u32::MAX, 0, EXPERTS);
        for (ram, disk) in [(5, false), (2, true), (1, true)] {
            let experts = ExpertOptions { ram_slots: Some(vec![ram; LAYERS]), ..ExpertOptions::default() };
            let options = options_with(mode, Some(card.clone()), experts);
            let mut engine = open_on(&path, mode, &[1, 4, 8], options).unwrap();
            assert!(session(&mut engine) == whole, "{mode:?}: {ram} in RAM");
            let stats = engine.tier_stats().unwrap();
            assert!(!disk || (stats.disk_calls > 0 && stats.disk_bytes > 0), "{stats:?}");
            assert!(stats.card_calls > 0 && stats.ram_calls > 0, "{stats:?}");
        }
    }
}

/// Options under which each layer keeps so many experts on the card and lends so many slots more to prompts.
fn lending(mode: Mode, (kept, lent): (u32, u32), experts: ExpertOptions) -> OpenOptions {
    OpenOptions { lent_slots: slots(lent), ..options_with(mode, slots(kept + lent), experts) }
}

/// Buffers of prompts lie on the last slots, which are filled with noise before; every slot is compared with its expert before each
/// use. Afterwards the experts come back.
#[test]
fn slots_that_prompts_borrow_change_no_bit_and_come_back() {
    let path = model_path(TRAINED[0]);
    for mode in [Mode::Reference, Mode::Fast] {
        let whole = session(&mut open(mode, None, ExpertOptions::default()));
        for (kept, lent, ends) in [(3, 2, vec![8]), (1, 7, vec![8]), (0, 3, vec![3, 8]), (5, 3, vec![1, 4, 8])] {
            for experts in [
                ExpertOptions { verify: true, ..ExpertOptions::default() },
                ExpertOptions { ram_slots: slots(EXPERTS - kept), reproducible: true, ..ExpertOptions::default() },
            ] {
                let mut engine = open_on(&path, mode, &ends, lending(mode, (kept, lent), experts)).unwrap();
                for stage in &engine.pipeline().stages {
                    let stage = &stage.stage;
                    let slab = stage.weights.iter().find(|w| w.lent > 0).unwrap().slab_bytes;
                    let layers = stage.weights.iter().filter(|w| w.lent > 0 && w.offset_bytes % 256 == 0).count() / 3;
                    assert_eq!(stage.lent_bytes, slab * u64::from(lent) * layers as u64);
                    assert!(!stage.borrows(0) && stage.borrows(1));
                }
                for round in 0..3 {
                    assert!(session(&mut engine) == whole, "{mode:?}: {kept} kept, {lent} lent, round {round}");
                }
                let stats = engine.tier_stats().unwrap();
                assert!(stats.lent > 0 && stats.refills >= stats.lent && stats.disk_calls == 0, "{stats:?}");
                for residency in engine.pipeline().experts.as_ref().unwrap().residency() {
                    assert_eq!(residency.card.held().count() as u32, kept + lent, "all slots are filled again");
                }
                assert_eq!(engine.late_allocations(), 0);
            }
        }
    }
}

#[test]
fn a_short_prompt_borrows_fewer_slots_than_a_long_one() {
    /// A chunk whose buffers are many times as large as an expert.
    const LONG: u32 = 256;
    let options = OpenOptions { prompt_rows: LONG, ..lending(Mode::Fast, (1, 7), ExpertOptions::default()) };
    let mut engine = open_on(&model_path(TRAINED[0]), Mode::Fast, &[8], options).unwrap();
    let mut s = engine.start().unwrap();
    let mut lent_by = |prompt: u32| {
        engine.rollback(&mut s, 0).unwrap();
        // Time for all slots to be filled.
        (0..12).for_each(|i| drop(last_logits(&mut engine, &mut s, &[TokenId(5 + i)])));
        let before = engine.tier_stats().unwrap().lent;
        last_logits(&mut engine, &mut s, &tokens(prompt));
        engine.tier_stats().unwrap().lent - before
    };
    let (decode, short, long) = (lent_by(8), lent_by(9), lent_by(LONG));
    assert!(decode == 0 && 0 < short && short < long, "{decode}, {short}, {long}");
}

/// What prompts borrow must come back from RAM, and slots for copies are not among it.
#[test]
fn a_loan_needs_the_experts_in_ram_and_leaves_the_ring_alone() {
    let open_lending = |experts| open_on(&model_path(TRAINED[0]), Mode::Fast, &[8], lending(Mode::Fast, (4, 3), experts));
    let experts = ExpertOptions { ram_slots: slots(EXPERTS - 5), ..ExpertOptions::default() };
    match open_lending(experts).map(drop) {
        Err(EngineError::Experts(error @ ExpertError::NoRamForLoan { lent: 3, .. })) => {
            assert!(error.to_string().contains("--ram-budget"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let whole = session(&mut open(Mode::Fast, None, ExpertOptions::default()));
    for misses in [Misses::Card, Misses::Processor] {
        let mut engine = open_lending(ExpertOptions { misses, verify: true, ..ExpertOptions::default() }).unwrap();
        assert!(session(&mut engine) == whole && session(&mut engine) == whole, "{misses:?}");
        let stats = engine.tier_stats().unwrap();
        assert!((stats.bus_bytes > 0) == (misses == Misses::Card) && stats.lent > 0, "{stats:?}");
    }
}

/// A card whose arithmetic is not the processor's: scalar code here, vector units there.
#[test]
fn with_another_arithmetic_on_the_card_reproducible_runs_agree_and_others_differ_little() {
    let path = model_path(TRAINED[0]);
    let run = |held: u32, experts: ExpertOptions| {
        let options = OpenOptions { host: cpu(Mode::Fast), ..options_with(Mode::Reference, slots(held), experts) };
        open_on(&path, Mode::Reference, &[LAYERS as u32], options).map(|mut engine| (session(&mut engine), engine.tier_stats()))
    };
    let (whole, _) = run(EXPERTS, ExpertOptions::default()).unwrap();
    let reproducible = ExpertOptions { reproducible: true, ..ExpertOptions::default() };
    for held in [EXPERTS, EXPERTS / 2, 1] {
        let (rows, stats) = run(held, reproducible.clone()).unwrap();
        assert!(rows == whole, "{held} held");
        let stats = stats.unwrap();
        assert!((stats.bus_bytes > 0, stats.processor_bytes) == (held < EXPERTS, 0), "{stats:?}");
    }
    match run(0, reproducible) {
        Err(EngineError::Experts(error @ ExpertError::NoSlotForReproducible { .. })) => {
            assert!(error.to_string().contains("--reproducible"), "{error}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    for held in [EXPERTS / 2, 1, 0] {
        let (rows, stats) = run(held, ExpertOptions::default()).unwrap();
        assert!(stats.unwrap().processor_bytes > 0);
        let worst = whole.iter().zip(&rows).map(|(a, b)| kl(a, b)).fold(0.0, f64::max);
        let same = whole.iter().zip(&rows).filter(|(a, b)| argmax(a) == argmax(b)).count();
        println!("{held} of {EXPERTS} held: KL at most {worst:.2e}, top-1 equal in {same} of {}", whole.len());
        assert!(worst <= 1e-3, "{held} held: KL {worst:.2e}");
    }
}

/// Slots are filled with noise before each copy, and every slot is compared with its expert before each use.
#[test]
fn a_thousand_exchanges_under_load_never_show_a_wrong_byte() {
    for ram in [EXPERTS, EXPERTS - 3, 3] {
        // Experts change places whether it is worth it or not.
        let policy = Policy { margin: -1.0, swaps_per_token: 8, ..Policy::default() };
        let experts = ExpertOptions { policy, verify: true, ram_slots: slots(ram), ..ExpertOptions::default() };
        let mut engine = open(Mode::Fast, slots(3), experts);
        let mut plain = open(Mode::Fast, None, ExpertOptions::default());
        let (mut a, mut b) = (engine.start().unwrap(), plain.start().unwrap());
        for round in 0.. {
            assert!(round < 20, "{:?}", engine.tier_stats());
            let tokens: Vec<TokenId> = (0..40).map(|i| TokenId(3 + (round * 91 + i * i * 7) % 250)).collect();
            let (head, tail) = tokens.split_at(20);
            engine.rollback(&mut a, 0).unwrap();
            plain.rollback(&mut b, 0).unwrap();
            assert!(last_logits(&mut engine, &mut a, head) == last_logits(&mut plain, &mut b, head), "round {round}");
            for token in tail {
                assert!(last_logits(&mut engine, &mut a, &[*token]) == last_logits(&mut plain, &mut b, &[*token]));
            }
            if engine.tier_stats().unwrap().swaps >= 1000 {
                break;
            }
        }
    }
}

/// A copy of a model whose file can lose its end, where the experts of a layer lie.
struct Breakable {
    _folder: tempfile::TempDir,
    path: PathBuf,
    whole: Vec<u8>,
    cut: u64,
}

impl Breakable {
    fn new() -> Breakable {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::copy(model_path(TRAINED[0]), &path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let files = ModelFiles::open(&path).unwrap();
        let last = files.tensors().iter().filter(|t| t.name.contains("_exps")).max_by_key(|t| t.offset).unwrap();
        let embedding = files.tensor("token_embd.weight").unwrap();
        let cut = last.offset + 64;
        assert!(embedding.offset + embedding.bytes <= cut, "embedding rows are read from the file as well");
        Breakable { _folder: folder, path, whole, cut }
    }

    fn damage(&self) {
        std::fs::OpenOptions::new().write(true).open(&self.path).unwrap().set_len(self.cut).unwrap();
    }

    fn mend(&self) {
        std::fs::write(&self.path, &self.whole).unwrap();
    }

    /// With most experts on disk.
    fn open(&self, sequences: u32) -> Engine {
        let experts = ExpertOptions { ram_slots: slots(1), ..ExpertOptions::default() };
        let options = OpenOptions { slots: sequences, ..options_with(Mode::Fast, slots(1), experts) };
        open_on(&self.path, Mode::Fast, &[LAYERS as u32], options).unwrap()
    }
}

#[test]
fn a_read_error_fails_one_request_and_names_the_expert() {
    let model = Breakable::new();
    let mut engine = model.open(1);
    let mut s = engine.start().unwrap();
    let good = last_logits(&mut engine, &mut s, &tokens(60));
    engine.rollback(&mut s, 0).unwrap();
    model.damage();
    let error = engine.feed(&mut s, &tokens(60), Want::Last, &mut |_, _| ()).unwrap_err();
    assert!(error.spares_the_engine());
    let EngineError::Schedule(ScheduleError::Experts(error @ ExpertError::Read { .. })) = &error else { panic!("{error:?}") };
    let text = error.to_string();
    for part in ["model.gguf", "expert ", "layer ", "_exps", "stays open"] {
        assert!(text.contains(part), "'{part}' is not in {text}");
    }
    assert!(s.is_empty(), "the request is gone");
    model.mend();
    assert!(last_logits(&mut engine, &mut s, &tokens(60)) == good, "the session goes on");
}

/// What came of a request.
fn ask(service: &Service, id: &str, told: &mpsc::Sender<(String, Event)>) {
    let (told, name) = (told.clone(), id.to_owned());
    let request = Request { ignore_eos: true, max_tokens: Some(200), ..Request::new(id, tokens(30)) };
    service.submit(request, Box::new(move |event| told.send((name.clone(), event)).is_ok())).unwrap();
}

#[test]
fn a_read_error_fails_the_answers_of_its_window_and_the_engine_stays_open() {
    let model = Breakable::new();
    let tokenizer = Arc::new(Tokenizer::from_metadata(ModelFiles::open(&model.path).unwrap().metadata()).unwrap());
    let mut first = Some(Opened { engine: model.open(2), plan: None, cards: vec![] });
    let open: OpenEngine = Box::new(move || first.take().ok_or_else(|| "it was to stay open".into()));
    let service = Service::start(tokenizer, open, ServiceOptions::default()).unwrap();
    let (told, events) = mpsc::channel();
    let next = || events.recv_timeout(Duration::from_secs(60)).expect("the answers go on");
    for id in ["a", "b"] {
        ask(&service, id, &told);
    }
    let mut seen = [0, 0];
    while seen.iter().any(|tokens| *tokens < 3) {
        if let (id, Event::Token { .. }) = next() {
            seen[usize::from(id == "b")] += 1;
        }
    }
    model.damage();
    let mut failed = vec![];
    while failed.len() < 2 {
        match next() {
            (id, Event::Failed(error)) => failed.push((id, error.to_string())),
            (id, Event::Done(_)) => panic!("{id} needed no expert of the lost layer"),
            _ => {}
        }
    }
    assert!(failed.iter().all(|(_, reason)| reason.contains("expert ")), "{failed:?}");
    model.mend();
    ask(&service, "c", &told);
    while !matches!(next(), (id, Event::Done(_)) if id == "c") {}
    assert_eq!(service.status().restarts, 0);
}

/// Sessions with prompts, decoding and several windows, replayed for the slots of the engine and for others.
#[test]
fn a_replay_predicts_every_hit() {
    let run = |card: u32, ram: u32, record: bool| {
        let experts = ExpertOptions { ram_slots: slots(ram), record, ..ExpertOptions::default() };
        let mut engine = open(Mode::Fast, slots(card), experts);
        session(&mut engine);
        let stats = engine.tier_stats().unwrap();
        (stats, engine.pipeline_mut().experts.as_mut().unwrap().take_trace(0.0))
    };
    let (_, trace) = run(4, EXPERTS, true);
    let file = tempfile::NamedTempFile::new().unwrap();
    trace.unwrap().write(&mut std::io::BufWriter::new(file.as_file())).unwrap();
    let trace = Trace::load(file.path()).unwrap();
    for (card, ram) in [(4, EXPERTS), (1, EXPERTS), (6, 2), (2, 3), (0, EXPERTS)] {
        let (stats, _) = run(card, ram, false);
        let wishes = Replay { card_slots: Some(card), ram_slots: Some(ram), ..Replay::of(&trace) };
        let p = replay(&trace, &wishes).unwrap();
        assert_eq!(
            (p.tokens, p.card_calls, p.ram_calls, p.disk_calls, p.swaps),
            (stats.tokens, stats.card_calls, stats.ram_calls, stats.disk_calls, stats.swaps),
            "{card} slots, {ram} in RAM"
        );
        assert_eq!((p.decode_tokens, p.decode_s > 0.0), (24, true));
    }
}

/// A replay knows which slots each prompt borrowed, and when they were filled again.
#[test]
fn a_replay_predicts_every_hit_where_prompts_borrow_slots() {
    let options = lending(Mode::Fast, (2, 4), ExpertOptions { record: true, ..ExpertOptions::default() });
    let mut engine = open_on(&model_path(TRAINED[0]), Mode::Fast, &[3, 8], options).unwrap();
    (0..3).for_each(|_| drop(session(&mut engine)));
    let stats = engine.tier_stats().unwrap();
    let trace = engine.pipeline_mut().experts.as_mut().unwrap().take_trace(0.0).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    trace.write(&mut std::io::BufWriter::new(file.as_file())).unwrap();
    let trace = Trace::load(file.path()).unwrap();
    let p = replay(&trace, &Replay::of(&trace)).unwrap();
    assert_eq!(
        (p.tokens, p.card_calls, p.ram_calls, p.swaps, p.refills),
        (stats.tokens, stats.card_calls, stats.ram_calls, stats.swaps, stats.refills)
    );
    assert!(stats.lent > 0 && stats.refills > 0, "{stats:?}");
}

#[test]
fn a_profile_is_kept_and_the_next_start_is_warm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    let open_with = |profile: Option<Profile>| {
        let profile = profile.map(Arc::new);
        let experts = ExpertOptions { profile, profile_file: Some(path.clone()), ..ExpertOptions::default() };
        open(Mode::Fast, slots(3), experts)
    };
    let cold = {
        let mut engine = open_with(None);
        session(&mut engine);
        engine.tier_stats().unwrap()
    };
    let profile = Profile::load(&path).unwrap();
    assert_eq!((profile.tokens, profile.layers.len()), (cold.tokens, LAYERS));
    let uses: u64 = profile.layers.values().flatten().sum();
    assert_eq!(uses, cold.calls());
    let mut engine = open_with(Some(profile.clone()));
    let experts = engine.pipeline().experts.as_ref().unwrap();
    for (geometry, residency) in experts.layers().iter().zip(experts.residency()) {
        let counts = &profile.layers[&geometry.layer];
        let least = residency.card.held().map(|(_, e)| counts[e as usize]).min();
        let most = (0..EXPERTS).filter(|e| !residency.card.holds(*e)).map(|e| counts[e as usize]).max();
        assert!(least >= most, "layer {}", geometry.layer);
    }
    session(&mut engine);
    assert!(engine.tier_stats().unwrap().card_hit_rate() > cold.card_hit_rate());
    let wrong = Profile { layers: [(0, vec![1; 5])].into(), ..profile };
    let experts = ExpertOptions { profile: Some(Arc::new(wrong)), ..ExpertOptions::default() };
    let options = options_with(Mode::Fast, slots(3), experts);
    let refused = open_on(&model_path(TRAINED[0]), Mode::Fast, &[LAYERS as u32], options).map(drop);
    assert!(matches!(refused, Err(EngineError::Experts(ExpertError::Profile { .. }))));
}

/// Whoever computes the missed experts, the bits are the same where the arithmetic is.
#[test]
fn the_bus_and_the_processor_give_the_same_bits() {
    let whole = session(&mut open(Mode::Fast, None, ExpertOptions::default()));
    for (misses, ram) in [(Misses::Card, EXPERTS), (Misses::Card, 2), (Misses::Processor, EXPERTS)] {
        let experts = ExpertOptions { misses, ram_slots: slots(ram), ..ExpertOptions::default() };
        let mut engine = open(Mode::Fast, slots(5), experts);
        assert!(session(&mut engine) == whole, "{misses:?}, {ram} in RAM");
        let stats = engine.tier_stats().unwrap();
        assert_eq!((stats.bus_bytes > 0, stats.processor_bytes > 0), (misses == Misses::Card, misses == Misses::Processor));
    }
}

/// Where RAM holds the experts that the card does not, slots for copies would leave some of them on disk alone, which nobody asked for.
#[test]
fn a_ring_that_ram_has_no_room_for_is_refused_and_never_pushes_experts_to_disk() {
    let whole = session(&mut open(Mode::Fast, None, ExpertOptions::default()));
    let run = |misses, ram, may_stay_on_disk| {
        let experts = ExpertOptions { misses, may_stay_on_disk, ram_slots: slots(ram), ..ExpertOptions::default() };
        let options = options_with(Mode::Fast, slots(5), experts);
        let engine = open_on(&model_path(TRAINED[0]), Mode::Fast, &[LAYERS as u32], options);
        engine.map(|mut engine| (session(&mut engine) == whole, engine.tier_stats().unwrap()))
    };
    match run(Misses::Card, EXPERTS - 5, false).map(drop) {
        Err(EngineError::Experts(error @ ExpertError::NoRamForRing { .. })) => {
            assert!(error.to_string().contains("--ram-experts disk"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    for (misses, ram, may, bus, disk) in [
        (Misses::Card, EXPERTS - 5, true, true, true),
        (Misses::Card, EXPERTS - 4, false, true, false),
        (Misses::Card, EXPERTS, false, true, false),
        (Misses::Processor, EXPERTS - 5, false, false, false),
        (Misses::Auto, EXPERTS - 5, false, false, false),
    ] {
        let (same, stats) = run(misses, ram, may).unwrap();
        assert!(same, "{misses:?}, {ram} in RAM");
        assert_eq!((stats.bus_bytes > 0, stats.disk_calls > 0), (bus, disk), "{misses:?}, {ram} in RAM");
    }
}

#[test]
fn ram_is_as_large_as_its_slots() {
    let bytes = |ram: u32| {
        let experts = ExpertOptions { ram_slots: slots(ram), ..ExpertOptions::default() };
        let engine = open(Mode::Fast, slots(2), experts);
        let tiers = engine.pipeline().experts.as_ref().unwrap();
        let slabs: u64 = tiers.layers().iter().map(|g| g.slab_bytes * u64::from(ram)).sum();
        (engine.memory().experts_bytes, slabs)
    };
    let ((all, all_slabs), (two, two_slabs)) = (bytes(EXPERTS), bytes(2));
    assert_eq!(all_slabs, 4 * two_slabs);
    // What is beside the slots, and buffers of the disk.
    assert!(all > all_slabs && two > two_slabs && two < all, "{all} {two}");
    let experts = ExpertOptions { ram_slots: slots(0), ..ExpertOptions::default() };
    let refused = open_on(&model_path(TRAINED[0]), Mode::Fast, &[8], options_with(Mode::Fast, slots(2), experts)).map(drop);
    assert!(matches!(refused, Err(EngineError::Experts(ExpertError::NoRam { .. }))));
}
