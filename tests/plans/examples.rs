//! Worked examples from logs of this planner's predecessor. Its own rules, written down here as far as they can be
//! checked by arithmetic, give its numbers within 1 %; the planner's rules keep every card above its floor.

use super::support::{flash_next, machine, machines, planned, refused};
use strata::plan::{KvType, Limits, Machine, Plan, Pool, Size};

const GIB: f64 = (1u64 << 30) as f64;
const MIB: u64 = 1 << 20;

/// The predecessor's session on one card with a resident cache: cells of 1,056 B, pooled keys of 512 B a block, 36 delta
/// layers, a rope table, and scratch.
fn old_session_bytes(context: u64) -> u64 {
    let attention = 12 * (context * 1056 + context + (context / 4 + 2) * 512);
    attention + 36 * 3_268_608 + context * 256 + context * 4
}

#[test]
fn the_predecessors_session_is_reproduced() {
    let expected = 2_024_931_328.0;
    let found = old_session_bytes(131_072) as f64;
    assert!((found / expected - 1.0).abs() < 0.01, "{found}");
}

/// Room for experts by the predecessor's rules, from what was free on the card.
#[test]
fn the_predecessors_room_of_report_133_is_reproduced() {
    let reserve: f64 = 700.0 / 1024.0;
    let prompt = (160.0 + 680.0 * 2.0) / 1024.0;
    let first = 10.55 - reserve - prompt;
    assert!((first / 8.38 - 1.0).abs() < 0.01, "{first}");
    let second = 9.92 - 835.0 / 1024.0 - reserve - 1.0 - prompt;
    assert!((second / 5.93 - 1.0).abs() < 0.01, "{second}");
    let run_a: f64 = 9.53 - 876.0 / 1024.0 - 2.0 - 1.0 - (160.0 + 680.0 / 2.0) / 1024.0;
    assert!((run_a / 5.18 - 1.0).abs() < 0.01, "{run_a}");
}

#[test]
fn what_the_longer_context_costs_is_what_was_seen() {
    // 128K to 262K, resident int8, 16 GB card: 1.91 GiB fewer experts; session 1.77 GiB and the draft layer's cache.
    let session = (old_session_bytes(262_144) - old_session_bytes(131_072)) as f64 / GIB;
    let draft = 131_072.0 * 1056.0 / GIB;
    assert!(((session + draft) / 1.90 - 1.0).abs() < 0.01, "{session} + {draft}");
    // The same step here costs the same state and nothing else: 13 caches of 1,088 B and 12 indexers of 640 B a token.
    let mut pc = machine("linux-container-96g-of-256g-rtx4090");
    pc.cards[0].total = Size(16_376 * MIB);
    pc.cards[0].free = Size(15_900 * MIB);
    let plan = |context| {
        let limits = Limits { context: Some(context), kv: KvType::Int8, draft: true, prefill: Some(2048), ..Limits::default() };
        planned(&flash_next("IQ3_S"), &pc, &limits).unwrap()
    };
    let (short, long) = (plan(131_072), plan(262_144));
    let bytes = |p: &Plan| p.row("cuda:0/expert-slots").unwrap().bytes;
    let state = 131_072 * (13 * 1088 + 12 * 640) + 256 * 131_072 / 4 * 4;
    let slack = 3 * MIB;
    let lost = bytes(&short) - bytes(&long);
    assert!(lost.abs_diff(state) < slack, "{lost} bytes of experts against {state} of state");
}

fn with_free(mut machine: Machine, free: [f64; 2]) -> Machine {
    for (card, free) in machine.cards.iter_mut().zip(free) {
        card.free = Size((free * GIB) as u64);
    }
    machine
}

#[test]
fn report_133_is_refused_or_fits_by_the_page_file_alone() {
    let model = flash_next("IQ3_S");
    let devices = Some(vec!["cuda:0".to_string(), "cuda:1".to_string()]);
    let limits =
        Limits { context: Some(65_536), kv: KvType::Int8, resident_kv: Some(32_768), draft: true, devices, ..Limits::default() };
    let small = refused(&model, &machine("win-5060ti-5070ti-64g-small-pagefile"), &limits);
    assert!(small.short.iter().all(|p| p.pool == Pool::Commit));
    let large = planned(&model, &machine("win-5060ti-5070ti-64g-large-pagefile"), &limits).unwrap();
    // VRAM was never the limit: less free VRAM changes the slots, not the outcome.
    let less = with_free(machine("win-5060ti-5070ti-64g-large-pagefile"), [12.5, 12.0]);
    let fewer = planned(&model, &less, &limits).unwrap();
    assert!(fewer.held_experts < large.held_experts && fewer.held_experts > 5000, "{}", fewer.held_experts);
}

#[test]
fn every_plan_ends_with_its_floor_free_on_every_card() {
    let model = flash_next("IQ2_XS");
    for name in machines() {
        for context in [8_192, 131_072] {
            let limits = Limits { context: Some(context), kv: KvType::Int8, ..Limits::default() };
            let Ok(plan) = planned(&model, &machine(&name), &limits) else { continue };
            for sheet in plan.pools.iter().filter(|p| matches!(p.pool, Pool::Card(_))) {
                let least = if name.starts_with("win") { 512 * MIB } else { 256 * MIB };
                assert!(sheet.name.starts_with("cpu") || sheet.free >= least, "{name}: {}", sheet.name);
            }
        }
    }
}

#[test]
fn a_smaller_context_never_holds_fewer_experts_on_one_card() {
    let model = flash_next("IQ3_XXS");
    let pc = machine("linux-rtx3090-24g-128g");
    let mut last = 0;
    for context in [262_144, 200_000, 131_072, 100_000, 65_536, 32_768, 16_384, 8_192, 2_048, 256] {
        let limits = Limits { context: Some(context), kv: KvType::Int8, prefill: Some(2048), ..Limits::default() };
        let held = planned(&model, &pc, &limits).unwrap().held_experts;
        assert!(held >= last, "{context}: {held} experts after {last}");
        last = held;
    }
}

#[test]
fn every_number_has_a_reason() {
    let plan = planned(&flash_next("IQ3_S"), &machine("win-rtx5070-12g-64g"), &Limits::default()).unwrap();
    for row in &plan.rows {
        let text = strata::plan::why(&plan, &row.id).unwrap();
        assert!(text.contains(&row.formula) && !row.formula.is_empty(), "{}", row.id);
    }
    assert!(strata::plan::why(&plan, "cuda:0/lent-slots").unwrap().contains("cuda:0/prompt-work"));
    assert_eq!(strata::plan::why(&plan, "nothing"), None);
    let json: serde_json::Value = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), plan.rows.len());
    assert!(strata::plan::render_short(&plan).lines().count() == 2);
}
