//! A refusal says which pool is short of how many bytes, which rows are largest, and what would help. Every remedy has
//! been planned and fits.

use std::fmt;

use serde::Serialize;

use super::limits::{HeldCards, KvType, Limits, RamExperts};
use super::machine::{BackendKind, Machine};
use super::model::PlanModel;
use super::planner::{Capability, Plan, decide};
use super::rows::{Pool, PoolSheet, Row};
use super::rules::{self, Assumption};
use super::size::{GIB, Size, grouped, human};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// The request contradicts itself, the model or the machine: whoever asked can mend it.
    Invalid,
    /// No device of the machine can run anything.
    NoDevice,
    DoesNotFit,
    /// A card would have to be left out because other programs hold its memory.
    CardHeld,
}

/// A card whose free memory is far below its total.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldCard {
    pub card: String,
    pub name: String,
    pub total: u64,
    pub free: u64,
    /// Bytes beyond what a driver, a desktop and a small program take.
    pub held: u64,
}

impl fmt::Display for HeldCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.total - self.free;
        write!(
            f,
            "{} ({}) has only {} free of {}: other programs hold {} ({} bytes)",
            self.card,
            self.name,
            human(self.free),
            human(self.total),
            human(used),
            grouped(used)
        )
    }
}

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

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub message: String,
    /// Pools that are short.
    pub short: Vec<PoolSheet>,
    /// The largest rows of these pools.
    pub largest: Vec<Row>,
    pub held: Vec<HeldCard>,
    /// The largest context that fits as things are; `None` if none does (or if the context is not the question).
    pub largest_context: Option<u32>,
    /// The same without the held cards, where there are any.
    pub largest_context_without_held: Option<u32>,
    pub remedies: Vec<Remedy>,
    pub assumptions: Vec<Assumption>,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::report::render_refusal(self))
    }
}

const LARGEST_ROWS: usize = 5;

impl Refusal {
    pub fn invalid(message: String) -> Refusal {
        Refusal {
            kind: RefusalKind::Invalid,
            message,
            short: vec![],
            largest: vec![],
            held: vec![],
            largest_context: None,
            largest_context_without_held: None,
            remedies: vec![],
            assumptions: vec![],
        }
    }

    pub fn no_device(message: String) -> Refusal {
        Refusal { kind: RefusalKind::NoDevice, ..Refusal::invalid(message) }
    }

    pub fn held(held: Vec<HeldCard>) -> Refusal {
        let cards = held.iter().map(|h| h.card.as_str()).collect::<Vec<_>>().join(", ");
        let message = format!("{cards}: held by other programs; a plan as things are would leave it out");
        Refusal { kind: RefusalKind::CardHeld, held, ..Refusal::invalid(message) }
    }

    pub fn does_not_fit(
        rows: Vec<Row>,
        pools: Vec<PoolSheet>,
        held: Vec<HeldCard>,
        assumptions: &[Assumption],
        layout: String,
    ) -> Refusal {
        let short: Vec<PoolSheet> = pools.into_iter().filter(|p| p.short > 0).collect();
        let counts = |row: &Row| short.iter().any(|p| charges(p.pool, row.pool));
        let mut largest: Vec<Row> = rows.into_iter().filter(|r| counts(r)).collect();
        largest.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
        largest.truncate(LARGEST_ROWS);
        let what = short.iter().map(|p| format!("{} is {} bytes short", p.name, grouped(p.short))).collect::<Vec<_>>().join(", ");
        let held_kind = held.iter().any(|h| short.iter().any(|p| p.name.split(' ').next() == Some(&h.card)));
        Refusal {
            kind: if held_kind { RefusalKind::CardHeld } else { RefusalKind::DoesNotFit },
            short,
            largest,
            held,
            assumptions: assumptions.to_vec(),
            ..Refusal::invalid(format!("it does not fit ({layout} comes closest): {what}"))
        }
    }
}

