//! Deliberately broken plans are caught, each by the rule that was written for it; and whatever row of whatever plan is taken
//! away or changed, the second opinion sees it.

use std::collections::BTreeSet;

use super::support::{QUANTS, flash_next, machine, machines, planned, root};
use strata::gguf::ModelFiles;
use strata::plan::{
    Arena, CardIndex, Consumer, KvType, Lifetime, Limits, Machine, ModelHeader, Plan, PlanModel, Pool, RamExperts, Row,
    StageScratch, verify,
};

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
    Broken {
        rule: "driver-context",
        what: "no driver context",
        breaks: |p| p.rows.retain(|r| r.consumer != Consumer::DriverContext),
    },
    Broken { rule: "buffer", what: "no buffer", breaks: |p| row(p, Consumer::DenseWeights).buffers = 0 },
    Broken { rule: "head", what: "no head", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::Head) },
    Broken { rule: "dense-weights", what: "weights of a neighbour", breaks: |p| row(p, Consumer::DenseWeights).bytes += 256 },
    Broken { rule: "kv-cache", what: "half of the cache", breaks: |p| row(p, Consumer::KvCache).bytes /= 2 },
    Broken {
        rule: "recurrent-state",
        what: "no delta state",
        breaks: |p| p.rows.retain(|r| r.consumer != Consumer::RecurrentState),
    },
    Broken { rule: "prompt-work", what: "no prompt buffers", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::PromptWork) },
    Broken { rule: "hand-off", what: "no hand-off", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::HandOff) },
    Broken { rule: "slot-tables", what: "no table of slots", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::SlotTables) },
    Broken { rule: "prompt-work", what: "no results of experts", breaks: |p| row(p, Consumer::PromptWork).bytes /= 4 },
    Broken { rule: "expert-buffers", what: "no processor", breaks: |p| p.rows.retain(|r| r.consumer != Consumer::ExpertBuffers) },
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
    Broken { rule: "lent-slots", what: "lent experts that are not lent", breaks: |p| p.stages[0].lent.fill(0) },
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
        rule: "pools",
        what: "a forgotten terabyte",
        breaks: |p| {
            p.rows.iter_mut().find(|r| r.consumer == Consumer::Process).unwrap().bytes += 1 << 40;
        },
    },
    Broken {
        rule: "commit-of-cards",
        what: "cards not charged",
        breaks: |p| p.rows.retain(|r| r.consumer != Consumer::CommitOfCards),
    },
    Broken { rule: "pools", what: "short and yet a plan", breaks: |p| p.pools[0].short = 1 },
    Broken {
        rule: "ram-experts",
        what: "experts without a home",
        breaks: |p| p.rows.retain(|r| r.consumer != Consumer::RamExperts),
    },
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

/// What a careful user asks for, and what asks for every consumer that there is.
fn wishes() -> Vec<Limits> {
    let usual = Limits { context: Some(65_536), kv: KvType::Int8, draft: true, ..Limits::default() };
    let everything = Limits {
        context: Some(32_768),
        resident_kv: Some(8192),
        slots: 2,
        vision: true,
        checkpoints: 3,
        cache_ram: 1 << 30,
        ..usual.clone()
    };
    let disk = Limits { ram_experts: RamExperts::Disk, draft: false, ..usual.clone() };
    vec![usual, everything, disk]
}

/// A change of one row, and whether the consumer's own rule has to see it, whatever else does.
struct Mutation {
    what: &'static str,
    own_rule: bool,
    apply: fn(&mut Plan, usize),
}

const MUTATIONS: &[Mutation] = &[
    Mutation { what: "removed", own_rule: true, apply: |p, i| drop(p.rows.remove(i)) },
    Mutation { what: "halved", own_rule: true, apply: |p, i| p.rows[i].bytes /= 2 },
    Mutation { what: "four times as large", own_rule: true, apply: |p, i| p.rows[i].bytes *= 4 },
    Mutation { what: "256 bytes more", own_rule: false, apply: |p, i| p.rows[i].bytes += 256 },
    Mutation { what: "256 bytes less", own_rule: false, apply: |p, i| p.rows[i].bytes = p.rows[i].bytes.saturating_sub(256) },
    Mutation { what: "twice", own_rule: false, apply: |p, i| p.rows.push(Row { id: "again".into(), ..p.rows[i].clone() }) },
    Mutation { what: "with another name", own_rule: false, apply: |p, i| p.rows[i].id += "s" },
    Mutation { what: "without a reason", own_rule: false, apply: |p, i| p.rows[i].formula.clear() },
    Mutation { what: "of no buffer", own_rule: false, apply: |p, i| p.rows[i].buffers = 0 },
    Mutation { what: "elastic or not", own_rule: false, apply: |p, i| p.rows[i].elastic ^= true },
    Mutation { what: "on another card", own_rule: false, apply: |p, i| p.rows[i].pool = Pool::Card(CardIndex(77)) },
    Mutation { what: "in no arena of its", own_rule: false, apply: |p, i| p.rows[i].arena = other_arena(p.rows[i].arena) },
    Mutation { what: "at another time", own_rule: false, apply: |p, i| p.rows[i].lifetime = other_time(p.rows[i].lifetime) },
    Mutation {
        what: "with a place or without",
        own_rule: false,
        apply: |p, i| p.rows[i].offset = p.rows[i].offset.map_or(Some(0), |_| None),
    },
    Mutation {
        what: "as another consumer",
        own_rule: true,
        apply: |p, i| p.rows[i].consumer = other_consumer(p.rows[i].consumer),
    },
];

