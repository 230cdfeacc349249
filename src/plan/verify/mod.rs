//! A second opinion on a plan, by rules of its own: it calls none of the planner's functions, so a mistake there cannot
//! hide itself here. It runs at every start and on random plans in the tests.

mod card;
mod host;
mod loan;
mod pools;

use std::collections::HashSet;
use std::fmt;

use super::consumer::{Arena, Consumer, Lifetime};
use super::limits::{KvType, LayerRange, Limits, RamExperts};
use super::machine::{BackendKind, Machine};
use super::model::{LayerFacts, PlanModel};
use super::planner::{Plan, PlannedStage};
use super::rows::{Pool, Row};
use super::rules::MAX_STAGES;

use card::floor_bytes;

/// A rule that the plan breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

const ALIGN: u64 = 256;

/// Bytes that a consumer may take. Where the specification gives a number, both are the same; where the plan has an estimate or
/// an assumption, they are what it may lie between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Want {
    least: u64,
    most: u64,
}

fn exactly(bytes: u64) -> Want {
    Want { least: bytes, most: bytes }
}

pub fn verify(plan: &Plan, model: &PlanModel, machine: &Machine, limits: &Limits) -> Vec<Violation> {
    let mut check = Check { plan, model, machine, limits, found: vec![] };
    check.request();
    if check.stages() {
        for (at, stage) in plan.stages.iter().enumerate() {
            check.card(stage);
            check.consumers_of_card(at, stage);
            check.experts(stage);
            check.loan(stage);
            check.arenas(stage);
        }
        check.consumers_of_host();
        check.rows();
        check.sheets();
        check.homes();
    }
    check.prediction();
    check.found
}

struct Check<'a> {
    plan: &'a Plan,
    model: &'a PlanModel,
    machine: &'a Machine,
    limits: &'a Limits,
    found: Vec<Violation>,
}