/// Whether rows of pool `row` count in pool `sheet`.
fn charges(sheet: Pool, row: Pool) -> bool {
    match sheet {
        Pool::Ram => matches!(row, Pool::Ram | Pool::Pinned),
        Pool::Commit => matches!(row, Pool::Ram | Pool::Pinned | Pool::Card(_)),
        other => other == row,
    }
}

/// The machine with what other programs hold on these cards given back.
pub fn with_cards_freed(machine: &Machine, ids: &[&str]) -> Machine {
    let mut freed = machine.clone();
    for card in freed.cards.iter_mut().filter(|c| ids.contains(&c.id.as_str())) {
        card.free = Size(card.free.0.saturating_add(rules::held_bytes(card)).min(card.total.0));
    }
    freed
}

/// The largest context that fits, found on the exact function; `limits.context` is only its upper end.
pub fn largest_context(model: &PlanModel, machine: &Machine, limits: &Limits) -> Option<u32> {
    let most = limits.context.unwrap_or(model.trained_context.min(super::limits::DEFAULT_CONTEXT));
    let fits = |context: u32| decide(model, machine, &Limits { context: Some(context), ..limits.clone() }, false).is_ok();
    if fits(most) {
        return Some(most);
    }
    // Bytes only grow with the context, so there is one border; searched in steps, `low` fits and `high` does not.
    let step = CONTEXT_STEP;
    let (mut low, mut high) = (0, most.div_ceil(step));
    while low + 1 < high {
        let middle = (low + high) / 2;
        if fits(middle * step) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low > 0).then_some(low * step)
}

const CONTEXT_STEP: u32 = 256;

struct Try {
    change: String,
    limits: Limits,
    machine: Option<Machine>,
}

/// Adds the remedies that fit, best first: what costs nothing, then what costs speed, then what costs quality or context.
pub fn add_remedies(refusal: &mut Refusal, model: &PlanModel, machine: &Machine, limits: &Limits) {
    if refusal.kind == RefusalKind::Invalid {
        return;
    }
    let mut single: Vec<Remedy> = Vec::new();
    for t in free_tries(refusal, machine, limits).into_iter().chain(cheap_tries(model, limits)) {
        single.extend(prove(model, machine, t));
    }
    let as_is = Limits { held_cards: HeldCards::Use, ..limits.clone() };
    refusal.largest_context = largest_context(model, machine, &as_is);
    let others = others_of(&refusal.held, machine, limits).filter(|ids| !ids.is_empty());
    if let Some(devices) = others {
        let without = Limits { devices: Some(devices), layer_split: None, stage_arenas: None, ..limits.clone() };
        refusal.largest_context_without_held = largest_context(model, machine, &without);
    }
    if let Some(context) = refusal.largest_context.filter(|c| Some(*c) != limits.context) {
        let limits = Limits { context: Some(context), ..as_is };
        single.extend(prove(model, machine, Try { change: format!("--context {context}"), limits, machine: None }));
    }
    for t in costly_tries(limits) {
        single.extend(prove(model, machine, t));
    }
    if single.is_empty() {
        single.extend(last_resort(model, machine, limits));
    }
    refusal.remedies = single;
}

