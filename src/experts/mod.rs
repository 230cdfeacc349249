//! Experts in three tiers: slots on the card, the processor's RAM, the model's files on disk.
//!
//! A stage whose experts are only partly held has host steps in its programs. At such a step the scheduler calls [`Experts`]:
//! it reads which experts the window chose; the card computes those it holds; meanwhile the processor computes the others
//! from RAM, after missing ones were read from disk; or some go over the bus into the card's ring of slots, where that is
//! faster. Every choice's result has columns of its own, so it does not matter who writes which, and when.
//!
//! Between windows experts that are used more than those on the card change places with them ([`residency`]); before a prompt the
//! last slots are lent to its buffers ([`loan`]), and are filled again afterwards. How the rooms
//! fit together: `slots` and `popularity` are the data, `residency` decides, `serve` and `moves` act, `host` computes and holds
//! RAM, `disk` reads, `cost` chooses between processor and bus, `trace` and `replay` predict.

mod cost;
mod disk;
mod error;
mod host;
mod layer;
mod loan;
mod moves;
mod pins;
mod popularity;
mod profile;
mod replay;
mod residency;
mod serve;
mod slots;
mod stats;
mod times;
mod trace;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

pub use cost::{Rates, split};
pub use disk::DiskOptions;
pub use error::ExpertError;
pub use host::MOST_ROWS;
pub use layer::Geometry;
pub use loan::{LentSlots, Loan};
pub use pins::{PIN_SLICE_BYTES, PinOptions};
pub use popularity::Popularity;
pub use profile::Profile;
pub use replay::{Prediction, Replay, replay};
pub use residency::{Admission, CardSlots, Home, LayerResidency, Policy, Swap, exchange, refill};
pub use slots::{Filling, Slots};
pub use stats::TierStats;
pub use times::{DecodeTimes, Line};
pub use trace::{Trace, TraceHeader, TraceLayer, TraceRecord, TraceWriter};

use self::disk::{DiskReader, Stretch};
use self::host::Host;
use crate::backend::cpu::{CpuBackend, CpuOptions};
use crate::backend::{Backend, BackendError};
use crate::gguf::ModelFiles;
use crate::program::{Slice, Stage};

/// Who computes experts that the card does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Misses {
    /// Whoever is done sooner.
    #[default]
    Auto,
    Processor,
    /// The card, after a copy. Layers without slots are left to the processor.
    Card,
}

/// Slots of a layer through which experts go that do not stay on the card. Two halves of them: one is filled while the other
/// is computed.
pub const RING_SLOTS: u32 = 4;

#[derive(Debug, Clone)]
pub struct ExpertOptions {
    /// Slots of RAM for each layer of the model; `None`: RAM holds every expert.
    pub ram_slots: Option<Vec<u32>>,
    /// Experts may lie on disk alone. Otherwise the ring takes no slot of the card whose expert has no place in RAM.
    pub may_stay_on_disk: bool,
    pub policy: Policy,
    pub misses: Misses,
    /// Every expert is computed by the same arithmetic wherever it is, so that the same tokens give the same bits.
    pub reproducible: bool,
    /// Popularity of earlier sessions.
    pub profile: Option<Arc<Profile>>,
    /// Where the popularity is kept when the engine ends.
    pub profile_file: Option<PathBuf>,
    pub disk: DiskOptions,
    pub pin: PinOptions,
    /// Compares the bytes of every slot with its expert before each use, and fills slots with noise before each copy. Slow.
    pub verify: bool,
    /// Keeps what the router chose, for [`Experts::take_trace`].
    pub record: bool,
}

impl Default for ExpertOptions {
    fn default() -> ExpertOptions {
        ExpertOptions {
            ram_slots: None,
            may_stay_on_disk: true,
            policy: Policy::default(),
            misses: Misses::Auto,
            reproducible: false,
            profile: None,
            profile_file: None,
            disk: DiskOptions::default(),
            pin: PinOptions::default(),
            verify: false,
            record: false,
        }
    }
}