fn other_arena(arena: Arena) -> Arena {
    if arena == Arena::Host { Arena::Work } else { Arena::Host }
}

fn other_time(lifetime: Lifetime) -> Lifetime {
    if lifetime == Lifetime::Always { Lifetime::Load } else { Lifetime::Always }
}

fn other_consumer(consumer: Consumer) -> Consumer {
    if consumer == Consumer::Process { Consumer::Parked } else { Consumer::Process }
}

/// Changes every row of a plan in every way; gives the consumers that were seen.
fn mutate(plan: &Plan, model: &PlanModel, machine: &Machine, limits: &Limits) -> BTreeSet<Consumer> {
    for i in 0..plan.rows.len() {
        for mutation in MUTATIONS {
            let mut changed = plan.clone();
            (mutation.apply)(&mut changed, i);
            let found = verify(&changed, model, machine, limits);
            let row = &plan.rows[i];
            let seen = found.iter().any(|v| !mutation.own_rule || v.rule == row.consumer.id());
            assert!(seen, "{} {} on {}: {found:?}", row.id, mutation.what, plan.machine);
        }
    }
    plan.rows.iter().map(|row| row.consumer).collect()
}

#[test]
fn every_row_of_every_plan_is_watched() {
    let mut seen = BTreeSet::new();
    for quant in QUANTS {
        let model = flash_next(quant);
        for name in machines() {
            let machine = machine(&name);
            for limits in wishes() {
                let Ok(plan) = planned(&model, &machine, &limits) else { continue };
                seen.extend(mutate(&plan, &model, &machine, &limits));
                let scratch = plan.stages.iter().map(|s| StageScratch { card_bytes: s.arenas.scratch_bytes, host_bytes: 4096 });
                let fixed = plan.fixed(&limits, Some(scratch.collect()));
                if let Ok(built) = planned(&model, &machine, &fixed) {
                    seen.extend(mutate(&built, &model, &machine, &fixed));
                }
            }
        }
    }
    // On the processor experts lie in place.
    let files = ModelFiles::open(root().join("tests/fixtures/tiny-flash-next-Q8_0.gguf")).unwrap();
    let tiny = PlanModel::from_header(&ModelHeader::from(&files)).unwrap();
    let (pc, limits) = (machine("laptop-8g-no-gpu-linux"), Limits { context: Some(512), ..Limits::default() });
    let plan = planned(&tiny, &pc, &limits).unwrap();
    seen.extend(mutate(&plan, &tiny, &pc, &limits));
    let missing: Vec<_> = Consumer::ALL.iter().filter(|consumer| !seen.contains(consumer)).collect();
    assert!(missing.is_empty(), "no plan has a row of {missing:?}");
}

/// A sheet that does not say what the rows say is caught, whichever number is wrong.
#[test]
fn every_number_of_every_sheet_is_watched() {
    let model = flash_next("IQ3_S");
    let limits = &wishes()[0];
    let changes: [fn(&mut strata::plan::PoolSheet); 6] = [
        |sheet| sheet.capacity += 1,
        |sheet| sheet.floor -= sheet.floor.min(1 << 28),
        |sheet| sheet.used -= 256,
        |sheet| sheet.free += 256,
        |sheet| sheet.short = 1,
        |sheet| sheet.bound += 256,
    ];
    for name in machines() {
        let machine = machine(&name);
        let Ok(plan) = planned(&model, &machine, limits) else { continue };
        for i in 0..plan.pools.len() {
            for (at, change) in changes.iter().enumerate() {
                let mut changed = plan.clone();
                change(&mut changed.pools[i]);
                let same = changed == plan;
                let found = verify(&changed, &model, &machine, limits);
                assert!(same || found.iter().any(|v| v.rule == "pools"), "{name}: change {at} of {}", plan.pools[i].name);
            }
            let mut without = plan.clone();
            without.pools.remove(i);
            assert!(!verify(&without, &model, &machine, limits).is_empty(), "{name}: {} is gone", plan.pools[i].name);
        }
    }
}

/// The failure of the second story: the second card without its library workspace.
#[test]
fn a_second_card_without_library_workspace_is_caught() {
    let model = flash_next("IQ3_S");
    let machine = machine("win-5060ti-5070ti-64g-large-pagefile");
    let devices = Some(vec!["cuda:0".to_string(), "cuda:1".to_string()]);
    let limits = Limits { context: Some(65_536), devices, ..Limits::default() };
    let mut plan = planned(&model, &machine, &limits).unwrap();
    let at = plan.rows.iter().position(|r| r.id == "cuda:1/library-workspace").unwrap();
    let bytes = plan.rows.remove(at).bytes;
    // The sheets agree with the rows that are left: only the rule of the consumer can see it.
    for sheet in plan.pools.iter_mut().filter(|p| p.pool == Pool::Card(CardIndex(1)) || p.pool == Pool::Commit) {
        sheet.used -= bytes;
        sheet.bound -= bytes;
        sheet.free += bytes;
    }
    plan.rows.iter_mut().find(|r| r.consumer == Consumer::CommitOfCards).unwrap().bytes -= bytes;
    let found = verify(&plan, &model, &machine, &limits);
    assert!(found.iter().any(|v| v.rule == "library-workspace"), "{found:?}");
}
