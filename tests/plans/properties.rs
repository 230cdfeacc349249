//! 100,000 random (model, machine, limits) triples: every plan passes the second opinion, and changes of the machine or of
//! the wish move the plan in the right direction only.

use super::random::Random;
use strata::plan::{
    BackendKind, HeldCards, Limits, Machine, Plan, PlanFlags, PlanModel, RefusalKind, Size, decide, plan, verify,
};

const TRIPLES: u64 = 100_000;
const MIB: u64 = 1 << 20;

fn triple(seed: u64) -> (Random, PlanModel, Machine, Limits) {
    let mut random = Random::new(seed);
    let model = random.model();
    let machine = random.machine();
    let limits = random.limits(&model, &machine);
    (random, model, machine, limits)
}

fn check(seed: u64, what: &str, model: &PlanModel, machine: &Machine, limits: &Limits) -> Option<Plan> {
    let plan = match decide(model, machine, limits, false) {
        Ok(plan) => plan,
        Err(refusal) => {
            let named = !refusal.short.is_empty() || matches!(refusal.kind, RefusalKind::Invalid | RefusalKind::NoDevice);
            assert!(named, "seed {seed} ({what}): a refusal without a pool: {refusal}");
            return None;
        }
    };
    let found = verify(&plan, model, machine, limits);
    assert!(found.is_empty(), "seed {seed} ({what}): {found:?}\n{limits:?}\n{machine:?}");
    Some(plan)
}

/// More of something: never a refusal where there was a plan, never slower, and fewer experts only in another split or chunk
/// that is strictly faster for it. (Both at once cannot always be had: a card that becomes large enough to work alone may
/// be faster than two that hold more.)
fn not_worse(seed: u64, what: &str, before: &Plan, after: Option<&Plan>) {
    let Some(after) = after else { panic!("seed {seed}: {what} turned a plan into a refusal") };
    let (b, a) = (before.predicted.objective_s, after.predicted.objective_s);
    assert!(a <= b * (1.0 + 1e-9), "seed {seed}: {what} made it slower: {b} to {a}");
    let same = before.settings.chunk == after.settings.chunk
        && before.stages.iter().map(|s| (s.card, s.layers)).eq(after.stages.iter().map(|s| (s.card, s.layers)));
    if same {
        assert!(after.held_experts >= before.held_experts, "seed {seed}: {what} took experts away");
    } else {
        assert!(after.held_experts >= before.held_experts || a < b, "seed {seed}: {what} took experts for nothing");
    }
}

fn vary(seed: u64, random: &mut Random, model: &PlanModel, machine: &Machine, limits: &Limits, before: &Plan) {
    let mut larger = machine.clone();
    let (what, limits) = match random.between(0, 5) {
        0 => {
            let at = random.between(0, machine.cards.len() as u64 - 1) as usize;
            let more = random.between(1, 2000) * MIB;
            larger.cards[at].total.0 += more;
            larger.cards[at].free.0 += more;
            ("more memory on a card", limits.clone())
        }
        1 => {
            let more = random.between(1, 20_000) * MIB;
            larger.host.ram_total.0 += more;
            larger.host.ram_available.0 += more;
            ("more RAM", limits.clone())
        }
        2 => {
            let more = random.between(1, 20_000) * MIB;
            larger.host.commit_limit = machine.host.commit_limit.map(|c| Size(c.0 + more));
            ("a larger page file", limits.clone())
        }
        3 => {
            let context = before.settings.context_tokens;
            let smaller = random.between(1, u64::from(context)) as u32;
            ("a smaller context", Limits { context: Some(smaller), ..limits.clone() })
        }
        4 => ("no reserve", Limits { reserve: None, ..limits.clone() }),
        _ => {
            if limits.devices.is_some() || machine.cards.iter().all(|c| c.backend == BackendKind::Cpu) {
                return;
            }
            let mut card = random.card(7, machine.host.os);
            card.memory_gbs = Some(0.5);
            card.drives_display = false;
            larger.cards.push(card);
            ("a useless card", limits.clone())
        }
    };
    let after = check(seed, what, model, &larger, &limits);
    not_worse(seed, what, before, after.as_ref());
}

