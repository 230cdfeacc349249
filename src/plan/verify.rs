//! A second opinion on a plan, by rules of its own: it calls none of the planner's functions, so a mistake there cannot
//! hide itself here. It runs at every start and on random plans in the tests.

use std::collections::HashSet;
use std::fmt;

use super::consumer::{Arena, Consumer, Lifetime};
use super::limits::{KvType, LayerRange, Limits, RamExperts, StageArenas};
use super::machine::{BackendKind, Card, DriverKind, Machine, Os};
use super::model::{LayerFacts, Mixer, PlanModel};
use super::planner::{Plan, PlannedStage};
use super::rows::{Pool, Row};

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

const MIB: u64 = 1024 * 1024;
const ALIGN: u64 = 256;

pub fn verify(plan: &Plan, model: &PlanModel, machine: &Machine, limits: &Limits) -> Vec<Violation> {
    let mut check = Check { plan, model, machine, limits, found: vec![] };
    check.request();
    if check.stages() {
        for stage in &plan.stages {
            check.card(stage);
            check.weights(stage);
            check.state(stage);
            check.experts(stage);
            check.loan(stage);
            check.arenas(stage);
        }
        check.rows();
        check.host();
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

    fn host_bytes(&self, pool: Pool, consumer: Consumer) -> u64 {
        self.plan.rows.iter().filter(|r| r.pool == pool && r.consumer == consumer).map(|r| r.bytes).sum()
    }

    fn layers(&self, stage: &PlannedStage) -> &'a [LayerFacts] {
        let LayerRange { start, end } = stage.layers;
        self.model.layers.get(start as usize..end as usize).unwrap_or(&[])
    }

    fn built(&self) -> bool {
        self.limits.stage_arenas.is_some()
    }

    /// The plan answers the request.
    fn request(&mut self) {
        let (s, l) = (&self.plan.settings, self.limits);
        let same = s.kv == l.kv && s.slots == l.slots && s.draft == l.draft && s.vision == l.vision;
        self.require("request", same, || "cache type, slots, draft or vision are not what was asked for".into());
        if let Some(context) = l.context {
            self.equal("request", "context", s.context_tokens.into(), context.into());
        }
        self.require("request", s.cells >= s.context_tokens.into(), || "there are fewer cells than tokens of context".into());
        if let Some(wish) = l.expert_slots.filter(|_| !self.built()) {
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
            let fine = if l.layer_split.is_some() { used.is_subset(&wanted) } else { used == wanted };
            self.require("request", fine, || format!("cards {used:?} are used, {wanted:?} were asked for"));
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
        self.equal("layers", "number of layers with a place", next.into(), self.model.layers.len() as u64);
        self.found.len() == before
    }

    /// What is alive at one time fits under the floor, in buffers that the card can have.
    fn card(&mut self, stage: &PlannedStage) {
        let card = &self.machine.cards[stage.card.0];
        let floor = least_floor(card).max(if card.backend == BackendKind::Cpu { 0 } else { self.limits.reserve.unwrap_or(0) });
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
        self.require("card", extent + driver + floor <= card.free.0, || format!("{}: the arenas reach past the floor", card.id));
        let must_have_driver = !card.opened && !matches!(card.backend, BackendKind::Cpu | BackendKind::Virtual);
        let context = self.bytes(stage, Consumer::DriverContext);
        let stated = card.context_bytes.is_some_and(|s| s.0 == 0);
        self.require("card", !must_have_driver || context > 0 || stated, || {
            format!("{}: no row for the driver's context", card.id)
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

    /// A stage holds its own layers' weights, the last also the head, and nothing else.
    fn weights(&mut self, stage: &PlannedStage) {
        if self.built() {
            return;
        }
        let last = stage.layers.end as usize == self.model.layers.len();
        let dense: u64 = self.layers(stage).iter().map(|l| l.dense.bytes).sum();
        self.equal("weights", "dense weights", self.bytes(stage, Consumer::DenseWeights), dense);
        self.equal("weights", "head", self.bytes(stage, Consumer::Head), if last { self.model.head.bytes } else { 0 });
        let draft = self.model.draft.as_ref().filter(|_| last && self.limits.draft);
        let dense = draft.map_or(0, |d| d.block.dense.bytes + d.head_bytes);
        self.equal("weights", "draft block", self.bytes(stage, Consumer::DraftWeights), dense);
        let vision = self.model.vision.filter(|_| self.limits.vision && stage.layers.start == 0);
        self.equal(
            "weights",
            "vision encoder",
            self.bytes(stage, Consumer::VisionWeights),
            vision.map_or(0, |v| v.weights.bytes),
        );
    }

    /// Keys and values from the bytes of a token, recurrent state from its shape.
    fn state(&mut self, stage: &PlannedStage) {
        if self.built() {
            return;
        }
        let s = &self.plan.settings;
        let slots = u64::from(s.slots);
        let (mut kv, mut keys, mut delta) = (0u64, 0u64, 0u64);
        let versions = if s.draft { u64::from(s.draft_window) + 1 } else { 1 };
        for layer in self.layers(stage) {
            match layer.mixer {
                Mixer::Attention { kv_heads, head_dim, index, .. } => {
                    kv += slots * up(s.resident_cells * token_bytes(s.kv, kv_heads.into(), head_dim.into()));
                    if let Some(i) = index {
                        let per_block = u64::from(i.ratio) + 1;
                        keys += slots * up(s.cells / u64::from(i.ratio) * per_block * u64::from(i.dim) * 4);
                    }
                }
                Mixer::Delta { value_heads, key_dim, value_dim, .. } => {
                    delta += slots * up(versions * 4 * u64::from(value_heads) * u64::from(key_dim) * u64::from(value_dim));
                }
            }
        }
        self.equal("state", "keys and values", self.bytes(stage, Consumer::KvCache), kv);
        let found = self.bytes(stage, Consumer::IndexKeys);
        self.require("state", found >= keys, || format!("indexer keys have {found} bytes, need {keys}"));
        self.equal("state", "delta state", self.bytes(stage, Consumer::RecurrentState), delta);
        let work = self.bytes(stage, Consumer::PromptWork);
        let least = u64::from(s.chunk) * u64::from(self.model.width) * u64::from(self.model.streams) * 4;
        self.require("state", work >= least, || format!("prompt buffers of {work} bytes cannot hold {least} of residuals"));
        self.require("state", self.bytes(stage, Consumer::DecodeWork) > 0, || "there are no decode buffers".into());
        // Kernels round a row's residuals at least, to two bytes each.
        let scratch = self.bytes(stage, Consumer::KernelScratch);
        let on_host = matches!(self.machine.cards[stage.card.0].backend, BackendKind::Cpu | BackendKind::Virtual);
        self.require("state", if on_host { scratch == 0 } else { scratch >= least / 2 }, || {
            format!("scratch of {scratch} bytes for {least} bytes of residuals")
        });
        let boundary = self.plan.stages.len() > 1;
        self.require("state", !boundary || self.bytes(stage, Consumer::HandOff) >= 2 * least, || {
            "hand-off buffers are too small".into()
        });
    }

    fn experts(&mut self, stage: &PlannedStage) {
        let layers = self.layers(stage);
        self.equal("experts", "layers with a number of experts", stage.held.len() as u64, layers.len() as u64);
        let (mut bytes, mut all, mut open_slab) = (0u64, true, 0);
        self.equal("experts", "layers with a number of lent slots", stage.lent.len() as u64, layers.len() as u64);
        for ((held, lent), layer) in stage.held.iter().zip(&stage.lent).zip(layers) {
            let (count, slab) = layer.experts.as_ref().map_or((0, 0), |e| (e.count, e.slab_bytes));
            self.require("experts", lent <= held && *held <= count, || {
                format!("{held} of {count} are held, {lent} of them lent")
            });
            let kept = held.saturating_sub(*lent);
            bytes += u64::from(kept) * slab;
            all &= kept == count;
            if kept < count {
                open_slab = open_slab.max(slab);
            }
        }
        self.require("experts", stage.all_held == all, || "the mark for all experts is wrong".into());
        if !all {
            self.partly_held(stage);
        }
        let inside = self.built() && stage.all_held;
        if inside {
            return;
        }
        let found = self.bytes(stage, Consumer::ExpertSlots) + self.bytes(stage, Consumer::ExpertsInPlace);
        self.require("experts", found >= bytes && found < bytes + ALIGN * 4096, || {
            format!("slots have {found} bytes, need {bytes}")
        });
        // Elastic rows take what is above the floor, up to the largest expert that is still missing.
        let sheet = self.plan.pools.iter().find(|p| p.pool == Pool::Card(stage.card));
        let room = sheet.map_or(0, |p| p.free.saturating_sub(p.floor));
        let by_host = self.limits.ram_experts == RamExperts::Disk;
        let wasted = !all && !by_host && self.limits.expert_slots.is_none() && room >= open_slab;
        self.require("experts", !wasted, || format!("{room} bytes above the floor are not used for experts"));
    }

    /// Slots that prompts borrow: only where a card can have both on the same bytes and RAM has the experts; they lie behind the
    /// slots that stay, in the order of the arena, and fill what prompts leave unused while none is read.
    fn loan(&mut self, stage: &PlannedStage) {
        let layers = self.layers(stage);
        let slabs = || layers.iter().map(|l| l.experts.as_ref().map_or(0, |e| e.slab_bytes));
        let lent: u64 = stage.lent.iter().zip(slabs()).map(|(n, slab)| u64::from(*n) * slab).sum();
        self.equal("loan", "bytes of lent slots", self.bytes(stage, Consumer::LentSlots), lent);
        let mut counts: Vec<u32> = layers.iter().filter_map(|l| l.experts.as_ref()).map(|e| e.count).collect();
        counts.dedup();
        let card = &self.machine.cards[stage.card.0];
        let can = matches!(card.backend, BackendKind::Cuda | BackendKind::Hip | BackendKind::Virtual);
        let may = can && self.limits.ram_experts != RamExperts::Disk && counts.len() < 2;
        self.require("loan", lent == 0 || may, || format!("{}: {lent} bytes of slots are lent, which cannot be", card.id));
        // Slots of all layers take turns, smaller experts first: whoever has one more comes first, now and in a prompt.
        let mut order: Vec<(u64, usize)> = slabs().enumerate().filter(|(_, slab)| *slab > 0).map(|(i, slab)| (slab, i)).collect();
        order.sort_unstable();
        let in_turn = |of: &dyn Fn(usize) -> u32| {
            let counts: Vec<u32> = order.iter().map(|(_, i)| of(*i)).collect();
            let ends = counts.first().zip(counts.last());
            counts.is_sorted_by(|a, b| a >= b) && ends.is_none_or(|(most, least)| most - least <= 1)
        };
        let held = |i: usize| stage.held[i];
        let kept = |i: usize| stage.held[i].saturating_sub(stage.lent[i]);
        let same_length = stage.held.len() == layers.len() && stage.lent.len() == layers.len();
        self.require("loan", lent == 0 || (same_length && in_turn(&held) && in_turn(&kept)), || {
            format!("slots do not take turns: {:?}, of which {:?} are lent", stage.held, stage.lent)
        });
        let decoding = self.card_rows(stage).filter(|r| matches!(r.lifetime, Lifetime::Always | Lifetime::Decode));
        let decoding: u64 = decoding.map(|r| r.bytes).sum();
        let sheet = self.plan.pools.iter().find(|p| p.pool == Pool::Card(stage.card));
        let room = sheet.map_or(0, |p| p.capacity.saturating_sub(p.floor).saturating_sub(decoding));
        let missing = stage.held.iter().zip(layers).filter(|(n, l)| l.experts.as_ref().is_some_and(|e| **n < e.count));
        let slab = missing.filter_map(|(_, l)| l.experts.as_ref()).map(|e| e.slab_bytes).max().unwrap_or(u64::MAX);
        let wasted = may && !stage.all_held && self.limits.expert_slots.is_none() && room >= slab;
        self.require("loan", !wasted, || format!("{room} bytes are unused while no prompt is read"));
    }

    fn arenas(&mut self, stage: &PlannedStage) {
        let slots = self.extent(stage, Arena::Experts);
        self.require("arenas", stage.arenas.experts_inside == stage.all_held, || "the mark for experts inside is wrong".into());
        let inside = if stage.all_held { slots } else { 0 };
        self.equal("arenas", "weights arena", stage.arenas.weights_bytes, self.extent(stage, Arena::Weights) + inside);
        self.equal("arenas", "state arena", stage.arenas.state_bytes, self.extent(stage, Arena::State));
        self.equal("arenas", "work arena", stage.arenas.work_bytes, self.extent(stage, Arena::Work));
        self.equal("arenas", "scratch", stage.arenas.scratch_bytes, self.extent(stage, Arena::Scratch));
        self.equal("arenas", "slot arena", stage.slot_arena_bytes, slots - inside);
    }

    /// Rows have a name, a reason and a place; only rows of different times share bytes.
    fn rows(&mut self) {
        let mut ids = HashSet::new();
        for row in &self.plan.rows {
            self.require("rows", ids.insert(row.id.as_str()), || format!("{} is there twice", row.id));
            self.require("rows", row.bytes > 0 && !row.formula.is_empty(), || format!("{} has no bytes or no reason", row.id));
            if let Some(offset) = row.offset {
                let aligned = offset.is_multiple_of(ALIGN) && row.bytes.is_multiple_of(ALIGN) && row.align >= ALIGN;
                self.require("alignment", aligned, || format!("{} lies at {offset}, {} bytes", row.id, row.bytes));
            }
        }
        for (i, a) in self.plan.rows.iter().enumerate() {
            for b in &self.plan.rows[i + 1..] {
                let (Some(at), Some(bt)) = (a.offset, b.offset) else { continue };
                let same_place = a.pool == b.pool && a.arena == b.arena && at < bt + b.bytes && bt < at + a.bytes;
                let at_once = a.lifetime == b.lifetime || a.lifetime == Lifetime::Always || b.lifetime == Lifetime::Always;
                self.require("overlap", !(same_place && at_once), || format!("{} and {} share bytes", a.id, b.id));
            }
        }
    }

    fn host(&mut self) {
        let host = &self.machine.host;
        let own: u64 = self.plan.rows.iter().filter(|r| matches!(r.pool, Pool::Ram | Pool::Pinned)).map(|r| r.bytes).sum();
        let left = host.container_limit.map_or(u64::MAX, |l| l.0.saturating_sub(host.container_used.map_or(0, |u| u.0)));
        let supply = host.ram_available.0.min(left);
        let floor = if host.container_limit.is_some() { 512 * MIB } else { 1024 * MIB };
        self.require(
            "ram",
            own.saturating_add(floor) <= supply || self.limits.ram_budget.is_some_and(|b| own <= b && own <= supply),
            || format!("{own} bytes of RAM and a floor of {floor} are more than {supply}"),
        );
        let budget = self.limits.ram_budget.unwrap_or(u64::MAX);
        self.require("ram", own <= budget, || format!("{own} bytes of RAM are more than the budget of {budget}"));
        let (mut sharing, mut device) = (0, 0);
        for stage in &self.plan.stages {
            let card = &self.machine.cards[stage.card.0];
            let StageArenas { weights_bytes, state_bytes, work_bytes, scratch_bytes, .. } = stage.arenas;
            let arenas = weights_bytes + state_bytes + work_bytes + scratch_bytes + stage.slot_arena_bytes;
            let driver: u64 = self.card_rows(stage).filter(|r| r.arena == Arena::Driver).map(|r| r.bytes).sum();
            let shares = card.shares_host_memory || card.backend == BackendKind::Cpu;
            *if shares { &mut sharing } else { &mut device } += arenas + driver;
        }
        self.equal("ram", "memory of cards that share RAM", self.host_bytes(Pool::Ram, Consumer::CardsInRam), sharing);
        let scratch = self.plan.stages.iter().map(|s| s.arenas.host_scratch_bytes).sum();
        self.equal("ram", "scratch of the CPU's threads", self.host_bytes(Pool::Ram, Consumer::HostScratch), scratch);
        let pinned: u64 = self.plan.rows.iter().filter(|r| r.pool == Pool::Pinned).map(|r| r.bytes).sum();
        if let Some(limit) = host.pinned_limit {
            self.require("pinned", pinned <= limit.0, || format!("{pinned} bytes are pinned, the limit is {}", limit.0));
        }
        if host.os == Os::Wsl && host.pinned_limit.is_none() {
            self.require("pinned", pinned <= 1024 * MIB, || format!("{pinned} bytes are pinned in WSL"));
        }
        if host.os == Os::Windows {
            let charged: u64 = self.plan.rows.iter().filter(|r| r.pool == Pool::Commit).map(|r| r.bytes).sum();
            self.equal("commit", "charge", charged, own + device);
            if let (Some(limit), Some(used)) = (host.commit_limit, host.commit_used) {
                let left = limit.0.saturating_sub(used.0);
                self.require("commit", charged + 2048 * MIB <= left, || {
                    format!("{charged} bytes of commit and a floor exceed {left}")
                });
            }
        }
        for sheet in &self.plan.pools {
            self.equal("pools", &format!("shortage of {}", sheet.name), sheet.short, 0);
            let fits = sheet.used.saturating_add(sheet.floor) <= sheet.capacity;
            self.require("pools", fits, || format!("{} is over its capacity", sheet.name));
        }
    }

    /// Where experts are missing there is a table to find the others, room for each choice's result, and the same on the host.
    fn partly_held(&mut self, stage: &PlannedStage) {
        let experts = || self.layers(stage).iter().filter_map(|l| l.experts.as_ref());
        let tables: u64 = experts().map(|e| up(4 * u64::from(e.count))).sum();
        let used = experts().map(|e| u64::from(e.used)).max().unwrap_or(0);
        let results = u64::from(self.plan.settings.chunk) * used * u64::from(self.model.width) * 4;
        let found = self.host_bytes(Pool::Ram, Consumer::ExpertBuffers);
        self.require("experts", found >= results, || format!("{found} bytes of the host cannot hold {results} of results"));
        if !self.built() {
            self.equal("experts", "tables of slots", self.bytes(stage, Consumer::SlotTables), tables);
            let found = self.bytes(stage, Consumer::ExpertResults);
            self.require("experts", found >= results, || format!("{found} bytes cannot hold {results} of experts' results"));
        }
    }

    /// Every expert has a home, and none has two unless that is wanted.
    fn homes(&mut self) {
        let total: u64 =
            self.model.layers.iter().filter_map(|l| l.experts.as_ref()).map(|e| e.slab_bytes * u64::from(e.count)).sum();
        let mut held = 0;
        let mut in_place = 0;
        for stage in &self.plan.stages {
            let bytes: u64 = stage
                .kept()
                .zip(self.layers(stage))
                .map(|(n, l)| l.experts.as_ref().map_or(0, |e| e.slab_bytes * u64::from(n)))
                .sum();
            held += bytes;
            if self.machine.cards[stage.card.0].backend == BackendKind::Cpu {
                in_place += bytes;
            }
        }
        let at = |pool| self.host_bytes(pool, Consumer::RamExperts);
        let (ram, disk) = (at(Pool::Ram) + at(Pool::Pinned), at(Pool::Disk));
        match self.plan.settings.ram_experts {
            RamExperts::All => self.equal("homes", "experts in RAM", ram, total - in_place.min(total)),
            _ => self.equal("homes", "experts in RAM and on disk", ram + disk, total - held.min(total)),
        }
        let wanted = self.limits.ram_experts == RamExperts::Disk;
        self.require("homes", disk == 0 || wanted, || "experts are left on disk, which nobody asked for".into());
        let counted: u64 = self.plan.stages.iter().flat_map(|s| &s.held).map(|n| u64::from(*n)).sum();
        self.equal("homes", "experts on cards", self.plan.held_experts, counted);
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

/// The least that may stay free, whatever the planner's table says.
fn least_floor(card: &Card) -> u64 {
    match card.backend {
        BackendKind::Cpu | BackendKind::Virtual => 0,
        _ => match card.driver {
            DriverKind::Wddm if card.drives_display => 1024 * MIB,
            DriverKind::Wddm => 512 * MIB,
            _ if card.drives_display => 512 * MIB,
            _ => 256 * MIB,
        },
    }
}
