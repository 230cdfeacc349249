//! Rows and pools: the plan as data.

use serde::Serialize;

use super::consumer::{Arena, Consumer, Lifetime};
use super::context::{CardIndex, Context};
use super::formula;
use super::host::{self, HostNeed, HostSupplies, LayoutSums};
use super::limits::LayerRange;
use super::stage::StageOption;
use crate::program::ARENA_ALIGN_BYTES;

/// A supply that rows draw on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    Card(CardIndex),
    Ram,
    /// Part of RAM.
    Pinned,
    /// Windows: RAM and page file.
    Commit,
    Disk,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// `cuda:0/kv-cache`, `ram/process`: what `--why` takes.
    pub id: String,
    pub pool: Pool,
    pub consumer: Consumer,
    pub arena: Arena,
    pub lifetime: Lifetime,
    pub bytes: u64,
    pub align: u64,
    /// Place in the arena; rows that the driver owns have none.
    pub offset: Option<u64>,
    /// Buffers that the row is cut into where one may not be so large.
    pub buffers: u64,
    /// Sized last, from what the others leave.
    pub elastic: bool,
    /// How the number came about.
    pub formula: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolSheet {
    pub pool: Pool,
    pub name: String,
    pub capacity: u64,
    pub capacity_why: String,
    pub floor: u64,
    pub floor_why: String,
    pub used: u64,
    /// Bytes that are short; 0 in a plan that fits.
    pub short: u64,
    pub free: u64,
    /// The most that is alive at one time, buffers of programs step by step: no packing can use less.
    pub bound: u64,
    /// What packing wastes.
    pub gap: u64,
}

/// A stage of a layout with everything sized.
pub struct SizedStage {
    pub card: usize,
    pub range: LayerRange,
    pub option: StageOption,
}

/// Rows of a card: arena after arena, in each what always lives first, then prompt and decode on the same bytes.
pub fn card_rows(ctx: &Context<'_>, stage: &SizedStage, chunk: u32) -> Vec<Row> {
    let card = &ctx.machine.cards[stage.card];
    let facts = &ctx.cards[stage.card];
    let mut rows = Vec::new();
    // Pieces are not cut: a buffer ends where the next piece does not fit, but is never less than half full on average.
    let usable = facts.max_buffer.saturating_sub(stage.option.bytes.largest_piece).max(facts.max_buffer / 2).max(1);
    for arena in [Arena::Driver, Arena::Weights, Arena::State, Arena::Work, Arena::Scratch, Arena::Experts] {
        let mut base = 0;
        for lifetime in [Lifetime::Always, Lifetime::Prompt, Lifetime::Decode] {
            let mut offset = base;
            for &consumer in Consumer::ALL.iter().filter(|c| c.arena() == arena && c.lifetime() == lifetime) {
                let bytes = stage.option.bytes.get(consumer);
                if bytes == 0 {
                    continue;
                }
                rows.push(Row {
                    id: format!("{}/{}", card.id, consumer.id()),
                    pool: Pool::Card(CardIndex(stage.card)),
                    consumer,
                    arena,
                    lifetime,
                    bytes,
                    align: ARENA_ALIGN_BYTES,
                    offset: (arena != Arena::Driver).then_some(offset),
                    buffers: bytes.div_ceil(usable),
                    elastic: consumer == Consumer::ExpertSlots,
                    formula: formula::card_formula(ctx, stage, chunk, consumer),
                });
                offset += bytes;
            }
            if lifetime == Lifetime::Always {
                base = offset;
            }
        }
    }
    rows
}