#[test]
fn a_hundred_thousand_random_triples() {
    let (mut plans, mut partial, mut several) = (0u64, 0u64, 0u64);
    for seed in 0..TRIPLES {
        let (mut random, model, machine, limits) = triple(seed);
        let Some(plan) = check(seed, "as it is", &model, &machine, &limits) else { continue };
        plans += 1;
        partial += u64::from(plan.held_experts < plan.experts);
        several += u64::from(plan.stages.len() > 1);
        vary(seed, &mut random, &model, &machine, &limits, &plan);
        if seed.is_multiple_of(16) {
            assert_eq!(decide(&model, &machine, &limits, false).as_ref(), Ok(&plan), "seed {seed}: not the same plan again");
            // Fixing what was chosen changes nothing.
            let again = check(seed, "fixed", &model, &machine, &plan.fixed(&limits, None));
            assert_eq!(again.as_ref().map(|p| &p.stages), Some(&plan.stages), "seed {seed}");
        }
    }
    println!("{plans} plans of {TRIPLES} triples; {partial} with some experts on cards, {several} over several cards");
    // The generator reaches all kinds of outcomes.
    assert!(plans > TRIPLES / 3 && plans < TRIPLES * 9 / 10, "{plans} plans");
    assert!(partial > TRIPLES / 50 && several > TRIPLES / 50, "{partial} partial, {several} over several cards");
}

/// The wishes with the flags of a remedy, read as a user's flags are.
fn with_flags(limits: &Limits, change: &str) -> Limits {
    let mut changed = limits.clone();
    let words: Vec<&str> = change.split(' ').collect();
    for pair in words.chunks(2) {
        let value = Some(pair[1].to_string());
        let number = || pair[1].parse::<u32>().ok();
        let read = |flags: PlanFlags| Limits::from_flags(&flags).unwrap();
        let none = PlanFlags::default();
        match pair[0] {
            "--context" => changed.context = number(),
            "--prefill" => changed.prefill = number(),
            "--parallel" => changed.slots = number().unwrap(),
            "--checkpoints" => changed.checkpoints = number().unwrap(),
            "--kv" => changed.kv = read(PlanFlags { kv: value, ..none }).kv,
            "--draft" => changed.draft = read(PlanFlags { draft: value, ..none }).draft,
            "--vision" => changed.vision = read(PlanFlags { vision: value, ..none }).vision,
            "--vision-tokens" => changed.vision_tokens = number().unwrap(),
            "--device" => changed.devices = read(PlanFlags { device: value, ..none }).devices,
            "--layer-split" => changed.layer_split = read(PlanFlags { layer_split: value, ..none }).layer_split,
            "--reserve" => changed.reserve = read(PlanFlags { reserve: value, ..none }).reserve,
            "--cache-ram" => changed.cache_ram = read(PlanFlags { cache_ram: value, ..none }).cache_ram,
            "--ram-budget" => changed.ram_budget = read(PlanFlags { ram_budget: value, ..none }).ram_budget,
            "--ram-experts" => changed.ram_experts = read(PlanFlags { ram_experts: value, ..none }).ram_experts,
            "--held-cards" => changed.held_cards = read(PlanFlags { held_cards: value, ..none }).held_cards,
            other => panic!("{other} is a flag that no verb has"),
        }
    }
    changed
}

#[test]
fn every_remedy_of_a_refusal_fits_as_it_is_told() {
    let (mut remedies, mut flags) = (0, 0);
    for seed in 0..2000 {
        let (_, model, machine, limits) = triple(seed);
        let limits = Limits { held_cards: if seed % 2 == 0 { HeldCards::Use } else { HeldCards::Refuse }, ..limits };
        let Err(refusal) = plan(&model, &machine, &limits) else { continue };
        remedies += refusal.remedies.len();
        for remedy in refusal.remedies.iter().filter(|r| r.change.starts_with("--")) {
            flags += 1;
            let changed = with_flags(&limits, &remedy.change);
            let planned = decide(&model, &machine, &changed, false);
            assert!(planned.is_ok(), "seed {seed}: {} does not fit: {}", remedy.change, planned.unwrap_err());
        }
        let as_is = Limits { held_cards: HeldCards::Use, ..limits.clone() };
        let with = |c: u32| decide(&model, &machine, &Limits { context: Some(c), ..as_is.clone() }, false);
        match refusal.largest_context.filter(|c| Some(*c) != limits.context) {
            Some(context) => {
                assert!(with(context).is_ok(), "seed {seed}: {context} does not fit");
                assert!(with(context + 256).is_err(), "seed {seed}: more than {context} fits");
            }
            None if refusal.kind == RefusalKind::DoesNotFit && refusal.largest_context.is_none() => {
                assert!(with(1).is_err(), "seed {seed}: one token fits");
            }
            None => {}
        }
    }
    assert!(remedies > 300 && flags > 200, "{remedies} remedies, {flags} of them flags");
}