/// The tiers behind the stages of one model.
pub struct Experts {
    files: Arc<ModelFiles>,
    options: ExpertOptions,
    layers: Vec<Geometry>,
    residency: Vec<LayerResidency>,
    /// The layers of each stage.
    of_stage: Vec<Range<usize>>,
    /// What each stage's programs borrow.
    loans: Vec<Loan>,
    /// Layers whose table on the device is not that of `residency`.
    stale: Vec<bool>,
    host: Host,
    disk: Option<DiskReader>,
    rates: Rates,
    stats: TierStats,
    fits: times::DecodeFits,
    work: serve::Work,
    /// Checksums of all experts by layer, when they are verified.
    sums: Vec<Vec<Option<u64>>>,
    counts: Vec<Vec<u64>>,
    counted_tokens: u64,
    recorder: Option<TraceWriter>,
    notices: Vec<String>,
    pinned_bytes: u64,
    found: Vec<(usize, Swap)>,
    spare: Vec<u8>,
}

/// The tiers' memory before it is taken.
#[derive(Debug)]
pub struct ExpertPlan {
    layers: Vec<Geometry>,
    ram_slots: Vec<u32>,
    shapes: Vec<u32>,
    loans: Vec<Loan>,
}

impl ExpertPlan {
    /// What the stages' host steps need; `None` where every stage holds all its experts.
    ///
    /// # Errors
    /// Layers that RAM has no room for, or a defect.
    pub fn of(stages: &[Arc<Stage>], options: &ExpertOptions) -> Result<Option<ExpertPlan>, ExpertError> {
        let mut layers = vec![];
        for (i, stage) in stages.iter().enumerate() {
            layers.extend(Geometry::of_stage(i, stage)?);
        }
        if layers.is_empty() {
            return Ok(None);
        }
        let wished = |g: &Geometry| match &options.ram_slots {
            Some(slots) => slots.get(g.layer as usize).copied().unwrap_or(0),
            None => g.experts,
        };
        let mut ram_slots = vec![];
        for g in &layers {
            let slots = wished(g).min(g.experts);
            // Where the card has them all, RAM may have none.
            if slots == 0 && g.kept_slots() < g.experts {
                return Err(ExpertError::NoRam { layer: g.layer });
            }
            // Experts whose slots are lent come back from RAM.
            if g.lent.count > 0 && slots < g.experts - g.kept_slots() {
                return Err(ExpertError::NoRamForLoan { layer: g.layer, lent: g.lent.count });
            }
            ram_slots.push(slots);
        }
        let shapes = host::shapes(stages);
        let loans = stages.iter().map(|stage| Loan::of(stage)).collect();
        Ok(Some(ExpertPlan { layers, ram_slots, shapes, loans }))
    }

