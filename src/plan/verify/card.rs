//! What each consumer takes on a card, from the specification.

use super::{Check, Want, exactly, token_bytes, up};
use crate::plan::consumer::{Arena, Consumer};
use crate::plan::limits::{RamExperts, StageArenas};
use crate::plan::machine::{BackendKind, Card, DriverKind};
use crate::plan::model::{ConvFacts, ExpertFacts, LayerFacts, Mixer, PlanModel};
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
    built: Option<StageArenas>,
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
            built: self.limits.stage_arenas.as_ref().and_then(|arenas| arenas.get(at).copied()),
        }
    }
}

impl Seen<'_> {
    /// The rule of every consumer. Consumers of the host take nothing here.
    pub fn want(&self, consumer: Consumer) -> Want {
        let estimated = matches!(consumer.arena(), Arena::Weights | Arena::State | Arena::Work | Arena::Scratch);
        if let Some(built) = self.built.filter(|_| estimated) {
            return self.want_built(consumer, built);
        }
        match consumer {
            Consumer::DriverContext | Consumer::ModuleCode | Consumer::LibraryWorkspace | Consumer::Graphs => {
                self.driver(consumer)
            }
            Consumer::DenseWeights => exactly(self.layers.iter().map(|l| up(l.dense.bytes)).sum()),
            Consumer::Head => exactly(if self.last { up(self.model.head.bytes) } else { 0 }),
            Consumer::DraftWeights => exactly(self.draft.map_or(0, |d| up(d.dense.bytes + self.draft_head_bytes))),
            Consumer::DraftExperts => exactly(self.draft.and_then(|d| d.experts.as_ref()).map_or(0, |e| up(all_bytes(e)))),
            Consumer::ExpertsInPlace => exactly(if self.in_place { self.experts().map(|e| up(all_bytes(e))).sum() } else { 0 }),
            Consumer::KvCache => exactly(self.layers.iter().map(|l| self.kv(l, self.settings.resident_cells)).sum()),
            Consumer::DraftKv => exactly(self.draft.map_or(0, |d| self.kv(d, self.settings.cells))),
            Consumer::IndexKeys => exactly(self.layers.iter().map(|l| self.index_keys(l)).sum()),
            Consumer::RecurrentState => exactly(self.with_draft().map(|l| self.recurrent(l)).sum()),
            Consumer::ConvHistory => exactly(self.with_draft().map(|l| self.conv_history(l)).sum()),
            Consumer::HandOff => {
                exactly(if self.first && self.last { 0 } else { up(2 * self.rows() * self.stream_floats() * 4) })
            }
            Consumer::SlotTables => {
                exactly(if self.is_partial() { self.experts().map(|e| up(4 * u64::from(e.count))).sum() } else { 0 })
            }
            Consumer::ExpertResults => {
                exactly(if self.is_partial() { up(self.rows() * self.used() * u64::from(self.model.width) * 4) } else { 0 })
            }
            Consumer::PromptWork => self.work(self.settings.chunk, self.settings.slots),
            Consumer::DecodeWork => self.work(self.settings.decode_rows, self.settings.decode_rows),
            Consumer::SelectionScores => exactly(self.scores()),
            Consumer::KvWindow => exactly(self.window()),
            Consumer::KernelScratch => self.scratch(),
            Consumer::ExpertSlots => exactly(if self.in_place || self.is_inside() { 0 } else { up(self.kept_bytes()) }),
            Consumer::LentSlots => exactly(up(self.lent_bytes())),
            Consumer::MeasuredWeights | Consumer::MeasuredState | Consumer::MeasuredPrompt | Consumer::MeasuredDecode => {
                exactly(0)
            }
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

    /// With a built stage its arenas are the rows.
    fn want_built(&self, consumer: Consumer, built: StageArenas) -> Want {
        exactly(up(match consumer {
            Consumer::MeasuredWeights => built.weights_bytes,
            Consumer::MeasuredState => built.state_bytes,
            Consumer::MeasuredPrompt => built.work_bytes,
            Consumer::MeasuredDecode => built.decode_work_bytes,
            Consumer::LentSlots => self.lent_bytes(),
            Consumer::KernelScratch => built.scratch_bytes,
            _ => 0,
        }))
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

    pub fn is_partial(&self) -> bool {
        !self.stage.all_held
    }

    /// The experts are part of the built stage's weights.
    fn is_inside(&self) -> bool {
        self.built.is_some_and(|built| built.experts_inside)
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
        if self.settings.draft { u64::from(self.settings.draft_window) + 1 } else { 1 }
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

    /// A key of every cell and one of every block.
    fn index_keys(&self, layer: &LayerFacts) -> u64 {
        match layer.mixer {
            Mixer::Attention { index: Some(i), .. } => {
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

    /// Everything of a row that is alive at the worst step, its parameters, and the logits on the last stage.
    fn work(&self, rows: u32, outputs: u32) -> Want {
        let mut floats = self.layers.iter().map(|l| l.work_floats).max().unwrap_or(0);
        if self.first {
            floats += u64::from(self.model.width);
        }
        let ngram = self.model.ngram.as_ref().filter(|n| (self.stage.layers.start..self.stage.layers.end).contains(&n.layer));
        floats += ngram.map_or(0, |n| u64::from(n.floats_per_token));
        // The draft block runs after the layers.
        floats = floats.max(self.draft.map_or(0, |d| d.work_floats)) + self.stream_floats();
        let logits = if self.last { u64::from(self.model.vocab) + self.model.head_work_floats } else { 0 };
        let (rows, outputs) = (u64::from(rows), u64::from(outputs));
        let parameters = std::mem::size_of::<crate::program::Row>() as u64;
        exactly(up(rows * (4 * floats + parameters) + 4 * outputs * logits))
    }

    /// Scores of every block for as many rows as are scored at a time.
    fn scores(&self) -> u64 {
        let rows = u64::from(self.settings.chunk.min(256));
        let blocks = self.layers.iter().map(|l| match l.mixer {
            Mixer::Attention { index: Some(i), .. } => self.settings.cells / u64::from(i.ratio.max(1)),
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

    /// Kernels keep a row's expert products as floats, and its widest buffer in at least two bytes a float.
    fn scratch(&self) -> Want {
        if !self.card.backend.has_kernels() {
            return exactly(0);
        }
        let widest = self.with_draft().map(|l| l.widest_floats).max().unwrap_or(0).max(self.stream_floats());
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
