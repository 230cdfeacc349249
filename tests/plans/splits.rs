//! The search finds what trying everything finds; a card that is of no use never makes a plan worse; contradictions between
//! cards and splits are refused.

use super::random::Random;
use super::support::{flash_next, machine, planned, refused};
use strata::plan::{
    BackendKind, Card, DriverKind, HeldCards, KvType, LayerRange, Limits, MAX_STAGES, Machine, Plan, PlanModel, RefusalKind,
    Size, decide, fits, parse_layer_split, verify,
};

const GIB: u64 = 1 << 30;

/// All ways to cut `layers` into `parts` ranges.
fn cuts(layers: u32, parts: usize) -> Vec<Vec<LayerRange>> {
    fn extend(start: u32, layers: u32, parts: usize, so_far: &mut Vec<LayerRange>, all: &mut Vec<Vec<LayerRange>>) {
        if parts == 0 {
            if start == layers {
                all.push(so_far.clone());
            }
            return;
        }
        for end in start + 1..=layers {
            so_far.push(LayerRange { start, end });
            extend(end, layers, parts - 1, so_far, all);
            so_far.pop();
        }
    }
    let mut all = Vec::new();
    extend(0, layers, parts, &mut Vec::new(), &mut all);
    all
}

/// All orders of all choices of cards.
fn orders(ids: &[String]) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = ids.iter().map(|id| vec![id.clone()]).collect();
    let mut at = 0;
    while at < all.len() {
        let more: Vec<Vec<String>> =
            ids.iter().filter(|id| !all[at].contains(id)).map(|id| all[at].iter().chain([id]).cloned().collect()).collect();
        all.extend(more);
        at += 1;
    }
    all
}

/// The best of all plans with an explicit split.
fn by_trying(model: &PlanModel, machine: &Machine, limits: &Limits) -> Option<(f64, u64)> {
    let mut ids: Vec<String> = machine.cards.iter().filter(|c| c.backend != BackendKind::Cpu).map(|c| c.id.clone()).collect();
    if ids.is_empty() {
        ids = machine.cards.iter().map(|c| c.id.clone()).collect();
    }
    let mut best: Option<(f64, u64)> = None;
    for order in orders(&ids) {
        for split in cuts(model.layers.len() as u32, order.len()) {
            let explicit = Limits { devices: Some(order.clone()), layer_split: Some(split), ..limits.clone() };
            let Ok(plan) = decide(model, machine, &explicit, false) else { continue };
            let found = (plan.predicted.objective_s, plan.held_experts);
            if best.is_none_or(|(time_s, held)| found.0 < time_s || found.0 == time_s && found.1 > held) {
                best = Some(found);
            }
        }
    }
    best
}

#[test]
fn the_search_finds_what_trying_everything_finds() {
    let (mut plans, mut several) = (0, 0);
    for seed in 0..1500 {
        let mut random = Random::new(seed);
        let mut model = random.model();
        model.layers.truncate(6);
        if model.ngram.is_some_and(|n| n.layer as usize >= model.layers.len()) {
            model.ngram = None;
        }
        let machine = random.machine();
        let limits = Limits {
            devices: None,
            layer_split: None,
            prefill: Some(random.of(&[64, 256, 1000])),
            held_cards: HeldCards::Use,
            ..random.limits(&model, &machine)
        };
        let found = decide(&model, &machine, &limits, false).ok();
        let expected = by_trying(&model, &machine, &limits);
        assert_eq!(fits(&model, &machine, &limits), expected.is_some(), "seed {seed}");
        let found_numbers = found.as_ref().map(|plan| (plan.predicted.objective_s, plan.held_experts));
        assert_eq!(found_numbers, expected, "seed {seed}: {:?}", found.as_ref().map(Plan::split_text));
        plans += usize::from(found.is_some());
        several += usize::from(found.is_some_and(|plan| plan.stages.len() > 1));
    }
    assert!(plans > 500 && several > 100, "{plans} plans, {several} of several cards");
}

/// A random card of the size that a large model needs.
fn large_card(random: &mut Random, i: usize) -> Card {
    let total = random.between(20, 240) * GIB / 10;
    Card {
        free: Size(total - total / 50),
        memory_gbs: Some(random.of(&[288.0, 360.0, 672.0, 936.0, 1008.0])),
        bus_gbs: Some(random.of(&[1.6, 6.3, 12.5, 25.0])),
        compute_tflops: Some(random.of(&[16.0, 40.0, 70.0, 160.0])),
        ..Card::new(format!("cuda:{i}"), format!("card {i}"), BackendKind::Cuda, DriverKind::Linux, Size(total))
    }
}

/// Six to sixteen cards and 48 layers, with enough RAM or too little.
fn many_cards(random: &mut Random) -> Machine {
    let mut pc = machine("linux-4-mixed-128g");
    let count = random.between(6, 16) as usize;
    pc.cards = (0..count).map(|i| large_card(random, i)).collect();
    if random.chance(40) {
        for i in 1..count {
            if random.chance(60) {
                pc.cards[i] = Card { id: format!("cuda:{i}"), name: format!("card {i}"), ..pc.cards[i - 1].clone() };
            }
        }
    }
    pc.host.ram_available = Size(random.between(8, 120) * GIB);
    pc
}

