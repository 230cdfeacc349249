//! The two failures that this planner must make impossible.

use super::support::{flash_next, machine, planned, refused};
use strata::plan::{Consumer, KvType, Limits, Plan, Pool, RefusalKind, decide, largest_context};

fn both() -> Option<Vec<String>> {
    Some(vec!["cuda:0".into(), "cuda:1".into()])
}

/// 262,144 tokens, int8, 32,768 resident cells, vision, draft window 4, both cards.
fn first_story() -> Limits {
    Limits {
        context: Some(262_144),
        kv: KvType::Int8,
        resident_kv: Some(32_768),
        vision: true,
        draft: true,
        draft_window: 4,
        devices: both(),
        ..Limits::default()
    }
}

fn second_story() -> Limits {
    Limits {
        context: Some(65_536),
        kv: KvType::Int8,
        resident_kv: Some(32_768),
        draft: true,
        devices: both(),
        ..Limits::default()
    }
}

fn cards_keep(plan: &Plan, floor_bytes: u64) {
    let cards: Vec<_> = plan.pools.iter().filter(|p| matches!(p.pool, Pool::Card(_))).collect();
    assert_eq!(cards.len(), 2);
    for card in cards {
        assert!(card.floor >= floor_bytes && card.free >= card.floor, "{}: {} free", card.name, card.free);
        let has = |consumer| plan.rows.iter().any(|r| r.pool == card.pool && r.consumer == consumer && r.bytes > 0);
        for consumer in [Consumer::LibraryWorkspace, Consumer::PromptWork, Consumer::Graphs, Consumer::DriverContext] {
            assert!(has(consumer), "{}: no row for {consumer:?}", card.name);
        }
    }
}

#[test]
fn story_one_fits_on_empty_cards() {
    let model = flash_next("IQ3_XXS");
    let plan = planned(&model, &machine("linux-2x2080ti-22g-126g"), &first_story()).unwrap();
    assert_eq!(plan.settings.context_tokens, 262_144);
    cards_keep(&plan, 256 << 20);
    assert!(plan.held_experts > 14_000, "{} experts", plan.held_experts);
}

#[test]
fn story_one_is_refused_at_once_while_a_card_is_held() {
    let model = flash_next("IQ3_XXS");
    let machine = machine("linux-2x2080ti-22g-126g-held");
    // Asked for both cards, or for none in particular: the held card is not dropped in silence.
    for devices in [both(), None] {
        let limits = Limits { devices, ..first_story() };
        let refusal = refused(&model, &machine, &limits);
        assert_eq!(refusal.kind, RefusalKind::CardHeld);
        assert_eq!(refusal.held.len(), 1);
        assert_eq!((refusal.held[0].card.as_str(), refusal.held[0].free), ("cuda:0", 2 << 30));
        let text = refusal.to_string();
        assert!(text.contains("cuda:0 (NVIDIA GeForce RTX 2080 Ti) has only 2.00 GiB free of 21.66 GiB"), "{text}");
        assert!(text.contains("(21,109,764,260 bytes)"), "{text}");
        assert!(text.contains("Largest context that fits without cuda:0: 262,144 tokens"), "{text}");
        assert!(refusal.remedies.iter().any(|r| r.change.contains("hold cuda:0") && r.outcome.contains("262,144 tokens")));
        assert!(refusal.remedies.iter().any(|r| r.change == "--device cuda:1"), "{text}");
    }
}

#[test]
fn story_one_by_an_explicit_split_names_the_largest_context_that_fits() {
    let model = flash_next("IQ3_XXS");
    let held = machine("linux-2x2080ti-22g-126g-held");
    let split = |text: &str| strata::plan::parse_layer_split(text).ok();
    let limits = Limits { layer_split: split("0-7,8-47"), vision: false, resident_kv: None, ..first_story() };
    let refusal = refused(&model, &held, &limits);
    assert_eq!(refusal.kind, RefusalKind::CardHeld);
    let context = refusal.largest_context.unwrap();
    assert_eq!(largest_context(&model, &held, &limits), Some(context));
    assert!(planned(&model, &held, &Limits { context: Some(context), ..limits.clone() }).is_ok());
    assert!(planned(&model, &held, &Limits { context: Some(context + 256), ..limits }).is_err());
}

