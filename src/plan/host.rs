//! The host's side of a layout: RAM, pinned RAM, the container's limit and the commit charge of Windows.

use serde::Serialize;

use super::consumer::Consumer;
use super::context::{Context, kv_cell_bytes};
use super::limits::{RamExperts, VisionArenas};
use super::machine::BackendKind;
use super::model::{ExpertFacts, LayerFacts, Mixer};
use super::rules;
use super::stage::{PinnedShare, delta_bytes};

/// What of a layout matters to the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayoutSums {
    pub stages: u64,
    pub chunk: u32,
    /// Bytes of experts on cards.
    pub held_bytes: u64,
    /// Of these, in RAM because the card is the CPU.
    pub in_place_bytes: u64,
    pub all_held: bool,
    /// Memory of cards of their own, and of cards that share RAM.
    pub device_bytes: u64,
    pub shared_bytes: u64,
    pub driver_host_bytes: u64,
}

/// A limited supply on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supply {
    pub capacity: u64,
    pub floor: u64,
    pub why: String,
}

impl Supply {
    pub fn usable(&self) -> u64 {
        self.capacity.saturating_sub(self.floor)
    }

    /// Bytes that are missing for `needed` and the floor.
    fn short(&self, needed: u64) -> u64 {
        (needed + self.floor).saturating_sub(self.capacity)
    }
}

/// The host's pools, made once a plan.
#[derive(Debug, Clone)]
pub struct HostSupplies {
    pub ram: Supply,
    /// For one card, and for several.
    pub pinned: [Supply; 2],
    pub commit: Option<Supply>,
}

