//! From the first layer to the last: partial layouts as labels, of which one that is worse than another in everything that can
//! still matter is dropped. Exact, unless the limit of steps is reached.

use crate::plan::context::Context;
use crate::plan::host::{self, HostBudget, HostSupplies};
use crate::plan::limits::LayerRange;
use crate::plan::rules::MAX_STAGES;

use super::groups::{Graph, Groups};
use super::table::{Entry, Table};
use super::{Layout, Weights};

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The fastest layout that fits the cards.
    Fastest,
    /// The fastest that also fits the host.
    FastestOnHost,
    /// Any that fits cards and host.
    Any,
    /// The one whose cards are short of the fewest bytes.
    LeastShort,
}

impl Goal {
    fn heeds_host(self) -> bool {
        matches!(self, Goal::FastestOnHost | Goal::Any)
    }
}

/// The first layers with a place.
#[derive(Debug, Clone, Copy)]
struct Label {
    /// What is minimised, apart from waiting for the longest stage: weighted seconds, or bytes.
    cost: f64,
    decode_s: f64,
    prompt_s: f64,
    longest_s: f64,
    ram: i64,
    commit: i64,
    held: u64,
    headroom: u64,
    stages: u32,
    all_held: bool,
    device: bool,
    /// The label before, and the stage that was added to it.
    before: u32,
    group: u32,
    end: u32,
}

const START: Label = Label {
    cost: 0.0,
    decode_s: 0.0,
    prompt_s: 0.0,
    longest_s: 0.0,
    ram: 0,
    commit: 0,
    held: 0,
    headroom: u64::MAX,
    stages: 0,
    all_held: true,
    device: false,
    before: 0,
    group: 0,
    end: 0,
};

/// The least that the layers that are left can add, each number for itself.
#[derive(Debug, Clone, Copy)]
struct Rest {
    cost: f64,
    longest_s: f64,
    ram: i64,
    commit: i64,
}

const UNREACHABLE: Rest = Rest { cost: f64::INFINITY, longest_s: f64::INFINITY, ram: i64::MAX / 4, commit: i64::MAX / 4 };
const DONE: Rest = Rest { cost: 0.0, longest_s: 0.0, ram: 0, commit: 0 };

/// Rounding must not drop a layout that is as good as the best.
const SLACK: f64 = 1.0 + 1e-12;

/// After so many steps only the most promising label of each place is kept.
const MAX_STEPS: u64 = 1 << 22;

/// What a complete layout costs beside its stages; `None` if it does not count.
pub type Judge<'a> = &'a dyn Fn(&Layout) -> Option<f64>;

/// Everything that a walk looks things up in.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub ctx: &'a Context<'a>,
    pub groups: &'a Groups,
    pub table: &'a Table,
    pub weights: Weights,
    pub budget: HostBudget,
}

impl<'a> Ground<'a> {
    pub fn new(ctx: &'a Context<'a>, supplies: &HostSupplies, groups: &'a Groups, table: &'a Table) -> Ground<'a> {
        let (weights, budget) = (Weights::new(ctx, table.chunk), host::budget(ctx, supplies, table.chunk));
        Ground { ctx, groups, table, weights, budget }
    }
}

pub struct Walk<'a> {
    on: Ground<'a>,
    graph: &'a Graph,
    goal: Goal,
    judge: Judge<'a>,
    /// `state * (layers + 1) + layer`
    rest: Vec<Rest>,
    labels: Vec<Label>,
    fronts: Vec<Vec<u32>>,
    bound: f64,
    pub best: Option<Layout>,
    pub steps: u64,
    pub limited: bool,
}