    /// Takes RAM and starts the readers. Nothing is loaded yet.
    ///
    /// # Errors
    /// No memory, no threads, a profile of another model, or no slot where one is needed.
    pub fn open(
        self,
        files: &Arc<ModelFiles>,
        devices: &[&dyn Backend],
        cpu: &CpuOptions,
        options: ExpertOptions,
    ) -> Result<Experts, ExpertError> {
        let ExpertPlan { layers, ram_slots, shapes, loans } = self;
        let backend = CpuBackend::new(cpu.clone())?;
        // Where card and processor compute alike, nobody needs to move for the same bits.
        let alike = |g: &Geometry| devices.get(g.stage).is_some_and(|d| d.arithmetic() == backend.arithmetic());
        let overlaps = devices.iter().all(|d| d.overlaps_host());
        let mut card = vec![];
        for (g, ram) in layers.iter().zip(&ram_slots) {
            let must = options.reproducible && !alike(g);
            if must && g.kept_slots() == 0 {
                return Err(ExpertError::NoSlotForReproducible { layer: g.layer });
            }
            let want = Want { forced: must || options.misses == Misses::Card, auto: options.misses == Misses::Auto && overlaps };
            let ring = ring_slots((g.experts, g.kept_slots(), *ram), want, options.may_stay_on_disk);
            let ring = ring.ok_or(ExpertError::NoRamForRing { layer: g.layer })?;
            card.push(CardSlots { total: g.card_slots, ring, lent: g.lent.count });
        }
        let misses = if options.reproducible && !layers.iter().all(alike) { Misses::Card } else { options.misses };
        let options = ExpertOptions { misses, ..options };
        let residency = residency_of(&layers, &ram_slots, &card, options.profile.as_deref())?;
        let host = Host::open(backend, &layers, &ram_slots, shapes)?;
        let largest = layers.iter().flat_map(|g| &g.parts).map(|w| w.matrix_bytes()).max().unwrap_or(0);
        let on_disk = residency.iter().any(|r| (0..r.popularity.experts()).any(|e| r.home(e) == Home::Disk));
        let (disk, notices) = if on_disk {
            let (reader, notices) = DiskReader::open(files, largest as usize, options.disk)?;
            (Some(reader), notices)
        } else {
            (None, vec![])
        };
        let of_stage = (0..loans.len()).map(|s| {
            let start = layers.partition_point(|g| g.stage < s);
            start..layers.partition_point(|g| g.stage <= s)
        });
        let spare = vec![0; layers.iter().map(|g| g.slab_bytes as usize).max().unwrap_or(0)];
        let work = serve::Work::new(&layers);
        let recorder = options.record.then(|| TraceWriter::new(layers.len()));
        Ok(Experts {
            files: Arc::clone(files),
            of_stage: of_stage.collect(),
            loans,
            stale: vec![true; layers.len()],
            host,
            disk,
            rates: Rates { processor_bytes_s: 1e9, processor_row_s: 0.0, bus_bytes_s: 0.0, overlaps },
            stats: TierStats::default(),
            fits: times::DecodeFits::default(),
            work,
            sums: layers.iter().map(|g| vec![None; g.experts as usize]).collect(),
            counts: layers.iter().map(|g| vec![0; g.experts as usize]).collect(),
            counted_tokens: 0,
            recorder,
            notices,
            pinned_bytes: 0,
            found: Vec::with_capacity(layers.len()),
            spare,
            residency,
            layers,
            options,
        })
    }
}

/// Whether missed experts go to the card: all of them, or those that are done sooner there.
#[derive(Debug, Clone, Copy)]
struct Want {
    forced: bool,
    auto: bool,
}

/// Slots of a layer that are a ring, of its experts, the card's slots and those of RAM. Where no expert may stay on disk, the ring
/// takes no slot whose expert would then be in none; `None` if there is no other and the ring is needed.
fn ring_slots((experts, card, ram): (u32, u32, u32), want: Want, may_stay_on_disk: bool) -> Option<u32> {
    if card >= experts || card == 0 || !(want.forced || want.auto) {
        return Some(0);
    }
    let spare = if may_stay_on_disk { RING_SLOTS } else { card.saturating_add(ram).saturating_sub(experts) };
    let slots = RING_SLOTS.min(card).min(spare);
    (slots > 0 || !want.forced).then_some(slots)
}

/// Who lies where at the start.
fn residency_of(
    layers: &[Geometry],
    ram_slots: &[u32],
    card: &[CardSlots],
    profile: Option<&Profile>,
) -> Result<Vec<LayerResidency>, ExpertError> {
    let mut all = vec![];
    for (i, g) in layers.iter().enumerate() {
        let popularity = match profile {
            Some(profile) => profile.popularity(g.layer, g.experts)?,
            None => Popularity::new(g.experts),
        };
        all.push(LayerResidency::new(popularity, card[i], ram_slots[i]));
    }
    Ok(all)
}

/// A stretch of a tensor that is to be read into a slot of the host or of a card.
#[derive(Debug, Clone)]
pub struct SlotPiece {
    pub tensor: String,
    pub from_bytes: u64,
    pub to: Slice,
}

impl Experts {
    /// What RAM holds at the start, to be read from the files.
    pub fn ram_pieces(&self) -> Vec<SlotPiece> {
        let mut pieces = vec![];
        for (i, g) in self.layers.iter().enumerate() {
            for (slot, expert) in self.residency[i].ram.held() {
                g.pieces(expert, self.host.slab_slice(i, slot), &mut pieces);
            }
        }
        pieces
    }

