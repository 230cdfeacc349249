//! What a range of layers takes on a card, and how long it runs there. One function of the shapes for the search, the
//! rows and the refusals, so that they cannot disagree.

use super::consumer::{Arena, Consumer, Lifetime};
use super::context::{Context, LayerRates, kv_cell_bytes};
use super::limits::{LayerRange, StageScratch};
use super::model::{LayerFacts, Mixer};
use super::rules;
use super::work::{self, StageWork};
use crate::program::{ARENA_ALIGN_BYTES, align_up};

/// Bytes by consumer, and the largest piece that cannot be cut.
#[derive(Debug, Clone, PartialEq)]
pub struct StageBytes {
    by: [u64; Consumer::COUNT],
    pub largest_piece: u64,
    /// Sums by lifetime: always, prompt, decode.
    sums: [u64; 3],
}

impl StageBytes {
    fn new() -> StageBytes {
        StageBytes { by: [0; Consumer::COUNT], largest_piece: 0, sums: [0; 3] }
    }

    pub fn get(&self, consumer: Consumer) -> u64 {
        self.by[consumer.index()]
    }

    fn add(&mut self, consumer: Consumer, bytes: u64, piece: u64) {
        let bytes = align_up(bytes, ARENA_ALIGN_BYTES);
        self.by[consumer.index()] += bytes;
        self.sums[sum_index(consumer)] += bytes;
        self.largest_piece = self.largest_piece.max(piece);
    }

    /// Bytes on the card: what always lives, and the larger of the prompt's and the decode's buffers.
    pub fn packed(&self) -> u64 {
        let [always, prompt, decode] = self.sums;
        always + prompt.max(decode)
    }

    /// Bytes on the card while no prompt is read.
    fn decoding(&self) -> u64 {
        let [always, _, decode] = self.sums;
        always + decode
    }

    pub fn arena(&self, arena: Arena) -> u64 {
        let of = |lifetime| -> u64 {
            let held = Consumer::ALL.iter().filter(|c| c.arena() == arena && c.lifetime() == lifetime);
            held.map(|c| self.get(*c)).sum()
        };
        of(Lifetime::Always) + of(Lifetime::Prompt).max(of(Lifetime::Decode))
    }
}

/// Nothing on a card lives for loading only.
fn sum_index(consumer: Consumer) -> usize {
    match consumer.lifetime() {
        Lifetime::Always | Lifetime::Load => 0,
        Lifetime::Prompt => 1,
        Lifetime::Decode => 2,
    }
}

/// A range on a card with its elastic part sized.
#[derive(Debug, Clone)]
pub struct StageOption {
    pub bytes: StageBytes,
    pub work: StageWork,
    /// Experts of each layer that are on the card.
    pub held: Vec<u32>,
    /// Of these, how many leave while a prompt is read: its buffers lie on their slots.
    pub lent: Vec<u32>,
    /// Bytes of those that stay.
    pub kept_bytes: u64,
    pub all_held: bool,
    /// Bytes missing; 0 where it fits.
    pub short_bytes: u64,
    /// Free bytes above the floor.
    pub headroom: u64,
    pub times: StageTimes,
}

