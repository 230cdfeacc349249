//! `plan(model, machine, limits)`: pure and deterministic. Nothing here asks a clock, a driver or a file.

use serde::Serialize;

use super::consumer::{Arena, Consumer};
use super::context::{CardIndex, Context};
use super::host::{self, HostNeed, HostSupplies, LayoutSums};
use super::limits::{HeldCards, KvType, LayerRange, Limits, RamExperts, StageArenas, StageScratch};
use super::machine::Machine;
use super::model::PlanModel;
use super::refusal::{HeldCard, Refusal};
use super::remedy;
use super::rows::{self, PoolSheet, Row, SizedStage};
use super::rules::{self, Assumption};
use super::search::{self, Layout, Weights};
use super::size::{grouped, human};
use super::stage;
use super::work;

/// What was asked for, with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    pub context_tokens: u32,
    pub cells: u64,
    pub resident_cells: u64,
    pub kv: KvType,
    /// Rows of a prompt chunk.
    pub chunk: u32,
    /// Rows of a decode window over all slots.
    pub decode_rows: u32,
    /// Rows of a window whose scores are wanted, at most.
    pub outputs: u32,
    /// Versions of recurrent state that each slot keeps.
    pub versions: u32,
    pub slots: u32,
    pub draft: bool,
    pub draft_window: u32,
    pub vision: bool,
    /// Most tokens of one picture.
    pub vision_tokens: u32,
    pub ram_experts: RamExperts,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedStage {
    pub card: CardIndex,
    pub card_id: String,
    pub layers: LayerRange,
    /// Experts of each layer that are on the card.
    pub held: Vec<u32>,
    /// Of these, how many leave while a prompt is read: its buffers lie on their slots.
    pub lent: Vec<u32>,
    /// All experts are on the card and stay there.
    pub all_held: bool,
    /// Sizes to open. Expert slots are part of the weights where all experts are held.
    pub arenas: StageArenas,
    /// Bytes of slots that are an arena of their own: 0 where all experts are held. Slots that are lent are part of the work arena.
    pub slot_arena_bytes: u64,
}

impl PlannedStage {
    /// Experts of each layer that never leave the card.
    pub fn kept(&self) -> impl Iterator<Item = u32> + '_ {
        self.held.iter().zip(&self.lent).map(|(held, lent)| held.saturating_sub(*lent))
    }
}

/// Something that an engine must be able to do to run the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    SeveralStages,
    /// Only some experts are on the card.
    ExpertSlots,
    QuantisedKv,
    KvSpill,
    Vision,
    Draft,
    DiskExperts,
    Checkpoints,
}

impl Capability {
    /// For the engine that cannot do it yet.
    pub fn text(self) -> &'static str {
        match self {
            Capability::SeveralStages => "layers on more than one device",
            Capability::ExpertSlots => "experts that are only partly on a card",
            Capability::QuantisedKv => "a cache of 8 or 4 bits",
            Capability::KvSpill => "a cache that is partly in RAM",
            Capability::Vision => "the vision encoder",
            Capability::Draft => "the draft block",
            Capability::DiskExperts => "experts read from disk",
            Capability::Checkpoints => "conversation checkpoints",
        }
    }
}

/// One row that the plan does not explain, with its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Unexplained {
    pub planned: u64,
    pub used: u64,
    pub bound: u64,
    pub explained: bool,
}

/// What is gone of a card after loading, as its driver says, against the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CardCheck {
    pub card: String,
    pub memory: Unexplained,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    pub decode_tokens_per_s: f64,
    pub prompt_tokens_per_s: f64,
    pub load_s: f64,
    /// One prompt and one answer of the workload: what the search minimises.
    pub objective_s: f64,
    /// The terms, for the report.
    pub terms: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    pub split: String,
    pub chunk: u32,
    pub held_experts: u64,
    pub decode_tokens_per_s: f64,
    pub prompt_tokens_per_s: f64,
    pub objective_s: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub model: String,
    pub machine: String,
    pub settings: Settings,
    pub stages: Vec<PlannedStage>,
    pub rows: Vec<Row>,
    pub pools: Vec<PoolSheet>,
    pub experts: u64,
    pub held_experts: u64,
    pub predicted: Prediction,
    /// Why the layers lie as they do.
    pub split_why: String,
    pub alternatives: Vec<Alternative>,
    pub needs: Vec<Capability>,
    pub notices: Vec<String>,
    pub assumptions: Vec<Assumption>,
}

