//! Starts by a plan on cards, and their failures: refused before loading, or given back.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::common::*;
use super::sim_support::*;
use strata::backend::cpu::{CpuOptions, Mode};
use strata::backend::cuda::IMAGES as IMAGES_OF_CUDA;
use strata::backend::device::{DeviceFinder, Images};
use strata::backend::{BackendError, Finder};
use strata::engine::{EngineError, LoadProgress, OpenOptions, Want};
use strata::gguf::ModelFiles;
use strata::launch::{Audience, Launch, LaunchError, Launched, open_planned};
use strata::model::Model;
use strata::plan::{DriverKind, KvType, Limits, Machine, Os, Size, parse_layer_split};
use strata::probe::{Effort, Probe};
use strata::schedule::ScheduleError;
use strata::units::TokenId;

/// Two cards whose drivers take and hold what real ones do.
const TWO: &str = "card name=\"card A\" vram=8G context=300M module=20M late=50M optimism=30M\n\
                   card name=\"card B\" vram=8G context=300M module=20M late=50M optimism=30M";

/// A launch of the tiny model over the cards of a simulated PC, found and planned as on a real one.
fn launch(sim: &Sim) -> Launch {
    launch_with(sim, IMAGES)
}

fn launch_with(sim: &Sim, images: Images) -> Launch {
    let finder: &'static dyn Finder = Box::leak(Box::new(DeviceFinder::with_driver(sim.driver(), images)));
    let finders: &'static [&'static dyn Finder] = Box::leak(Box::new([finder]));
    let probe = Probe { finders, cache: None, ..Probe::new(Effort::Read) };
    let mut machine: Machine = probe.look().machine;
    // The tests may run anywhere; the cards are what is tried.
    (machine.host.ram_total, machine.host.ram_available) = (Size(16 << 30), Size(12 << 30));
    (machine.host.container_limit, machine.host.container_used) = (None, None);
    let files = Arc::new(ModelFiles::open(model_path(RANDOM)).unwrap());
    let model = Arc::new(Model::open(&files).unwrap());
    let limits = Limits {
        context: Some(128),
        prefill: Some(10),
        kv: KvType::F16,
        layer_split: Some(parse_layer_split("0-1,2-3").unwrap()),
        devices: Some(vec!["cuda:0".into(), "cuda:1".into()]),
        ..Limits::default()
    };
    Launch {
        files,
        model,
        vision: None,
        machine,
        limits,
        options: OpenOptions { decode_rows: 1, max_outputs: 4, ..OpenOptions::default() },
        cpu: CpuOptions::new(Mode::Fast).with_threads(NonZeroUsize::MIN),
        locks: None,
        finders,
        faults: Arc::default(),
        in_use: Arc::default(),
    }
}

fn answer(launched: &mut Launched) -> Result<Vec<f32>, EngineError> {
    let engine = &mut launched.engine;
    let mut s = engine.start()?;
    let mut last = vec![];
    let tokens: Vec<TokenId> = (0..11).map(|i| TokenId(3 + i)).collect();
    engine.feed(&mut s, &tokens, Want::Last, &mut |_, row| last = row.to_vec())?;
    engine.feed(&mut s, &[TokenId(5)], Want::Last, &mut |_, row| last = row.to_vec())?;
    engine.end(s);
    Ok(last)
}

#[test]
fn a_start_takes_what_was_planned_and_runs_though_drivers_take_memory_late() {
    let sim = Sim::cuda(TWO);
    let mut launched = open_planned(launch(&sim), &mut ()).unwrap();
    assert_eq!(launched.plan.stages.len(), 2);
    for (stage, runner) in launched.plan.stages.iter().zip(&launched.engine.pipeline().stages) {
        let a = stage.arenas;
        let planned = a.weights_bytes + a.state_bytes + a.work_bytes + a.scratch_bytes;
        assert_eq!(runner.backend.memory().arenas_bytes, planned, "{}", stage.card_id);
        assert!(a.scratch_bytes > 0);
    }
    // What drivers take late was gone before the plan was made, so there is nothing that it does not explain.
    for check in &launched.cards {
        let memory = check.memory;
        assert!(memory.used > 0 && memory.used <= memory.planned && memory.explained, "{}: {memory:?}", check.card);
    }
    assert!(answer(&mut launched).unwrap().iter().all(|x| x.is_finite()));
    assert_eq!(launched.engine.late_allocations(), 0);
    drop(launched);
    sim.assert_given_back("after the engine was dropped");
}