#[test]
fn with_many_cards_no_card_makes_a_plan_worse() {
    let models = ["IQ2_XS", "Q4_K"].map(flash_next);
    let (mut plans, mut several) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let pc = many_cards(&mut random);
        let model = &models[seed as usize % 2];
        let limits = Limits { context: Some(16_384), kv: KvType::Int8, held_cards: HeldCards::Use, ..Limits::default() };
        let plan = decide(model, &pc, &limits, false).ok();
        assert_eq!(fits(model, &pc, &limits), plan.is_some(), "seed {seed}");
        let time_s = plan.as_ref().map_or(f64::INFINITY, |plan| plan.predicted.objective_s);
        if let Some(plan) = &plan {
            assert_eq!(verify(plan, model, &pc, &limits), vec![], "seed {seed}");
            assert!(plan.stages.len() <= MAX_STAGES);
            plans += 1;
            several += usize::from(plan.stages.len() > 4);
        }
        // No card alone is better than all of them.
        for card in &pc.cards {
            let alone = Limits { devices: Some(vec![card.id.clone()]), ..limits.clone() };
            if let Ok(alone) = decide(model, &pc, &alone, false) {
                assert!(time_s <= alone.predicted.objective_s * (1.0 + 1e-9), "seed {seed}: {} alone is faster", card.id);
            }
        }
        // Whatever useless card is added, wherever: one without room, a slow one, a small one.
        let mut useless = large_card(&mut random, 99);
        match random.between(0, 2) {
            0 => (useless.total, useless.free) = (Size(1 << 20), Size(1 << 20)),
            1 => (useless.memory_gbs, useless.bus_gbs, useless.compute_tflops) = (Some(0.5), Some(0.01), Some(0.1)),
            _ => {
                (useless.total, useless.free) = (Size(13 * GIB / 10), Size(GIB));
                (useless.memory_gbs, useless.bus_gbs, useless.compute_tflops) = (Some(50.0), Some(1.0), Some(1.0));
            }
        }
        let mut more = pc.clone();
        let at = random.between(0, more.cards.len() as u64) as usize;
        more.cards.insert(at, useless);
        let with = decide(model, &more, &limits, false).map_or(f64::INFINITY, |plan| plan.predicted.objective_s);
        assert!(with <= time_s * (1.0 + 1e-9), "seed {seed}: {time_s} s, and {with} s with a useless card");
    }
    assert!(plans > 15 && several > 5, "{plans} plans, {several} over more than four cards");
}

/// Up to eight different cards every choice of them is looked at: none of them is in the way.
#[test]
fn leaving_out_a_card_never_helps() {
    let model = flash_next("IQ3_XXS");
    for seed in 0..8 {
        let mut random = Random::new(1000 + seed);
        let mut pc = many_cards(&mut random);
        pc.cards.truncate(6);
        let limits = Limits { context: Some(16_384), kv: KvType::Int8, held_cards: HeldCards::Use, ..Limits::default() };
        let time = |pc: &Machine| decide(&model, pc, &limits, false).map_or(f64::INFINITY, |plan| plan.predicted.objective_s);
        let all = time(&pc);
        for i in 0..pc.cards.len() {
            let mut fewer = pc.clone();
            fewer.cards.remove(i);
            assert!(all <= time(&fewer) * (1.0 + 1e-9), "seed {seed}: faster without {}", pc.cards[i].id);
        }
    }
}

fn tiny_cards_and_a_large_one() -> Machine {
    let mut pc = machine("linux-rtx3090-24g-128g");
    let large = pc.cards.remove(0);
    for i in 0..12 {
        pc.cards.push(Card {
            memory_gbs: Some(600.0 + f64::from(i)),
            ..Card::new(format!("cuda:{i}"), "tiny", BackendKind::Cuda, DriverKind::Linux, Size(1 << 20))
        });
    }
    pc.cards.push(Card { id: "cuda:12".into(), ..large });
    pc
}

#[test]
fn cards_without_room_are_left_out_first() {
    let model = flash_next("IQ3_S");
    let pc = tiny_cards_and_a_large_one();
    let plan = planned(&model, &pc, &Limits::default()).unwrap();
    let alone = planned(&model, &pc, &Limits { devices: Some(vec!["cuda:12".into()]), ..Limits::default() }).unwrap();
    assert_eq!(plan.split_text(), alone.split_text());
    // All of them by name cannot be; the reason is their memory.
    let devices = Some(pc.cards.iter().map(|c| c.id.clone()).collect());
    let refusal = refused(&model, &pc, &Limits { devices, ..Limits::default() });
    assert_eq!(refusal.kind, RefusalKind::DoesNotFit);
    assert!(refusal.short.iter().any(|sheet| sheet.name.starts_with("cuda:0 ")), "{refusal}");
}

