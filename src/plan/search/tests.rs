//! Promise: a plan takes a bounded number of steps, whatever the cards and whatever is short. Steps are counted, not timed: an
//! explosion fails here on any computer.

use super::{Found, fits, least_short, search};
use crate::plan::context::Context;
use crate::plan::{BackendKind, Card, DriverKind, KvType, Limits, Machine, PlanModel, Size, host, read_sheet};

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn sheet(quant: &str) -> PlanModel {
    let header = read_sheet(&read(&format!("assets/sheets/qwen3.8-flash-next-{quant}.sheet.json"))).unwrap();
    PlanModel::from_header(&header).unwrap()
}

fn machine(name: &str) -> Machine {
    Machine::from_toml(&read(&format!("tests/machines/{name}.toml"))).unwrap()
}

fn stock() -> Vec<String> {
    let folder = std::fs::read_dir(format!("{}/tests/machines", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter_map(|name| name.strip_suffix(".toml").map(str::to_string)).collect();
    names.sort();
    names
}

fn found(model: &PlanModel, machine: &Machine, limits: &Limits) -> (Found, bool) {
    let mut ctx = Context::new(model, machine, limits).unwrap();
    let supplies = host::supplies(&mut ctx);
    let found = search(&ctx, &supplies, true);
    assert_eq!(found.best.is_some(), fits(&ctx, &supplies), "{}", machine.name);
    (found, least_short(&ctx, &supplies).is_some())
}

const GIB: u64 = 1 << 30;

/// `count` cards, each a little faster than the one before it or all equal.
fn cards(count: usize, gib: u64, different: bool) -> Machine {
    let mut pc = machine("linux-4-mixed-128g");
    let one = |i: usize| Card {
        memory_gbs: Some(600.0 + if different { 7.0 * i as f64 } else { 0.0 }),
        bus_gbs: Some(12.0),
        compute_tflops: Some(40.0),
        ..Card::new(format!("cuda:{i}"), "card", BackendKind::Cuda, DriverKind::Linux, Size(gib * GIB))
    };
    pc.cards = (0..count).map(one).collect();
    pc
}

fn with_ram(mut pc: Machine, gib: u64) -> Machine {
    pc.host.ram_available = Size(gib * GIB);
    pc
}

/// Four different cards and a fifth one.
fn five() -> Machine {
    let mut pc = machine("linux-4-mixed-128g");
    pc.cards.push(Card {
        memory_gbs: Some(360.0),
        bus_gbs: Some(12.0),
        compute_tflops: Some(25.0),
        ..Card::new("cuda:4", "RTX 3060", BackendKind::Cuda, DriverKind::Linux, Size(23 * GIB / 2))
    });
    pc
}

#[test]
fn machines_of_the_repository_are_searched_completely_and_in_few_steps() {
    for quant in ["IQ2_XS", "IQ3_S", "Q4_K"] {
        let model = sheet(quant);
        for name in stock() {
            let limits = Limits { context: Some(65_536), kv: KvType::Int8, ..Limits::default() };
            let (found, _) = found(&model, &machine(&name), &limits);
            assert!(!found.limited, "{quant} on {name}");
            assert!(found.steps < 400_000, "{quant} on {name}: {} steps", found.steps);
        }
    }
}

/// Each of these once took from seconds to minutes.
#[test]
fn short_hosts_and_many_cards_take_few_steps() {
    let cache = Limits { cache_ram: 64 * GIB, ..Limits::default() };
    let large_cache = Limits { cache_ram: 300 * GIB, ..Limits::default() };
    let usual = Limits::default();
    let cases = [
        ("four cards, 18 GiB of RAM", "Q4_K", with_ram(machine("linux-4-mixed-128g"), 18), &usual, true),
        ("four cards, a cache larger than RAM", "IQ2_XS", machine("linux-4-mixed-128g"), &large_cache, true),
        ("five cards", "IQ3_S", five(), &usual, true),
        ("five cards, 26 GiB of RAM", "Q4_K", with_ram(five(), 26), &usual, true),
        ("five cards, 16 GiB of RAM", "Q4_K", with_ram(five(), 16), &usual, true),
        ("five cards, a cache of 64 GiB", "IQ3_S", with_ram(five(), 26), &cache, true),
        ("eight different cards", "IQ3_S", cards(8, 20, true), &usual, false),
        ("sixteen equal cards", "IQ3_S", cards(16, 20, false), &usual, true),
        ("sixteen equal small cards, 16 GiB of RAM", "Q4_K", with_ram(cards(16, 5, false), 16), &usual, true),
        ("sixteen different cards", "IQ3_S", cards(16, 20, true), &usual, false),
        ("sixteen different small cards, 16 GiB of RAM", "Q4_K", with_ram(cards(16, 5, true), 16), &usual, false),
        ("sixty-four equal cards", "IQ3_S", cards(64, 3, false), &usual, true),
    ];
    for (what, quant, pc, limits, complete) in cases {
        let (found, has_closest) = found(&sheet(quant), &pc, limits);
        println!("{what}: {} steps, limited {}, {:?}", found.steps, found.limited, found.best.map(|l| l.cards));
        assert!(!complete || !found.limited, "{what}");
        assert!(has_closest, "{what}");
        let most = if complete { 400_000 } else { 20_000_000 };
        assert!(found.steps < most, "{what}: {} steps", found.steps);
    }
}