    /// What the card of a stage holds at the start and RAM does not, to be read from the files.
    pub fn card_pieces(&self, stage: usize) -> Vec<SlotPiece> {
        let mut pieces = vec![];
        for i in self.of_stage[stage].clone() {
            let residency = &self.residency[i];
            for (slot, expert) in residency.card.held().filter(|(_, expert)| !residency.ram.holds(*expert)) {
                self.layers[i].pieces(expert, self.layers[i].slab(slot), &mut pieces);
            }
        }
        pieces
    }

    /// Where RAM slots and the scales of experts lie.
    pub fn host_stage(&self) -> &Arc<Stage> {
        self.host.stage()
    }

    pub fn host_backend_mut(&mut self) -> &mut CpuBackend {
        self.host.backend_mut()
    }

    /// Bytes that [`Experts::fill_card`] copies.
    pub fn fill_bytes(&self, stage: usize) -> u64 {
        let of_layer = |i: usize| {
            let residency = &self.residency[i];
            residency.card.held().filter(|(_, expert)| residency.ram.holds(*expert)).count() as u64 * self.layers[i].slab_bytes
        };
        self.of_stage[stage].clone().map(of_layer).sum()
    }

    /// Copies the experts that are on the card at the start from RAM, after those that RAM lacks were read into it, and writes the
    /// tables. `go_on` hears the bytes of each expert, and says whether to go on.
    ///
    /// # Errors
    /// A device error, or an interruption.
    pub fn fill_card(
        &mut self,
        stage: usize,
        device: &mut dyn Backend,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), ExpertError> {
        for i in self.of_stage[stage].clone() {
            let held: Vec<(u32, u32)> = self.residency[i].card.held().collect();
            for (slot, expert) in held {
                if let Some(from) = self.residency[i].ram.slot_of(expert) {
                    let to = self.layers[i].slab(slot);
                    device.upload(to, self.host.slab(i, from)?)?;
                    if !go_on(to.len_bytes) {
                        return Err(BackendError::Interrupted { device: device.facts().id.clone() }.into());
                    }
                }
                if self.options.verify {
                    self.remember_sum(i, slot, expert, device)?;
                }
            }
            self.write_table(i, device)?;
        }
        Ok(())
    }

    /// Reads an expert into the spare slab.
    fn read_slab(&mut self, i: usize, expert: u32) -> Result<(), ExpertError> {
        let g = &self.layers[i];
        for (p, part) in g.parts.iter().enumerate() {
            let tensor = self.files.require_tensor(&part.tensor)?;
            let at = g.part_offset(p) as usize;
            let len = part.matrix_bytes() as usize;
            self.files.read_at(tensor, u64::from(expert) * len as u64, &mut self.spare[at..at + len])?;
        }
        Ok(())
    }

    /// Measures processor and bus with the experts at hand: a few runs of some milliseconds. Device `i` is that of stage `i`.
    ///
    /// # Errors
    /// A device error.
    pub fn measure(&mut self, devices: &mut [&mut dyn Backend]) -> Result<(), ExpertError> {
        self.rates = serve::measure_processor(self)?;
        self.rates.overlaps = devices.iter().all(|d| d.overlaps_host());
        let with_ring = |i: &usize| self.residency[*i].slots.ring > 0 && !self.residency[*i].ram.is_empty();
        let Some(i) = (0..self.layers.len()).find(with_ring) else { return Ok(()) };
        let to = self.layers[i].slab(self.residency[i].slots.residents());
        let device = &mut devices[self.layers[i].stage];
        let mut times = [0.0; 5];
        for time in &mut times {
            let start = Instant::now();
            device.upload(to, self.host.slab(i, 0)?)?;
            *time = start.elapsed().as_secs_f64();
        }
        times.sort_by(f64::total_cmp);
        self.rates.bus_bytes_s = to.len_bytes as f64 / times[times.len() / 2].max(1e-9);
        Ok(())
    }

    pub fn layers(&self) -> &[Geometry] {
        &self.layers
    }

    pub fn residency(&self) -> &[LayerResidency] {
        &self.residency
    }

    pub fn stats(&self) -> TierStats {
        self.stats
    }

    pub fn rates(&self) -> Rates {
        self.rates
    }

