//! From a plan to slots: how many experts of each layer the cards and RAM hold.

use crate::plan::{Consumer, Plan, PlanModel, Pool};

/// Slots of each layer on its card, where some card holds only some of its experts. Layers that are held whole have `u32::MAX`:
/// they need no table. With `observe` every layer of experts has a table, so that one sees what is chosen.
pub fn card_slots(plan: &Plan, model: &PlanModel, observe: bool) -> Option<Vec<u32>> {
    if plan.stages.iter().all(|s| s.all_held) && !observe {
        return None;
    }
    let mut slots = vec![u32::MAX; model.layers.len()];
    for stage in &plan.stages {
        for (layer, (held, kept)) in stage.layers.indices().zip(stage.held.iter().zip(stage.kept())) {
            if let Some(experts) = &model.layers[layer].experts
                && (observe || kept < experts.count)
            {
                slots[layer] = *held;
            }
        }
    }
    Some(slots)
}

/// Slots of each layer that prompts borrow, where some are.
pub fn lent_slots(plan: &Plan) -> Option<Vec<u32>> {
    let lent: Vec<u32> = plan.stages.iter().flat_map(|stage| &stage.lent).copied().collect();
    lent.iter().any(|n| *n > 0).then_some(lent)
}

/// Slots of each layer in RAM: of all experts, of those that no card keeps, or of as many as RAM has room for.
pub fn ram_slots(plan: &Plan, model: &PlanModel) -> Vec<u32> {
    let bytes = ram_bytes(plan);
    let mut wanted = vec![0; model.layers.len()];
    let all = plan.settings.ram_experts == crate::plan::RamExperts::All;
    for stage in &plan.stages {
        for (layer, kept) in stage.layers.indices().zip(stage.kept()) {
            let count = model.layers[layer].experts.as_ref().map_or(0, |e| e.count);
            wanted[layer] = if all { count } else { count - kept };
        }
    }
    let slab = |layer: usize| model.layers[layer].experts.as_ref().map_or(0, |e| e.slab_bytes);
    spread(&wanted, &slab, bytes)
}

/// Bytes of RAM that the plan gives to experts.
pub fn ram_bytes(plan: &Plan) -> u64 {
    let rows = plan.rows.iter().filter(|r| r.consumer == Consumer::RamExperts && matches!(r.pool, Pool::Ram | Pool::Pinned));
    rows.map(|r| r.bytes).sum()
}

/// Of these, the bytes that are pinned.
pub fn pinned_bytes(plan: &Plan) -> u64 {
    let rows = plan.rows.iter().filter(|r| r.consumer == Consumer::RamExperts && r.pool == Pool::Pinned);
    rows.map(|r| r.bytes).sum()
}

/// Where a layer that its card holds partly has no slot in RAM: the bytes for one expert of each such layer.
pub fn lacking_ram(plan: &Plan, model: &PlanModel, ram_slots: &[u32]) -> Option<u64> {
    let (mut lacking, mut least) = (false, 0);
    for stage in &plan.stages {
        for (layer, kept) in stage.layers.indices().zip(stage.kept()) {
            if let Some(experts) = model.layers[layer].experts.as_ref().filter(|e| kept < e.count) {
                lacking |= ram_slots[layer] == 0;
                least += experts.slab_bytes;
            }
        }
    }
    lacking.then_some(least)
}

/// The same number for every layer, up to what it wants, as long as there is room; what is left goes to the first layers.
fn spread(wanted: &[u32], slab: &dyn Fn(usize) -> u64, bytes: u64) -> Vec<u32> {
    let mut given = vec![0; wanted.len()];
    let mut left = bytes;
    loop {
        let open: Vec<usize> = (0..wanted.len()).filter(|l| given[*l] < wanted[*l]).collect();
        let round: u64 = open.iter().map(|l| slab(*l)).sum();
        let most = open.iter().map(|l| wanted[*l] - given[*l]).min().unwrap_or(0);
        let rounds = (left / round.max(1)).min(most.into()) as u32;
        if rounds == 0 {
            for l in open.into_iter().filter(|l| slab(*l) > 0) {
                if slab(l) <= left {
                    given[l] += 1;
                    left -= slab(l);
                }
            }
            return given;
        }
        open.iter().for_each(|l| given[*l] += rounds);
        left -= round * u64::from(rounds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_spread_evenly_and_never_exceeded() {
        let slab = |l: usize| [10, 20, 0, 10][l];
        assert_eq!(spread(&[4, 4, 0, 4], &slab, 160), [4, 4, 0, 4]);
        assert_eq!(spread(&[4, 4, 0, 4], &slab, 1000), [4, 4, 0, 4]);
        assert_eq!(spread(&[4, 4, 0, 4], &slab, 80), [2, 2, 0, 2]);
        assert_eq!(spread(&[4, 4, 0, 4], &slab, 95), [3, 2, 0, 2]);
        assert_eq!(spread(&[1, 4, 0, 4], &slab, 100), [1, 3, 0, 3]);
        for bytes in 0..200 {
            let given = spread(&[4, 3, 0, 2], &slab, bytes);
            let used: u64 = given.iter().enumerate().map(|(l, n)| slab(l) * u64::from(*n)).sum();
            assert!(used <= bytes, "{given:?} of {bytes}");
        }
    }
}