pub fn card_sheet(ctx: &Context<'_>, stage: &SizedStage, rows: &[Row]) -> PoolSheet {
    let card = &ctx.machine.cards[stage.card];
    let facts = &ctx.cards[stage.card];
    let used = packed_bytes(rows);
    let packing = [(Lifetime::Prompt, stage.option.work.prompt), (Lifetime::Decode, stage.option.work.decode)];
    let bounds = packing.map(|(phase, packed)| {
        let alive: u64 = rows.iter().filter(|r| r.lifetime.overlaps(phase)).map(|r| r.bytes).sum();
        alive - (packed.report.bytes - packed.report.bound_bytes)
    });
    let bound = bounds.into_iter().max().unwrap_or(0);
    PoolSheet {
        pool: Pool::Card(CardIndex(stage.card)),
        name: format!("{} {}", card.id, card.name),
        capacity: facts.capacity,
        capacity_why: format!("free of {} now", super::size::human(card.total.0)),
        floor: facts.floor,
        floor_why: facts.floor_why.to_string(),
        used,
        short: stage.option.short_bytes,
        free: facts.capacity.saturating_sub(used),
        bound,
        gap: used - bound.min(used),
    }
}

/// Bytes from the arenas' ends, and rows without a place.
fn packed_bytes(rows: &[Row]) -> u64 {
    let arenas = [Arena::Weights, Arena::State, Arena::Work, Arena::Scratch, Arena::Experts];
    let ends = arenas.map(|arena| {
        let inside = rows.iter().filter(|r| r.arena == arena);
        inside.filter_map(|r| r.offset.map(|o| o + r.bytes)).max().unwrap_or(0)
    });
    ends.iter().sum::<u64>() + rows.iter().filter(|r| r.offset.is_none()).map(|r| r.bytes).sum::<u64>()
}

/// Rows of the host.
pub fn host_rows(ctx: &Context<'_>, sums: &LayoutSums, need: &HostNeed) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |pool: Pool, name: &str, consumer: Consumer, bytes: u64| {
        if bytes > 0 {
            rows.push(Row {
                id: format!("{name}/{}", consumer.id()),
                pool,
                consumer,
                arena: Arena::Host,
                lifetime: consumer.lifetime(),
                bytes,
                align: 1,
                offset: None,
                buffers: if pool == Pool::Pinned { bytes.div_ceil(super::rules::PIN_SLICE_BYTES) } else { 1 },
                elastic: consumer == Consumer::RamExperts,
                formula: formula::host_formula(ctx, sums, need, consumer, pool),
            });
        }
    };
    for &consumer in Consumer::ALL.iter().filter(|c| c.arena() == Arena::Host) {
        let bytes = need.by[consumer.index()];
        match consumer {
            Consumer::CommitOfHost | Consumer::CommitOfCards => add(Pool::Commit, "commit", consumer, bytes),
            Consumer::RamExperts => {
                add(Pool::Ram, "ram", consumer, bytes - need.pinned_experts);
                add(Pool::Pinned, "pinned", consumer, need.pinned_experts);
                add(Pool::Disk, "disk", consumer, need.disk_experts);
            }
            _ if host::PINNED.contains(&consumer) && sums.device_bytes > 0 => add(Pool::Pinned, "pinned", consumer, bytes),
            _ => add(Pool::Ram, "ram", consumer, bytes),
        }
    }
    rows
}

pub fn host_sheets(supplies: &HostSupplies, sums: &LayoutSums, need: &HostNeed) -> Vec<PoolSheet> {
    let sheet = |pool, name: &str, supply: &host::Supply, used: u64, short| PoolSheet {
        pool,
        name: name.to_string(),
        capacity: supply.capacity,
        capacity_why: supply.why.clone(),
        floor: supply.floor,
        floor_why: if supply.floor > 0 { "kept for everything else".into() } else { "none".into() },
        used,
        short,
        free: supply.capacity.saturating_sub(used),
        bound: used,
        gap: 0,
    };
    let mut sheets = vec![sheet(Pool::Ram, "RAM", &supplies.ram, need.ram_bytes, need.short.ram)];
    if sums.device_bytes > 0 {
        let pinned = &supplies.pinned[usize::from(sums.stages >= 2)];
        sheets.push(sheet(Pool::Pinned, "pinned RAM", pinned, need.pinned_bytes, need.short.pinned));
    }
    if let Some(commit) = &supplies.commit {
        sheets.push(sheet(Pool::Commit, "Windows commit", commit, need.commit_bytes, need.short.commit));
    }
    sheets
}
