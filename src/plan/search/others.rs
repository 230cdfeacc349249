//! Other splits for the report: the best one of each other order of cards.

use crate::plan::host::HostSupplies;
use crate::plan::rules::MAX_STAGES;

use super::groups::{Graph, Groups};
use super::walk::{Goal, Ground, Walk};
use super::{Layout, host_short};

/// More orders than this are not looked at one by one.
const MAX_ORDERS: usize = 400;
const MAX_OTHERS: usize = 8;

/// The best splits of other orders than `best` has, with its chunk, best first.
pub fn others(ground: Ground<'_>, supplies: &HostSupplies, best: &Layout, steps: &mut u64) -> Vec<Layout> {
    let judge = |layout: &Layout| (host_short(ground, supplies, layout) == 0).then_some(0.0);
    let mut others: Vec<Layout> = Vec::new();
    for order in orders(ground, best) {
        let bound = others.get(MAX_OTHERS - 1).map_or(f64::INFINITY, |layout| layout.objective_s);
        let graph = Graph::chain(&order);
        let mut walk = Walk::new(ground, &graph, Goal::FastestOnHost, bound, &judge);
        walk.run();
        *steps += walk.steps;
        others.extend(walk.best.take());
        others.sort_by(|a, b| a.objective_s.total_cmp(&b.objective_s));
        others.truncate(MAX_OTHERS);
    }
    others
}

/// All other orders of cards, or, where there are too many, those that are near the best one.
fn orders(ground: Ground<'_>, best: &Layout) -> Vec<Vec<usize>> {
    let groups = ground.groups;
    if ground.ctx.limits.layer_split.is_some() {
        return vec![];
    }
    let least = if ground.ctx.limits.devices.is_some() { groups.cards() } else { 1 };
    let mut all = Vec::new();
    let complete = extend(groups, ground.table.layers, least, &mut Vec::new(), &mut all);
    let of_best: Vec<usize> = best.cards.iter().filter_map(|card| groups.of(*card)).collect();
    let mut orders = if complete { all } else { near(&of_best, groups, least) };
    orders.retain(|order| *order != of_best);
    orders
}

fn extend(groups: &Groups, layers: usize, least: usize, order: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) -> bool {
    if order.len() >= least {
        all.push(order.clone());
    }
    if all.len() > MAX_ORDERS {
        return false;
    }
    if order.len() == layers.min(MAX_STAGES) {
        return true;
    }
    for group in 0..groups.len() {
        if order.iter().filter(|g| **g == group).count() == groups.members[group].len() {
            continue;
        }
        order.push(group);
        let complete = extend(groups, layers, least, order, all);
        order.pop();
        if !complete {
            return false;
        }
    }
    true
}

/// One card fewer, two neighbours exchanged, the reverse, and every card alone.
fn near(best: &[usize], groups: &Groups, least: usize) -> Vec<Vec<usize>> {
    let mut orders: Vec<Vec<usize>> = vec![best.iter().rev().copied().collect()];
    for at in 0..best.len() {
        let mut fewer = best.to_vec();
        fewer.remove(at);
        orders.push(fewer);
        if at > 0 {
            let mut swapped = best.to_vec();
            swapped.swap(at - 1, at);
            orders.push(swapped);
        }
    }
    orders.extend((0..groups.len()).map(|group| vec![group]));
    orders.retain(|order| !order.is_empty() && order.len() >= least);
    orders.sort();
    orders.dedup();
    orders
}
