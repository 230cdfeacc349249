//! What helps where a plan was refused. Every remedy is a change of the wishes or of the machine that was planned and fits;
//! wishes are told as the flags that lead from the user's to these, all of them, so that they can be typed as they are.

use serde::Serialize;

use super::limits::{HeldCards, KvType, Limits, RamExperts};
use super::machine::{BackendKind, Machine};
use super::model::PlanModel;
use super::planner::{Capability, Plan, decide, fits};
use super::refusal::{HeldCard, Refusal, RefusalKind};
use super::rows::Pool;
use super::rules;
use super::size::{GIB, Size, grouped, human};

/// A change that was planned and fits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Remedy {
    /// What to do: flags, or a change of the machine.
    pub change: String,
    /// What it gives.
    pub outcome: String,
    /// What an engine must be able to do to run it.
    pub needs: Vec<Capability>,
}

/// The machine with what other programs hold on these cards given back.
pub fn with_cards_freed(machine: &Machine, ids: &[&str]) -> Machine {
    let mut freed = machine.clone();
    for card in freed.cards.iter_mut().filter(|c| ids.contains(&c.id.as_str())) {
        card.free = Size(card.free.0.saturating_add(rules::held_bytes(card)).min(card.total.0));
    }
    freed
}

/// Contexts are tried in steps of this, and one by one where not even the first step fits.
const CONTEXT_STEP: u32 = 256;

/// The largest context that fits, found on the exact function; `limits.context` is only its upper end.
pub fn largest_context(model: &PlanModel, machine: &Machine, limits: &Limits) -> Option<u32> {
    let most = limits.context.unwrap_or(model.trained_context.min(super::limits::DEFAULT_CONTEXT));
    let fits = |context: u32| {
        let limits = Limits { context: Some(context), ..limits.clone() };
        fits(model, machine, &limits) && (limits.held_cards == HeldCards::Use || decide(model, machine, &limits, false).is_ok())
    };
    if fits(most) {
        return Some(most);
    }
    let low = border(0, most.div_ceil(CONTEXT_STEP), |steps| fits(steps * CONTEXT_STEP)) * CONTEXT_STEP;
    let low = if low > 0 { low } else { border(0, CONTEXT_STEP.min(most), fits) };
    (low > 0).then_some(low)
}

