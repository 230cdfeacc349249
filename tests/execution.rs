//! Promise: a plan is executed as it was made. Split over virtual cards the bits are those of one device; opened bytes are
//! planned bytes; what does not fit or cannot be run yet is refused before anything is taken; an allocation that fails
//! anywhere gives everything back; decoding allocates nothing.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::pictures::{encoder, picture, text};
use common::*;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::backend::discovery::{Absent, CardOptions, FoundCard, Interface, NamedCard};
use strata::backend::{ArenaSizes, Backend, BackendError, CardUse, FINDERS, Faults, Finder, VirtualCard, VirtualFacts};
use strata::engine::{Engine, EngineError, LoadProgress, OpenOptions, Want};
use strata::gguf::ModelFiles;
use strata::launch::{Audience, CardLock, Launch, LaunchError, Launched, open_planned};
use strata::model::Model;
use strata::plan::{
    BackendKind, Capability, KvType, LayerRange, Limits, Machine, ModelHeader, Plan, PlanModel, RefusalKind, parse_layer_split,
    plan,
};
use strata::probe::{Effort, Probe, probe};
use strata::program::KvFormat;
use strata::units::TokenId;

/// Counts what the present thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CHUNK: u32 = 48;
const CONTEXT: u32 = 520;

fn cards(free: &[&str]) -> Machine {
    let host = "[host]\nos = \"linux\"\nram_total = \"16 GiB\"\nram_available = \"12 GiB\"\ncores = 2\n";
    let mut text = format!("version = 1\nname = \"virtual cards\"\n{host}");
    for (i, free) in free.iter().enumerate() {
        text += &format!(
            "[[card]]\nid = \"virtual:{i}\"\nname = \"card {i}\"\nbackend = \"virtual\"\ndriver = \"none\"\ntotal = \"{free}\"\n\
             free = \"{free}\"\nmemory_gbs = 10.0\nbus_gbs = 8.0\ncompute_tflops = 0.1\n"
        );
    }
    Machine::from_toml(&text).unwrap()
}

fn equal_cards(count: usize) -> Machine {
    cards(&vec!["64 MiB"; count])
}

/// A split, on the first cards of the machine in their order.
fn wishes(split: &str, kv: KvType) -> Limits {
    let split = parse_layer_split(split).unwrap();
    let devices = (0..split.len()).map(|i| format!("virtual:{i}")).collect();
    Limits {
        context: Some(CONTEXT),
        prefill: Some(CHUNK),
        kv,
        layer_split: Some(split),
        devices: Some(devices),
        ..Limits::default()
    }
}

fn launch(path: &Path, machine: Machine, limits: Limits, mode: Mode, threads: usize) -> Launch {
    let files = Arc::new(ModelFiles::open(path).unwrap());
    let model = Arc::new(Model::open(&files).unwrap());
    let outputs = limits.prefill.unwrap_or(1);
    Launch {
        files,
        model,
        vision: None,
        machine,
        limits,
        options: OpenOptions { decode_rows: 1, max_outputs: outputs, ..OpenOptions::default() },
        cpu: CpuOptions { pin_threads: false, ..CpuOptions::new(mode).with_threads(NonZeroUsize::new(threads).unwrap()) },
        locks: None,
        finders: FINDERS,
        faults: Arc::default(),
        in_use: Arc::default(),
    }
}

fn open(launch: &Launch) -> Result<Launched, LaunchError> {
    open_planned(launch.clone(), &mut ())
}

fn kv_of(mode: Mode) -> KvType {
    if mode == Mode::Reference { KvType::F32 } else { KvType::F16 }
}

fn tokens(count: u32) -> Vec<TokenId> {
    (0..count).map(|i| TokenId(3 + (i * 37 + i * i % 11) % 200)).collect()
}

