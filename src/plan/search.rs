//! The layer split: exact search over chunk, card order, cards left out and split points. The objective is the predicted
//! time of one prompt and one answer; equal times go to the layout that holds more experts, then to the one with the larger
//! smallest headroom. So with more room a plan holds fewer experts only if it is strictly faster for it.

use super::context::Context;
use super::host::{self, HostSupplies, LayoutSums};
use super::limits::LayerRange;
use super::stage::{self, PinnedShare, StageOption};

/// Cards in their order, with their ranges.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    pub cards: Vec<usize>,
    pub ranges: Vec<LayerRange>,
    pub chunk: u32,
    pub objective_s: f64,
    /// Experts that are held by the stages.
    pub held: u64,
    pub headroom: u64,
}

/// The numbers of a stage that the search needs.
#[derive(Debug, Clone, Copy)]
struct Entry {
    decode_s: f64,
    prompt_s: [f64; 2],
    short: u64,
    headroom: u64,
    held: u64,
    held_bytes: u64,
    packed: u64,
    all_held: bool,
}

impl Entry {
    fn of(option: &StageOption) -> Entry {
        Entry {
            decode_s: option.times.decode_s,
            prompt_s: option.times.prompt_s,
            short: option.short_bytes,
            headroom: option.headroom,
            held: option.held.iter().map(|n| u64::from(*n)).sum(),
            held_bytes: option.kept_bytes,
            packed: option.bytes.packed(),
            all_held: option.all_held,
        }
    }
}

/// Entries of every card and range for one chunk.
struct Table {
    layers: usize,
    /// One list a card; equal cards share one.
    cards: Vec<Vec<Entry>>,
    root: Vec<usize>,
}

impl Table {
    /// A longer range needs more, so once one does not fit, the longer ones are only looked at if their numbers matter.
    /// The whole model is an exception: it hands nothing on.
    fn new(ctx: &Context<'_>, chunk: u32, pinned: PinnedShare, all_numbers: bool) -> Table {
        let layers = ctx.layers();
        let root: Vec<usize> = ctx.cards.iter().enumerate().map(|(i, c)| c.same_as.unwrap_or(i)).collect();
        let mut cards = vec![Vec::new(); ctx.cards.len()];
        for &card in &ctx.eligible {
            let at = root[card];
            if !cards[at].is_empty() {
                continue;
            }
            let mut entries = Vec::with_capacity(layers * (layers + 1) / 2);
            for start in 0..layers {
                let mut too_long = false;
                for end in start + 1..=layers {
                    let range = LayerRange { start: start as u32, end: end as u32 };
                    let whole = start == 0 && end == layers;
                    if (too_long && !whole) || !wanted(ctx, range) {
                        entries.push(UNWANTED);
                        continue;
                    }
                    let entry = Entry::of(&stage::evaluate(ctx, at, range, chunk, pinned));
                    too_long = !all_numbers && entry.short > 0 && ctx.limits.stage_arenas.is_none();
                    entries.push(entry);
                }
            }
            cards[at] = entries;
        }
        Table { layers, cards, root }
    }

    fn get(&self, card: usize, start: usize, end: usize) -> &Entry {
        // Ranges that begin before `start`: layers + (layers - 1) + ...
        let before = start * self.layers - start * start.saturating_sub(1) / 2;
        &self.cards[self.root[card]][before + end - start - 1]
    }
}

const UNWANTED: Entry = Entry {
    decode_s: f64::INFINITY,
    prompt_s: [f64::INFINITY; 2],
    short: u64::MAX / 1024,
    headroom: 0,
    held: 0,
    held_bytes: 0,
    packed: 0,
    all_held: false,
};

/// Weights of the objective.
#[derive(Debug, Clone, Copy)]
pub struct Weights {
    /// Decode windows of an answer.
    pub windows: f64,
    /// Chunks of a prompt.
    pub chunks: f64,
}

impl Weights {
    pub fn new(ctx: &Context<'_>, chunk: u32) -> Weights {
        let load = ctx.limits.workload;
        Weights {
            windows: f64::from(load.answer_tokens) / stage::window_yield(ctx),
            chunks: f64::from(load.prompt_tokens.div_ceil(chunk.max(1))),
        }
    }