/// Bytes only grow with the context, so there is one border: the last number that fits, where `low` does and `high` does not.
fn border(mut low: u32, mut high: u32, fits: impl Fn(u32) -> bool) -> u32 {
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The flags that lead from one set of wishes to another; every verb that has the wish takes the flag.
fn flags_between(from: &Limits, to: &Limits) -> Vec<String> {
    let on_off = |on: bool| if on { "on" } else { "off" };
    let mut flags = Vec::new();
    flags.extend(to.context.filter(|_| from.context != to.context).map(|c| format!("--context {c}")));
    let mut flag = |differs: bool, text: String| flags.extend(differs.then_some(text));
    flag(from.kv != to.kv, format!("--kv {}", to.kv.name()));
    flag(from.prefill != to.prefill, to.prefill.map_or("--prefill auto".into(), |c| format!("--prefill {c}")));
    flag(from.slots != to.slots, format!("--parallel {}", to.slots));
    flag(from.draft != to.draft, format!("--draft {}", on_off(to.draft)));
    flag(from.vision_tokens != to.vision_tokens, format!("--vision-tokens {}", to.vision_tokens));
    flag(from.vision != to.vision, format!("--vision {}", on_off(to.vision)));
    let devices = to.devices.as_ref().map_or("auto".into(), |ids| ids.join(","));
    flag(from.devices != to.devices, format!("--device {devices}"));
    let ranges = |split: &Vec<super::limits::LayerRange>| split.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let split = to.layer_split.as_ref().map_or("auto".into(), ranges);
    flag(from.layer_split != to.layer_split, format!("--layer-split {split}"));
    flag(from.reserve.unwrap_or(0) != to.reserve.unwrap_or(0), format!("--reserve {}", to.reserve.unwrap_or(0)));
    flag(from.checkpoints != to.checkpoints, format!("--checkpoints {}", to.checkpoints));
    flag(from.cache_ram != to.cache_ram, format!("--cache-ram {}", to.cache_ram));
    let budget = to.ram_budget.map_or("none".into(), |bytes| bytes.to_string());
    flag(from.ram_budget != to.ram_budget, format!("--ram-budget {budget}"));
    flag(from.ram_experts != to.ram_experts, format!("--ram-experts {}", to.ram_experts.name()));
    let held = if to.held_cards == HeldCards::Use { "use" } else { "refuse" };
    flag(from.held_cards != to.held_cards, format!("--held-cards {held}"));
    flags
}

/// A change to be proven.
struct Try {
    /// Changes beside the flags.
    machine: Option<(String, Machine)>,
    limits: Limits,
}

impl Try {
    fn wishes(limits: Limits) -> Try {
        Try { machine: None, limits }
    }
}

/// Adds the remedies that fit, best first: what costs nothing, then what costs speed, then what costs quality or context.
pub fn add_remedies(refusal: &mut Refusal, model: &PlanModel, machine: &Machine, limits: &Limits) {
    if refusal.kind == RefusalKind::Invalid {
        return;
    }
    let prove = |t: Try| prove(model, machine, limits, t);
    let mut found: Vec<Remedy> = free_tries(refusal, machine, limits).into_iter().filter_map(prove).collect();
    found.extend(cheap_tries(model, limits).into_iter().map(Try::wishes).filter_map(prove));
    let as_is = Limits { held_cards: HeldCards::Use, ..limits.clone() };
    refusal.largest_context = largest_context(model, machine, &as_is);
    let others = others_of(&refusal.held, machine, limits).filter(|ids| !ids.is_empty());
    if let Some(devices) = others {
        let without = Limits { devices: Some(devices), layer_split: None, scratch: None, ..limits.clone() };
        refusal.largest_context_without_held = largest_context(model, machine, &without);
    }
    if let Some(context) = refusal.largest_context.filter(|c| Some(*c) != limits.context) {
        // Without leave to use held cards, if that is enough.
        let of = |limits: &Limits| Try::wishes(Limits { context: Some(context), ..limits.clone() });
        found.extend(prove(of(limits)).or_else(|| prove(of(&as_is))));
    }
    found.extend(costly_tries(limits).into_iter().map(Try::wishes).filter_map(prove));
    if found.is_empty() {
        found.extend(last_resort(model, machine, limits).and_then(prove));
    }
    refusal.remedies = found;
}

fn prove(model: &PlanModel, machine: &Machine, asked: &Limits, t: Try) -> Option<Remedy> {
    let plan = decide(model, t.machine.as_ref().map_or(machine, |(_, changed)| changed), &t.limits, false).ok()?;
    let flags = flags_between(asked, &t.limits);
    let change = t.machine.into_iter().map(|(what, _)| what).chain(flags).collect::<Vec<_>>().join(" ");
    Some(Remedy { change, outcome: outcome(&plan), needs: plan.needs })
}

fn outcome(plan: &Plan) -> String {
    let experts = if plan.experts == 0 {
        String::new()
    } else {
        let (held, all) = (grouped(plan.held_experts), grouped(plan.experts));
        format!(" with {held} of {all} experts {}", plan.place_of_experts())
    };
    let context = grouped(plan.settings.context_tokens.into());
    format!("fits {context} tokens{experts}, about {:.0} tokens/s", plan.predicted.decode_tokens_per_s)
}

/// Changes that cost neither speed nor quality.
fn free_tries(refusal: &Refusal, machine: &Machine, limits: &Limits) -> Vec<Try> {
    let mut tries = Vec::new();
    let held: Vec<&str> = refusal.held.iter().map(|h| h.card.as_str()).collect();
    if !held.is_empty() {
        let change = format!("wait for or close the programs that hold {}", held.join(", "));
        tries.push(Try { machine: Some((change, with_cards_freed(machine, &held))), limits: limits.clone() });
    }
    if limits.layer_split.is_some() && limits.scratch.is_none() {
        tries.push(Try::wishes(Limits { layer_split: None, ..limits.clone() }));
    }
    if let Some(commit) = refusal.short.iter().find(|p| p.pool == Pool::Commit) {
        tries.extend(page_file(machine, limits, commit.short));
    }
    if let Some(others) = others_of(&refusal.held, machine, limits) {
        if !others.is_empty() {
            tries.push(Try::wishes(Limits { devices: Some(others), layer_split: None, ..limits.clone() }));
        }
        tries.push(Try::wishes(Limits { held_cards: HeldCards::Use, ..limits.clone() }));
    }
    if limits.devices.is_some() && held.is_empty() {
        tries.push(Try::wishes(Limits { devices: None, layer_split: None, ..limits.clone() }));
    }
    tries
}

/// The cards that are not held, if any card is.
fn others_of(held: &[HeldCard], machine: &Machine, limits: &Limits) -> Option<Vec<String>> {
    if held.is_empty() {
        return None;
    }
    let gpus = || machine.cards.iter().filter(|c| c.backend != BackendKind::Cpu).map(|c| c.id.clone()).collect();
    let ids: Vec<String> = limits.devices.clone().unwrap_or_else(gpus);
    Some(ids.into_iter().filter(|id| held.iter().all(|h| h.card != *id)).collect())
}

/// A page file that is large enough.
fn page_file(machine: &Machine, limits: &Limits, short: u64) -> Option<Try> {
    let host = &machine.host;
    let now = host.page_file.map_or(0, |p| p.0);
    let wanted = now.checked_add(short)?.checked_next_multiple_of(GIB)?;
    let mut larger = machine.clone();
    larger.host.page_file = Some(Size(wanted));
    if let Some(limit) = host.commit_limit {
        larger.host.commit_limit = Some(Size(limit.0.checked_add(wanted - now)?));
    }
    let change = format!("a page file of at least {} (it has {})", human(wanted), human(now));
    Some(Try { machine: Some((change, larger)), limits: limits.clone() })
}

/// Changes that cost some speed or a feature.
fn cheap_tries(model: &PlanModel, limits: &Limits) -> Vec<Limits> {
    let mut tries = Vec::new();
    let mut push = |wanted: bool, limits: Limits| tries.extend(wanted.then_some(limits));
    push(limits.prefill.is_some_and(|c| c > rules::CHUNKS[0]), Limits { prefill: None, ..limits.clone() });
    push(limits.checkpoints > 0, Limits { checkpoints: 0, ..limits.clone() });
    push(limits.cache_ram > 0, Limits { cache_ram: 0, ..limits.clone() });
    push(limits.reserve.is_some(), Limits { reserve: None, ..limits.clone() });
    push(limits.ram_budget.is_some(), Limits { ram_budget: None, ..limits.clone() });
    push(limits.slots > 1, Limits { slots: 1, ..limits.clone() });
    push(limits.vision, Limits { vision: false, ..limits.clone() });
    push(limits.draft && model.draft.is_some(), Limits { draft: false, ..limits.clone() });
    for kv in KvType::ALL.into_iter().filter(|kv| *kv > limits.kv && *kv != KvType::Q4_0) {
        push(true, Limits { kv, ..limits.clone() });
    }
    tries
}

fn costly_tries(limits: &Limits) -> Vec<Limits> {
    let kv = (limits.kv != KvType::Q4_0).then(|| Limits { kv: KvType::Q4_0, ..limits.clone() });
    let disk = (limits.ram_experts != RamExperts::Disk).then(|| Limits { ram_experts: RamExperts::Disk, ..limits.clone() });
    kv.into_iter().chain(disk).collect()
}

/// Everything small at once, where no single change is enough, as far as it is needed.
fn last_resort(model: &PlanModel, machine: &Machine, limits: &Limits) -> Option<Try> {
    let small = Limits {
        kv: limits.kv.max(KvType::Q4_0),
        prefill: None,
        slots: 1,
        draft: false,
        vision: false,
        devices: None,
        reserve: None,
        layer_split: None,
        checkpoints: 0,
        cache_ram: 0,
        ram_budget: None,
        ram_experts: RamExperts::Disk,
        held_cards: HeldCards::Use,
        scratch: None,
        ..limits.clone()
    };
    let mut needed = Limits { context: Some(largest_context(model, machine, &small)?), ..small };
    for restore in RESTORE {
        let mut kept = needed.clone();
        restore(&mut kept, limits);
        if decide(model, machine, &kept, false).is_ok() {
            needed = kept;
        }
    }
    Some(Try::wishes(needed))
}

/// What of everything small is given back to the user where it fits all the same, first what matters most.
const RESTORE: [fn(&mut Limits, &Limits); 13] = [
    |to, from| to.kv = from.kv,
    |to, from| to.vision = from.vision,
    |to, from| to.ram_experts = from.ram_experts,
    |to, from| to.devices.clone_from(&from.devices),
    |to, from| to.layer_split.clone_from(&from.layer_split),
    |to, from| to.held_cards = from.held_cards,
    |to, from| to.reserve = from.reserve,
    |to, from| to.ram_budget = from.ram_budget,
    |to, from| to.draft = from.draft,
    |to, from| to.slots = from.slots,
    |to, from| to.prefill = from.prefill,
    |to, from| to.cache_ram = from.cache_ram,
    |to, from| to.checkpoints = from.checkpoints,
];
