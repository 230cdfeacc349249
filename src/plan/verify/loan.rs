//! Slots of experts that the buffers of prompts lie on.

use super::Check;
use crate::plan::consumer::{Consumer, Lifetime};
use crate::plan::limits::RamExperts;
use crate::plan::machine::BackendKind;
use crate::plan::planner::PlannedStage;
use crate::plan::rows::Pool;

impl Check<'_> {
    /// Slots that prompts borrow: only where a card can have both on the same bytes and RAM has the experts; they lie behind the
    /// slots that stay, in the order of the arena, and fill what prompts leave unused while none is read.
    pub fn loan(&mut self, stage: &PlannedStage) {
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
        let wasted =
            may && !stage.all_held && self.limits.expert_slots.is_none() && room >= slab.saturating_add(self.tables_bytes(stage));
        self.require("loan", !wasted, || format!("{room} bytes are unused while no prompt is read"));
    }
}