    /// Time of a prompt whose chunks go through the stages as through a pipeline.
    pub fn prompt_s(&self, sum_s: f64, longest_s: f64) -> f64 {
        sum_s + (self.chunks - 1.0).max(0.0) * longest_s
    }
}

/// What the search found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub best: Option<Layout>,
    /// The best of every other order of cards, best first.
    pub others: Vec<Layout>,
    /// Not every order of cards was looked at.
    pub limited: bool,
}

/// More orders than this are not looked at one by one.
const MAX_ORDERS: usize = 400;
const MAX_OTHERS: usize = 8;

pub fn search(ctx: &Context<'_>, supplies: &HostSupplies, want_others: bool) -> Found {
    let pinned = host::pinned_share(ctx, supplies);
    let (orders, limited) = orders(ctx);
    let mut found = Found { limited, ..Found::default() };
    let mut best_table = None;
    for chunk in ctx.chunks() {
        let table = Table::new(ctx, chunk, pinned, false);
        let mut improved = false;
        for order in &orders {
            let mut walk = Walk::new(ctx, supplies, &table, order, chunk, found.best.as_ref());
            walk.run();
            if let Some(layout) = walk.best {
                improved |= better(&layout, found.best.as_ref());
                if better(&layout, found.best.as_ref()) {
                    found.best = Some(layout);
                }
            }
        }
        if improved && want_others {
            best_table = Some((table, chunk));
        }
    }
    if let (Some((table, chunk)), Some(best)) = (best_table, &found.best) {
        for order in orders.iter().filter(|o| **o != best.cards) {
            let mut walk = Walk::new(ctx, supplies, &table, order, chunk, None);
            walk.run();
            found.others.extend(walk.best);
        }
        found.others.sort_by(|a, b| a.objective_s.total_cmp(&b.objective_s));
        found.others.truncate(MAX_OTHERS);
    }
    found
}

/// With an explicit split only its ranges matter, with one card only the whole model.
fn wanted(ctx: &Context<'_>, range: LayerRange) -> bool {
    match &ctx.limits.layer_split {
        Some(split) => split.contains(&range),
        None => ctx.eligible.len() > 1 || range.len() as usize == ctx.layers(),
    }
}

fn better(layout: &Layout, best: Option<&Layout>) -> bool {
    let Some(best) = best else { return true };
    match layout.objective_s.total_cmp(&best.objective_s) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => (layout.held, layout.headroom) > (best.held, best.headroom),
        std::cmp::Ordering::Greater => false,
    }
}

/// Orders of cards to look at, and whether some were left out.
fn orders(ctx: &Context<'_>) -> (Vec<Vec<usize>>, bool) {
    if let Some(split) = &ctx.limits.layer_split {
        return (vec![ctx.eligible[..split.len()].to_vec()], false);
    }
    let needed = if ctx.limits.devices.is_some() { ctx.eligible.len() } else { 1 };
    let mut all = Vec::new();
    let complete = extend_orders(ctx, &mut Vec::new(), needed, &mut all);
    if complete {
        return (all, false);
    }
    // Too many: only the machine's order and its reverse, with any cards left out.
    let count = ctx.eligible.len().min(12);
    let mut some = Vec::new();
    for mask in 1u32..1 << count {
        let forward: Vec<usize> = (0..count).filter(|i| mask >> i & 1 == 1).map(|i| ctx.eligible[i]).collect();
        if forward.len() >= needed && forward.len() <= ctx.layers() {
            some.push(forward.iter().rev().copied().collect());
            some.push(forward);
        }
    }
    some.dedup();
    (some, true)
}