/// Bytes of the host, and what is missing.
#[derive(Debug, Clone, PartialEq)]
pub struct HostNeed {
    pub by: [u64; Consumer::COUNT],
    pub ram_experts: RamExperts,
    /// Of the experts in RAM, those that are pinned.
    pub pinned_experts: u64,
    /// Experts that are read from disk when needed.
    pub disk_experts: u64,
    pub ram_bytes: u64,
    pub pinned_bytes: u64,
    pub commit_bytes: u64,
    pub short: HostShort,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HostShort {
    pub ram: u64,
    pub pinned: u64,
    pub commit: u64,
}

impl HostShort {
    pub fn worst(&self) -> u64 {
        self.ram.max(self.pinned).max(self.commit)
    }
}

pub fn supplies(ctx: &mut Context<'_>) -> HostSupplies {
    let ram = ram_supply(ctx);
    let pinned = [1, 2].map(|cards| {
        let (capacity, why) = rules::pinned_limit(ctx.machine, ram.usable(), cards);
        Supply { capacity, floor: 0, why }
    });
    let commit = commit_supply(ctx);
    let supplies = HostSupplies { ram, pinned, commit };
    if ctx.limits.ram_experts == RamExperts::Disk {
        let commit = supplies.commit.as_ref().map_or(u64::MAX, Supply::usable);
        ctx.host_usable = Some((supplies.ram.usable(), commit));
    }
    supplies
}

/// Where experts may stay on disk, slots shrink to what the host can give beside its own rows: RAM for a card that shares
/// it, commit for every card on Windows.
pub fn host_cap(ctx: &Context<'_>, card: usize, chunk: u32) -> u64 {
    let Some((ram, commit)) = ctx.host_usable else { return u64::MAX };
    let facts = &ctx.cards[card];
    let sums = LayoutSums { stages: 2, chunk, driver_host_bytes: facts.driver.host, device_bytes: 1, ..LayoutSums::default() };
    let own: u64 = fixed_need(ctx, &sums).iter().sum();
    let ram = if facts.shares_host { ram.saturating_sub(own) } else { u64::MAX };
    ram.min(commit.saturating_sub(own))
}

fn ram_supply(ctx: &mut Context<'_>) -> Supply {
    let host = &ctx.machine.host;
    if host.container_limit.is_some() && host.container_used.is_none() {
        ctx.notes.add("the container's use of its memory", "0", "not in the machine's facts");
    }
    let display = ctx.machine.cards.iter().any(|c| c.drives_display && c.backend != BackendKind::Cpu);
    let left = host.container_limit.map(|limit| limit.0.saturating_sub(host.container_used.unwrap_or_default().0));
    // A limit above what is available anyway binds nobody.
    let contained = left.filter(|left| *left < host.ram_available.0);
    let (floor, floor_why) = rules::ram_floor(host, display, contained.is_some());
    let capacity = contained.unwrap_or(host.ram_available.0);
    let what = if contained.is_some() { "what the container's limit leaves" } else { "available RAM" };
    let why = format!("{what}; floor: {floor_why}");
    match ctx.limits.ram_budget {
        Some(budget) if budget < capacity.saturating_sub(floor) => {
            Supply { capacity: budget, floor: 0, why: "--ram-budget".into() }
        }
        _ => Supply { capacity, floor, why },
    }
}

fn commit_supply(ctx: &mut Context<'_>) -> Option<Supply> {
    if !ctx.is_windows() {
        return None;
    }
    let host = &ctx.machine.host;
    let (limit, used) = match (host.commit_limit, host.commit_used) {
        (Some(limit), Some(used)) => (limit.0, used.0),
        _ => {
            let limit = host.ram_total.0.saturating_add(host.page_file.unwrap_or_default().0);
            let used = host.ram_total.0 - host.ram_available.0;
            ctx.notes.add(
                "commit",
                format!("{} of {}", super::size::human(used), super::size::human(limit)),
                "not read from Windows",
            );
            (limit, used)
        }
    };
    let why = "RAM and page file, less what is charged already; every byte of a card is charged too".to_string();
    Some(Supply { capacity: limit.saturating_sub(used), floor: rules::COMMIT_FLOOR_BYTES, why })
}

/// Share of the experts in RAM that is pinned, as far as it is the same for all layouts.
pub fn pinned_share(ctx: &Context<'_>, supplies: &HostSupplies) -> PinnedShare {
    let total = ctx.model.experts_bytes().max(1);
    let spill = kv_spill_bytes(ctx);
    PinnedShare([0, 1].map(|i: usize| {
        let left = supplies.pinned[i].usable().saturating_sub(spill).saturating_sub(rules::PIN_SLICE_BYTES);
        (left as f64 / total as f64).min(1.0)
    }))
}

/// KV cells that are not on the cards.
pub fn kv_spill_bytes(ctx: &Context<'_>) -> u64 {
    let spilled = ctx.cells - ctx.resident_cells;
    let cell: u64 = ctx
        .model
        .layers
        .iter()
        .map(|l| match l.mixer {
            Mixer::Attention { kv_heads, head_dim, .. } => kv_cell_bytes(ctx.limits.kv, kv_heads, head_dim),
            Mixer::Delta { .. } => 0,
        })
        .sum();
    spilled * cell * u64::from(ctx.limits.slots)
}

/// State of a sequence that cannot be cut back by counting.
fn checkpoint_bytes(layer: &LayerFacts) -> u64 {
    let conv = layer.ngram_conv.map_or(0, |c| u64::from(c.rows) * u64::from(c.channels) * 4);
    match layer.mixer {
        Mixer::Delta { value_heads, key_dim, value_dim, conv: own } => {
            delta_bytes(value_heads, key_dim, value_dim) + u64::from(own.rows) * u64::from(own.channels) * 4 + conv
        }
        Mixer::Attention { .. } => conv,
    }
}

/// Bytes that the layout needs on the host, apart from the experts.
fn fixed_need(ctx: &Context<'_>, sums: &LayoutSums) -> [u64; Consumer::COUNT] {
    let mut by = [0; Consumer::COUNT];
    let mut add = |consumer: Consumer, bytes: u64| by[consumer.index()] = bytes;
    let rows = ctx.chunk_rows(sums.chunk);
    let streams = rows * ctx.model.stream_floats() * 4;
    add(Consumer::Process, rules::PROCESS_BYTES);
    let built = ctx.limits.scratch.iter().flatten();
    add(Consumer::HostScratch, built.map(|scratch| scratch.host_bytes).fold(0, u64::saturating_add));
    add(Consumer::DriverHost, sums.driver_host_bytes);
    add(Consumer::EmbeddingCache, rules::ROW_CACHE_BYTES.min(ctx.model.embedding.bytes()));
    add(Consumer::NgramCache, ctx.model.ngram.map_or(0, |n| rules::ROW_CACHE_BYTES.min(n.table.bytes())));
    add(Consumer::Checkpoints, u64::from(ctx.limits.checkpoints) * ctx.model.layers.iter().map(checkpoint_bytes).sum::<u64>());
    add(Consumer::Parked, ctx.limits.cache_ram);
    add(Consumer::HostHandOff, sums.stages.saturating_sub(1) * 2 * streams);
    let gathered = u64::from(ctx.model.width) + ctx.model.ngram.map_or(0, |n| u64::from(n.floats_per_token));
    add(Consumer::HostStaging, 2 * rows * gathered * 4);
    if let Some(vision) = ctx.model.vision.as_ref().filter(|_| ctx.limits.vision) {
        let tokens = ctx.limits.vision_tokens;
        let planned = VisionArenas { weights_bytes: vision.weights_bytes(), work_bytes: vision.work_bytes(tokens) };
        let arenas = ctx.limits.vision_arenas.unwrap_or(planned);
        add(Consumer::VisionWeights, arenas.weights_bytes);
        add(Consumer::VisionWork, arenas.work_bytes);
        add(Consumer::VisionRows, vision.kept_bytes(tokens, ctx.model.width));
    }
    add(
        Consumer::ExpertBuffers,
        if sums.all_held && !(ctx.limits.watch_experts && ctx.model.experts_count() > 0) { 0 } else { expert_buffers(ctx, rows) },
    );
    add(Consumer::LoadStaging, if sums.device_bytes > 0 { rules::LOAD_STAGING_BYTES } else { 0 });
    add(Consumer::KvSpill, kv_spill_bytes(ctx));
    add(Consumer::CardsInRam, sums.shared_bytes);
    by
}

/// RAM and commit as sums over the stages of a layout: what is left for them, and what each kind of stage adds. [`need`] says the
/// same of a whole layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostBudget {
    /// What stages may take; below zero where the host's own rows are too large already.
    pub ram: i64,
    /// The same of commit, where it is charged.
    pub commit: Option<i64>,
    /// For every stage but the first.
    pub hand_off: i64,
    /// Once, if a stage holds only some of its experts.
    pub partial: i64,
    /// Once, if a stage lies on a card of its own.
    pub staging: i64,
    /// Experts on a card need no room in RAM.
    pub held_counts: bool,
}