#[test]
fn story_two_is_refused_on_commit_and_names_the_page_file_that_would_do() {
    let model = flash_next("IQ3_S");
    let small = machine("win-5060ti-5070ti-64g-small-pagefile");
    let refusal = refused(&model, &small, &second_story());
    assert_eq!(refusal.kind, RefusalKind::DoesNotFit);
    let commit = refusal.short.iter().find(|p| p.pool == Pool::Commit).unwrap();
    assert!(commit.short > 0 && refusal.short.len() == 1, "{refusal}");
    let first = &refusal.remedies[0];
    let gib: f64 = first.change.strip_prefix("a page file of at least ").unwrap().split(' ').next().unwrap().parse().unwrap();
    // The page file that is named is enough, and a GiB less is not.
    let with = |bytes: u64| {
        let mut larger = small.clone();
        let before = larger.host.page_file.unwrap().0;
        larger.host.page_file = Some(strata::plan::Size(bytes));
        larger.host.commit_limit = Some(strata::plan::Size(larger.host.commit_limit.unwrap().0 + bytes - before));
        planned(&model, &larger, &second_story())
    };
    let bytes = (gib as u64) << 30;
    assert!(with(bytes).is_ok(), "{}", first.change);
    assert!(with(bytes - (1 << 30)).is_err(), "{}", first.change);
}

#[test]
fn story_two_with_a_large_page_file_keeps_floor_workspace_and_prompt_buffers_on_both_cards() {
    let model = flash_next("IQ3_S");
    let machine = machine("win-5060ti-5070ti-64g-large-pagefile");
    let plan = planned(&model, &machine, &second_story()).unwrap();
    cards_keep(&plan, 512 << 20);
    let mut before = plan;
    for context in [49_152, 32_768, 16_384, 8_192] {
        let limits = Limits { context: Some(context), ..second_story() };
        let after = planned(&model, &machine, &limits).unwrap();
        cards_keep(&after, 512 << 20);
        let (more_slots, headroom) = (after.held_experts >= before.held_experts, after.smallest_headroom());
        assert!(more_slots || headroom > before.smallest_headroom(), "{context}: {} experts", after.held_experts);
        before = after;
    }
    // A reserve is kept on both cards, and a wish for more slots than fit changes nothing.
    let reserved = planned(&model, &machine, &Limits { reserve: Some(2 << 30), ..second_story() }).unwrap();
    cards_keep(&reserved, 2 << 30);
    let wish = planned(&model, &machine, &Limits { expert_slots: Some(24_000), ..second_story() }).unwrap();
    cards_keep(&wish, 512 << 20);
    assert!(wish.held_experts < 24_000);
}

/// A card that grows by 1 GiB at a time, and a context that shrinks: the plan never gets slower, is never refused again, and
/// gives experts up only for speed.
#[test]
fn more_room_is_never_worse() {
    let model = flash_next("IQ3_S");
    let mut last: Option<(f64, u64)> = None;
    for gib in 6..=40u64 {
        let mut pc = machine("win-5060ti-5070ti-64g-large-pagefile");
        let card = &mut pc.cards[1];
        (card.total.0, card.free.0) = ((gib + 1) << 30, gib << 30);
        let limits = Limits { context: Some(65_536), kv: KvType::Int8, ..Limits::default() };
        last = not_worse(&format!("{gib} GiB"), last, decide(&model, &pc, &limits, false).ok());
    }
    assert!(last.is_some());
    let pc = machine("linux-2x2080ti-22g-126g");
    let mut last = None;
    for context in [1 << 20, 524_288, 262_144, 131_072, 65_536, 8192, 256] {
        let limits = Limits { context: Some(context), kv: KvType::Int8, ..Limits::default() };
        last = not_worse(&format!("{context} tokens"), last, decide(&model, &pc, &limits, false).ok());
    }
    assert!(last.is_some());
}

fn not_worse(what: &str, before: Option<(f64, u64)>, plan: Option<Plan>) -> Option<(f64, u64)> {
    let Some(plan) = plan else {
        assert!(before.is_none(), "{what}: refused where less room was enough");
        return None;
    };
    let now = (plan.predicted.objective_s, plan.held_experts);
    if let Some((time_s, held)) = before {
        assert!(now.0 <= time_s, "{what}: {} s after {time_s} s", now.0);
        assert!(now.1 >= held || now.0 < time_s, "{what}: {} experts after {held}, and not faster", now.1);
    }
    Some(now)
}
