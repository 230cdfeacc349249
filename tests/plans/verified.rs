//! Deliberately broken plans are caught, each by the rule that was written for it.

use super::support::{flash_next, machine, planned};
use strata::plan::{Consumer, Lifetime, Limits, Plan, Pool, verify};

struct Broken {
    rule: &'static str,
    what: &'static str,
    breaks: fn(&mut Plan),
}

fn row(plan: &mut Plan, consumer: Consumer) -> &mut strata::plan::Row {
    plan.rows.iter_mut().find(|r| r.consumer == consumer && matches!(r.pool, Pool::Card(_))).unwrap()
}

const BROKEN: &[Broken] = &[
    Broken { rule: "request", what: "a smaller context", breaks: |p| p.settings.context_tokens -= 1 },
    Broken { rule: "request", what: "drafts forgotten", breaks: |p| p.settings.draft = false },
    Broken { rule: "layers", what: "a layer without a place", breaks: |p| p.stages[1].layers.start += 1 },
    Broken { rule: "layers", what: "two stages on a card", breaks: |p| p.stages[1].card = p.stages[0].card },
    Broken { rule: "card", what: "too many slots", breaks: |p| row(p, Consumer::ExpertSlots).bytes += 1 << 32 },
    Broken { rule: "card", what: "no driver context", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::DriverContext) },
    Broken { rule: "buffer", what: "no buffer", breaks: |p| row(p, Consumer::DenseWeights).buffers = 0 },
    Broken { rule: "weights", what: "no head", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::Head) },
    Broken { rule: "weights", what: "weights of a neighbour", breaks: |p| row(p, Consumer::DenseWeights).bytes += 256 },
    Broken { rule: "state", what: "half of the cache", breaks: |p| row(p, Consumer::KvCache).bytes /= 2 },
    Broken { rule: "state", what: "no delta state", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::RecurrentState) },
    Broken { rule: "state", what: "no prompt buffers", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::PromptWork) },
    Broken { rule: "state", what: "no hand-off", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::HandOff) },
    Broken { rule: "experts", what: "no table of slots", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::SlotTables) },
    Broken { rule: "experts", what: "no results", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::ExpertResults) },
    Broken { rule: "experts", what: "no processor", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::ExpertBuffers) },
    Broken { rule: "experts", what: "more experts than there are", breaks: |p| p.stages[0].held[0] = 10_000 },
    Broken {
        rule: "experts",
        what: "room left unused",
        breaks: |p| {
            for pool in &mut p.pools {
                pool.free += 1 << 30;
            }
        },
    },
    Broken { rule: "loan", what: "a loan without a row", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::LentSlots) },
    Broken { rule: "loan", what: "lent by a layer that has its turn later", breaks: |p| p.stages[0].lent[0] += 3 },
    Broken { rule: "experts", what: "more lent than held", breaks: |p| p.stages[0].lent[0] = 10_000 },
    Broken { rule: "homes", what: "lent experts nowhere in RAM", breaks: |p| p.stages[0].lent.fill(0) },
    Broken {
        rule: "overlap",
        what: "slots and prompt buffers at the same time",
        breaks: |p| row(p, Consumer::LentSlots).lifetime = Lifetime::Always,
    },
    Broken { rule: "arenas", what: "an arena that is too small", breaks: |p| p.stages[0].arenas.state_bytes -= 256 },
    Broken { rule: "rows", what: "a row twice", breaks: |p| p.rows.push(p.rows[0].clone()) },
    Broken { rule: "rows", what: "no reason", breaks: |p| p.rows[3].formula.clear() },
    Broken {
        rule: "alignment",
        what: "an odd place",
        breaks: |p| {
            let row = row(p, Consumer::KvCache);
            row.offset = row.offset.map(|o| o + 8);
        },
    },
    Broken {
        rule: "overlap",
        what: "prompt and decode at the same time",
        breaks: |p| row(p, Consumer::DecodeWork).lifetime = Lifetime::Prompt,
    },
    Broken {
        rule: "ram",
        what: "a forgotten terabyte",
        breaks: |p| {
            p.rows.iter_mut().find(|r| r.consumer == Consumer::Process).unwrap().bytes += 1 << 40;
        },
    },
    Broken { rule: "commit", what: "cards not charged", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::CommitOfCards) },
    Broken { rule: "pools", what: "short and yet a plan", breaks: |p| p.pools[0].short = 1 },
    Broken { rule: "homes", what: "experts without a home", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::RamExperts) },
    Broken { rule: "homes", what: "a wrong sum", breaks: |p| p.held_experts += 1 },
    Broken { rule: "prediction", what: "no speed", breaks: |p| p.predicted.decode_tokens_per_s = f64::NAN },
];

#[test]
fn broken_plans_are_caught_by_the_rule_for_it() {
    let model = flash_next("IQ3_S");
    let machine = machine("win-5060ti-5070ti-64g-large-pagefile");
    let devices = Some(vec!["cuda:0".to_string(), "cuda:1".to_string()]);
    let limits = Limits { context: Some(65_536), draft: true, devices, ..Limits::default() };
    let good = planned(&model, &machine, &limits).unwrap();
    assert_eq!(good.stages.len(), 2);
    for broken in BROKEN {
        let mut plan = good.clone();
        (broken.breaks)(&mut plan);
        let found = verify(&plan, &model, &machine, &limits);
        assert!(found.iter().any(|v| v.rule == broken.rule), "{}: {found:?}", broken.what);
    }
}