impl Plan {
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|r| r.id == id)
    }

    /// `0-23 on cuda:0, 24-47 on cuda:1`
    pub fn split_text(&self) -> String {
        let parts = self.stages.iter().map(|s| format!("{} on {}", s.layers, s.card_id));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// The wishes of this plan with everything fixed that it chose; with the scratch of its stages as they were built, the
    /// planner counts that instead of its estimates.
    pub fn fixed(&self, limits: &Limits, scratch: Option<Vec<StageScratch>>) -> Limits {
        Limits {
            context: Some(self.settings.context_tokens),
            prefill: Some(self.settings.chunk),
            devices: Some(self.stages.iter().map(|s| s.card_id.clone()).collect()),
            layer_split: Some(self.stages.iter().map(|s| s.layers).collect()),
            scratch,
            ..limits.clone()
        }
    }

    /// What the driver says of a card after loading, against the plan. `None` if the plan does not use the card.
    pub fn unexplained(&self, card_id: &str, used_bytes: u64) -> Option<Unexplained> {
        let stage = self.stages.iter().find(|s| s.card_id == card_id)?;
        let sheet = self.pools.iter().find(|p| p.pool == rows::Pool::Card(stage.card))?;
        let has_driver = self.rows.iter().any(|r| r.pool == sheet.pool && r.arena == Arena::Driver);
        let bound = if has_driver { rules::UNEXPLAINED_BYTES } else { 0 };
        let difference = i128::from(used_bytes) - i128::from(sheet.used);
        Some(Unexplained { planned: sheet.used, used: used_bytes, bound, explained: difference <= i128::from(bound) })
    }

    /// Where the experts that stages hold lie, in the words of the user.
    pub fn place_of_experts(&self) -> &'static str {
        let cards_of_their_own = self.pools.iter().any(|p| p.pool == rows::Pool::Pinned);
        if cards_of_their_own { "on cards" } else { "in RAM" }
    }

    pub fn smallest_headroom(&self) -> u64 {
        let cards = self.pools.iter().filter(|p| matches!(p.pool, rows::Pool::Card(_)));
        cards.map(|p| p.free.saturating_sub(p.floor)).min().unwrap_or(0)
    }
}

/// The plan, or a refusal with remedies that were each planned and found to fit.
pub fn plan(model: &PlanModel, machine: &Machine, limits: &Limits) -> Result<Plan, Box<Refusal>> {
    decide(model, machine, limits, true).map_err(|mut refusal| {
        remedy::add_remedies(&mut refusal, model, machine, limits);
        refusal
    })
}

/// The same without remedies, and without the other splits unless wanted.
pub fn decide(model: &PlanModel, machine: &Machine, limits: &Limits, want_others: bool) -> Result<Plan, Box<Refusal>> {
    let mut ctx = Context::new(model, machine, limits)?;
    let supplies = host::supplies(&mut ctx);
    let found = search::search(&ctx, &supplies, want_others);
    let held = held_cards(&ctx);
    match &found.best {
        Some(best) if !suffers_from_held(&ctx, best, &held) => Ok(build(&ctx, &supplies, best, &found, &held)),
        Some(_) => Err(Box::new(Refusal::held(held))),
        None => Err(Box::new(does_not_fit(&ctx, &supplies, held))),
    }
}

/// Whether there is a plan at all, with cards that are held taken as they are: [`decide`] without looking for the best.
pub fn fits(model: &PlanModel, machine: &Machine, limits: &Limits) -> bool {
    let Ok(mut ctx) = Context::new(model, machine, limits) else { return false };
    let supplies = host::supplies(&mut ctx);
    search::fits(&ctx, &supplies)
}

/// Cards of which other programs hold much.
fn held_cards(ctx: &Context<'_>) -> Vec<HeldCard> {
    let cards = ctx.eligible.iter().map(|&i| &ctx.machine.cards[i]);
    let held = cards.filter(|c| rules::held_bytes(c) > 0);
    held.map(|c| HeldCard {
        card: c.id.clone(),
        name: c.name.clone(),
        total: c.total.0,
        free: c.free.0,
        held: rules::held_bytes(c),
    })
    .collect()
}

