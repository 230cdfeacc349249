//! What each consumer takes on a card, from the specification.

use super::{Check, Want, exactly, token_bytes, up};
use crate::plan::consumer::Consumer;
use crate::plan::limits::{RamExperts, StageScratch};
use crate::plan::machine::{BackendKind, Card, DriverKind};
use crate::plan::model::{ConvFacts, ExpertFacts, LayerFacts, Mixer, PlanModel, WorkBuffer};
use crate::plan::planner::{PlannedStage, Settings};
use crate::plan::size::{MIB, Size};

/// A stage with what its consumers are computed from.
pub struct Seen<'a> {
    model: &'a PlanModel,
    settings: &'a Settings,
    stage: &'a PlannedStage,
    card: &'a Card,
    layers: &'a [LayerFacts],
    first: bool,
    last: bool,
    draft: Option<&'a LayerFacts>,
    draft_head_bytes: u64,
    /// The experts lie where they are loaded, because the card is the processor.
    in_place: bool,
    watched: bool,
    scratch: Option<StageScratch>,
}

impl<'a> Check<'a> {
    pub fn seen(&self, at: usize) -> Seen<'a> {
        let stage = &self.plan.stages[at];
        let card = &self.machine.cards[stage.card.0];
        let last = stage.layers.end as usize == self.model.layers.len();
        let draft = self.model.draft.as_ref().filter(|_| last && self.limits.draft);
        Seen {
            model: self.model,
            settings: &self.plan.settings,
            stage,
            card,
            layers: self.layers(stage),
            first: stage.layers.start == 0,
            last,
            draft: draft.map(|d| &d.block),
            draft_head_bytes: draft.map_or(0, |d| d.head_bytes),
            in_place: card.backend == BackendKind::Cpu && self.limits.ram_experts != RamExperts::Disk,
            watched: self.limits.watch_experts,
            scratch: self.limits.scratch.as_ref().and_then(|scratch| scratch.get(at).copied()),
        }
    }
}