fn extend_orders(ctx: &Context<'_>, order: &mut Vec<usize>, needed: usize, all: &mut Vec<Vec<usize>>) -> bool {
    if order.len() >= needed && !order.is_empty() {
        all.push(order.clone());
    }
    if all.len() > MAX_ORDERS {
        return false;
    }
    if order.len() == ctx.layers() {
        return true;
    }
    for &card in &ctx.eligible {
        let root = ctx.cards[card].same_as.unwrap_or(card);
        let twin_first =
            ctx.eligible.iter().any(|&c| c < card && !order.contains(&c) && ctx.cards[c].same_as.unwrap_or(c) == root);
        if order.contains(&card) || twin_first {
            continue;
        }
        order.push(card);
        let complete = extend_orders(ctx, order, needed, all);
        order.pop();
        if !complete {
            return false;
        }
    }
    true
}

/// Branch and bound over the split points of one order of cards.
struct Walk<'a> {
    ctx: &'a Context<'a>,
    supplies: &'a HostSupplies,
    table: &'a Table,
    order: &'a [usize],
    chunk: u32,
    weights: Weights,
    /// Which prompt time counts.
    several: usize,
    /// `rest[j][a]`: least time that cards j.. need for layers a.. if no stage had to wait for another.
    rest: Vec<Vec<f64>>,
    bound: f64,
    best: Option<Layout>,
    ends: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Partial {
    decode_s: f64,
    prompt_s: f64,
    longest_s: f64,
    held: u64,
    headroom: u64,
}

impl<'a> Walk<'a> {
    fn new(
        ctx: &'a Context<'a>,
        supplies: &'a HostSupplies,
        table: &'a Table,
        order: &'a [usize],
        chunk: u32,
        incumbent: Option<&Layout>,
    ) -> Walk<'a> {
        let several = usize::from(order.len() >= 2);
        let bound = incumbent.map_or(f64::INFINITY, |l| l.objective_s);
        let weights = Weights::new(ctx, chunk);
        let mut walk =
            Walk { ctx, supplies, table, order, chunk, weights, several, rest: vec![], bound, best: None, ends: vec![] };
        walk.fill_rest();
        walk
    }

    fn cost(&self, entry: &Entry) -> f64 {
        if entry.short > 0 { f64::INFINITY } else { entry.decode_s * self.weights.windows + entry.prompt_s[self.several] }
    }

    fn fill_rest(&mut self) {
        let layers = self.table.layers;
        let mut rest = vec![vec![f64::INFINITY; layers + 1]; self.order.len() + 1];
        rest[self.order.len()][layers] = 0.0;
        for (j, &card) in self.order.iter().enumerate().rev() {
            for start in 0..layers {
                let ends = start + 1..=layers;
                let least = ends.map(|end| self.cost(self.table.get(card, start, end)) + rest[j + 1][end]);
                rest[j][start] = least.fold(f64::INFINITY, f64::min);
            }
        }
        self.rest = rest;
    }

    fn run(&mut self) {
        if self.rest[0][0] <= self.bound * SLACK {
            self.step(0, 0, Partial { decode_s: 0.0, prompt_s: 0.0, longest_s: 0.0, held: 0, headroom: u64::MAX });
        }
    }

    fn step(&mut self, j: usize, start: usize, so_far: Partial) {
        if j == self.order.len() {
            return self.leaf(so_far);
        }
        let layers = self.table.layers;
        let ends = if j + 1 == self.order.len() { layers..=layers } else { start + 1..=layers - (self.order.len() - j - 1) };
        for end in ends {
            let entry = self.table.get(self.order[j], start, end);
            if entry.short > 0 {
                continue;
            }
            let next = Partial {
                decode_s: so_far.decode_s + entry.decode_s,
                prompt_s: so_far.prompt_s + entry.prompt_s[self.several],
                longest_s: so_far.longest_s.max(entry.prompt_s[self.several]),
                held: so_far.held + entry.held,
                headroom: so_far.headroom.min(entry.headroom),
            };
            if self.total(&next) + self.rest[j + 1][end] > self.bound * SLACK {
                continue;
            }
            self.ends.push(end);
            self.step(j + 1, end, next);
            self.ends.pop();
        }
    }

    fn total(&self, p: &Partial) -> f64 {
        p.decode_s * self.weights.windows + self.weights.prompt_s(p.prompt_s, p.longest_s)
    }

    fn leaf(&mut self, so_far: Partial) {
        let objective_s = self.total(&so_far);
        let layout = Layout {
            cards: self.order.to_vec(),
            ranges: self.ranges(),
            chunk: self.chunk,
            objective_s,
            held: so_far.held,
            headroom: so_far.headroom,
        };
        if !better(&layout, self.best.as_ref()) {
            return;
        }
        let sums = sums_of(self.ctx, self.table, &layout);
        if host::need(self.ctx, self.supplies, &sums).short.worst() == 0 {
            self.bound = self.bound.min(objective_s);
            self.best = Some(layout);
        }
    }

    fn ranges(&self) -> Vec<LayerRange> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| LayerRange { start: start as u32, end: *end as u32 }).collect()
    }
}