/// Takes memory of a card while a model is loaded, as another program would.
struct Taking<'a>(&'a Sim, Option<&'static str>);

impl Audience for Taking<'_> {
    fn loading(&mut self, _: LoadProgress) {
        if let Some(command) = self.1.take() {
            self.0.command(command);
        }
    }
}

#[test]
fn what_a_card_lost_beyond_the_plan_is_told_as_unexplained() {
    let sim = Sim::cuda(TWO);
    let launched = open_planned(launch(&sim), &mut Taking(&sim, Some("take 1 900M"))).unwrap();
    let [a, b] = launched.cards.as_slice() else { panic!("{:?}", launched.cards) };
    assert!(a.memory.explained, "{a:?}");
    assert!(!b.memory.explained && b.memory.used > 900 << 20 && b.card == "cuda:1", "{b:?}");
}

/// Every call of a start by which a driver gives something fails once.
#[test]
fn whichever_call_of_a_start_fails_everything_is_given_back() {
    let sim = Sim::cuda(TWO);
    let before = sim.counter("taking-calls");
    let expected = answer(&mut open_planned(launch(&sim), &mut ()).unwrap()).unwrap();
    let calls = sim.counter("taking-calls") - before;
    assert!(calls > 40, "{calls} calls");
    let (mut refused, mut ran) = (0, 0);
    for k in 1..=calls {
        sim.set(TWO);
        sim.command(&format!("fail any {k}"));
        let prepared = launch(&sim);
        match open_planned(prepared, &mut ()).map_err(|e| e.to_string()) {
            // Memory that could not be pinned, or a card that was asked again.
            Ok(mut launched) => {
                assert!(answer(&mut launched).unwrap() == expected, "call {k}: the answer differs");
                ran += 1;
            }
            Err(told) => {
                assert!(told.contains("cuda:") || told.contains("card"), "call {k}: {told}");
                refused += 1;
            }
        }
        sim.assert_given_back(&format!("after call {k} failed"));
    }
    println!("{calls} calls: {refused} ended in a refusal, {ran} did no harm");
    assert!(refused > 20 && ran > 0);
    sim.set(TWO);
    assert!(answer(&mut open_planned(launch(&sim), &mut ()).unwrap()).unwrap() == expected);
}

#[test]
fn an_arena_that_is_refused_is_named_with_its_rows() {
    // The driver says that all is free; the system gives less.
    let sim = Sim::cuda(&format!("{TWO}\ncommit 742M"));
    let Err(error) = open_planned(launch(&sim), &mut ()) else { panic!("it cannot open") };
    let LaunchError::Allocation { card, bytes, rows, .. } = &error else { panic!("{error}") };
    assert!(card.starts_with("cuda:") && *bytes > 0 && !rows.is_empty(), "{error}");
    assert!(error.is_refusal() && error.to_string().contains("given back"), "{error}");
    sim.assert_given_back("after the refusal");
}

#[derive(Default)]
struct Heard(Vec<String>);

impl Audience for Heard {
    fn waiting(&mut self, message: &str) {
        self.0.push(message.to_owned());
    }
}

/// The first story: the second card is still held by another process.
#[test]
fn a_held_card_is_refused_by_name_before_anything_is_taken() {
    let sim = Sim::cuda(&format!("{TWO}\n").replace("\"card B\" vram=8G", "\"card B\" vram=22G other=22100M"));
    let prepared = launch(&sim);
    let before = sim.counter("alloc-calls");
    let Err(error) = open_planned(prepared, &mut ()) else { panic!("it cannot open") };
    assert!(error.is_refusal(), "{error}");
    assert!(error.to_string().contains("cuda:1"), "{error}");
    assert_eq!(sim.counter("alloc-calls"), before, "nothing was taken");
    sim.assert_given_back("after the refusal");
}

