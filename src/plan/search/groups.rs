//! Cards that are equal in everything that matters, and which of them can follow one another.

use crate::plan::context::Context;
use crate::plan::rules::MAX_STAGES;

use super::Weights;
use super::table::Table;

/// Equal cards are one group; a layout takes the first of them first.
#[derive(Debug, Clone)]
pub struct Groups {
    pub members: Vec<Vec<usize>>,
    /// Groups in the order of the cards, as the user listed them.
    pub sequence: Vec<usize>,
}

impl Groups {
    pub fn new(ctx: &Context<'_>) -> Groups {
        let mut roots: Vec<usize> = Vec::new();
        let (mut members, mut sequence) = (Vec::<Vec<usize>>::new(), Vec::new());
        for &card in &ctx.eligible {
            let root = ctx.cards[card].same_as.unwrap_or(card);
            let group = roots.iter().position(|r| *r == root).unwrap_or_else(|| {
                roots.push(root);
                members.push(Vec::new());
                roots.len() - 1
            });
            members[group].push(card);
            sequence.push(group);
        }
        Groups { members, sequence }
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn cards(&self) -> usize {
        self.sequence.len()
    }

    /// The cards that a sequence of groups stands for.
    pub fn cards_of(&self, groups: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut taken = vec![0; self.len()];
        groups
            .map(|g| {
                taken[g] += 1;
                self.members[g][taken[g] - 1]
            })
            .collect()
    }

    /// The group of a card.
    pub fn of(&self, card: usize) -> Option<usize> {
        self.members.iter().position(|members| members.contains(&card))
    }
}

/// Which group may come next, and where a layout may end. Every step leads to a higher state; the first state is 0.
#[derive(Debug, Clone)]
pub struct Graph {
    /// For each state: a group, and the state after it.
    pub steps: Vec<Vec<(usize, usize)>>,
    pub ends: Vec<bool>,
}

impl Graph {
    /// All orders of all choices of cards, `counts[g]` of group `g` at most, at once: a state is how many of each group are taken.
    pub fn choices(counts: &[usize]) -> Graph {
        let states: usize = counts.iter().map(|n| n + 1).product();
        let mut steps = vec![Vec::new(); states];
        for (state, steps) in steps.iter_mut().enumerate() {
            let (mut rest, mut stride, mut taken) = (state, 1, 0);
            for (group, most) in counts.iter().enumerate() {
                let of_group = rest % (most + 1);
                if of_group < *most {
                    steps.push((group, state + stride));
                }
                taken += of_group;
                rest /= most + 1;
                stride *= most + 1;
            }
            if taken >= MAX_STAGES {
                steps.clear();
            }
        }
        Graph { steps, ends: (0..states).map(|state| state > 0).collect() }
    }

    /// The same where all cards have to be used.
    pub fn all_of(counts: &[usize]) -> Graph {
        let mut graph = Graph::choices(counts);
        let last = graph.ends.len() - 1;
        graph.ends.fill(false);
        graph.ends[last] = true;
        graph
    }

    /// One order of cards, each of them used.
    pub fn chain(order: &[usize]) -> Graph {
        let steps = (0..=order.len()).map(|at| order.get(at).map(|g| (*g, at + 1)).into_iter().collect());
        Graph { steps: steps.collect(), ends: (0..=order.len()).map(|at| at == order.len()).collect() }
    }

    /// One order of cards, with any of them left out.
    pub fn subsequences(order: &[usize]) -> Graph {
        let steps = (0..=order.len()).map(|at| order[at..].iter().zip(at + 1..).map(|(g, next)| (*g, next)).collect());
        Graph { steps: steps.collect(), ends: (0..=order.len()).map(|at| at > 0).collect() }
    }
}

/// What is looked at, and whether that is everything.
pub struct Routes {
    pub graphs: Vec<Graph>,
    pub limited: bool,
}

/// Choices of cards that are looked at in every order: all choices of eight different cards, or of many equal ones.
const MAX_CHOICES: usize = 256;

impl Routes {
    pub fn new(ctx: &Context<'_>, groups: &Groups, table: &Table, weights: Weights) -> Routes {
        if let Some(split) = &ctx.limits.layer_split {
            let order = &groups.sequence[..split.len().min(groups.cards())];
            return Routes { graphs: vec![Graph::chain(order)], limited: false };
        }
        if ctx.limits.devices.is_some() {
            return Routes::using_all(groups, table, weights);
        }
        Routes::choosing(groups, table, weights, |group| table.is_of_use(group))
    }