/// Logits of all tokens of a prompt longer than two chunks, then of decoded ones, with a step back in between.
fn session(engine: &mut Engine) -> Vec<Vec<f32>> {
    let tokens = tokens(2 * CHUNK + 19);
    let mut s = engine.start().unwrap();
    let mut rows = all_logits(engine, &mut s, &tokens, tokens.len());
    engine.checkpoint(&mut s).unwrap();
    rows.extend(all_logits(engine, &mut s, &[TokenId(7), TokenId(8), TokenId(9)], 3));
    assert_eq!(engine.rollback(&mut s, tokens.len()).unwrap(), tokens.len());
    rows.extend(all_logits(engine, &mut s, &tokens[..6], 1));
    engine.end(s);
    rows
}

/// Models with splits for one to four cards.
fn splits() -> [(PathBuf, [&'static str; 4]); 3] {
    [
        (model_path(TRAINED[0]), ["0-7", "0-3,4-7", "0-0,1-4,5-7", "0-1,2-2,3-6,7-7"]),
        (model_path(TRAINED[2]), ["0-7", "0-6,7-7", "0-2,3-4,5-7", "0-1,2-3,4-5,6-7"]),
        (model_path(RANDOM), ["0-3", "0-1,2-3", "0-0,1-2,3-3", "0-0,1-1,2-2,3-3"]),
    ]
}

#[test]
fn one_to_four_cards_give_the_bits_of_the_cpu() {
    for (path, splits) in splits() {
        for mode in [Mode::Reference, Mode::Fast] {
            let plain = session(&mut open_path(&path, mode, 2, options(mode, CONTEXT, CHUNK)));
            for split in splits {
                let launch = launch(&path, equal_cards(4), wishes(split, kv_of(mode)), mode, 2);
                let mut launched = open(&launch).unwrap();
                let ranges: Vec<LayerRange> = launched.plan.stages.iter().map(|s| s.layers).collect();
                assert_eq!(ranges, parse_layer_split(split).unwrap(), "the explicit split is honoured");
                let ids: Vec<String> = launched.engine.devices().map(|d| d.id.clone()).collect();
                assert_eq!(Some(ids), launch.limits.devices);
                assert!(session(&mut launched.engine) == plain, "{} {mode:?}: {split} differs", path.display());
                assert_eq!(launched.engine.late_allocations(), 0);
            }
        }
    }
}

/// Opens a plan and compares what was opened with what was planned, before and after the stages were built.
fn compare_bytes(path: &Path, split: &str, limits: &Limits) {
    let launch = launch(path, equal_cards(4), limits.clone(), Mode::Fast, 1);
    let options = &launch.options;
    let before = Limits { least_decode_rows: options.decode_rows, outputs: Some(options.max_outputs), ..launch.limits.clone() };
    let facts = PlanModel::from_header(&ModelHeader::from(&*launch.files)).unwrap();
    let first = plan(&facts, &launch.machine, &before).unwrap();
    let launched = open(&launch).unwrap();
    let runners = &launched.engine.pipeline().stages;
    assert_eq!(runners.len(), launched.plan.stages.len());
    let (mut sum, mut scratch) = (0, 0);
    for ((runner, planned), first) in runners.iter().zip(&launched.plan.stages).zip(&first.stages) {
        let opened = ArenaSizes::of(&runner.stage);
        let arenas = planned.arenas;
        assert_eq!(arenas, first.arenas, "{}: {split} {limits:?}", path.display());
        assert_eq!((arenas.weights_bytes, arenas.state_bytes), (opened.weights_bytes, opened.state_bytes));
        assert_eq!(arenas.work_bytes, opened.work_bytes);
        assert_eq!(runner.backend.memory().arenas_bytes, opened.total_bytes());
        scratch += runner.backend.memory().scratch_bytes;
        sum += opened.total_bytes();
    }
    assert_eq!(launched.plan.row("ram/host-scratch").map_or(0, |row| row.bytes), scratch);
    assert_eq!(launch.in_use.bytes(), sum);
    assert!(launched.cards.iter().all(|c| c.memory.used == c.memory.planned && c.memory.explained));
    drop(launched);
    assert_eq!(launch.in_use.bytes(), 0);
}

#[test]
fn opened_bytes_are_planned_bytes() {
    for (path, splits) in splits() {
        for split in splits {
            let usual = wishes(split, KvType::F16);
            compare_bytes(&path, split, &usual);
            compare_bytes(&path, split, &Limits { context: Some(CONTEXT + 1), prefill: Some(7), slots: 3, ..usual.clone() });
            for kv in [KvType::Int8, KvType::K8v4, KvType::Q4_0] {
                compare_bytes(&path, split, &Limits { kv, ..usual.clone() });
            }
            compare_bytes(&path, split, &Limits { context: Some(64), prefill: Some(1), kv: KvType::F32, ..usual });
        }
    }
}

#[test]
fn every_family_runs_by_the_plan_of_this_pc() {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(fixture("families")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "gguf"));
    assert!(paths.len() >= 4, "{paths:?}");
    for path in paths {
        let mut machine = probe(Effort::Read).machine;
        if !cfg!(target_os = "linux") {
            machine = cards(&["64 MiB"]);
        }
        let limits = Limits { context: Some(64), prefill: Some(16), ..Limits::default() };
        let launched = open(&launch(&path, machine, limits, Mode::Fast, 1)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(launched.cards.iter().all(|c| c.memory.used == c.memory.planned), "{}: {:?}", path.display(), launched.cards);
    }
}

/// Knows whether something was read before the plan, and how much.
#[derive(Default)]
struct Order {
    planned: usize,
    loaded: usize,
}

impl Audience for Order {
    fn planned(&mut self, _plan: &Plan) {
        assert_eq!(self.loaded, 0);
        self.planned += 1;
    }

    fn loading(&mut self, _progress: LoadProgress) {
        assert_eq!(self.planned, 1);
        self.loaded += 1;
    }
}

#[test]
fn an_allocation_that_fails_anywhere_gives_everything_back() {
    let path = model_path(TRAINED[2]);
    let folder = tempfile::tempdir().unwrap();
    let mut launch = launch(&path, equal_cards(3), wishes("0-2,3-4,5-7", KvType::F16), Mode::Fast, 1);
    launch.locks = Some(folder.path().to_owned());
    let mut order = Order::default();
    let whole = open_planned(launch.clone(), &mut order).unwrap();
    assert!(order.planned == 1 && order.loaded > 0);
    let asked = launch.faults.asked();
    assert!(asked > 9, "three arenas on three cards, and scratch: {asked}");
    drop(whole);
    let all = launch.in_use.peak();
    for position in 0..asked {
        launch.faults = Arc::new(Faults::at(position));
        let mut order = Order::default();
        let error = open_planned(launch.clone(), &mut order).map(drop).unwrap_err();
        // All memory of all cards, and what the programs need beside it, is taken before the first byte is read.
        assert_eq!(order.loaded, 0, "position {position}");
        let LaunchError::Allocation { card, bytes, rows, .. } = &error else { panic!("position {position}: {error}") };
        assert!(error.is_refusal() && *bytes > 0 && !rows.is_empty() && rows.iter().all(|row| row.starts_with(card.as_str())));
        let expected = if position < 9 { position / 3 } else { position.min(asked - 1) };
        assert!(position >= 9 || *card == format!("virtual:{expected}"), "position {position} is on {card}");
        let text = error.to_string();
        for word in [card.as_str(), &bytes.to_string(), "given back", "--reserve"] {
            assert!(text.contains(word), "'{word}' is not in {text}");
        }
        assert_eq!(launch.in_use.bytes(), 0, "position {position}");
        for card in &launch.machine.cards {
            CardLock::take(folder.path(), card, "the next one").expect("the lock was given back");
        }
    }
    launch.faults = Arc::default();
    let mut again = open(&launch).expect("the process can open again");
    assert_eq!(launch.in_use.bytes(), all);
    let mut s = again.engine.start().unwrap();
    assert!(last_logits(&mut again.engine, &mut s, &tokens(9)).iter().all(|x| x.is_finite()));
    let refused = open(&launch).map(drop).unwrap_err();
    assert!(matches!(&refused, LaunchError::CardInUse { card, .. } if card == "virtual:0"), "{refused}");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_opened() {
    let path = model_path(TRAINED[0]);
    let refused = |machine: Machine, limits: Limits| {
        let launch = launch(&path, machine, limits, Mode::Fast, 1);
        let error = open(&launch).map(drop).unwrap_err();
        assert!(error.is_refusal(), "{error}");
        assert_eq!((launch.faults.asked(), launch.in_use.peak()), (0, 0), "nothing was taken");
        error
    };
    // The second card is too small for its range; another split would do.
    let error = refused(cards(&["64 MiB", "2 MiB"]), wishes("0-3,4-7", KvType::F16));
    let LaunchError::Refused(refusal) = &error else { panic!("{error}") };
    assert_eq!(refusal.kind, RefusalKind::DoesNotFit);
    assert!(refusal.short.iter().any(|pool| pool.name.starts_with("virtual:1") && pool.short > 0));
    assert!(refusal.remedies.iter().any(|r| r.change.contains("--device auto")), "{error}");
    // Remedies are only what this version can run.
    let mut cpu = cards(&["12 GiB"]);
    cpu.cards[0].backend = BackendKind::Cpu;
    let error = refused(cpu, Limits { context: Some(1 << 24), ..wishes("0-7", KvType::F16) });
    let LaunchError::Refused(refusal) = &error else { panic!("{error}") };
    let fits = refusal.largest_context.expect("a smaller context fits");
    assert!(refusal.remedies.iter().any(|r| r.change == format!("--context {fits}")), "{error}");
    assert!(refusal.remedies.iter().all(|r| !r.change.contains("q4_0")), "{error}");
    // The split misses a layer.
    let error = refused(equal_cards(2), wishes("0-3,4-6", KvType::F16));
    assert!(matches!(&error, LaunchError::Refused(r) if r.kind == RefusalKind::Invalid), "{error}");
}

/// Versions of recurrent state that the engine is asked for beside the plan make the built stage larger than estimated.
#[test]
fn a_stage_that_is_larger_than_estimated_is_planned_again() {
    let path = model_path(TRAINED[0]);
    let limits = wishes("0-7", KvType::F16);
    let launch = |machine| {
        let launch = launch(&path, machine, limits.clone(), Mode::Fast, 1);
        Launch { options: OpenOptions { undo_tokens: 16, ..launch.options.clone() }, ..launch }
    };
    let plenty = launch(equal_cards(1));
    let facts = PlanModel::from_header(&ModelHeader::from(&*plenty.files)).unwrap();
    let estimate = plan(&facts, &plenty.machine, &limits).unwrap().pools[0].used;
    let needed = open(&plenty).unwrap().plan.pools[0].used;
    assert!(needed > estimate, "{needed} {estimate}");
    let exact = launch(cards(&[&format!("{needed} B")]));
    assert_eq!(open(&exact).unwrap().plan.pools[0].free, 0);
    // One byte less costs an expert its place on the card, at least while a prompt is read; without room for what is not an expert
    // nothing is taken.
    let tight = launch(cards(&[&format!("{} B", needed - 1)]));
    let plan = open(&tight).unwrap().plan;
    let kept: u64 = plan.stages[0].kept().map(u64::from).sum();
    assert!(kept < plan.experts && plan.held_experts >= kept && plan.pools[0].used < needed, "{kept} of {} kept", plan.experts);
    let small = launch(cards(&["1 MiB"]));
    let error = open(&small).map(drop).unwrap_err();
    assert!(error.is_refusal() && small.faults.asked() == 0, "{error}");
}

/// A card that gives less than it promised, or has narrow buffers, behind the plan's back.
#[test]
fn a_virtual_card_keeps_its_limits() {
    let files = Arc::new(ModelFiles::open(model_path(TRAINED[0])).unwrap());
    let model = Arc::new(Model::open(&files).unwrap());
    let in_use = Arc::new(CardUse::default());
    let open = |limit_bytes, max_piece_bytes| {
        let (id, name) = ("virtual:9".to_owned(), "small".to_owned());
        let facts = VirtualFacts { id, name, limit_bytes, max_piece_bytes, faults: Arc::default(), in_use: Arc::clone(&in_use) };
        let cpu = CpuBackend::new(CpuOptions::new(Mode::Fast).with_threads(NonZeroUsize::MIN)).unwrap();
        let card = Box::new(VirtualCard::new(cpu, facts));
        let options = options(Mode::Fast, 64, 16);
        Engine::open(Arc::clone(&files), Arc::clone(&model), card, options, &mut |_| ()).map(drop)
    };
    open(64 << 20, u64::MAX).unwrap();
    for (limit, piece, word) in [(1 << 20, u64::MAX, "1048576"), (64 << 20, 100_000, "100000"), (20_330_000, u64::MAX, "Work")] {
        let error = open(limit, piece).unwrap_err();
        assert!(matches!(error, EngineError::Backend(BackendError::OutOfMemory { .. })), "{error}");
        assert!(error.to_string().contains(word) && error.to_string().contains("virtual:9"), "{error}");
        assert_eq!(in_use.bytes(), 0);
    }
}

#[test]
fn what_cannot_be_run_yet_is_refused_with_a_plain_sentence() {
    let path = model_path(TRAINED[0]);
    let missing = |machine: Machine, limits: Limits, capability: Capability| {
        let launch = launch(&path, machine, limits, Mode::Fast, 1);
        let error = open(&launch).map(drop).unwrap_err();
        assert!(matches!(&error, LaunchError::NotYet { missing } if missing.contains(&capability)), "{error}");
        assert!(error.is_refusal() && error.to_string().contains("cannot run yet. Nothing was loaded"), "{error}");
        assert_eq!(launch.faults.asked(), 0);
    };
    let whole = |kv| wishes("0-7", kv);
    missing(equal_cards(1), Limits { resident_kv: Some(64), ..whole(KvType::F16) }, Capability::KvSpill);
    let mut cuda = equal_cards(1);
    cuda.cards[0].backend = BackendKind::Vulkan;
    let error = open(&launch(&path, cuda, whole(KvType::F16), Mode::Fast, 1)).map(drop).unwrap_err();
    assert!(matches!(&error, LaunchError::NotYet { .. } | LaunchError::NoBackend { .. } | LaunchError::Refused(_)), "{error}");
}

/// A backend whose cards are played by the CPU. Its driver counts them from the far end of the bus.
struct Played;

impl Finder for Played {
    fn interface(&self) -> Interface {
        Interface::Vulkan
    }

    fn find(&self) -> Result<Vec<FoundCard>, Absent> {
        let card = |index, place: &str| FoundCard {
            pci: Some(place.parse().unwrap()),
            total_bytes: 3 << 30,
            free_bytes: 3 << 30,
            ..FoundCard::new(Interface::Vulkan, index, "played")
        };
        Ok(vec![card(0, "02:00.0"), card(1, "01:00.0")])
    }

    fn free_bytes(&self, card: &FoundCard) -> Option<u64> {
        Some(card.free_bytes)
    }

    fn open(&self, card: &NamedCard, _options: &CardOptions) -> Result<Box<dyn Backend>, BackendError> {
        let cpu = CpuBackend::new(CpuOptions::new(Mode::Fast).with_threads(NonZeroUsize::MIN))?;
        let facts = VirtualFacts {
            id: card.id.clone(),
            name: format!("number {} of the driver", card.card.driver_index),
            limit_bytes: card.card.free_bytes,
            max_piece_bytes: u64::MAX,
            faults: Arc::default(),
            in_use: Arc::default(),
        };
        Ok(Box::new(VirtualCard::new(cpu, facts)))
    }
}

#[test]
fn found_cards_are_opened_by_their_backend() {
    static FOUND: &[&dyn Finder] = &[&Played];
    let mut machine = Probe { finders: FOUND, cache: None, ..Probe::new(Effort::Read) }.look().machine;
    machine.host = equal_cards(1).host;
    let wish = |id: &str| Limits { context: Some(128), devices: Some(vec![id.into()]), ..Limits::default() };
    let launch_on = |machine: &Machine, limits: Limits| {
        let launch = launch(&model_path(TRAINED[0]), machine.clone(), limits, Mode::Fast, 1);
        open(&Launch { finders: FOUND, ..launch })
    };
    let launched = launch_on(&machine, wish("vulkan:0")).unwrap();
    let device = launched.engine.devices().next().unwrap();
    assert_eq!((device.id.as_str(), device.name.as_str()), ("vulkan:0", "number 1 of the driver"));
    assert!(launched.cards.iter().all(|card| card.memory.explained), "{:?}", launched.cards);
    // What the backend does not promise is refused, and so is a card that is no longer there.
    let error = launch_on(&machine, Limits { kv: KvType::Int8, ..wish("vulkan:0") }).map(drop).unwrap_err();
    assert!(matches!(&error, LaunchError::NotYet { missing } if *missing == [Capability::QuantisedKv]), "{error}");
    let mut moved = machine.clone();
    moved.cards[0].pci = Some("0000:09:00.0".into());
    let error = launch_on(&moved, wish("vulkan:0")).map(drop).unwrap_err();
    assert!(matches!(&error, LaunchError::NoSuchCard { .. }) && error.to_string().contains("vulkan:0"), "{error}");
}

#[test]
fn a_checkpoint_has_the_bytes_of_its_row() {
    for (name, split) in [(TRAINED[0], "0-2,3-7"), (RANDOM, "0-1,2-3")] {
        let limits = Limits { checkpoints: 3, ..wishes(split, KvType::F16) };
        let mut launched = open(&launch(&model_path(name), equal_cards(2), limits, Mode::Fast, 1)).unwrap();
        let mut sequence = launched.engine.start().unwrap();
        launched.engine.feed(&mut sequence, &tokens(20), Want::Nothing, &mut |_, _| ()).unwrap();
        launched.engine.checkpoint(&mut sequence).unwrap();
        let one = sequence.checkpoints()[0].bytes() as u64;
        let planned = launched.plan.row("ram/checkpoints").unwrap().bytes;
        assert_eq!(planned, 3 * one, "{name}");
    }
}

#[test]
fn decoding_with_experts_elsewhere_allocates_nothing() {
    let limits = Limits { context: Some(256), prefill: Some(16), ..Limits::default() };
    let mut launched = open(&launch(&model_path(TRAINED[0]), cards(&["12 MiB"]), limits, Mode::Fast, 1)).unwrap();
    let engine = &mut launched.engine;
    let mut s = engine.start().unwrap();
    engine.feed(&mut s, &tokens(40), Want::Last, &mut |_, _| ()).unwrap();
    engine.feed(&mut s, &[TokenId(5)], Want::Last, &mut |_, _| ()).unwrap();
    let decoded = tokens(64);
    let before = ALLOCATIONS.get();
    for token in &decoded {
        engine.feed(&mut s, std::slice::from_ref(token), Want::Last, &mut |_, _| ()).unwrap();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    let stats = engine.tier_stats().unwrap();
    assert!(stats.card_calls > 0 && stats.ram_calls > 0 && stats.swaps > 0, "{stats:?}");
    assert_eq!(engine.late_allocations(), 0);
}

#[test]
fn decoding_allocates_nothing() {
    for (path, splits) in splits() {
        for (mode, split) in [(Mode::Fast, splits[0]), (Mode::Fast, splits[2]), (Mode::Reference, splits[1])] {
            // One thread a card: all work is done, and counted, on this one.
            let mut launched = open(&launch(&path, equal_cards(4), wishes(split, kv_of(mode)), mode, 1)).unwrap();
            let engine = &mut launched.engine;
            let mut s = engine.start().unwrap();
            let mut sum = 0.0;
            let mut see = |_: usize, row: &mut [f32]| sum += row[0];
            engine.feed(&mut s, &tokens(CHUNK + 5), Want::Last, &mut see).unwrap();
            engine.feed(&mut s, &[TokenId(5)], Want::Last, &mut see).unwrap();
            let decoded = tokens(64);
            let before = ALLOCATIONS.get();
            for token in &decoded {
                engine.feed(&mut s, std::slice::from_ref(token), Want::Last, &mut see).unwrap();
            }
            let made = ALLOCATIONS.get() - before;
            assert_eq!(made, 0, "{} {mode:?} {split}: {made} allocations in 64 tokens", path.display());
            assert_eq!(engine.late_allocations(), 0);
            // The counter does count.
            let runner = &mut engine.pipeline_mut().stages[0];
            let stage = Arc::clone(&runner.stage);
            runner.backend.prepare(&stage, 0).unwrap();
            assert_eq!(engine.late_allocations(), 1);
            assert!(sum.is_finite() && ALLOCATIONS.get() > before + made);
        }
    }
}

/// Cards that hold all, some and none of the experts, with RAM for all, for the rest, or for less.
#[test]
fn experts_that_no_card_holds_are_planned_and_run() {
    let path = model_path(TRAINED[0]);
    let small = Limits { context: Some(256), prefill: Some(CHUNK), ..Limits::default() };
    let plain = session(&mut open_path(&path, Mode::Fast, 2, options(Mode::Fast, 256, CHUNK)));
    let mut seen = vec![];
    for (room, ram) in [("10 MiB", "all"), ("13 MiB", "complement"), ("13 MiB", "disk"), ("9 MiB", "disk"), ("64 MiB", "auto")] {
        let flags = strata::plan::PlanFlags { ram_experts: Some(ram.into()), ..Default::default() };
        let limits = Limits { ram_experts: Limits::from_flags(&flags).unwrap().ram_experts, ..small.clone() };
        let mut launch = launch(&path, cards(&[room]), limits, Mode::Fast, 1);
        if ram == "disk" {
            // Room for a third of the experts that are on no card, beside what the program itself takes.
            let all = open(&launch).unwrap_or_else(|e| panic!("{room} {ram} without a budget: {e}")).plan;
            let used: u64 = all.pools.iter().filter(|p| p.name == "RAM").map(|p| p.used).sum();
            let rows = all.rows.iter().filter(|r| r.consumer == strata::plan::Consumer::RamExperts);
            launch.limits.ram_budget = Some(used - rows.map(|r| r.bytes).sum::<u64>() * 2 / 3);
        }
        let mut launched = open(&launch).unwrap_or_else(|e| panic!("{room} {ram}: {e}"));
        let plan = &launched.plan;
        seen.push((plan.held_experts, plan.experts, plan.settings.ram_experts));
        // Buffers of prompts lie on slots wherever experts are missing and RAM can bring them back.
        let lent: u64 = plan.stages[0].lent.iter().map(|n| u64::from(*n)).sum();
        assert_eq!(lent > 0, ram == "all" || ram == "complement", "{room} {ram}: {lent} slots are lent");
        assert_eq!(launched.engine.pipeline().stages[0].stage.lent_bytes > 0, lent > 0);
        let sum: u64 = launched.engine.pipeline().stages.iter().map(|s| ArenaSizes::of(&s.stage).total_bytes()).sum();
        assert_eq!(launch.in_use.bytes(), sum);
        assert!(launched.cards.iter().all(|c| c.memory.used == c.memory.planned), "{room} {ram}: {:?}", launched.cards);
        let planned_ram = plan.pools.iter().find(|p| p.name == "RAM").map(|p| p.used);
        assert!(launched.engine.memory().experts_bytes <= planned_ram.unwrap(), "{room} {ram}");
        assert!(session(&mut launched.engine) == plain, "{room} {ram}");
        assert_eq!(launched.engine.late_allocations(), 0);
    }
    println!("{seen:?}");
    assert!(seen[0].0 < seen[1].0 && seen[1].0 < seen[1].1 && seen[3].0 < seen[0].0, "{seen:?}");
    assert_eq!(seen[4].0, seen[4].1);
}

/// RAM must hold at least one expert of each layer that a card holds partly, or nothing could be computed there.
#[test]
fn ram_for_less_than_an_expert_a_layer_is_refused_with_a_budget_that_fits() {
    let flags = strata::plan::PlanFlags { ram_experts: Some("disk".into()), ..Default::default() };
    let limits = Limits { context: Some(256), prefill: Some(CHUNK), ..Limits::from_flags(&flags).unwrap() };
    let mut launch = launch(&model_path(TRAINED[0]), cards(&["13 MiB"]), limits, Mode::Fast, 1);
    let all = open(&launch).unwrap().plan;
    let used: u64 = all.pools.iter().filter(|p| p.name == "RAM").map(|p| p.used).sum();
    let rows = all.rows.iter().filter(|r| r.consumer == strata::plan::Consumer::RamExperts);
    launch.limits.ram_budget = Some(used - rows.map(|r| r.bytes).sum::<u64>() + 1000);
    let before = launch.faults.asked();
    let error = open(&launch).map(drop).unwrap_err();
    let LaunchError::NoRamForExperts { budget: Some(budget), needed, .. } = error else { panic!("{error}") };
    assert!(error.is_refusal() && needed > 0 && error.to_string().contains(&format!("--ram-budget {budget}B")), "{error}");
    assert_eq!((launch.faults.asked(), launch.in_use.bytes()), (before, 0), "nothing was taken");
    launch.limits.ram_budget = Some(budget);
    open(&launch).expect("the remedy fits");
}

#[test]
fn a_context_is_what_was_asked_for_though_cells_come_in_blocks() {
    let limits = Limits { context: Some(101), ..wishes("0-7", KvType::F16) };
    let launched = open(&launch(&model_path(TRAINED[2]), equal_cards(1), limits, Mode::Fast, 1)).unwrap();
    assert_eq!(launched.engine.options().context, 101);
    assert_eq!(launched.engine.options().kv, KvFormat::F16);
    assert!(launched.plan.settings.cells >= 101);
}

#[test]
fn pictures_are_read_in_the_ram_that_was_planned() {
    let path = model_path(RANDOM);
    let wishes = Limits { vision: true, vision_tokens: 35, ..wishes("0-3", KvType::F16) };
    let blind = launch(&path, equal_cards(1), wishes, Mode::Fast, 2);
    let refused = open(&blind).map(drop).unwrap_err();
    assert!(refused.is_usage() && refused.to_string().contains("--vision-file"), "{refused}");
    let launch = Launch { vision: Some(encoder()), ..blind };
    let mut launched = open(&launch).unwrap();
    let row = |id: &str| launched.plan.row(id).unwrap_or_else(|| panic!("no row {id}")).bytes;
    let planned = row("ram/vision-weights") + row("ram/vision-work");
    let used = launched.engine.memory().vision_bytes;
    // The learned places and the rows' positions lie beside the device's memory.
    let (places, lists) = (6 * 6 * 48 * 4, 35 * (4 * size_of::<strata::program::Row>() as u64 + 4));
    assert_eq!(planned, used + places + lists);
    assert_eq!(row("ram/vision-rows"), 4 * 35 * 256 * 4);
    assert_eq!(launched.engine.vision().unwrap().max_tokens, 35);
    let (tokens, pictures) = text(505, &[(9, Some(&picture(14, 10))), (5, None)]);
    let mut sequence = launched.engine.start().unwrap();
    let mut last = vec![];
    launched.engine.feed_seeing(&mut sequence, &tokens, &pictures, Want::Last, &mut |_, row| last = row.to_vec()).unwrap();
    assert!(last.iter().all(|x| x.is_finite()));
    assert_eq!(launched.engine.late_allocations(), 0);
    // A file that is no encoder.
    let foreign = Launch { vision: Some(Arc::new(ModelFiles::open(&path).unwrap())), ..launch.clone() };
    let text = open(&foreign).map(drop).unwrap_err().to_string();
    assert!(text.contains("clip"), "{text}");
}