/// A plan is not slower in silence because it leaves a held card out, or makes do with the smaller part of one: then it is refused,
/// unless the user allows it, says himself what lies where, or it would be no faster with the cards free.
fn suffers_from_held(ctx: &Context<'_>, best: &Layout, held: &[HeldCard]) -> bool {
    if ctx.limits.held_cards == HeldCards::Use || ctx.limits.layer_split.is_some() {
        return false;
    }
    let is_used = |h: &HeldCard| best.cards.iter().any(|&c| ctx.machine.cards[c].id == h.card);
    let hurts = held.iter().filter(|h| !is_used(h) || h.held > h.free);
    let hurts: Vec<&str> = hurts.map(|h| h.card.as_str()).collect();
    if hurts.is_empty() {
        return false;
    }
    let freed = remedy::with_cards_freed(ctx.machine, &hurts);
    let freed = decide(ctx.model, &freed, ctx.limits, false);
    freed.is_ok_and(|plan| plan.predicted.objective_s < best.objective_s)
}

fn sized(ctx: &Context<'_>, supplies: &HostSupplies, layout: &Layout) -> (Vec<SizedStage>, LayoutSums, HostNeed) {
    let pinned = host::pinned_share(ctx, supplies);
    let stages = layout.cards.iter().zip(&layout.ranges);
    let stages: Vec<SizedStage> = stages
        .map(|(&card, &range)| SizedStage { card, range, option: stage::evaluate(ctx, card, range, layout.chunk, pinned) })
        .collect();
    let mut sums = LayoutSums { chunk: layout.chunk, all_held: true, ..LayoutSums::default() };
    for s in &stages {
        search::add_stage(&mut sums, ctx, s.card, (s.option.bytes.packed(), s.option.kept_bytes, s.option.all_held));
    }
    let need = host::need(ctx, supplies, &sums);
    (stages, sums, need)
}

fn rows_and_pools(
    ctx: &Context<'_>,
    supplies: &HostSupplies,
    chunk: u32,
    (stages, sums, need): &(Vec<SizedStage>, LayoutSums, HostNeed),
) -> (Vec<Row>, Vec<PoolSheet>) {
    let (mut all, mut pools) = (Vec::new(), Vec::new());
    for s in stages {
        let card_rows = rows::card_rows(ctx, s, chunk);
        pools.push(rows::card_sheet(ctx, s, &card_rows));
        all.extend(card_rows);
    }
    all.extend(rows::host_rows(ctx, sums, need));
    pools.extend(rows::host_sheets(supplies, sums, need));
    (all, pools)
}

fn does_not_fit(ctx: &Context<'_>, supplies: &HostSupplies, held: Vec<HeldCard>) -> Refusal {
    let Some(layout) = search::least_short(ctx, supplies) else {
        return Refusal::invalid("there are more cards than layers".into());
    };
    let parts = sized(ctx, supplies, &layout);
    let (rows, pools) = rows_and_pools(ctx, supplies, layout.chunk, &parts);
    Refusal::does_not_fit(rows, pools, held, &ctx.notes.0, layout_text(ctx, &layout))
}

fn layout_text(ctx: &Context<'_>, layout: &Layout) -> String {
    let parts = layout.cards.iter().zip(&layout.ranges).map(|(&c, r)| format!("{r} on {}", ctx.machine.cards[c].id));
    parts.collect::<Vec<_>>().join(", ")
}

fn build(ctx: &Context<'_>, supplies: &HostSupplies, best: &Layout, found: &search::Found, held: &[HeldCard]) -> Plan {
    let parts = sized(ctx, supplies, best);
    let (rows, pools) = rows_and_pools(ctx, supplies, best.chunk, &parts);
    let (stages, sums, need) = parts;
    let limits = ctx.limits;
    let shapes = work::shapes(ctx, best.chunk);
    let settings = Settings {
        context_tokens: ctx.context_tokens,
        cells: ctx.cells,
        resident_cells: ctx.resident_cells,
        kv: limits.kv,
        chunk: ctx.chunk_rows(best.chunk) as u32,
        decode_rows: shapes[1].max_rows,
        outputs: shapes[0].max_outputs,
        versions: limits.versions(),
        slots: limits.slots,
        draft: limits.draft,
        draft_window: limits.draft_window,
        vision: limits.vision,
        vision_tokens: limits.vision_tokens,
        ram_experts: need.ram_experts,
    };
    let held_experts = stages.iter().flat_map(|s| &s.option.held).map(|n| u64::from(*n)).sum();
    Plan {
        model: ctx.model.name.clone(),
        machine: ctx.machine.name.clone(),
        settings,
        stages: stages.iter().map(|s| planned_stage(ctx, s)).collect(),
        rows,
        pools,
        experts: ctx.model.experts_count(),
        held_experts,
        predicted: predict(ctx, best, &stages, &sums, &need),
        split_why: split_why(ctx, best, found),
        alternatives: found.others.iter().map(|l| alternative(ctx, supplies, l)).collect(),
        needs: capabilities(ctx, &stages, &need),
        notices: notices(ctx, best, found, held, &need),
        assumptions: ctx.notes.0.clone(),
    }
}