fn prove(model: &PlanModel, machine: &Machine, t: Try) -> Option<Remedy> {
    let plan = decide(model, t.machine.as_ref().unwrap_or(machine), &t.limits, false).ok()?;
    Some(Remedy { change: t.change, outcome: outcome(&plan), needs: plan.needs })
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
        tries.push(Try { change, limits: limits.clone(), machine: Some(with_cards_freed(machine, &held)) });
    }
    if limits.layer_split.is_some() && limits.stage_arenas.is_none() {
        let auto = Limits { layer_split: None, ..limits.clone() };
        tries.push(Try { change: "--layer-split auto".into(), limits: auto, machine: None });
    }
    if let Some(commit) = refusal.short.iter().find(|p| p.pool == Pool::Commit) {
        tries.extend(page_file(machine, limits, commit.short));
    }
    if let Some(others) = others_of(&refusal.held, machine, limits) {
        if !others.is_empty() {
            let change = format!("--device {}", others.join(","));
            tries.push(Try {
                change,
                limits: Limits { devices: Some(others), layer_split: None, ..limits.clone() },
                machine: None,
            });
        }
        let change = "--held-cards use".to_string();
        tries.push(Try { change, limits: Limits { held_cards: HeldCards::Use, ..limits.clone() }, machine: None });
    }
    if limits.devices.is_some() && held.is_empty() {
        let all = Limits { devices: None, layer_split: None, ..limits.clone() };
        tries.push(Try { change: "--device auto".into(), limits: all, machine: None });
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
    let wanted = (now + short).div_ceil(GIB) * GIB;
    let mut larger = machine.clone();
    larger.host.page_file = Some(Size(wanted));
    if let Some(limit) = host.commit_limit {
        larger.host.commit_limit = Some(Size(limit.0.checked_add(wanted - now)?));
    }
    let change = format!("a page file of at least {} (it has {})", human(wanted), human(now));
    Some(Try { change, limits: limits.clone(), machine: Some(larger) })
}

/// Changes that cost some speed or a feature.
fn cheap_tries(model: &PlanModel, limits: &Limits) -> Vec<Try> {
    let mut tries = Vec::new();
    let mut push = |change: &str, limits: Limits| tries.push(Try { change: change.into(), limits, machine: None });
    if limits.prefill.is_some_and(|c| c > rules::CHUNKS[0]) {
        push("--prefill auto", Limits { prefill: None, ..limits.clone() });
    }
    if limits.checkpoints > 0 {
        push("--checkpoints 0", Limits { checkpoints: 0, ..limits.clone() });
    }
    if limits.cache_ram > 0 {
        push("--cache-ram 0", Limits { cache_ram: 0, ..limits.clone() });
    }
    if limits.reserve.is_some() {
        push("--reserve 0", Limits { reserve: None, ..limits.clone() });
    }
    if limits.ram_budget.is_some() {
        push("no --ram-budget", Limits { ram_budget: None, ..limits.clone() });
    }
    if limits.slots > 1 {
        push("--slots 1", Limits { slots: 1, ..limits.clone() });
    }
    if limits.vision {
        push("--vision off", Limits { vision: false, ..limits.clone() });
    }
    if limits.draft && model.draft.is_some() {
        push("--draft off", Limits { draft: false, ..limits.clone() });
    }
    for kv in smaller_kv(limits.kv).filter(|kv| *kv != KvType::Q4_0) {
        push(&format!("--kv {}", kv.name()), Limits { kv, ..limits.clone() });
    }
    tries
}

fn smaller_kv(kv: KvType) -> impl Iterator<Item = KvType> {
    KvType::ALL.into_iter().filter(move |k| *k > kv)
}

fn costly_tries(limits: &Limits) -> Vec<Try> {
    let mut tries = Vec::new();
    let mut push = |change: &str, limits: Limits| tries.push(Try { change: change.into(), limits, machine: None });
    if limits.kv != KvType::Q4_0 {
        push("--kv q4_0", Limits { kv: KvType::Q4_0, ..limits.clone() });
    }
    if limits.ram_experts != RamExperts::Disk {
        push("--ram-experts disk", Limits { ram_experts: RamExperts::Disk, ..limits.clone() });
    }
    tries
}

/// Everything small at once, where no single change is enough.
fn last_resort(model: &PlanModel, machine: &Machine, limits: &Limits) -> Option<Remedy> {
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
        stage_arenas: None,
        ..limits.clone()
    };
    let context = largest_context(model, machine, &small)?;
    let change = format!(
        "--context {context} --kv q4_0 --draft off --vision off --slots 1 --ram-experts disk (all of it, automatic split)"
    );
    prove(model, machine, Try { change, limits: Limits { context: Some(context), ..small }, machine: None })
}
