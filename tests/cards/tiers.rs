//! Experts that a card holds partly: pinned RAM behind it, the ring, and the processor beside it.

use std::sync::Arc;

use super::common::npz::Npz;
use super::common::*;
use super::sim_support::*;
use strata::backend::cpu::{CpuOptions, Mode};
use strata::backend::device::Vendor;
use strata::backend::{Backend, PreparedId};
use strata::engine::{Engine, OpenOptions, Placement};
use strata::experts::{ExpertOptions, Misses, PinOptions};
use strata::gguf::ModelFiles;
use strata::model::Model;
use strata::program::{Row, RunParams};
use strata::units::TokenId;

const NAME: &str = TRAINED[2];
const LAYERS: u32 = 8;
const SLICE_BYTES: u64 = 64 << 10;

fn open(cards: Vec<(u32, Box<dyn Backend>)>, slots: Option<u32>, experts: ExpertOptions) -> Result<Engine, String> {
    let files = Arc::new(ModelFiles::open(model_path(NAME)).unwrap());
    let model = Arc::new(Model::open(&files).unwrap());
    let mut start = 0;
    let placements = cards.into_iter().map(|(end, backend)| {
        let layers = std::mem::replace(&mut start, end)..end;
        Placement { layers, backend }
    });
    let expert_slots = slots.map(|slots| vec![slots; LAYERS as usize]);
    let host = CpuOptions { pin_threads: false, ..CpuOptions::new(Mode::Fast) };
    let options = OpenOptions { expert_slots, experts, host, ..options(Mode::Fast, 64, 10) };
    Engine::open_split(files, model, placements.collect(), options, &mut |_| ()).map_err(|e| e.to_string())
}

fn pinning(most_bytes: u64) -> ExpertOptions {
    let pin = PinOptions { slice_bytes: SLICE_BYTES, most_bytes };
    ExpertOptions { pin, misses: Misses::Card, reproducible: true, ..ExpertOptions::default() }
}

/// Logits of a prompt and of decoded tokens.
fn answer(engine: &mut Engine) -> Vec<Vec<f32>> {
    let mut tokens = ids(&Npz::open(&fixture(&format!("{NAME}.reference.npz"))).ints("p2_tokens"));
    tokens.truncate(11);
    let mut s = engine.start().unwrap();
    let mut rows = all_logits(engine, &mut s, &tokens, 10);
    rows.extend(all_logits(engine, &mut s, &[TokenId(7), TokenId(8)], 1));
    engine.end(s);
    assert_eq!(engine.late_allocations(), 0);
    rows
}

fn pinned_bytes(engine: &Engine) -> u64 {
    engine.pipeline().experts.as_ref().unwrap().pinned_bytes()
}

/// Each device pins the RAM behind its own layers; every expert goes through the ring, straight from there.
#[test]
fn pinned_and_pageable_ram_give_the_bits_of_a_card_that_holds_everything() {
    let zoo = Zoo::new("");
    let whole = answer(&mut open(vec![(LAYERS, zoo.cuda(0))], None, ExpertOptions::default()).unwrap());
    for (most_bytes, some) in [(u64::MAX, true), (5 * SLICE_BYTES, true), (0, false)] {
        let mut one = open(vec![(LAYERS, zoo.cuda(0))], Some(4), pinning(most_bytes)).unwrap();
        assert_eq!(pinned_bytes(&one) > 0, some);
        assert!(pinned_bytes(&one) <= most_bytes && zoo.counter("pinned-bytes") as u64 >= pinned_bytes(&one));
        assert!(answer(&mut one) == whole, "{most_bytes} pinned bytes at most");
        drop(one);
        let mut two = open(vec![(3, zoo.cuda(1)), (LAYERS, zoo.hip())], Some(4), pinning(most_bytes)).unwrap();
        assert!(answer(&mut two) == whole, "{most_bytes} pinned bytes at most, two cards");
    }
    zoo.assert_given_back("after all engines");
}