fn split_why(ctx: &Context<'_>, best: &Layout, found: &search::Found) -> String {
    if ctx.limits.layer_split.is_some() {
        return "as asked for".into();
    }
    if ctx.eligible.len() == 1 {
        return "there is one device".into();
    }
    let load = ctx.limits.workload;
    let next = found.others.first().map(|next| format!("; the next best takes {:.2} s", next.objective_s));
    format!(
        "the least predicted time of all: {:.2} s for a prompt of {} tokens and an answer of {}{}",
        best.objective_s,
        grouped(load.prompt_tokens.into()),
        grouped(load.answer_tokens.into()),
        next.unwrap_or_default()
    )
}

fn planned_stage(ctx: &Context<'_>, s: &SizedStage) -> PlannedStage {
    let bytes = &s.option.bytes;
    let slots = bytes.get(Consumer::ExpertSlots);
    let own = if s.option.all_held { 0 } else { slots };
    PlannedStage {
        card: CardIndex(s.card),
        card_id: ctx.machine.cards[s.card].id.clone(),
        layers: s.range,
        held: s.option.held.clone(),
        lent: s.option.lent.clone(),
        all_held: s.option.all_held,
        arenas: StageArenas {
            weights_bytes: bytes.arena(Arena::Weights) + slots - own,
            state_bytes: bytes.arena(Arena::State),
            work_bytes: bytes.arena(Arena::Work),
            prompt_work_bytes: bytes.get(Consumer::HandOff) + bytes.get(Consumer::PromptWork),
            decode_work_bytes: bytes.get(Consumer::DecodeWork),
            scratch_bytes: bytes.arena(Arena::Scratch),
            experts_inside: s.option.all_held,
        },
        slot_arena_bytes: own,
    }
}

/// Tokens a second of decode and prompt.
fn speeds(ctx: &Context<'_>, stages: &[SizedStage], chunk: u32) -> (f64, f64) {
    let window: f64 = stages.iter().map(|s| s.option.times.decode_s).sum();
    let several = usize::from(stages.len() >= 2);
    let sum: f64 = stages.iter().map(|s| s.option.times.prompt_s[several]).sum();
    let longest = stages.iter().map(|s| s.option.times.prompt_s[several]).fold(0.0, f64::max);
    let prompt_s = Weights::new(ctx, chunk).prompt_s(sum, longest);
    let decode = stage::window_yield(ctx) * f64::from(ctx.limits.slots) / window;
    (decode, f64::from(ctx.limits.workload.prompt_tokens) / prompt_s)
}

fn predict(ctx: &Context<'_>, best: &Layout, stages: &[SizedStage], sums: &LayoutSums, need: &HostNeed) -> Prediction {
    let (mut decode, prompt) = speeds(ctx, stages, best.chunk);
    let several = usize::from(stages.len() >= 2);
    let mut terms: Vec<String> = stages
        .iter()
        .map(|s| {
            let (id, t) = (&ctx.machine.cards[s.card].id, s.option.times);
            format!("{id}: {:.2} ms a decode window, {:.0} ms a prompt chunk", t.decode_s * 1e3, t.prompt_s[several] * 1e3)
        })
        .collect();
    terms.push(format!("{:.2} token(s) a window", stage::window_yield(ctx)));
    if need.disk_experts > 0 {
        let share = need.disk_experts as f64 / ctx.model.experts_bytes().max(1) as f64;
        let read = disk_read_bytes(ctx) * share / (ctx.host_rates.disk_gbs * 1e9);
        let window = stage::window_yield(ctx) * f64::from(ctx.limits.slots) / decode + read;
        decode = stage::window_yield(ctx) * f64::from(ctx.limits.slots) / window;
        terms.push(format!("{:.1} ms a window for experts from disk, if they were as popular as the others", read * 1e3));
    }
    if let (Some(ngram), Some(reads_per_s)) = (ctx.model.ngram, ctx.host_rates.random_reads_per_s) {
        let rows = f64::from(ngram.rows_per_token) * f64::from(ctx.limits.joint_rows());
        terms.push(format!(
            "up to {:.1} ms more a window while its n-gram rows come from disk and not from RAM",
            rows / reads_per_s * 1e3
        ));
    }
    let kept = ctx.model.dense_bytes()
        + sums.held_bytes.max(need.by[Consumer::RamExperts.index()] + sums.held_bytes).min(ctx.model.experts_bytes());
    let load_s = kept as f64 / (ctx.host_rates.disk_gbs * 1e9);
    terms.push(format!("load: {} from disk at {:.1} GB/s", human(kept), ctx.host_rates.disk_gbs));
    Prediction { decode_tokens_per_s: decode, prompt_tokens_per_s: prompt, load_s, objective_s: best.objective_s, terms }
}