#[test]
fn more_cards_than_the_scheduler_allows_are_never_planned() {
    let model = flash_next("IQ3_S");
    let mut pc = machine("linux-rtx3090-24g-128g");
    let one = Card::new("cuda:0", "small", BackendKind::Cuda, DriverKind::Linux, Size(3 * GIB));
    pc.cards = (0..64).map(|i| Card { id: format!("cuda:{i}"), ..one.clone() }).collect();
    let plan = planned(&model, &pc, &Limits::default()).unwrap();
    assert!(plan.stages.len() <= MAX_STAGES);
    assert!(plan.notices.iter().any(|n| n.contains("no more than 16")), "{:?}", plan.notices);
    let devices = Some(pc.cards[..17].iter().map(|c| c.id.clone()).collect());
    let refusal = refused(&model, &pc, &Limits { devices, ..Limits::default() });
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert!(refusal.message.contains("17 cards") && refusal.message.contains("16"), "{}", refusal.message);
}

#[test]
fn named_cards_that_the_split_does_not_use_are_a_contradiction() {
    let model = flash_next("IQ3_XXS");
    let pc = machine("linux-2x2080ti-22g-126g");
    let devices = Some(vec!["cuda:0".to_string(), "cuda:1".to_string()]);
    let limits = Limits { devices, layer_split: parse_layer_split("0-47").ok(), ..Limits::default() };
    let refusal = refused(&model, &pc, &limits);
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert!(
        refusal.message.contains("--device names 2 cards") && refusal.message.contains("--layer-split"),
        "{}",
        refusal.message
    );
}

/// A held card is not blamed for another whose name begins like its own.
#[test]
fn the_card_that_is_short_is_named_and_no_other() {
    let model = flash_next("IQ3_S");
    let mut pc = machine("linux-rtx3090-24g-128g");
    let card = |i: usize, total: u64, free: u64| Card {
        free: Size(free),
        ..Card::new(format!("cuda:{i}"), "card", BackendKind::Cuda, DriverKind::Linux, Size(total))
    };
    pc.cards = (0..11).map(|i| card(i, 2 * GIB, 19 * GIB / 10)).collect();
    pc.cards[1] = card(1, 22 * GIB, 4 * GIB);
    let devices = Some(vec!["cuda:1".to_string(), "cuda:10".to_string()]);
    let limits = Limits { devices, layer_split: parse_layer_split("0-0,1-47").ok(), ..Limits::default() };
    let refusal = refused(&model, &pc, &limits);
    assert!(refusal.short.iter().all(|sheet| sheet.name.starts_with("cuda:10 ")), "{refusal}");
    assert_eq!(refusal.kind, RefusalKind::DoesNotFit, "{refusal}");
    assert_eq!(refusal.held[0].card, "cuda:1");
}

/// Why "more memory never yields fewer experts" and "a useless card never lowers the speed" cannot both be kept to the letter
/// (docs/PLANNER.md): a small fast card that needs a large slow one for its layers grows until it works alone.
#[test]
fn a_fast_card_that_grows_leaves_a_slow_one_out_for_speed_alone() {
    let model = flash_next("IQ3_S");
    let card = |id: &str, gib: u64, memory_gbs: f64| Card {
        memory_gbs: Some(memory_gbs),
        bus_gbs: Some(25.0),
        compute_tflops: Some(memory_gbs / 12.0),
        opened: true,
        graph_bytes: Some(Size(0)),
        ..Card::new(id, id, BackendKind::Cuda, DriverKind::Linux, Size(gib * GIB))
    };
    let pc = |fast_gib: u64, with_slow: bool| {
        let mut pc = machine("linux-4-mixed-128g");
        pc.cards = vec![card("cuda:0", fast_gib, 1000.0)];
        pc.cards.extend(with_slow.then(|| card("cuda:1", 48, 40.0)));
        pc
    };
    let limits = Limits { context: Some(32_768), kv: KvType::Int8, prefill: Some(512), ..Limits::default() };
    let (mut left_out, mut before): (u32, Option<Plan>) = (0, None);
    for fast_gib in 3..=20 {
        let after = planned(&model, &pc(fast_gib, true), &limits).unwrap();
        println!("{fast_gib} GiB: {}, {} experts, {:.2} s", after.split_text(), after.held_experts, after.predicted.objective_s);
        if let Some(before) = before.filter(|before| before.held_experts > after.held_experts) {
            assert!(after.predicted.objective_s < before.predicted.objective_s);
            // The split of before still holds as many experts; it is slower.
            let kept = planned(&model, &pc(fast_gib, true), &before.fixed(&limits, None)).unwrap();
            assert!(kept.held_experts >= before.held_experts);
            assert!(kept.predicted.objective_s > after.predicted.objective_s);
            if after.stages.len() == 1 {
                left_out += 1;
                // As fast as without the slow card: with it any plan would be slower.
                let alone = planned(&model, &pc(fast_gib, false), &limits).unwrap();
                assert_eq!(alone.predicted.objective_s, after.predicted.objective_s);
            }
        }
        before = Some(after);
    }
    assert_eq!(left_out, 1);
}