#[test]
fn pinning_stops_at_the_first_refusal_with_one_line_and_goes_on_with_a_detour() {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let sim = Sim::new(vendor, "card vram=1G context=1M");
        let mut plenty = open(vec![(LAYERS, sim.open(0))], Some(4), pinning(u64::MAX)).unwrap();
        let all = pinned_bytes(&plenty);
        assert!(all > 4 * SLICE_BYTES, "{all}");
        let expected = answer(&mut plenty);
        assert_eq!(plenty.pipeline().experts.as_ref().unwrap().notices(), [""; 0]);
        drop(plenty);
        sim.assert_given_back("after an engine");
        sim.command("fail pin 4");
        let mut refused = open(vec![(LAYERS, sim.open(0))], Some(4), pinning(u64::MAX)).unwrap();
        assert_eq!(pinned_bytes(&refused), 3 * SLICE_BYTES);
        let notices = refused.pipeline().experts.as_ref().unwrap().notices().to_vec();
        let [told] = notices.as_slice() else { panic!("{notices:?}") };
        let id = &refused.pipeline().stages[0].backend.facts().id;
        assert!(told.contains(id) && told.contains("192.00 KiB") && told.contains("out of memory"), "{told}");
        assert!(answer(&mut refused) == expected);
        drop(refused);
        sim.assert_given_back("after the second engine");
    }
}

/// What cards need comes first: a start that fails for memory of a card has pinned nothing.
#[test]
fn pinning_comes_after_all_arenas_and_graphs() {
    let sim = Sim::cuda("card vram=1G context=1M\ncard vram=1G context=1M");
    let cards = |sim: &Sim| vec![(4, sim.open(0)), (LAYERS, sim.open(1))];
    let counted = |kind: &str| sim.counter(&format!("{kind}-calls"));
    let before = ["alloc", "graph"].map(counted);
    drop(open(cards(&sim), Some(4), pinning(u64::MAX)).unwrap());
    let after = ["alloc", "graph"].map(counted);
    for (kind, calls) in [("alloc", after[0] - before[0]), ("graph", after[1] - before[1])] {
        assert!(calls > 2, "{calls} calls of {kind}");
        let devices = cards(&sim);
        let pins = counted("pin");
        sim.command(&format!("fail {kind} {calls}"));
        let Err(told) = open(devices, Some(4), pinning(u64::MAX)) else { panic!("the last {kind} was not needed") };
        assert_eq!(counted("pin"), pins, "{told}");
        sim.assert_given_back(&told);
    }
}

/// A card that runs by itself computes what it holds while the processor computes the rest, and nobody is any the wiser.
#[test]
fn the_card_works_beside_the_processor() {
    let expected = {
        let sim = Sim::cuda("card vram=1G context=1M");
        answer(&mut open(vec![(LAYERS, sim.open(0))], None, ExpertOptions::default()).unwrap())
    };
    let sim = Sim::cuda("background 1\ncard vram=1G context=1M");
    let mut engine =
        open(vec![(LAYERS, sim.open(0))], Some(4), ExpertOptions { misses: Misses::Processor, ..ExpertOptions::default() })
            .unwrap();
    let (ran, alone) = (sim.counter("launches"), sim.counter("background-launches"));
    let found = answer(&mut engine);
    let (ran, alone) = (sim.counter("launches") - ran, sim.counter("background-launches") - alone);
    println!("{alone} of {ran} kernels ran while the host did something else than wait");
    assert!(alone > 0);
    let stats = engine.tier_stats().unwrap();
    assert!(stats.ram_calls > 0 && stats.processor_bytes > 0);
    let worst = found.iter().zip(&expected).map(|(a, b)| kl(b, a)).fold(0.0, f64::max);
    assert!(worst <= 1e-5, "KL {worst:.2e} from a card that holds everything");
    drop(engine);
    sim.set("");
}

/// A run that has been started needs nobody to go on with: streams that run only when they are waited for have not begun when the
/// processor's share is done.
#[test]
fn a_started_run_lets_the_host_go_on() {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let sim = Sim::new(vendor, "lazy 1\ncard vram=1G context=1M");
        let mut engine = open(vec![(LAYERS, sim.open(0))], None, ExpertOptions::default()).unwrap();
        let mut s = engine.start().unwrap();
        last_logits(&mut engine, &mut s, &[TokenId(5)]);
        let runner = &mut engine.pipeline_mut().stages[0];
        assert!(runner.backend.overlaps_host());
        let rows = [Row::text(0, 1, TokenId(5))];
        let params = RunParams { rows: &rows, outputs: &[0], earlier: &[] };
        let before = sim.counter("launches");
        let ticket = runner.backend.run(PreparedId(0), 0, &params).unwrap();
        assert_eq!(sim.counter("launches"), before, "the call has not waited");
        runner.backend.wait(ticket).unwrap();
        assert!(sim.counter("launches") > before);
    }
}