impl StageOption {
    /// Experts of each layer that never leave.
    pub fn kept(&self) -> impl Iterator<Item = u32> + '_ {
        self.held.iter().zip(&self.lent).map(|(held, lent)| held - lent)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StageTimes {
    /// One decode window.
    pub decode_s: f64,
    /// One prompt chunk; experts from RAM at the rate that holds for one context, and for several.
    pub prompt_s: [f64; 2],
}

/// How fast experts come from RAM in a prompt: some of it is pinned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PinnedShare(pub [f64; 2]);

pub fn evaluate(ctx: &Context<'_>, card: usize, range: LayerRange, chunk: u32, pinned: PinnedShare) -> StageOption {
    let facts = &ctx.cards[card];
    let without_work = fixed_bytes(ctx, card, range, chunk);
    let room = facts.capacity.saturating_sub(facts.floor);
    let short = |needed: u64| (needed + facts.floor).saturating_sub(facts.capacity);
    let watched = ctx.limits.watch_experts;
    let (mut bytes, mut work) = with_work(ctx, range, chunk, &without_work, |_| watched);
    let mut short_bytes = short(bytes.packed());
    let mut kept = vec![0; range.len() as usize];
    let mut held = kept.clone();
    let left = |bytes: &StageBytes| room.min(super::host::host_cap(ctx, card, chunk)).saturating_sub(bytes.packed());
    let all_held = if facts.in_place || !has_experts(ctx, range) {
        take_all(ctx, range, &mut kept);
        held.clone_from(&kept);
        true
    } else if size_slots(ctx, range, left(&bytes), &mut kept) {
        held.clone_from(&kept);
        true
    } else {
        // Sized as if every layer needed a table; what a layer that is held whole does without stays free.
        let (most, _) = with_work(ctx, range, chunk, &without_work, |_| true);
        short_bytes = short(most.packed());
        size_slots(ctx, range, left(&most), &mut kept);
        held.clone_from(&kept);
        // While no prompt is read, more experts have room: the prompt's buffers lie on their slots.
        if no_loan(ctx, card, range).is_none() {
            size_slots(ctx, range, room.saturating_sub(most.decoding()), &mut held);
        }
        let count = |layer: usize| ctx.model.layers[layer].experts.as_ref().map_or(0, |e| e.count);
        let is_partial = |layer: usize| watched || kept[layer - range.start as usize] < count(layer);
        (bytes, work) = with_work(ctx, range, chunk, &without_work, is_partial);
        false
    };
    let lent: Vec<u32> = held.iter().zip(&kept).map(|(held, kept)| held - kept).collect();
    let kept_bytes = slot_bytes(ctx, range, &kept);
    let slab = largest_slab(ctx, range);
    if kept_bytes > 0 && !facts.in_place {
        bytes.add(Consumer::ExpertSlots, kept_bytes, slab);
    }
    if lent.iter().any(|n| *n > 0) {
        bytes.add(Consumer::LentSlots, slot_bytes(ctx, range, &lent), slab);
    }
    short_bytes = short_bytes.max(bytes.largest_piece.saturating_sub(facts.max_piece));
    let headroom = room.saturating_sub(bytes.packed());
    let times = stage_times(ctx, card, (range, chunk), (&held, &kept), pinned);
    StageOption { bytes, work, held, lent, kept_bytes, all_held, short_bytes, headroom, times }
}

/// Why no slots of a stage are lent to the buffers of prompts; `None` if they may be.
pub fn no_loan(ctx: &Context<'_>, card: usize, range: LayerRange) -> Option<&'static str> {
    let mut counts = ctx.model.layers[range.indices()].iter().filter_map(|l| l.experts.as_ref()).map(|e| e.count);
    let first = counts.next();
    if !ctx.machine.cards[card].backend.lends_slots() {
        Some("this kind of card cannot have both on the same bytes")
    } else if ctx.limits.ram_experts == super::limits::RamExperts::Disk {
        Some("experts may be on disk alone, and would not come back quickly")
    } else if counts.any(|count| Some(count) != first) {
        Some("layers have different numbers of experts")
    } else {
        None
    }
}

/// The scratch of the built stage with this range, if it has been built.
pub fn measured(ctx: &Context<'_>, range: LayerRange) -> Option<StageScratch> {
    let at = ctx.limits.layer_split.as_ref()?.iter().position(|r| *r == range)?;
    ctx.limits.scratch.as_ref()?.get(at).copied()
}

fn has_experts(ctx: &Context<'_>, range: LayerRange) -> bool {
    ctx.model.layers[range.indices()].iter().any(|l| l.experts.is_some())
}

fn take_all(ctx: &Context<'_>, range: LayerRange, held: &mut [u32]) {
    for (held, layer) in held.iter_mut().zip(&ctx.model.layers[range.indices()]) {
        *held = layer.experts.as_ref().map_or(0, |e| e.count);
    }
}

fn slot_bytes(ctx: &Context<'_>, range: LayerRange, held: &[u32]) -> u64 {
    let layers = ctx.model.layers[range.indices()].iter();
    layers.zip(held).map(|(l, n)| l.experts.as_ref().map_or(0, |e| e.slab_bytes * u64::from(*n))).sum()
}

fn largest_slab(ctx: &Context<'_>, range: LayerRange) -> u64 {
    ctx.model.layers[range.indices()].iter().filter_map(|l| l.experts.as_ref()).map(|e| e.slab_bytes).max().unwrap_or(0)
}

/// The part of the user's wish that falls to a range: parts of all ranges add up to the wish.
fn wish_of(ctx: &Context<'_>, range: LayerRange) -> u64 {
    let layers = ctx.layers() as u64;
    let upto = |layer: u32| u64::from(ctx.limits.expert_slots.unwrap_or(u32::MAX)) * u64::from(layer) / layers;
    if ctx.limits.expert_slots.is_none() { u64::MAX } else { upto(range.end) - upto(range.start) }
}

/// Fills `held`: as many experts as the room allows, the same number in every layer, the remainder to the smallest slabs.
/// Says whether all experts of the range found a place.
fn size_slots(ctx: &Context<'_>, range: LayerRange, room: u64, held: &mut [u32]) -> bool {
    let mut left = room;
    let mut wish = wish_of(ctx, range);
    let start = range.start as usize;
    held.fill(0);
    let experts = |l: usize| ctx.model.layers[l].experts.as_ref();
    // Rounds: while every open layer can take the same number more, give it to all of them at once.
    loop {
        let open = range.indices().filter(|&l| experts(l).is_some_and(|e| held[l - start] < e.count));
        let (mut per_round, mut layers, mut most) = (0u64, 0u64, u64::MAX);
        for l in open {
            if let Some(e) = experts(l) {
                per_round += e.slab_bytes;
                layers += 1;
                most = most.min(u64::from(e.count - held[l - start]));
            }
        }
        if layers == 0 {
            return true;
        }
        let rounds = (left / per_round.max(1)).min(most).min(wish / layers);
        if rounds == 0 {
            break;
        }
        left -= rounds * per_round;
        wish -= rounds * layers;
        for l in range.indices() {
            if experts(l).is_some_and(|e| held[l - start] < e.count) {
                held[l - start] += rounds as u32;
            }
        }
    }
    for &l in ctx.by_slab.iter().filter(|&&l| range.indices().contains(&l)) {
        if let Some(e) = experts(l).filter(|e| held[l - start] < e.count && e.slab_bytes <= left && wish > 0) {
            held[l - start] += 1;
            left -= e.slab_bytes;
            wish -= 1;
        }
    }
    range.indices().all(|l| experts(l).is_none_or(|e| held[l - start] == e.count))
}

/// All rows of a stage but the elastic ones, the buffers of its programs, and what these look things up in.
fn fixed_bytes(ctx: &Context<'_>, card: usize, range: LayerRange, chunk: u32) -> StageBytes {
    let mut bytes = StageBytes::new();
    let facts = &ctx.cards[card];
    bytes.add(Consumer::DriverContext, facts.driver.context, 0);
    bytes.add(Consumer::ModuleCode, facts.driver.modules, 0);
    bytes.add(Consumer::LibraryWorkspace, facts.driver.library, 0);
    bytes.add(Consumer::Graphs, facts.driver.graphs, 0);
    let last = range.end as usize == ctx.layers();
    for layer in &ctx.model.layers[range.indices()] {
        bytes.add(Consumer::DenseWeights, layer.dense_bytes(ctx.cells), layer.dense.largest_bytes);
        if let Some(experts) = layer.experts.as_ref().filter(|_| facts.in_place) {
            bytes.add(Consumer::ExpertsInPlace, experts.slab_bytes * u64::from(experts.count), experts.slab_bytes);
        }
        add_state(ctx, layer, &mut bytes, false);
    }
    if last {
        bytes.add(Consumer::Head, ctx.model.head.bytes, ctx.model.head.largest_bytes);
    }
    if let Some(draft) = ctx.model.draft.as_ref().filter(|_| last && ctx.limits.draft) {
        let dense = draft.block.dense.bytes + draft.head_bytes;
        bytes.add(Consumer::DraftWeights, dense, draft.block.dense.largest_bytes.max(draft.head_bytes));
        if let Some(e) = &draft.block.experts {
            bytes.add(Consumer::DraftExperts, e.slab_bytes * u64::from(e.count), e.slab_bytes);
        }
        add_state(ctx, &draft.block, &mut bytes, true);
    }
    match measured(ctx, range) {
        Some(scratch) => bytes.add(Consumer::KernelScratch, scratch.card_bytes, 0),
        None if ctx.machine.cards[card].backend.has_kernels() => {
            bytes.add(Consumer::KernelScratch, scratch_bytes(ctx, range, chunk), 0);
            bytes.add(Consumer::SelectionScores, score_bytes(ctx, range, chunk), 0);
        }
        None => {}
    }
    add_kv_window(ctx, range, &mut bytes);
    bytes
}

/// Sequence state of a layer, every piece as the state arena lays it out.
fn add_state(ctx: &Context<'_>, layer: &LayerFacts, bytes: &mut StageBytes, draft: bool) {
    let slots = u64::from(ctx.limits.slots);
    let mut add = |consumer: Consumer, one: u64| {
        let all = align_up(one, ARENA_ALIGN_BYTES) * slots;
        bytes.add(consumer, all, all);
    };
    let versions = u64::from(ctx.limits.versions());
    match layer.mixer {
        Mixer::Attention { kv_heads, head_dim, .. } => {
            let cell = kv_cell_bytes(ctx.limits.kv, kv_heads, head_dim);
            let cells = if draft { ctx.cells } else { ctx.resident_cells };
            add(if draft { Consumer::DraftKv } else { Consumer::KvCache }, cells * cell);
            if let Some(i) = layer.index(ctx.cells).filter(|_| !draft) {
                add(Consumer::IndexKeys, index_bytes(ctx.cells, i.dim, i.ratio));
            }
        }
        Mixer::Delta { value_heads, key_dim, value_dim, conv } => {
            add(Consumer::RecurrentState, versions * delta_bytes(value_heads, key_dim, value_dim));
            add(Consumer::ConvHistory, (u64::from(conv.rows) + versions - 1) * u64::from(conv.channels) * 4);
        }
    }
    if let Some(conv) = layer.ngram_conv {
        add(Consumer::ConvHistory, (u64::from(conv.rows) + versions - 1) * u64::from(conv.channels) * 4);
    }
}

/// Raw keys and pooled keys of blocks, f32.
pub fn index_bytes(cells: u64, dim: u32, ratio: u32) -> u64 {
    (cells + cells / u64::from(ratio.max(1))) * u64::from(dim) * 4
}

pub fn delta_bytes(value_heads: u32, key_dim: u32, value_dim: u32) -> u64 {
    u64::from(value_heads) * u64::from(key_dim) * u64::from(value_dim) * 4
}

/// Floats of a row's scratch: the products of its experts before they are summed, and rounded activations, which take less than
/// three bytes for a float.
pub fn scratch_floats(ctx: &Context<'_>, range: LayerRange) -> u64 {
    let experts = ctx.model.layers[range.indices()].iter().filter_map(|l| l.experts.as_ref());
    let used = experts.map(|e| u64::from(e.used)).max().unwrap_or(0);
    used * u64::from(ctx.model.width) + work::product_floats(ctx, range) * 3 / 4
}

/// Rows of the largest window.
pub fn most_rows(ctx: &Context<'_>, chunk: u32) -> u64 {
    work::shapes(ctx, chunk)[0].max_rows.into()
}

fn scratch_bytes(ctx: &Context<'_>, range: LayerRange, chunk: u32) -> u64 {
    most_rows(ctx, chunk) * scratch_floats(ctx, range) * 4
}

/// Scores of all blocks for as many rows as are scored at a time.
fn score_bytes(ctx: &Context<'_>, range: LayerRange, chunk: u32) -> u64 {
    let indexed = ctx.model.layers[range.indices()].iter().filter_map(|l| l.index(ctx.cells));
    let blocks = indexed.map(|i| ctx.cells / u64::from(i.ratio.max(1))).max().unwrap_or(0);
    rules::SCORE_ROWS.min(most_rows(ctx, chunk)) * blocks * 4
}

/// One layer's keys and values, where not all of them are on the card.
fn add_kv_window(ctx: &Context<'_>, range: LayerRange, bytes: &mut StageBytes) {
    let of_layer = |l: &LayerFacts| match l.mixer {
        Mixer::Attention { kv_heads, head_dim, .. } => kv_cell_bytes(ctx.limits.kv, kv_heads, head_dim),
        Mixer::Delta { .. } => 0,
    };
    let cells = if ctx.resident_cells < ctx.cells { ctx.cells } else { 0 };
    let one = cells * ctx.model.layers[range.indices()].iter().map(of_layer).max().unwrap_or(0);
    bytes.add(Consumer::KvWindow, one, one);
}

/// The rows of a stage with the buffers of its programs, and with the tables of the layers that need one.
fn with_work(
    ctx: &Context<'_>,
    range: LayerRange,
    chunk: u32,
    without: &StageBytes,
    is_partial: impl Fn(usize) -> bool,
) -> (StageBytes, StageWork) {
    let mut bytes = without.clone();
    let experts = |layer: usize| ctx.model.layers[layer].experts.as_ref().filter(|_| is_partial(layer));
    let table = |layer: usize| experts(layer).map_or(0, |e| align_up(u64::from(e.count) * 4, ARENA_ALIGN_BYTES));
    bytes.add(Consumer::SlotTables, range.indices().map(table).sum(), 0);
    let work = work::stage_work(ctx, range, chunk, |layer| experts(layer).is_some());
    let whole = range.start == 0 && range.end as usize == ctx.layers();
    let handed_on = if whole { 0 } else { align_up(most_rows(ctx, chunk) * ctx.model.stream_floats() * 4, ARENA_ALIGN_BYTES) };
    let StageWork { prompt, decode } = work;
    bytes.add(Consumer::HandOff, handed_on.min(prompt.report.bytes), 0);
    bytes.add(Consumer::PromptWork, prompt.report.bytes.saturating_sub(handed_on), prompt.largest_bytes);
    bytes.add(Consumer::DecodeWork, decode.report.bytes, decode.largest_bytes);
    (bytes, work)
}

/// Time of one decode window and one prompt chunk on a stage, with the experts that are on the card in either. That slots are filled
/// again after a prompt is not counted.
fn stage_times(
    ctx: &Context<'_>,
    card: usize,
    (range, chunk): (LayerRange, u32),
    (held, kept): (&[u32], &[u32]),
    pinned: PinnedShare,
) -> StageTimes {
    let rates = &ctx.cards[card].rates;
    let (first, last) = (range.start == 0, range.end as usize == ctx.layers());
    let memory = rates.memory_gbs * 1e9;
    let as_cpu = ctx.cards[card].reads_as_cpu;
    let bus = rates.bus_gbs * 1e9;
    let calls = f64::from(ctx.limits.joint_rows()).powf(0.75);
    let rows = f64::from(ctx.limits.workload.prompt_tokens.min(chunk));
    let depth = f64::from(ctx.limits.workload.prompt_tokens);
    let (mut decode, mut macs, mut dense_read_s, mut streamed) = (0.0, 0.0, 0.0, 0.0);
    // Layers mostly have the same numbers of experts.
    let mut last_touched = ((0, 0), 0.0);
    let layers = ctx.model.layers[range.indices()].iter().zip(&ctx.cpu[range.indices()]);
    for ((layer, cpu), (&held, &kept)) in layers.zip(held.iter().zip(kept)) {
        let of_weights = if as_cpu { *cpu } else { LayerRates { dense: memory, experts: memory } };
        let dense_s = layer.dense.bytes as f64 / of_weights.dense;
        decode += rates.layer_overhead_s + dense_s + state_read(ctx, layer, depth) / memory;
        dense_read_s += dense_s;
        macs += layer.dense.params as f64 * (1.0 + DENSE_HALF_ROWS / rows.max(1.0));
        if let Some(e) = &layer.experts {
            let hit = ctx.hit(e.count, held);
            let read = (f64::from(e.used) * calls).min(f64::from(e.count)) * e.slab_bytes as f64;
            // An expert that is not on the card is multiplied by the CPU or copied, whichever is faster; never faster than on it.
            let missed = cpu.experts.max(bus).min(of_weights.experts);
            decode += read * (hit / of_weights.experts + (1.0 - hit) / missed);
            // Few rows an expert fill a matrix kernel badly.
            let rows_each = rows * f64::from(e.used) / f64::from(e.count);
            macs += f64::from(e.used) * e.params as f64 * (1.0 + EXPERT_HALF_ROWS / rows_each.max(1.0));
            if last_touched.0 != (e.used, e.count) {
                let share = 1.0 - (-rows * f64::from(e.used) / f64::from(e.count)).exp();
                last_touched = ((e.used, e.count), share);
            }
            streamed += f64::from(e.count - kept) * last_touched.1 * e.slab_bytes as f64;
        }
    }
    if last {
        let head_rate = ctx.cpu.last().filter(|_| as_cpu).map_or(memory, |cpu| cpu.dense);
        decode += ctx.model.head.bytes as f64 / head_rate + draft_time(ctx, rates.layer_overhead_s, memory);
    }
    let transfer = if first { 0.0 } else { ctx.model.stream_floats() as f64 * 4.0 / bus };
    let latency = if first { 0.0 } else { rules::HAND_OFF_LATENCY_S };
    decode += transfer * f64::from(ctx.limits.joint_rows()) + latency;
    let compute = 2.0 * macs * rows / (rates.tflops * 1e12);
    let fixed = dense_read_s + rates.layer_overhead_s * f64::from(range.len()) + transfer * rows + latency;
    let prompt_s = pinned.0.map(|share| {
        let stream_s = streamed * (share / bus + (1.0 - share) / (bus * PAGEABLE_RATE));
        fixed + compute.max(stream_s)
    });
    StageTimes { decode_s: decode, prompt_s }
}

/// Rows at which a matrix kernel reaches half of its rate.
const DENSE_HALF_ROWS: f64 = 128.0;
const EXPERT_HALF_ROWS: f64 = 16.0;

/// Copies from memory that is not pinned go through a bounce buffer.
const PAGEABLE_RATE: f64 = 0.5;

fn draft_time(ctx: &Context<'_>, overhead_s: f64, memory: f64) -> f64 {
    let Some(draft) = ctx.model.draft.as_ref().filter(|_| ctx.limits.draft) else { return 0.0 };
    let experts = draft.block.experts.as_ref().map_or(0.0, |e| f64::from(e.used) * e.slab_bytes as f64);
    let head = if draft.head_bytes > 0 { draft.head_bytes } else { ctx.model.head.bytes };
    let step = overhead_s + (draft.block.dense.bytes as f64 + experts + head as f64) / memory;
    step * f64::from(ctx.limits.draft_window)
}

/// Bytes of state that one window reads at a depth of `depth` tokens.
fn state_read(ctx: &Context<'_>, layer: &LayerFacts, depth: f64) -> f64 {
    match layer.mixer {
        Mixer::Attention { kv_heads, head_dim, index, .. } => {
            let cell = kv_cell_bytes(ctx.limits.kv, kv_heads, head_dim) as f64;
            match index {
                Some(i) => depth.min(f64::from(i.budget)) * cell + depth / f64::from(i.ratio.max(1)) * f64::from(i.dim) * 4.0,
                None => depth * cell,
            }
        }
        Mixer::Delta { value_heads, key_dim, value_dim, .. } => 2.0 * delta_bytes(value_heads, key_dim, value_dim) as f64,
    }
}

/// Tokens that a decode window yields on average for one sequence.
pub fn window_yield(ctx: &Context<'_>) -> f64 {
    let drafted = if ctx.limits.draft { ctx.limits.draft_window } else { 0 };
    (0..=drafted).map(|i| rules::DRAFT_ACCEPTANCE.powi(i as i32)).sum()
}