pub fn budget(ctx: &Context<'_>, supplies: &HostSupplies, chunk: u32) -> HostBudget {
    let one = LayoutSums { stages: 1, chunk, all_held: true, ..LayoutSums::default() };
    let bytes = |sums: LayoutSums| fixed_need(ctx, &sums).iter().sum::<u64>() as i64;
    let own = bytes(one);
    let held_counts = ctx.limits.ram_experts != RamExperts::Disk;
    let experts = if held_counts { ctx.model.experts_bytes() as i64 } else { 0 };
    HostBudget {
        ram: supplies.ram.usable() as i64 - own - experts,
        commit: supplies.commit.as_ref().map(|c| c.usable() as i64 - own - experts),
        hand_off: bytes(LayoutSums { stages: 2, ..one }) - own,
        partial: bytes(LayoutSums { all_held: false, ..one }) - own,
        staging: bytes(LayoutSums { device_bytes: 1, ..one }) - own,
        held_counts,
    }
}

/// What the processor needs to compute experts of windows of up to `rows` rows: its own buffers for a piece of them, inputs and
/// results of all, a spare expert for exchanges, and buffers for reads in flight.
fn expert_buffers(ctx: &Context<'_>, rows: u64) -> u64 {
    let piece = rows.min(crate::experts::MOST_ROWS.into());
    let width = u64::from(ctx.model.width);
    let experts = || ctx.model.layers.iter().filter_map(|l| l.experts.as_ref());
    let floats = |e: &ExpertFacts| {
        // An expert has three matrices of width x hidden.
        let (used, hidden) = (u64::from(e.used), e.params / (3 * width).max(1));
        piece * (width + used * (1 + hidden + width)) + rows * (width + used * (3 + width))
    };
    let slab = experts().map(|e| e.slab_bytes).max().unwrap_or(0);
    let in_flight = crate::experts::DiskOptions::default().in_flight as u64;
    4 * experts().map(floats).max().unwrap_or(0) + slab + in_flight * (slab + 3 * crate::gguf::SECTOR_BYTES as u64)
}