/// Rounding must not prune a layout that is as good as the best.
const SLACK: f64 = 1.0 + 1e-12;

fn sums_of(ctx: &Context<'_>, table: &Table, layout: &Layout) -> LayoutSums {
    let mut sums = LayoutSums { chunk: layout.chunk, all_held: true, ..LayoutSums::default() };
    for (&card, range) in layout.cards.iter().zip(&layout.ranges) {
        let entry = table.get(card, range.start as usize, range.end as usize);
        add_stage(&mut sums, ctx, card, (entry.packed, entry.held_bytes, entry.all_held));
    }
    sums
}

pub fn add_stage(sums: &mut LayoutSums, ctx: &Context<'_>, card: usize, (packed, held, all_held): (u64, u64, bool)) {
    let facts = &ctx.cards[card];
    sums.stages += 1;
    sums.held_bytes += held;
    sums.all_held &= all_held;
    sums.driver_host_bytes += facts.driver.host;
    if facts.in_place {
        sums.in_place_bytes += held;
    }
    if facts.shares_host {
        sums.shared_bytes += packed;
    } else {
        sums.device_bytes += packed;
    }
}

/// The layout that misses the fewest bytes, for a refusal. Uses the smallest chunk.
pub fn least_short(ctx: &Context<'_>, supplies: &HostSupplies) -> Option<Layout> {
    let chunk = ctx.chunks().first().copied()?;
    let pinned = host::pinned_share(ctx, supplies);
    let table = Table::new(ctx, chunk, pinned, true);
    let (orders, _) = orders(ctx);
    let mut best: Option<(u64, Layout)> = None;
    for order in &orders {
        let Some(ranges) = least_short_ranges(&table, order) else { continue };
        let layout = Layout { cards: order.clone(), ranges, chunk, objective_s: f64::INFINITY, held: 0, headroom: 0 };
        let sums = sums_of(ctx, &table, &layout);
        let cards: u64 = layout
            .cards
            .iter()
            .zip(&layout.ranges)
            .map(|(&c, r)| table.get(c, r.start as usize, r.end as usize).short)
            .fold(0, u64::saturating_add);
        let short = cards.saturating_add(host::need(ctx, supplies, &sums).short.worst());
        if best.as_ref().is_none_or(|(least, _)| short < *least) {
            best = Some((short, layout));
        }
    }
    best.map(|(_, layout)| layout)
}

fn least_short_ranges(table: &Table, order: &[usize]) -> Option<Vec<LayerRange>> {
    let layers = table.layers;
    let mut rest = vec![vec![(u64::MAX, 0usize); layers + 1]; order.len() + 1];
    rest[order.len()][layers] = (0, layers);
    for (j, &card) in order.iter().enumerate().rev() {
        for start in 0..layers {
            for end in start + 1..=layers {
                let after = rest[j + 1][end].0;
                if after == u64::MAX {
                    continue;
                }
                let short = table.get(card, start, end).short.saturating_add(after).min(u64::MAX - 1);
                if short < rest[j][start].0 {
                    rest[j][start] = (short, end);
                }
            }
        }
    }
    let mut ranges = Vec::with_capacity(order.len());
    let mut start = 0;
    for row in rest.iter().take(order.len()) {
        let (short, end) = row[start];
        if short == u64::MAX {
            return None;
        }
        ranges.push(LayerRange { start: start as u32, end: end as u32 });
        start = end;
    }
    Some(ranges)
}