/// Bytes of experts that one window calls for.
fn disk_read_bytes(ctx: &Context<'_>) -> f64 {
    let calls = f64::from(ctx.limits.joint_rows()).powf(0.75);
    let experts = ctx.model.layers.iter().filter_map(|l| l.experts.as_ref());
    experts.map(|e| (f64::from(e.used) * calls).min(f64::from(e.count)) * e.slab_bytes as f64).sum()
}

fn alternative(ctx: &Context<'_>, supplies: &HostSupplies, layout: &Layout) -> Alternative {
    let (stages, ..) = sized(ctx, supplies, layout);
    let (decode, prompt) = speeds(ctx, &stages, layout.chunk);
    Alternative {
        split: layout_text(ctx, layout),
        chunk: ctx.chunk_rows(layout.chunk) as u32,
        held_experts: stages.iter().flat_map(|s| &s.option.held).map(|n| u64::from(*n)).sum(),
        decode_tokens_per_s: decode,
        prompt_tokens_per_s: prompt,
        objective_s: layout.objective_s,
    }
}

fn capabilities(ctx: &Context<'_>, stages: &[SizedStage], need: &HostNeed) -> Vec<Capability> {
    let limits = ctx.limits;
    let table = [
        (Capability::SeveralStages, stages.len() > 1),
        (Capability::ExpertSlots, stages.iter().any(|s| !s.option.all_held)),
        (Capability::QuantisedKv, !matches!(limits.kv, KvType::F32 | KvType::F16)),
        (Capability::KvSpill, ctx.resident_cells < ctx.cells),
        (Capability::Vision, limits.vision),
        (Capability::Draft, limits.draft),
        (Capability::DiskExperts, need.disk_experts > 0),
        (Capability::Checkpoints, limits.checkpoints > 0),
    ];
    table.into_iter().filter(|(_, needed)| *needed).map(|(capability, _)| capability).collect()
}

fn notices(ctx: &Context<'_>, best: &Layout, found: &search::Found, held: &[HeldCard], need: &HostNeed) -> Vec<String> {
    let mut notices = Vec::new();
    for card in held {
        notices.push(format!("{card}"));
    }
    for &i in ctx.eligible.iter().filter(|i| !best.cards.contains(i)) {
        notices.push(format!("{} is left out: no split that uses it is faster", ctx.machine.cards[i].id));
    }
    if ctx.eligible.len() > rules::MAX_STAGES {
        notices.push(format!("of {} cards no more than {} can share a model", ctx.eligible.len(), rules::MAX_STAGES));
    }
    if ctx.limits.ram_experts == RamExperts::All && need.ram_experts != RamExperts::All {
        notices
            .push("--ram-experts all: there is no room for a copy of every expert; RAM keeps those that are on no card".into());
    }
    if found.limited {
        notices.push("so many different cards: not every order of them and not every split was looked at".into());
    }
    if need.pinned_bytes > 0 {
        notices.push("pinned RAM is planned, but this version leaves it unpinned; a driver may copy from it more slowly".into());
    }
    if need.commit_bytes > 0 {
        notices.push("Windows commit is planned and checked, but not reserved: other programs can take it meanwhile".into());
    }
    if ctx.context_tokens > ctx.model.trained_context {
        notices.push(format!("the model was trained for {} tokens", ctx.model.trained_context));
    }
    notices
}