/// Rows that are pinned whatever the experts do.
pub const PINNED: [Consumer; 4] = [Consumer::HostHandOff, Consumer::HostStaging, Consumer::LoadStaging, Consumer::KvSpill];

pub fn need(ctx: &Context<'_>, supplies: &HostSupplies, sums: &LayoutSums) -> HostNeed {
    let by = fixed_need(ctx, sums);
    let total = ctx.model.experts_bytes();
    let complement = total.saturating_sub(sums.held_bytes);
    let all = total.saturating_sub(sums.in_place_bytes);
    let with = |mode, ram| finish(ctx, supplies, sums, by, mode, (ram, 0));
    match ctx.limits.ram_experts {
        RamExperts::Complement => with(RamExperts::Complement, complement),
        // A copy of all is a wish: it must never be the reason for a refusal.
        RamExperts::Auto | RamExperts::All => {
            let full = with(RamExperts::All, all);
            if sums.shared_bytes == 0 && full.short.worst() == 0 { full } else { with(RamExperts::Complement, complement) }
        }
        RamExperts::Disk => {
            let none = with(RamExperts::Disk, 0);
            let ram_left = supplies.ram.usable().saturating_sub(none.ram_bytes);
            let commit_left = supplies.commit.as_ref().map_or(u64::MAX, |c| c.usable().saturating_sub(none.commit_bytes));
            let ram = complement.min(ram_left).min(commit_left);
            finish(ctx, supplies, sums, by, RamExperts::Disk, (ram, complement - ram))
        }
    }
}

fn finish(
    ctx: &Context<'_>,
    supplies: &HostSupplies,
    sums: &LayoutSums,
    mut by: [u64; Consumer::COUNT],
    mode: RamExperts,
    (ram_experts, disk_experts): (u64, u64),
) -> HostNeed {
    by[Consumer::RamExperts.index()] = ram_experts;
    let ram_bytes: u64 = by.iter().sum();
    let commit_bytes = if ctx.is_windows() { ram_bytes + sums.device_bytes } else { 0 };
    if ctx.is_windows() {
        by[Consumer::CommitOfHost.index()] = ram_bytes;
        by[Consumer::CommitOfCards.index()] = sums.device_bytes;
    }
    let fixed_pinned: u64 = if sums.device_bytes == 0 { 0 } else { PINNED.iter().map(|c| by[c.index()]).sum() };
    let supply = &supplies.pinned[usize::from(sums.stages >= 2)];
    let left = supply.usable().saturating_sub(fixed_pinned);
    // Whole slices, and the last one as short as the experts are.
    let slices = left / rules::PIN_SLICE_BYTES * rules::PIN_SLICE_BYTES;
    let pinned_experts = if sums.device_bytes == 0 { 0 } else { ram_experts.min(slices) };
    let short = HostShort {
        ram: supplies.ram.short(ram_bytes),
        pinned: supply.short(fixed_pinned),
        commit: supplies.commit.as_ref().map_or(0, |c| c.short(commit_bytes)),
    };
    HostNeed {
        by,
        ram_experts: mode,
        pinned_experts,
        disk_experts,
        ram_bytes,
        pinned_bytes: fixed_pinned + pinned_experts,
        commit_bytes,
        short,
    }
}