/// The same, but the process is ending.
#[test]
fn a_card_that_is_being_given_back_is_waited_for() {
    let sim = Sim::cuda(&format!("{TWO}\n").replace("\"card B\" vram=8G", "\"card B\" vram=22G other=22100M"));
    let prepared = launch(&sim);
    let mut heard = Heard::default();
    let launched = thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4 {
                thread::sleep(Duration::from_millis(500));
                sim.command("give 1 5000M");
            }
            sim.command("give 1 1500M");
        });
        open_planned(prepared, &mut heard)
    });
    let mut launched = launched.unwrap();
    assert!(heard.0.iter().any(|told| told.contains("cuda:1") && told.contains("given back")), "{:?}", heard.0);
    assert!(answer(&mut launched).unwrap().iter().all(|x| x.is_finite()));
}

/// The second story: what all cards together may take is charged to the system's commit.
#[test]
fn a_small_page_file_refuses_before_loading() {
    let sim = Sim::cuda(TWO);
    let mut prepared = launch(&sim);
    prepared.machine.host.os = Os::Windows;
    prepared.machine.cards.iter_mut().for_each(|card| card.driver = DriverKind::Wddm);
    (prepared.machine.host.commit_limit, prepared.machine.host.commit_used) = (Some(Size(6 << 30)), Some(Size(5 << 30)));
    let before = sim.counter("alloc-calls");
    let Err(error) = open_planned(prepared.clone(), &mut ()) else { panic!("it cannot open") };
    assert!(error.is_refusal() && error.to_string().contains("commit"), "{error}");
    assert_eq!(sim.counter("alloc-calls"), before, "nothing was taken");
    prepared.machine.host.commit_limit = Some(Size(64 << 30));
    open_planned(prepared, &mut ()).expect("a larger page file will do");
}

/// Another process takes memory after the cards were looked at.
#[test]
fn what_is_free_is_read_again_when_the_cards_are_open() {
    let sim = Sim::cuda(TWO);
    let prepared = launch(&sim);
    sim.command("take 1 7600M");
    let before = sim.counter("alloc-calls");
    let Err(error) = open_planned(prepared.clone(), &mut ()) else { panic!("it cannot open") };
    assert!(error.is_refusal() && error.to_string().contains("cuda:1"), "{error}");
    assert_eq!(sim.counter("alloc-calls"), before, "nothing was taken");
    sim.assert_given_back("after the refusal");
    sim.command("give 1 7600M");
    open_planned(prepared, &mut ()).expect("it was given back");
}

/// With the kernels that the program carries, each block format of the model is a module of its own.
#[test]
fn all_code_is_loaded_before_the_first_arena() {
    let sim = Sim::cuda(&TWO.replace("card name", "card arch=8.6 name"));
    let loads = |launch: Launch| {
        let before = sim.counter("module-calls");
        let outcome = open_planned(launch, &mut ()).map(drop);
        (sim.counter("module-calls") - before, outcome)
    };
    let (calls, opened) = loads(launch_with(&sim, IMAGES_OF_CUDA));
    opened.unwrap();
    assert!(calls > 2, "{calls} modules");
    for k in [1, calls / 2, calls] {
        let prepared = launch_with(&sim, IMAGES_OF_CUDA);
        let allocs = sim.counter("alloc-calls");
        sim.command(&format!("fail module {k}"));
        let Err(error) = loads(prepared).1 else { panic!("module {k} of {calls} was not needed") };
        assert!(error.to_string().contains("cuda:") || error.to_string().contains("card"), "{error}");
        assert_eq!(sim.counter("alloc-calls"), allocs, "module {k}: an arena was open already");
        sim.assert_given_back("after the failure");
    }
}

#[test]
fn a_card_that_breaks_is_told_with_the_program_and_the_next_start_is_well() {
    for (fault, word) in [("break 700 3", "address"), ("break 719 2", "lost")] {
        let sim = Sim::cuda(TWO);
        let mut launched = open_planned(launch(&sim), &mut ()).unwrap();
        sim.command(fault);
        let error = answer(&mut launched).unwrap_err();
        let (EngineError::Backend(inner) | EngineError::Schedule(ScheduleError::Backend(inner))) = &error else {
            panic!("{error}")
        };
        assert!(matches!(inner, BackendError::Lost { .. }), "{error}");
        assert!(error.to_string().contains("cuda:") && error.to_string().contains(word), "{error}");
        assert!(answer(&mut launched).is_err(), "a broken card stays broken");
        drop(launched);
        sim.set(TWO);
        answer(&mut open_planned(launch(&sim), &mut ()).unwrap()).unwrap();
    }
}