impl<'a> Walk<'a> {
    /// `bound`: what is not better than this does not matter.
    pub fn new(on: Ground<'a>, graph: &'a Graph, goal: Goal, bound: f64, judge: Judge<'a>) -> Walk<'a> {
        let (rest, labels, fronts) = (Vec::new(), vec![START], Vec::new());
        let mut walk = Walk { on, graph, goal, judge, rest, labels, fronts, bound, best: None, steps: 0, limited: false };
        walk.fill_rest();
        walk
    }

    /// Finds `best`.
    pub fn run(&mut self) {
        if self.is_hopeless(&START, 0) {
            return;
        }
        self.dive();
        if self.goal == Goal::Any && self.best.is_some() {
            return;
        }
        let layers = self.on.table.layers;
        self.fronts = vec![Vec::new(); self.graph.steps.len() * (layers + 1)];
        self.fronts[0].push(0);
        for state in 0..self.graph.steps.len() {
            for start in 0..layers {
                for label in std::mem::take(&mut self.fronts[state * (layers + 1) + start]) {
                    self.extend(label, state, start);
                }
            }
        }
    }

    fn place(&self, state: usize, layer: usize) -> usize {
        state * (self.on.table.layers + 1) + layer
    }

    /// What a stage adds to RAM and commit, without what is added once.
    fn host_cost(&self, group: usize, entry: &Entry) -> (i64, i64) {
        let facts = &self.on.ctx.cards[self.on.groups.members[group][0]];
        let held = if self.on.budget.held_counts { entry.held_bytes } else { 0 };
        let shared = if facts.shares_host { entry.packed } else { 0 };
        let ram = facts.driver.host as i64 + shared as i64 - held as i64;
        (ram, if self.on.budget.commit.is_some() { ram + (entry.packed - shared) as i64 } else { 0 })
    }

    fn is_barred(&self, entry: &Entry) -> bool {
        if self.goal == Goal::LeastShort { entry.short >= Table::BARRED_BYTES } else { entry.short > 0 }
    }

    /// What a stage adds to the cost.
    fn cost(&self, entry: &Entry, prompt_s: f64) -> f64 {
        match self.goal {
            Goal::Fastest | Goal::FastestOnHost => self.on.weights.decode_s(entry.decode_s) + prompt_s,
            Goal::Any => 0.0,
            Goal::LeastShort => entry.short as f64,
        }
    }

    /// With the whole model on one card, experts come from RAM at another rate.
    fn prompt_s(&self, entry: &Entry, start: usize, end: usize) -> f64 {
        entry.prompt_s[usize::from(start > 0 || end < self.on.table.layers)]
    }

    fn fill_rest(&mut self) {
        let (layers, commits) = (self.on.table.layers, self.on.budget.commit.is_some());
        self.rest = vec![UNREACHABLE; self.graph.steps.len() * (layers + 1)];
        for state in (0..self.graph.steps.len()).rev() {
            if self.graph.ends[state] {
                let at = self.place(state, layers);
                self.rest[at] = DONE;
            }
            for start in 0..layers {
                let at = self.place(state, start);
                for &(group, next) in &self.graph.steps[state] {
                    let hand_off = if start > 0 { self.on.budget.hand_off } else { 0 };
                    for end in start + 1..=layers {
                        let entry = self.on.table.get(group, start, end);
                        let after = self.rest[self.place(next, end)];
                        if self.is_barred(entry) || after.cost.is_infinite() {
                            continue;
                        }
                        let prompt_s = self.prompt_s(entry, start, end);
                        let (ram, commit) = self.host_cost(group, entry);
                        let rest = &mut self.rest[at];
                        rest.ram = rest.ram.min(after.ram + ram + hand_off);
                        rest.commit = rest.commit.min(after.commit + commit + if commits { hand_off } else { 0 });
                        rest.longest_s = rest.longest_s.min(after.longest_s.max(prompt_s));
                        let cost = self.cost(entry, prompt_s);
                        self.rest[at].cost = self.rest[at].cost.min(after.cost + cost);
                    }
                }
            }
        }
    }

    /// The least that a label can come to.
    fn least(&self, label: &Label, rest: &Rest) -> f64 {
        let cost = label.cost + rest.cost;
        match self.goal {
            Goal::Fastest | Goal::FastestOnHost => cost + self.on.weights.waiting_s(label.longest_s.max(rest.longest_s)),
            Goal::Any | Goal::LeastShort => cost,
        }
    }

    fn is_hopeless(&self, label: &Label, state: usize) -> bool {
        let rest = &self.rest[self.place(state, label.end as usize)];
        let budget = &self.on.budget;
        let host = self.goal.heeds_host()
            && (label.ram + rest.ram > budget.ram || budget.commit.is_some_and(|most| label.commit + rest.commit > most));
        rest.cost.is_infinite() || host || self.least(label, rest) > self.bound * SLACK
    }

    fn after(&self, at: u32, group: usize, end: usize) -> Option<Label> {
        let label = &self.labels[at as usize];
        let start = label.end as usize;
        let entry = self.on.table.get(group, start, end);
        if self.is_barred(entry) || label.stages as usize >= MAX_STAGES {
            return None;
        }
        let budget = &self.on.budget;
        let prompt_s = self.prompt_s(entry, start, end);
        let (ram, commit) = self.host_cost(group, entry);
        let device = !self.on.ctx.cards[self.on.groups.members[group][0]].shares_host;
        let once = if start > 0 { budget.hand_off } else { 0 }
            + if label.all_held && !entry.all_held { budget.partial } else { 0 }
            + if device && !label.device { budget.staging } else { 0 };
        Some(Label {
            cost: label.cost + self.cost(entry, prompt_s),
            decode_s: label.decode_s + entry.decode_s,
            prompt_s: label.prompt_s + prompt_s,
            longest_s: label.longest_s.max(prompt_s),
            ram: label.ram + ram + once,
            commit: label.commit + commit + if budget.commit.is_some() { once } else { 0 },
            held: label.held + entry.held,
            headroom: label.headroom.min(entry.headroom),
            stages: label.stages + 1,
            all_held: label.all_held && entry.all_held,
            device: label.device || device,
            before: at,
            group: group as u32,
            end: end as u32,
        })
    }

    fn extend(&mut self, at: u32, state: usize, start: usize) {
        if self.is_hopeless(&self.labels[at as usize], state) {
            return;
        }
        let graph = self.graph;
        for &(group, next) in &graph.steps[state] {
            for end in start + 1..=self.on.table.layers {
                self.steps += 1;
                let Some(label) = self.after(at, group, end) else { continue };
                if self.is_hopeless(&label, next) {
                    continue;
                }
                if end == self.on.table.layers {
                    self.finish(&label);
                } else {
                    self.keep(label, next);
                }
            }
        }
    }

    /// Straight to one good layout, so that others can be measured by it: always the step that can come to the least.
    fn dive(&mut self) {
        let (mut at, mut state) = (0u32, 0usize);
        loop {
            let start = self.labels[at as usize].end as usize;
            let mut next: Option<(f64, Label, usize)> = None;
            for &(group, after) in &self.graph.steps[state] {
                for end in start + 1..=self.on.table.layers {
                    self.steps += 1;
                    let Some(label) = self.after(at, group, end).filter(|label| !self.is_hopeless(label, after)) else {
                        continue;
                    };
                    let least = self.least(&label, &self.rest[self.place(after, end)]);
                    if next.as_ref().is_none_or(|(best, ..)| least < *best) {
                        next = Some((least, label, after));
                    }
                }
            }
            let Some((_, label, after)) = next else { return };
            if label.end as usize == self.on.table.layers {
                return self.finish(&label);
            }
            self.labels.push(label);
            (at, state) = (self.labels.len() as u32 - 1, after);
        }
    }

    /// Adds a label to its place, unless another there is at least as good.
    fn keep(&mut self, label: Label, state: usize) {
        let at = self.place(state, label.end as usize);
        let mut front = std::mem::take(&mut self.fronts[at]);
        if self.steps > MAX_STEPS && !front.is_empty() {
            self.limited = true;
            let rest = &self.rest[at];
            let better = front.iter().all(|other| self.least(&label, rest) < self.least(&self.labels[*other as usize], rest));
            if better {
                front.clear();
                front.push(self.push(label));
            }
        } else if !front.iter().any(|other| self.goes_before(&self.labels[*other as usize], &label)) {
            front.retain(|other| !self.dominates(&label, &self.labels[*other as usize]));
            front.push(self.push(label));
        }
        self.steps += front.len() as u64;
        self.fronts[at] = front;
    }

    fn push(&mut self, label: Label) -> u32 {
        self.labels.push(label);
        self.labels.len() as u32 - 1
    }

    /// Whether `a` makes `b` needless. Of two that are equally good the one with the earlier cards and shorter ranges stays.
    fn goes_before(&self, a: &Label, b: &Label) -> bool {
        self.dominates(a, b) && (!self.dominates(b, a) || self.path(a) <= self.path(b))
    }

    /// Whether whatever can still be added to `b` is at least as good added to `a`.
    fn dominates(&self, a: &Label, b: &Label) -> bool {
        let budget = &self.on.budget;
        // What `a` may still have to add once, and `b` has added already.
        let later =
            if a.all_held && !b.all_held { budget.partial } else { 0 } + if !a.device && b.device { budget.staging } else { 0 };
        let host = self.goal == Goal::Fastest
            || (a.ram + later <= b.ram && a.commit + later <= b.commit && a.device <= b.device && a.stages <= b.stages);
        let as_good = a.cost <= b.cost && a.held >= b.held && a.headroom >= b.headroom;
        let strictly = a.cost * SLACK < b.cost || matches!(self.goal, Goal::Any | Goal::LeastShort) && a.cost <= b.cost;
        host && a.longest_s <= b.longest_s && (strictly || as_good)
    }

    /// A complete layout.
    fn finish(&mut self, label: &Label) {
        let (cards, ends) = self.path(label);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let timed = matches!(self.goal, Goal::Fastest | Goal::FastestOnHost);
        let mut layout = Layout {
            cards,
            ranges: starts.zip(&ends).map(|(start, end)| LayerRange { start, end: *end }).collect(),
            chunk: self.on.table.chunk,
            objective_s: if timed { self.total_s(label) } else { label.cost },
            held: if timed { label.held } else { 0 },
            headroom: if timed { label.headroom } else { 0 },
        };
        if !layout.is_before(self.best.as_ref()) {
            return;
        }
        let Some(beside) = (self.judge)(&layout) else { return };
        layout.objective_s += beside;
        if layout.is_before(self.best.as_ref()) {
            self.bound = self.bound.min(layout.objective_s);
            self.best = Some(layout);
        }
    }

    fn total_s(&self, label: &Label) -> f64 {
        self.on.weights.decode_s(label.decode_s) + self.on.weights.prompt_s(label.prompt_s, label.longest_s)
    }

    /// Card and end of every stage.
    fn path(&self, label: &Label) -> (Vec<usize>, Vec<u32>) {
        let mut stages = vec![(label.group as usize, label.end)];
        let mut at = label.before;
        while at != 0 {
            let label = &self.labels[at as usize];
            stages.push((label.group as usize, label.end));
            at = label.before;
        }
        stages.reverse();
        let cards = self.on.groups.cards_of(stages.iter().map(|(group, _)| *group));
        (cards, stages.into_iter().map(|(_, end)| end).collect())
    }
}
