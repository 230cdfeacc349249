//! The layer split: exact search over chunk, card order, cards left out and split points. The objective is the predicted
//! time of one prompt and one answer; equal times go to the layout that holds more experts, then to the one with the larger
//! smallest headroom. So with more room a plan holds fewer experts only if it is strictly faster for it.

mod groups;
mod others;
mod table;
#[cfg(test)]
mod tests;
mod walk;

use super::context::Context;
use super::host::{self, HostSupplies, LayoutSums};
use super::limits::LayerRange;
use super::stage;

use groups::{Groups, Routes};
use table::Table;
use walk::{Goal, Ground, Walk};

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

impl Layout {
    /// Whether this layout is better than the best one so far.
    fn is_better(&self, best: Option<&Layout>) -> bool {
        let Some(best) = best else { return true };
        match self.objective_s.total_cmp(&best.objective_s) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => (self.held, self.headroom) > (best.held, best.headroom),
            std::cmp::Ordering::Greater => false,
        }
    }

    /// The same, and of equally good ones the one with the earlier cards and the shorter first ranges.
    fn is_before(&self, best: Option<&Layout>) -> bool {
        let Some(other) = best else { return true };
        self.is_better(best) || !other.is_better(Some(self)) && (&self.cards, &self.ranges) < (&other.cards, &other.ranges)
    }
}

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

    /// Time of an answer.
    pub fn decode_s(&self, window_s: f64) -> f64 {
        window_s * self.windows
    }

    /// Time of a prompt whose chunks go through the stages as through a pipeline.
    pub fn prompt_s(&self, sum_s: f64, longest_s: f64) -> f64 {
        sum_s + self.waiting_s(longest_s)
    }

    /// Time in which all chunks but the first follow through the longest stage.
    pub fn waiting_s(&self, longest_s: f64) -> f64 {
        (self.chunks - 1.0).max(0.0) * longest_s
    }
}

/// What the search found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub best: Option<Layout>,
    /// The best of other orders of cards, best first.
    pub others: Vec<Layout>,
    /// Not every order of cards, or not every split, was looked at.
    pub limited: bool,
    /// Partial layouts that were made or compared: the work, whatever the computer.
    pub steps: u64,
}

pub fn search(ctx: &Context<'_>, supplies: &HostSupplies, want_others: bool) -> Found {
    let pinned = host::pinned_share(ctx, supplies);
    let groups = Groups::new(ctx);
    let mut found = Found::default();
    let mut best_table = None;
    for chunk in ctx.chunks() {
        let table = Table::new(ctx, &groups, chunk, pinned, false);
        let ground = Ground::new(ctx, supplies, &groups, &table);
        let routes = Routes::new(ctx, &groups, &table, ground.weights);
        found.limited |= routes.limited;
        let mut improved = false;
        for graph in &routes.graphs {
            let layout = fastest(ground, supplies, graph, &mut found);
            if let Some(layout) = layout.filter(|l| l.is_better(found.best.as_ref())) {
                found.best = Some(layout);
                improved = true;
            }
        }
        if improved && want_others {
            best_table = Some(table);
        }
        // The smallest chunk comes first and needs the least.
        if found.best.is_none() {
            break;
        }
    }
    if let (Some(table), Some(best)) = (best_table, found.best.clone()) {
        let ground = Ground::new(ctx, supplies, &groups, &table);
        found.others = others::others(ground, supplies, &best, &mut found.steps);
    }
    found
}

/// The fastest layout that is at least as good as what was found so far. Mostly the host is not what is short: then the fastest
/// one for the cards is the answer.
fn fastest(ground: Ground<'_>, supplies: &HostSupplies, graph: &groups::Graph, found: &mut Found) -> Option<Layout> {
    let bound = found.best.as_ref().map_or(f64::INFINITY, |best| best.objective_s);
    let fits = |layout: &Layout| host_short(ground, supplies, layout) == 0;
    let mut any = Walk::new(ground, graph, Goal::Fastest, bound, &|_| Some(0.0));
    any.run();
    found.steps += any.steps;
    found.limited |= any.limited;
    let best = any.best.take()?;
    if fits(&best) {
        return Some(best);
    }
    let judge = |layout: &Layout| fits(layout).then_some(0.0);
    let mut walk = Walk::new(ground, graph, Goal::FastestOnHost, bound, &judge);
    walk.run();
    found.steps += walk.steps;
    found.limited |= walk.limited;
    walk.best.take()
}

/// Whether any layout fits: what [`search`] finds, without looking for the fastest. The smallest chunk needs the least.
pub fn fits(ctx: &Context<'_>, supplies: &HostSupplies) -> bool {
    let Some(chunk) = ctx.chunks().first().copied() else { return false };
    let groups = Groups::new(ctx);
    let table = Table::new(ctx, &groups, chunk, host::pinned_share(ctx, supplies), false);
    let ground = Ground::new(ctx, supplies, &groups, &table);
    let judge = |layout: &Layout| (host_short(ground, supplies, layout) == 0).then_some(0.0);
    let routes = Routes::new(ctx, &groups, &table, ground.weights);
    routes.graphs.iter().any(|graph| {
        let mut walk = Walk::new(ground, graph, Goal::Any, f64::INFINITY, &judge);
        walk.run();
        walk.best.is_some()
    })
}

/// The layout that misses the fewest bytes, for a refusal. Uses the smallest chunk.
pub fn least_short(ctx: &Context<'_>, supplies: &HostSupplies) -> Option<Layout> {
    let chunk = ctx.chunks().first().copied()?;
    let groups = Groups::new(ctx);
    let table = Table::new(ctx, &groups, chunk, host::pinned_share(ctx, supplies), true);
    let ground = Ground::new(ctx, supplies, &groups, &table);
    let judge = |layout: &Layout| Some(host_short(ground, supplies, layout) as f64);
    let mut best: Option<Layout> = None;
    for graph in &Routes::for_refusal(ctx, &groups, &table, ground.weights).graphs {
        let bound = best.as_ref().map_or(f64::INFINITY, |layout| layout.objective_s);
        let mut walk = Walk::new(ground, graph, Goal::LeastShort, bound, &judge);
        walk.run();
        best = walk.best.take().filter(|layout| layout.is_before(best.as_ref())).or(best);
    }
    best
}

/// Bytes that the host is short of.
fn host_short(ground: Ground<'_>, supplies: &HostSupplies, layout: &Layout) -> u64 {
    let mut sums = LayoutSums { chunk: layout.chunk, all_held: true, ..LayoutSums::default() };
    for (&card, range) in layout.cards.iter().zip(&layout.ranges) {
        let Some(group) = ground.groups.of(card) else { continue };
        let entry = ground.table.get(group, range.start as usize, range.end as usize);
        add_stage(&mut sums, ground.ctx, card, (entry.packed, entry.held_bytes, entry.all_held));
    }
    host::need(ground.ctx, supplies, &sums).short.worst()
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
