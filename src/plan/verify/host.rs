//! What each consumer takes of the host, and what the host has.

use super::{Check, Want, exactly, token_bytes};
use crate::plan::consumer::{Arena, Consumer};
use crate::plan::machine::{BackendKind, Os};
use crate::plan::model::{ConvFacts, LayerFacts, Mixer};
use crate::plan::planner::PlannedStage;
use crate::plan::rows::Pool;
use crate::plan::size::{GIB, MIB};

impl Check<'_> {
    /// The rule of every consumer, over all pools of the host.
    pub fn host_want(&self, consumer: Consumer) -> Want {
        let (s, model) = (&self.plan.settings, self.model);
        let (chunk, rows) = (u64::from(s.chunk), u64::from(s.chunk.max(s.decode_rows)));
        let streams = u64::from(model.streams) * u64::from(model.width);
        let boundaries = self.plan.stages.len().saturating_sub(1) as u64;
        match consumer {
            Consumer::Process => Want { least: 256 * MIB, most: GIB },
            Consumer::HostScratch => exactly(self.limits.scratch.iter().flatten().map(|built| built.host_bytes).sum()),
            Consumer::DriverHost => self.driver_host(),
            Consumer::EmbeddingCache => exactly(model.embedding.bytes().min(64 * MIB)),
            Consumer::NgramCache => exactly(model.ngram.map_or(0, |n| n.table.bytes().min(64 * MIB))),
            Consumer::Checkpoints => {
                exactly(u64::from(self.limits.checkpoints) * model.layers.iter().map(recurrent_bytes).sum::<u64>())
            }
            Consumer::Parked => exactly(self.limits.cache_ram),
            Consumer::HostHandOff => exactly(boundaries * 2 * rows * streams * 4),
            Consumer::HostStaging => {
                let floats = u64::from(model.width) + model.ngram.map_or(0, |n| u64::from(n.floats_per_token));
                exactly(2 * chunk * floats * 4)
            }
            Consumer::LoadStaging => exactly(if self.has_own_memory() { 128 * MIB } else { 0 }),
            Consumer::KvSpill => {
                let cells = s.cells.saturating_sub(s.resident_cells);
                let token = |l: &LayerFacts| match l.mixer {
                    Mixer::Attention { kv_heads, head_dim, .. } => token_bytes(s.kv, kv_heads.into(), head_dim.into()),
                    Mixer::Delta { .. } => 0,
                };
                exactly(u64::from(s.slots) * cells * model.layers.iter().map(token).sum::<u64>())
            }
            Consumer::VisionWeights | Consumer::VisionWork | Consumer::VisionRows => self.vision(consumer),
            Consumer::ExpertBuffers => self.expert_buffers(rows),
            Consumer::RamExperts => exactly(self.experts_off_cards()),
            Consumer::CardsInRam => exactly(self.taken(|stage| self.shares(stage))),
            Consumer::CommitOfHost => exactly(if self.is_windows() { self.host_bytes() } else { 0 }),
            Consumer::CommitOfCards => exactly(if self.is_windows() { self.taken(|stage| !self.shares(stage)) } else { 0 }),
            Consumer::DriverContext
            | Consumer::ModuleCode
            | Consumer::LibraryWorkspace
            | Consumer::Graphs
            | Consumer::DenseWeights
            | Consumer::Head
            | Consumer::DraftWeights
            | Consumer::DraftExperts
            | Consumer::ExpertsInPlace
            | Consumer::KvCache
            | Consumer::DraftKv
            | Consumer::IndexKeys
            | Consumer::RecurrentState
            | Consumer::ConvHistory
            | Consumer::HandOff
            | Consumer::SlotTables
            | Consumer::PromptWork
            | Consumer::SelectionScores
            | Consumer::KvWindow
            | Consumer::DecodeWork
            | Consumer::KernelScratch
            | Consumer::ExpertSlots
            | Consumer::LentSlots => exactly(0),
        }
    }

    fn is_windows(&self) -> bool {
        self.machine.host.os == Os::Windows
    }

    pub fn shares(&self, stage: &PlannedStage) -> bool {
        let card = &self.machine.cards[stage.card.0];
        card.shares_host_memory || card.backend == BackendKind::Cpu
    }

    /// A card has memory of its own.
    pub fn has_own_memory(&self) -> bool {
        self.plan.stages.iter().any(|stage| !self.shares(stage))
    }

    /// Arenas and drivers of some of the cards.
    fn taken(&self, which: impl Fn(&PlannedStage) -> bool) -> u64 {
        let of_stage = |stage: &PlannedStage| {
            let a = &stage.arenas;
            let driver: u64 = self.card_rows(stage).filter(|r| r.arena == Arena::Driver).map(|r| r.bytes).sum();
            a.weights_bytes + a.state_bytes + a.work_bytes + a.scratch_bytes + stage.slot_arena_bytes + driver
        };
        self.plan.stages.iter().filter(|stage| which(stage)).map(of_stage).sum()
    }

    /// Rows of RAM, pinned or not.
    pub fn host_bytes(&self) -> u64 {
        self.plan.rows.iter().filter(|r| matches!(r.pool, Pool::Ram | Pool::Pinned)).map(|r| r.bytes).sum()
    }

    fn driver_host(&self) -> Want {
        let least = self.plan.stages.iter().map(|stage| match self.machine.cards[stage.card.0].backend {
            BackendKind::Cuda => 200,
            BackendKind::Hip => 256,
            BackendKind::Vulkan | BackendKind::Dx12 => 100,
            BackendKind::Metal => 64,
            BackendKind::Cpu | BackendKind::Virtual => 0,
        });
        let least: u64 = least.sum::<u64>() * MIB;
        Want { least, most: 2 * least }
    }

    /// The encoder in RAM: its tensors; the residual with its norm and the widest of patches, queries with keys and values, and
    /// inner layer; rows of four pictures. Of a built one what it said.
    fn vision(&self, consumer: Consumer) -> Want {
        let Some(v) = self.model.vision.as_ref().filter(|_| self.limits.vision) else { return exactly(0) };
        let tokens = u64::from(self.limits.vision_tokens);
        let patches = tokens * v.joined;
        match (consumer, self.limits.vision_arenas) {
            (Consumer::VisionRows, _) => exactly(tokens * 4 * u64::from(self.model.width) * 4),
            (Consumer::VisionWeights, Some(built)) => exactly(built.weights_bytes),
            (_, Some(built)) => exactly(built.work_bytes),
            (Consumer::VisionWeights, None) => exactly(v.weights.bytes + v.places_bytes),
            (_, None) => {
                let (width, inner) = (u64::from(v.width), u64::from(v.inner));
                let least = patches * 4 * (2 * width + v.patch_floats.max(3 * width).max(inner));
                Want { least, most: least + 64 * patches + 4 * tokens + 1024 }
            }
        }
    }

    /// Inputs and results of all rows, hidden values of those that the processor has in work, and slabs for exchanges and reads.
    fn expert_buffers(&self, rows: u64) -> Want {
        let watched = self.limits.watch_experts && self.model.layers.iter().any(|l| l.experts.is_some());
        if !watched && self.plan.stages.iter().all(|stage| stage.all_held) {
            return exactly(0);
        }
        let width = u64::from(self.model.width);
        let experts = || self.model.layers.iter().filter_map(|l| l.experts.as_ref());
        let floats = experts().map(|e| {
            let (used, hidden) = (u64::from(e.used), e.params / (3 * width).max(1));
            rows * (width + used * width) + rows.min(512) * used * (hidden + width)
        });
        let slab = experts().map(|e| e.slab_bytes).max().unwrap_or(0);
        let least = 4 * floats.max().unwrap_or(0) + 33 * slab;
        Want { least, most: 2 * least + 2 * MIB + 64 * rows * experts().map(|e| u64::from(e.used)).max().unwrap_or(0) }
    }

    /// Every expert has a home: a copy of all in RAM but those that lie there in place, or those that are on no card.
    fn experts_off_cards(&self) -> u64 {
        let total: u64 =
            self.model.layers.iter().filter_map(|l| l.experts.as_ref()).map(|e| e.slab_bytes * u64::from(e.count)).sum();
        let held = |in_place: bool| {
            let stages = (0..self.plan.stages.len())
                .filter(|at| !in_place || self.machine.cards[self.plan.stages[*at].card.0].backend == BackendKind::Cpu);
            stages.map(|at| self.seen(at).kept_bytes()).sum::<u64>()
        };
        let copy_of_all = self.plan.settings.ram_experts == crate::plan::limits::RamExperts::All;
        total.saturating_sub(held(copy_of_all))
    }

    /// RAM that may be used, and what stays free of it.
    pub fn ram(&self) -> (u64, u64) {
        let host = &self.machine.host;
        let left = host.container_limit.map_or(u64::MAX, |l| l.0.saturating_sub(host.container_used.map_or(0, |u| u.0)));
        let display = self.machine.cards.iter().any(|c| c.drives_display && c.backend != BackendKind::Cpu);
        let floor = match host.os {
            _ if left < host.ram_available.0 => 512 * MIB,
            Os::Windows => 2 * GIB,
            Os::Macos => 3 * GIB,
            Os::Linux if display => 2 * GIB,
            Os::Linux | Os::Wsl => GIB,
        };
        (host.ram_available.0.min(left), floor)
    }

    /// Most bytes that can be pinned.
    pub fn pinnable(&self) -> u64 {
        let host = &self.machine.host;
        match host.os {
            _ if host.pinned_limit.is_some() => host.pinned_limit.map_or(0, |l| l.0),
            Os::Wsl => GIB,
            Os::Windows if self.plan.stages.len() > 1 => 8 * GIB,
            Os::Windows => host.ram_total.0 / 2,
            Os::Linux | Os::Macos => u64::MAX,
        }
    }

    /// Commit that is left, and what stays free of it.
    pub fn commit(&self) -> Option<(u64, u64)> {
        let host = &self.machine.host;
        let stated = host.commit_limit.zip(host.commit_used).map(|(limit, used)| (limit.0, used.0));
        let assumed = (host.ram_total.0 + host.page_file.map_or(0, |p| p.0), host.ram_total.0 - host.ram_available.0);
        let (limit, used) = stated.unwrap_or(assumed);
        self.is_windows().then_some((limit.saturating_sub(used), 2 * GIB))
    }
}

/// State of a sequence that counting does not take back.
fn recurrent_bytes(layer: &LayerFacts) -> u64 {
    let inputs = |c: &ConvFacts| u64::from(c.rows) * u64::from(c.channels) * 4;
    let own = match &layer.mixer {
        Mixer::Delta { value_heads, key_dim, value_dim, conv } => {
            4 * u64::from(*value_heads) * u64::from(*key_dim) * u64::from(*value_dim) + inputs(conv)
        }
        Mixer::Attention { .. } => 0,
    };
    own + layer.ngram_conv.as_ref().map_or(0, inputs)
}