impl Seen<'_> {
    /// The rule of every consumer. Consumers of the host take nothing here.
    pub fn want(&self, consumer: Consumer) -> Want {
        match consumer {
            Consumer::DriverContext | Consumer::ModuleCode | Consumer::LibraryWorkspace | Consumer::Graphs => {
                self.driver(consumer)
            }
            Consumer::DenseWeights => exactly(self.layers.iter().map(|l| up(l.dense.bytes - self.unread_bytes(l))).sum()),
            Consumer::Head => exactly(if self.last { up(self.model.head.bytes) } else { 0 }),
            Consumer::DraftWeights => exactly(self.draft.map_or(0, |d| up(d.dense.bytes + self.draft_head_bytes))),
            Consumer::DraftExperts => exactly(self.draft.and_then(|d| d.experts.as_ref()).map_or(0, |e| up(all_bytes(e)))),
            Consumer::ExpertsInPlace => exactly(if self.in_place { self.experts().map(|e| up(all_bytes(e))).sum() } else { 0 }),
            Consumer::KvCache => exactly(self.layers.iter().map(|l| self.kv(l, self.settings.resident_cells)).sum()),
            Consumer::DraftKv => exactly(self.draft.map_or(0, |d| self.kv(d, self.settings.cells))),
            Consumer::IndexKeys => exactly(self.layers.iter().map(|l| self.index_keys(l)).sum()),
            Consumer::RecurrentState => exactly(self.with_draft().map(|l| self.recurrent(l)).sum()),
            Consumer::ConvHistory => exactly(self.with_draft().map(|l| self.conv_history(l)).sum()),
            Consumer::HandOff => exactly(self.handed_on()),
            Consumer::SlotTables => exactly(self.tables().map(|e| up(4 * u64::from(e.count))).sum()),
            Consumer::PromptWork => self.work(self.settings.chunk, self.handed_on()),
            Consumer::DecodeWork => self.work(self.settings.decode_rows, 0),
            Consumer::SelectionScores => exactly(self.scores()),
            Consumer::KvWindow => exactly(self.window()),
            Consumer::KernelScratch => self.scratch(),
            Consumer::ExpertSlots => exactly(if self.in_place { 0 } else { up(self.kept_bytes()) }),
            Consumer::LentSlots => exactly(up(self.lent_bytes())),
            Consumer::Process
            | Consumer::HostScratch
            | Consumer::DriverHost
            | Consumer::EmbeddingCache
            | Consumer::NgramCache
            | Consumer::Checkpoints
            | Consumer::Parked
            | Consumer::HostHandOff
            | Consumer::HostStaging
            | Consumer::LoadStaging
            | Consumer::KvSpill
            | Consumer::VisionWeights
            | Consumer::VisionWork
            | Consumer::VisionRows
            | Consumer::ExpertBuffers
            | Consumer::RamExperts
            | Consumer::CardsInRam
            | Consumer::CommitOfHost
            | Consumer::CommitOfCards => exactly(0),
        }
    }

    /// Stated sizes as they are, unless they are in the free figure already. What was not measured is at least what drivers of
    /// the kind were ever seen to take.
    fn driver(&self, consumer: Consumer) -> Want {
        let (stated, in_free, [cuda, hip, graphics, metal]) = match consumer {
            Consumer::DriverContext => (self.card.context_bytes, true, [300, 256, 128, 64]),
            Consumer::ModuleCode => (self.card.module_bytes, true, [100, 100, 40, 20]),
            Consumer::LibraryWorkspace => (self.card.library_bytes, true, [64, 64, 0, 0]),
            _ => (self.card.graph_bytes, false, [80, 80, 0, 0]),
        };
        let least = match self.card.backend {
            BackendKind::Cuda => cuda,
            BackendKind::Hip => hip,
            BackendKind::Vulkan | BackendKind::Dx12 => graphics,
            BackendKind::Metal => metal,
            BackendKind::Cpu | BackendKind::Virtual => 0,
        };
        match stated {
            _ if in_free && self.card.opened => exactly(0),
            Some(Size(bytes)) => exactly(up(bytes)),
            None if least == 0 => exactly(0),
            None => Want { least: least * MIB, most: 3 * least * MIB },
        }
    }

    fn experts(&self) -> impl Iterator<Item = &ExpertFacts> {
        self.layers.iter().filter_map(|l| l.experts.as_ref())
    }

    fn with_draft(&self) -> impl Iterator<Item = &LayerFacts> {
        self.layers.iter().chain(self.draft)
    }

    /// Rows of the widest window.
    fn rows(&self) -> u64 {
        u64::from(self.settings.chunk.max(self.settings.decode_rows))
    }

    fn stream_floats(&self) -> u64 {
        u64::from(self.model.streams) * u64::from(self.model.width)
    }

    /// The most experts that a token calls in a layer.
    fn used(&self) -> u64 {
        self.experts().map(|e| u64::from(e.used)).max().unwrap_or(0)
    }

    /// Whether the experts of a layer are found by a table: some are elsewhere, or somebody watches which are chosen.
    fn has_table(&self, at: usize) -> bool {
        let kept = self.stage.held.get(at).zip(self.stage.lent.get(at)).map_or(0, |(held, lent)| held.saturating_sub(*lent));
        self.layers[at].experts.as_ref().is_some_and(|e| self.watched || kept < e.count)
    }

    fn tables(&self) -> impl Iterator<Item = &ExpertFacts> {
        let layers = self.layers.iter().enumerate().filter(|(at, _)| self.has_table(*at));
        layers.filter_map(|(_, l)| l.experts.as_ref())
    }

    /// Bytes of the experts that never leave the card.
    pub fn kept_bytes(&self) -> u64 {
        self.slab_bytes(self.stage.kept())
    }

    /// Bytes of those that leave while a prompt is read.
    fn lent_bytes(&self) -> u64 {
        self.slab_bytes(self.stage.lent.iter().copied())
    }

    fn slab_bytes(&self, numbers: impl Iterator<Item = u32>) -> u64 {
        let slabs = self.layers.iter().map(|l| l.experts.as_ref().map_or(0, |e| e.slab_bytes));
        numbers.zip(slabs).map(|(number, slab)| u64::from(number) * slab).sum()
    }

    fn versions(&self) -> u64 {
        self.settings.versions.into()
    }

    fn slots(&self) -> u64 {
        self.settings.slots.into()
    }

    fn kv(&self, layer: &LayerFacts, cells: u64) -> u64 {
        match layer.mixer {
            Mixer::Attention { kv_heads, head_dim, .. } => {
                self.slots() * up(cells * token_bytes(self.settings.kv, kv_heads.into(), head_dim.into()))
            }
            Mixer::Delta { .. } => 0,
        }
    }

    /// Only a cache that holds more blocks than are chosen needs an indexer.
    fn is_indexed(&self, layer: &LayerFacts) -> bool {
        match layer.mixer {
            Mixer::Attention { index: Some(i), .. } => {
                self.settings.cells / u64::from(i.ratio.max(1)) > u64::from(i.budget / i.ratio.max(1))
            }
            _ => false,
        }
    }

    fn unread_bytes(&self, layer: &LayerFacts) -> u64 {
        match layer.mixer {
            Mixer::Attention { index: Some(i), .. } if !self.is_indexed(layer) => i.weights_bytes,
            _ => 0,
        }
    }

    /// A key of every cell and one of every block.
    fn index_keys(&self, layer: &LayerFacts) -> u64 {
        match layer.mixer {
            Mixer::Attention { index: Some(i), .. } if self.is_indexed(layer) => {
                let keys = self.settings.cells + self.settings.cells / u64::from(i.ratio.max(1));
                self.slots() * up(4 * keys * u64::from(i.dim))
            }
            _ => 0,
        }
    }

    fn recurrent(&self, layer: &LayerFacts) -> u64 {
        match layer.mixer {
            Mixer::Delta { value_heads, key_dim, value_dim, .. } => {
                let one = 4 * u64::from(value_heads) * u64::from(key_dim) * u64::from(value_dim);
                self.slots() * up(self.versions() * one)
            }
            Mixer::Attention { .. } => 0,
        }
    }

    /// Inputs before a window, and those of all of its rows but one.
    fn conv_history(&self, layer: &LayerFacts) -> u64 {
        let ring = |c: &ConvFacts| self.slots() * up((u64::from(c.rows) + self.versions() - 1) * u64::from(c.channels) * 4);
        let own = match &layer.mixer {
            Mixer::Delta { conv, .. } => ring(conv),
            Mixer::Attention { .. } => 0,
        };
        own + layer.ngram_conv.as_ref().map_or(0, ring)
    }

    /// The rows of the largest window, on a stage that hands them on or is handed them.
    fn handed_on(&self) -> u64 {
        if self.first && self.last { 0 } else { up(self.rows() * self.stream_floats() * 4) }
    }

    /// No packing takes less than what is alive at the worst step of the worst layer, and a good one not much more.
    fn work(&self, rows: u32, apart: u64) -> Want {
        let outputs = u64::from(rows.min(self.settings.outputs));
        let size = |b: &WorkBuffer| up(b.row_bytes * if b.per_output { outputs } else { rows.into() });
        let at_step = |all: &[WorkBuffer], step: u32| -> u64 {
            all.iter().filter(|b| (b.first_step..=b.last_step).contains(&step)).map(size).sum()
        };
        let worst = |all: &[WorkBuffer]| all.iter().map(|b| at_step(all, b.last_step)).max().unwrap_or(0);
        let of_form = |form: usize, partial: bool| {
            self.model.work.get(form).map_or(0, |w| worst(if partial { &w.partial } else { &w.whole }))
        };
        // The rows of n-grams wait for their layer.
        let ngram = self.model.ngram.as_ref().filter(|n| (self.stage.layers.start..self.stage.layers.end).contains(&n.layer));
        let waiting =
            |layer: u32| ngram.filter(|n| layer < n.layer).map_or(0, |n| up(4 * u64::from(n.floats_per_token) * u64::from(rows)));
        let layers = (self.stage.layers.start..).zip(self.layers).enumerate();
        let trunk = layers.map(|(at, (layer, facts))| of_form(self.form(facts), self.has_table(at)) + waiting(layer));
        let alive = trunk.chain(self.draft.map(|d| of_form(self.form(d), false))).max().unwrap_or(0);
        Want { least: alive - apart.min(alive), most: (2 * alive).saturating_sub(apart) }
    }

    fn form(&self, layer: &LayerFacts) -> usize {
        let has_indexer = matches!(layer.mixer, Mixer::Attention { index: Some(_), .. });
        if has_indexer && !self.is_indexed(layer) { layer.work.short } else { layer.work.usual }
    }

    /// Scores of every block for as many rows as are scored at a time.
    fn scores(&self) -> u64 {
        if !self.card.backend.has_kernels() || self.scratch.is_some() {
            return 0;
        }
        let rows = self.rows().min(256);
        let blocks = self.layers.iter().map(|l| match l.mixer {
            Mixer::Attention { index: Some(i), .. } if self.is_indexed(l) => self.settings.cells / u64::from(i.ratio.max(1)),
            _ => 0,
        });
        up(4 * rows * blocks.max().unwrap_or(0))
    }

    /// All cells of one layer, where not all of them are resident.
    fn window(&self) -> u64 {
        let cells = if self.settings.resident_cells < self.settings.cells { self.settings.cells } else { 0 };
        let of_layer = |l: &LayerFacts| match l.mixer {
            Mixer::Attention { kv_heads, head_dim, .. } => {
                cells * token_bytes(self.settings.kv, kv_heads.into(), head_dim.into())
            }
            Mixer::Delta { .. } => 0,
        };
        up(self.layers.iter().map(of_layer).max().unwrap_or(0))
    }

    /// Kernels keep a row's expert products as floats, and the widest row of a product in at least two bytes a float.
    fn scratch(&self) -> Want {
        if let Some(scratch) = self.scratch {
            return exactly(up(scratch.card_bytes));
        }
        if !self.card.backend.has_kernels() {
            return exactly(0);
        }
        let forms = self.with_draft().filter_map(|l| self.model.work.get(self.form(l)));
        let widest = forms.map(|w| w.product_floats).max().unwrap_or(0);
        let products = 4 * self.used() * u64::from(self.model.width);
        Want { least: self.rows() * (products + 2 * widest), most: up(self.rows() * (products + 4 * widest)) }
    }
}

fn all_bytes(experts: &ExpertFacts) -> u64 {
    experts.slab_bytes * u64::from(experts.count)
}

/// What stays free on a card, by system, driver and desktop.
pub fn floor_bytes(card: &Card) -> u64 {
    let mib = match (card.backend, card.driver, card.drives_display) {
        (BackendKind::Cpu | BackendKind::Virtual, ..) => 0,
        (_, DriverKind::Wddm, true) | (_, DriverKind::Macos, _) | (BackendKind::Hip, DriverKind::Linux, true) => 1024,
        (_, DriverKind::Wddm, false) | (_, _, true) => 768,
        (_, DriverKind::Linux | DriverKind::Tcc | DriverKind::None, false) => 256,
    };
    mib * MIB
}