    /// The same, with the cards that have no room for anything as long as there are few.
    pub fn for_refusal(ctx: &Context<'_>, groups: &Groups, table: &Table, weights: Weights) -> Routes {
        let counts: Vec<usize> = groups.members.iter().map(Vec::len).collect();
        if ctx.limits.layer_split.is_some() || ctx.limits.devices.is_some() || choices(&counts) > MAX_CHOICES {
            return Routes::new(ctx, groups, table, weights);
        }
        Routes::choosing(groups, table, weights, |_| true)
    }

    fn choosing(groups: &Groups, table: &Table, weights: Weights, is_useful: impl Fn(usize) -> bool) -> Routes {
        let useful: Vec<bool> = (0..groups.len()).map(is_useful).collect();
        let counts: Vec<usize> =
            (0..groups.len()).map(|g| if useful[g] { groups.members[g].len().min(MAX_STAGES) } else { 0 }).collect();
        if choices(&counts) <= MAX_CHOICES {
            return Routes { graphs: vec![Graph::choices(&counts)], limited: false };
        }
        let ranked: Vec<usize> = ranked(groups, table, weights).into_iter().filter(|g| useful[*g]).collect();
        let in_machine: Vec<usize> = groups.sequence.iter().copied().filter(|g| useful[*g]).collect();
        let mut graphs = vec![Graph::choices(&best_counts(&ranked, groups.len()))];
        graphs.extend(orders(in_machine, ranked).iter().map(|order| Graph::subsequences(order)));
        Routes { graphs, limited: true }
    }

    fn using_all(groups: &Groups, table: &Table, weights: Weights) -> Routes {
        let counts: Vec<usize> = groups.members.iter().map(Vec::len).collect();
        if choices(&counts) <= MAX_CHOICES {
            return Routes { graphs: vec![Graph::all_of(&counts)], limited: false };
        }
        let orders = orders(groups.sequence.clone(), ranked(groups, table, weights));
        Routes { graphs: orders.iter().map(|order| Graph::chain(order)).collect(), limited: true }
    }
}

fn choices(counts: &[usize]) -> usize {
    counts.iter().fold(1, |product, n| product.saturating_mul(n + 1))
}

/// An order and its reverse, of the cards as they are listed and from the best to the worst.
fn orders(in_machine: Vec<usize>, ranked: Vec<usize>) -> Vec<Vec<usize>> {
    let mut orders = Vec::new();
    for order in [in_machine, ranked] {
        orders.push(order.iter().rev().copied().collect());
        orders.push(order);
    }
    orders
}

/// A group for each card, from the best to the worst. The measure is what an eighth of the model costs on the card: it does not
/// depend on the other cards, so another card never changes who is ahead of whom.
fn ranked(groups: &Groups, table: &Table, weights: Weights) -> Vec<usize> {
    let cost = |group: usize, length: usize| {
        let start = (table.layers - length) / 2;
        let entry = table.get(group, start, start + length);
        if entry.short > 0 { f64::INFINITY } else { weights.decode_s(entry.decode_s) + weights.prompt_s(entry.prompt_s[1], 0.0) }
    };
    // Where there is no room for as much, a single layer decides.
    let costs: Vec<[f64; 2]> = (0..groups.len()).map(|g| [table.layers.div_ceil(8), 1].map(|length| cost(g, length))).collect();
    let mut ranked = groups.sequence.clone();
    ranked.sort_by(|a, b| costs[*a][0].total_cmp(&costs[*b][0]).then(costs[*a][1].total_cmp(&costs[*b][1])));
    ranked
}

/// As many of the best cards as can be looked at in every order.
fn best_counts(ranked: &[usize], groups: usize) -> Vec<usize> {
    let mut counts = vec![0; groups];
    for &group in ranked {
        counts[group] += 1;
        if choices(&counts) > MAX_CHOICES || counts[group] > MAX_STAGES {
            counts[group] -= 1;
        }
    }
    counts
}