    pub fn options(&self) -> &ExpertOptions {
        &self.options
    }

    /// What a user should know: files that are read through the page cache, RAM that could not be pinned.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Bytes of the host in use: RAM slots and working memory, buffers of the disk.
    pub fn host_bytes(&self) -> u64 {
        let memory = self.host.backend().memory();
        let disk = self.disk.as_ref().map_or(0, DiskReader::buffer_bytes);
        memory.arenas_bytes + memory.scratch_bytes + disk + self.work.bytes() + self.spare.len() as u64
    }

    /// Counts of this session, added to those it began with.
    pub fn profile(&self, model: &str) -> Profile {
        let layers = self.layers.iter().zip(&self.counts).map(|(g, counts)| (g.layer, counts.clone())).collect();
        let mut profile = Profile { model: model.into(), tokens: self.counted_tokens, layers };
        if let Some(before) = &self.options.profile {
            profile.add(before);
        }
        profile
    }

    /// What the router chose since the last call, with what a replay needs to know. `window_s` are the seconds that a decode window
    /// took.
    pub fn take_trace(&mut self, window_s: f64) -> Option<Trace> {
        let header = TraceHeader {
            policy: self.options.policy,
            rates: self.rates,
            decode: self.fits.times(),
            layers: (0..self.layers.len()).map(|i| self.trace_layer(i)).collect(),
            loans: self.loans.clone(),
            dense_s: self.fits.rest_s(window_s),
        };
        let recorder = self.recorder.as_mut()?;
        Some(recorder.take(header))
    }

    fn trace_layer(&self, i: usize) -> TraceLayer {
        let g = &self.layers[i];
        TraceLayer {
            layer: g.layer,
            stage: g.stage as u32,
            experts: g.experts,
            used: g.used,
            slab_bytes: g.slab_bytes,
            card_slots: g.card_slots - self.residency[i].slots.ring,
            lent: g.lent,
            ram_slots: self.residency[i].ram.len() as u32,
        }
    }

    /// The stretch of a file that holds a part of an expert.
    fn stretch(&self, i: usize, part: usize, expert: u32) -> Result<Stretch, ExpertError> {
        let decl = &self.layers[i].parts[part];
        let tensor = self.files.require_tensor(&decl.tensor)?;
        let len_bytes = decl.matrix_bytes();
        let offset_bytes = tensor.offset + u64::from(expert) * len_bytes;
        Ok(Stretch { shard: tensor.shard, offset_bytes, len_bytes: len_bytes as usize })
    }
}

impl Drop for Experts {
    /// Keeps the popularity. That the file can be written was seen when the options were read; a disk that is full by now only
    /// costs the next start its warmth.
    fn drop(&mut self) {
        if let Some(path) = &self.options.profile_file {
            let _ = self.profile(&self.files.name()).save(path);
        }
    }
}

impl std::fmt::Debug for Experts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Experts").field("layers", &self.layers.len()).field("stats", &self.stats).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_takes_no_slot_whose_expert_would_be_nowhere() {
        let [none, auto, forced] = [(false, false), (false, true), (true, false)].map(|(forced, auto)| Want { forced, auto });
        // A copy of all in RAM: the ring has what it wants. The others alone: it has nothing, and a forced one is refused.
        for (ram, may, of_auto, of_forced) in [
            (64, false, 4, Some(4)),
            (32, false, 0, None),
            (34, false, 2, Some(2)),
            (32, true, 4, Some(4)),
            (5, true, 4, Some(4)),
        ] {
            assert_eq!(ring_slots((64, 32, ram), none, may), Some(0));
            assert_eq!(ring_slots((64, 32, ram), auto, may), Some(of_auto), "{ram} in RAM");
            assert_eq!(ring_slots((64, 32, ram), forced, may), of_forced, "{ram} in RAM");
        }
        // Layers that the card holds whole or not at all have none. Slots that are lent are no part of the card's here.
        assert_eq!(ring_slots((64, u32::MAX, 0), forced, false), Some(0));
        assert_eq!(ring_slots((64, 0, 64), forced, false), Some(0));
        assert_eq!(ring_slots((64, 3, 64), auto, false), Some(3));
    }
}
