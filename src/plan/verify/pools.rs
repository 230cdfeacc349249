//! Rows and sheets say the same, and every row has its name, its place and its reason.

use std::collections::HashSet;

use super::card::floor_bytes;
use super::{ALIGN, Check};
use crate::plan::consumer::{Arena, Consumer, Lifetime};
use crate::plan::limits::RamExperts;
use crate::plan::machine::BackendKind;
use crate::plan::planner::PlannedStage;
use crate::plan::rows::{Pool, PoolSheet, Row};

impl Check<'_> {
    /// Rows have a name, a reason and a place; only rows of different times share bytes.
    pub fn rows(&mut self) {
        let mut ids = HashSet::new();
        for row in &self.plan.rows {
            self.require("rows", ids.insert(row.id.as_str()), || format!("{} is there twice", row.id));
            self.require("rows", row.bytes > 0 && !row.formula.is_empty(), || format!("{} has no bytes or no reason", row.id));
            let named = self.pool_name(row.pool).is_some_and(|name| row.id == format!("{name}/{}", row.consumer.id()));
            self.require("rows", named, || format!("{} is not the name of {:?} in {:?}", row.id, row.consumer, row.pool));
            let (arena, lifetime) = (row.consumer.arena(), row.consumer.lifetime());
            self.require("rows", row.arena == arena && row.lifetime == lifetime, || {
                format!("{} is in a wrong arena or time", row.id)
            });
            let elastic = matches!(row.consumer, Consumer::ExpertSlots | Consumer::RamExperts);
            self.require("rows", row.elastic == elastic, || format!("{} is elastic: {}", row.id, row.elastic));
            self.require("rows", self.lies_right(row), || format!("{} lies in {:?}", row.id, row.pool));
            let cut = row.buffers > 0 && (row.align >= ALIGN || arena == Arena::Host);
            self.require("rows", cut, || format!("{} has {} buffer(s) aligned to {}", row.id, row.buffers, row.align));
            let placed = !matches!(arena, Arena::Driver | Arena::Host);
            self.require("rows", row.offset.is_some() == placed, || format!("{} has a place: {:?}", row.id, row.offset));
            if let Some(offset) = row.offset {
                let aligned = offset.is_multiple_of(ALIGN) && row.bytes.is_multiple_of(ALIGN) && row.align >= ALIGN;
                self.require("alignment", aligned, || format!("{} lies at {offset}, {} bytes", row.id, row.bytes));
            }
        }
        for (i, a) in self.plan.rows.iter().enumerate() {
            for b in &self.plan.rows[i + 1..] {
                let (Some(at), Some(bt)) = (a.offset, b.offset) else { continue };
                let ends = (at.saturating_add(a.bytes), bt.saturating_add(b.bytes));
                let same_place = a.pool == b.pool && a.arena == b.arena && at < ends.1 && bt < ends.0;
                let at_once = a.lifetime == b.lifetime || a.lifetime == Lifetime::Always || b.lifetime == Lifetime::Always;
                self.require("overlap", !(same_place && at_once), || format!("{} and {} share bytes", a.id, b.id));
            }
        }
    }

    fn pool_name(&self, pool: Pool) -> Option<&str> {
        Some(match pool {
            Pool::Card(card) => &self.machine.cards.get(card.0)?.id,
            Pool::Ram => "ram",
            Pool::Pinned => "pinned",
            Pool::Commit => "commit",
            Pool::Disk => "disk",
        })
    }

    /// What a card copies from or to lies in pinned RAM.
    fn lies_right(&self, row: &Row) -> bool {
        use Consumer::{CommitOfCards, CommitOfHost, HostHandOff, HostStaging, KvSpill, LoadStaging, RamExperts};
        match (row.consumer, row.pool) {
            (HostHandOff | HostStaging | LoadStaging | KvSpill, pool) => {
                pool == if self.has_own_memory() { Pool::Pinned } else { Pool::Ram }
            }
            (RamExperts, pool) => matches!(pool, Pool::Ram | Pool::Pinned | Pool::Disk),
            (CommitOfHost | CommitOfCards, pool) => pool == Pool::Commit,
            (consumer, Pool::Card(_)) => consumer.arena() != Arena::Host,
            (consumer, pool) => consumer.arena() == Arena::Host && pool == Pool::Ram,
        }
    }

    /// Every pool that rows draw on has a sheet, which says what the rows say.
    pub fn sheets(&mut self) {
        let (ram, ram_floor) = self.ram();
        let budget = self.limits.ram_budget.filter(|budget| *budget < ram.saturating_sub(ram_floor));
        let (ram, ram_floor) = budget.map_or((ram, ram_floor), |budget| (budget, 0));
        self.sheet(Pool::Ram, ram, ram_floor, self.host_bytes());
        let of_pool = |pool| self.plan.rows.iter().filter(|r| r.pool == pool).map(|r| r.bytes).sum::<u64>();
        let (pinned, charged) = (of_pool(Pool::Pinned), of_pool(Pool::Commit));
        if self.has_own_memory() {
            self.sheet(Pool::Pinned, self.pinnable().min(ram.saturating_sub(ram_floor)), 0, pinned);
        }
        if let Some((left, floor)) = self.commit() {
            self.sheet(Pool::Commit, left, floor, charged);
        }
        for stage in &self.plan.stages {
            let card = &self.machine.cards[stage.card.0];
            let reserve = if card.backend == BackendKind::Cpu { 0 } else { self.limits.reserve.unwrap_or(0) };
            self.sheet(Pool::Card(stage.card), card.free.0, floor_bytes(card).max(reserve), self.used(stage));
        }
        let most = 2 + usize::from(self.has_own_memory()) + self.plan.stages.len();
        self.require("pools", self.plan.pools.len() <= most, || "there are sheets of pools that are not used".into());
    }

    fn sheet(&mut self, pool: Pool, capacity: u64, floor: u64, used: u64) {
        let mut of_pool = self.plan.pools.iter().filter(|sheet| sheet.pool == pool);
        let (Some(sheet), None) = (of_pool.next(), of_pool.next()) else {
            return self.require("pools", false, || format!("{pool:?} has no sheet, or two"));
        };
        let PoolSheet { name, .. } = sheet;
        self.equal("pools", &format!("capacity of {name}"), sheet.capacity, capacity);
        self.equal("pools", &format!("floor of {name}"), sheet.floor, floor);
        self.equal("pools", &format!("use of {name}"), sheet.used, used);
        self.equal("pools", &format!("free bytes of {name}"), sheet.free, capacity.saturating_sub(used));
        self.equal("pools", &format!("shortage of {name}"), sheet.short, 0);
        self.equal("pools", &format!("bound and gap of {name}"), sheet.bound.saturating_add(sheet.gap), used);
        let fits = used.saturating_add(floor) <= capacity;
        self.require("pools", fits, || format!("{name} is over its capacity: {used} bytes and a floor of {floor} of {capacity}"));
    }

    /// Bytes up to the ends of a card's arenas, and what the driver has.
    fn used(&self, stage: &PlannedStage) -> u64 {
        let arenas = [Arena::Weights, Arena::State, Arena::Work, Arena::Scratch, Arena::Experts];
        let driver = self.card_rows(stage).filter(|r| r.arena == Arena::Driver).map(|r| r.bytes);
        arenas.iter().map(|arena| self.extent(stage, *arena)).sum::<u64>() + driver.sum::<u64>()
    }

    /// Experts are on disk only if somebody asked for it, and a copy of all is in RAM only if that was not forbidden.
    pub fn homes(&mut self) {
        let disk: u64 = self.plan.rows.iter().filter(|r| r.pool == Pool::Disk).map(|r| r.bytes).sum();
        let wanted = self.limits.ram_experts == RamExperts::Disk;
        self.require("homes", disk == 0 || wanted, || "experts are left on disk, which nobody asked for".into());
        let (asked, done) = (self.limits.ram_experts, self.plan.settings.ram_experts);
        let granted = match asked {
            RamExperts::Auto | RamExperts::All => matches!(done, RamExperts::All | RamExperts::Complement),
            RamExperts::Complement | RamExperts::Disk => done == asked,
        };
        self.require("homes", granted, || format!("{} was asked for, {} is planned", asked.name(), done.name()));
        let counted: u64 = self.plan.stages.iter().flat_map(|s| &s.held).map(|n| u64::from(*n)).sum();
        self.equal("homes", "experts on cards", self.plan.held_experts, counted);
        let all = self.model.layers.iter().filter_map(|l| l.experts.as_ref()).map(|e| u64::from(e.count)).sum();
        self.equal("homes", "experts", self.plan.experts, all);
    }
}