impl<'a> Check<'a> {
    fn require(&mut self, rule: &'static str, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.found.push(Violation { rule, what: what() });
        }
    }

    fn equal(&mut self, rule: &'static str, what: &str, found: u64, expected: u64) {
        self.require(rule, found == expected, || format!("{what} is {found}, should be {expected}"));
    }

    fn card_rows(&self, stage: &PlannedStage) -> impl Iterator<Item = &'a Row> + use<'a> {
        let pool = Pool::Card(stage.card);
        self.plan.rows.iter().filter(move |r| r.pool == pool)
    }

    fn bytes(&self, stage: &PlannedStage, consumer: Consumer) -> u64 {
        self.card_rows(stage).filter(|r| r.consumer == consumer).map(|r| r.bytes).sum()
    }

    fn layers(&self, stage: &PlannedStage) -> &'a [LayerFacts] {
        let LayerRange { start, end } = stage.layers;
        self.model.layers.get(start as usize..end as usize).unwrap_or(&[])
    }

    /// The plan answers the request.
    fn request(&mut self) {
        let (s, l) = (&self.plan.settings, self.limits);
        let same = s.kv == l.kv && s.slots == l.slots && s.draft == l.draft && s.vision == l.vision;
        let same = same && s.vision_tokens == l.vision_tokens;
        self.require("request", same, || "cache type, slots, draft or vision are not what was asked for".into());
        if let Some(context) = l.context {
            self.equal("request", "context", s.context_tokens.into(), context.into());
        }
        self.require("request", s.cells >= s.context_tokens.into(), || "there are fewer cells than tokens of context".into());
        let resident = l.resident_kv.map_or(s.cells, u64::from).min(s.cells);
        self.require("request", (resident..=s.cells).contains(&s.resident_cells), || {
            format!("{} of {} cells are resident", s.resident_cells, s.cells)
        });
        let window = if s.draft { s.draft_window + 1 } else { 1 };
        let joint = (u64::from(s.slots) * u64::from(window)).max(l.least_decode_rows.into());
        self.equal("request", "rows of a decode window", s.decode_rows.into(), joint.min(s.chunk.into()));
        let versions = u64::from(window).max(1 + u64::from(l.undo_tokens));
        self.equal("request", "versions of recurrent state", s.versions.into(), versions);
        let all = u64::from(s.chunk.max(s.decode_rows));
        let outputs = match l.outputs {
            Some(outputs) => outputs.max(1).into(),
            None if self.model.wants_all_rows => all,
            None => u64::from(s.slots).min(8) * u64::from(window),
        };
        self.equal("request", "rows whose scores are wanted", s.outputs.into(), outputs.min(all));
        self.equal("request", "drafted tokens", s.draft_window.into(), l.draft_window.into());
        if let Some(chunk) = l.prefill {
            self.equal("request", "prompt chunk", s.chunk.into(), chunk.min(s.context_tokens).into());
        }
        if let Some(wish) = l.expert_slots {
            let gpu = self
                .plan
                .stages
                .iter()
                .filter(|st| self.machine.cards.get(st.card.0).is_some_and(|c| c.backend != BackendKind::Cpu));
            let held: u64 = gpu.flat_map(|st| &st.held).map(|n| u64::from(*n)).sum();
            self.require("request", held <= wish.into(), || format!("{held} experts are held, {wish} were wished for"));
        }
        if let Some(split) = &l.layer_split {
            let ranges: Vec<LayerRange> = self.plan.stages.iter().map(|s| s.layers).collect();
            self.require("request", *split == ranges, || "the layer split is not the one that was given".into());
        }
        if let Some(ids) = &l.devices {
            let used: HashSet<&str> = self.plan.stages.iter().map(|s| s.card_id.as_str()).collect();
            let wanted: HashSet<&str> = ids.iter().map(String::as_str).collect();
            self.require("request", used == wanted, || format!("cards {used:?} are used, {wanted:?} were asked for"));
        }
    }

    /// Every layer on exactly one card. Without this nothing else can be checked.
    fn stages(&mut self) -> bool {
        let before = self.found.len();
        let mut next = 0;
        let mut cards = HashSet::new();
        for stage in &self.plan.stages {
            let LayerRange { start, end } = stage.layers;
            self.require("layers", start == next && end > start, || format!("{} does not begin at layer {next}", stage.layers));
            next = end;
            let card = self.machine.cards.get(stage.card.0);
            self.require("layers", card.is_some_and(|c| c.id == stage.card_id), || format!("there is no card {}", stage.card_id));
            self.require("layers", cards.insert(stage.card), || format!("{} has two stages", stage.card_id));
        }
        let few = self.plan.stages.len() <= MAX_STAGES;
        self.require("layers", few, || format!("{} stages, {MAX_STAGES} are possible", self.plan.stages.len()));
        self.equal("layers", "number of layers with a place", next.into(), self.model.layers.len() as u64);
        self.found.len() == before
    }

    /// What is alive at one time fits under the floor, in buffers that the card can have.
    fn card(&mut self, stage: &PlannedStage) {
        let card = &self.machine.cards[stage.card.0];
        let floor = floor_bytes(card).max(if card.backend == BackendKind::Cpu { 0 } else { self.limits.reserve.unwrap_or(0) });
        for phase in [Lifetime::Load, Lifetime::Prompt, Lifetime::Decode] {
            let alive = self.card_rows(stage).filter(|r| r.lifetime == phase || r.lifetime == Lifetime::Always);
            let alive: u64 = alive.map(|r| r.bytes).sum();
            self.require("card", alive.saturating_add(floor) <= card.free.0, || {
                format!("{}: {alive} bytes alive and a floor of {floor} are more than {} free", card.id, card.free.0)
            });
        }
        let extent: u64 = [Arena::Weights, Arena::State, Arena::Work, Arena::Scratch, Arena::Experts]
            .iter()
            .map(|a| self.extent(stage, *a))
            .sum();
        let driver: u64 = self.card_rows(stage).filter(|r| r.arena == Arena::Driver).map(|r| r.bytes).sum();
        self.require("card", extent.saturating_add(driver).saturating_add(floor) <= card.free.0, || {
            format!("{}: the arenas reach past the floor", card.id)
        });
        let most = card.max_buffer.map_or(u64::MAX, |s| s.0);
        for row in self.card_rows(stage) {
            self.require("buffer", row.buffers > 0 && row.bytes.div_ceil(row.buffers.max(1)) <= most, || {
                format!("{} has {} bytes in {} buffer(s)", row.id, row.bytes, row.buffers)
            });
        }
        let piece = card.max_binding.map_or(most, |s| s.0.min(most));
        let tensors = self.layers(stage).iter().map(|l| l.dense.largest_bytes).max().unwrap_or(0);
        self.require("buffer", tensors <= piece, || format!("{}: a tensor of {tensors} bytes is larger than a binding", card.id));
    }

    fn extent(&self, stage: &PlannedStage, arena: Arena) -> u64 {
        let rows = self.card_rows(stage).filter(|r| r.arena == arena);
        rows.filter_map(|r| r.offset.map(|o| o.saturating_add(r.bytes))).max().unwrap_or(0)
    }

    /// Every consumer of the one list has the bytes that its rule gives, on every card.
    fn consumers_of_card(&mut self, at: usize, stage: &PlannedStage) {
        for &consumer in Consumer::ALL {
            let (want, found) = (self.seen(at).want(consumer), self.bytes(stage, consumer));
            self.wanted(consumer, want, found, &stage.card_id);
        }
    }

    fn consumers_of_host(&mut self) {
        for &consumer in Consumer::ALL {
            let rows = self.plan.rows.iter().filter(|r| r.consumer == consumer && !matches!(r.pool, Pool::Card(_)));
            let (want, found) = (self.host_want(consumer), rows.map(|r| r.bytes).sum());
            self.wanted(consumer, want, found, "the host");
        }
    }

    fn wanted(&mut self, consumer: Consumer, want: Want, found: u64, place: &str) {
        let Want { least, most } = want;
        self.require(consumer.id(), (least..=most).contains(&found), || {
            format!("{found} bytes on {place}, should be {least} to {most}")
        });
    }

    fn experts(&mut self, stage: &PlannedStage) {
        let layers = self.layers(stage);
        self.equal("experts", "layers with a number of experts", stage.held.len() as u64, layers.len() as u64);
        let (mut all, mut open_slab) = (true, 0);
        self.equal("experts", "layers with a number of lent slots", stage.lent.len() as u64, layers.len() as u64);
        for ((held, lent), layer) in stage.held.iter().zip(&stage.lent).zip(layers) {
            let (count, slab) = layer.experts.as_ref().map_or((0, 0), |e| (e.count, e.slab_bytes));
            self.require("experts", lent <= held && *held <= count, || {
                format!("{held} of {count} are held, {lent} of them lent")
            });
            let kept = held.saturating_sub(*lent);
            all &= kept == count;
            if kept < count {
                open_slab = open_slab.max(slab);
            }
        }
        self.require("experts", stage.all_held == all, || "the mark for all experts is wrong".into());
        // Elastic rows take what is above the floor, up to the largest expert that is still missing.
        let sheet = self.plan.pools.iter().find(|p| p.pool == Pool::Card(stage.card));
        let room = sheet.map_or(0, |p| p.free.saturating_sub(p.floor));
        let by_host = self.limits.ram_experts == RamExperts::Disk;
        let wasted =
            !all && !by_host && self.limits.expert_slots.is_none() && room >= open_slab.saturating_add(self.tables_bytes(stage));
        self.require("experts", !wasted, || format!("{room} bytes above the floor are not used for experts"));
    }

    /// Slots are sized as if every layer needed a table and room for the results of each choice; layers that are held whole need
    /// neither.
    fn tables_bytes(&self, stage: &PlannedStage) -> u64 {
        let layers = self.layers(stage);
        let kept = stage.held.iter().zip(&stage.lent).map(|(held, lent)| held.saturating_sub(*lent));
        let whole = kept.zip(layers).filter_map(|(kept, l)| l.experts.as_ref().filter(|e| kept == e.count));
        let rows = u64::from(self.plan.settings.chunk.max(self.plan.settings.decode_rows));
        let results = |used: u32| rows * u64::from(used) * u64::from(self.model.width) * 4;
        let (tables, most) = whole.fold((0, 0), |(sum, most), e| (sum + up(4 * u64::from(e.count)), results(e.used).max(most)));
        tables + up(most)
    }

    fn arenas(&mut self, stage: &PlannedStage) {
        let slots = self.extent(stage, Arena::Experts);
        self.require("arenas", stage.arenas.experts_inside == stage.all_held, || "the mark for experts inside is wrong".into());
        let inside = if stage.all_held { slots } else { 0 };
        self.equal("arenas", "weights arena", stage.arenas.weights_bytes, self.extent(stage, Arena::Weights) + inside);
        self.equal("arenas", "state arena", stage.arenas.state_bytes, self.extent(stage, Arena::State));
        self.equal("arenas", "work arena", stage.arenas.work_bytes, self.extent(stage, Arena::Work));
        let decode = self.bytes(stage, Consumer::DecodeWork);
        self.equal("arenas", "buffers of decode windows", stage.arenas.decode_work_bytes, decode);
        let prompt = self.bytes(stage, Consumer::HandOff) + self.bytes(stage, Consumer::PromptWork);
        self.equal("arenas", "buffers of prompts", stage.arenas.prompt_work_bytes, prompt);
        let scratch = self.bytes(stage, Consumer::KernelScratch) + self.bytes(stage, Consumer::SelectionScores);
        self.equal("arenas", "scratch", stage.arenas.scratch_bytes, scratch);
        self.equal("arenas", "slot arena", stage.slot_arena_bytes, slots - inside);
    }

    fn prediction(&mut self) {
        let p = &self.plan.predicted;
        let all = [p.decode_tokens_per_s, p.prompt_tokens_per_s, p.objective_s];
        let usable = all.iter().all(|v| v.is_finite() && *v > 0.0) && p.load_s.is_finite() && p.load_s >= 0.0;
        self.require("prediction", usable, || format!("{p:?}"));
    }
}

fn up(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGN) * ALIGN
}

/// Bytes of a key and a value of every head.
fn token_bytes(kv: KvType, heads: u64, dim: u64) -> u64 {
    let blocks = heads * dim.div_ceil(32);
    match kv {
        KvType::F32 => heads * dim * 8,
        KvType::F16 => heads * dim * 4,
        KvType::Int8 => blocks * 2 * (32 + 2),
        KvType::K8v4 => blocks * ((32 + 2) + (16 + 2)),
        KvType::Q4_0 => blocks * 2 * (16 + 2),
    }
}
