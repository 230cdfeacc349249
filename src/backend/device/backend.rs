//! The [`Backend`] of a card: arenas, copies, programs and their runs.
//!
//! Order of life: context, streams and the common kernels when the device is made, the code of the model's formats in `load_code`,
//! so that free memory that is read then is the truth; the arenas and the scratch in `open`; graphs, which hold addresses of both, in
//! `prepare`; pinned host memory with the first upload, after the arenas of all cards; nothing after `freeze`. Whatever was taken is
//! given back when the device is dropped, in the reverse order.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::arenas::{Arenas, Scratch, ScratchLayout};
use super::budget::memory_of;
use super::card::{NoKernel, OpenCard, entry_of};
use super::copies::Copies;
use super::pins::CardPinner;
use super::prepared::Prepared;
use super::target::target;
use super::{Cause, DevicePiece, DriverError, Event, Stream};
use crate::backend::gpu::{Launch, Lowered, lower, supports};
use crate::backend::trace::trace_steps;
use crate::backend::{ArenaSizes, Backend, BackendError, DeviceFacts, MemoryReport, Pinner, PreparedId, Ticket};
use crate::program::{ArenaKind, BufferId, Op, Program, RunParams, Slice, Stage};

/// Pieces of host memory while weights are read: those in which the engine reads files.
const LOAD_SLOT_BYTES: usize = 4 << 20;

/// Least piece of host memory afterwards, for state that is copied in and out.
const RUN_SLOT_BYTES: usize = 64 << 10;

/// A stage as kernel calls.
#[derive(Debug)]
struct LoweredStage {
    stage: Arc<Stage>,
    /// The arenas that they fit.
    sizes: ArenaSizes,
    programs: Arc<[Lowered]>,
}

/// A card as a device.
#[derive(Debug)]
pub struct DeviceBackend {
    facts: DeviceFacts,
    cancel: Arc<AtomicBool>,
    runs: u64,
    /// The program that ran last.
    running: Option<PreparedId>,
    frozen: bool,
    late_allocations: u64,
    /// What broke the card's context, and in the midst of what.
    lost: Option<(String, DriverError)>,
    lowered: RefCell<Option<LoweredStage>>,
    // Dropped from here on in this order.
    prepared: Vec<Prepared>,
    scratch: Option<Arc<Scratch>>,
    copies: Copies,
    arenas: Option<Arenas>,
    finished: Event,
    stream: Stream,
    card: OpenCard,
}

impl DeviceBackend {
    /// A device without memory of its own yet. `id` is how the user names it.
    ///
    /// # Errors
    /// The driver refuses streams or events.
    pub fn new(card: OpenCard, id: String, cancel: Arc<AtomicBool>) -> Result<DeviceBackend, BackendError> {
        let found = card.facts();
        let detail =
            format!("{} {}, {} {}", found.vendor.name(), found.architecture, found.multiprocessors, found.vendor.processors());
        let facts = DeviceFacts { id, name: found.name.clone(), detail };
        let refused = |error: DriverError| BackendError::Rejected {
            device: facts.id.clone(),
            problem: format!("its streams could not be made: {error}"),
        };
        let stream = Stream::new(card.context()).map_err(refused)?;
        let finished = Event::new(card.context()).map_err(refused)?;
        let copies = Copies::new(card.context()).map_err(refused)?;
        Ok(DeviceBackend {
            facts,
            cancel,
            runs: 0,
            running: None,
            frozen: false,
            late_allocations: 0,
            lost: None,
            lowered: RefCell::default(),
            prepared: vec![],
            scratch: None,
            copies,
            arenas: None,
            finished,
            stream,
            card,
        })
    }

    fn rejected(&self, problem: impl Into<String>) -> BackendError {
        BackendError::Rejected { device: self.facts.id.clone(), problem: problem.into() }
    }

    /// A driver's error as one of this device. One that breaks the context is remembered: every later call would fail with it.
    fn failed(&mut self, during: &str, error: DriverError) -> BackendError {
        if !error.is_sticky() {
            return self.rejected(format!("{during} failed: {error}"));
        }
        let (during, error) = self.lost.get_or_insert((during.to_owned(), error));
        BackendError::Lost { device: self.facts.id.clone(), during: during.clone(), reason: error.to_string() }
    }

    fn check_alive(&self) -> Result<(), BackendError> {
        match &self.lost {
            Some((during, error)) => {
                Err(BackendError::Lost { device: self.facts.id.clone(), during: during.clone(), reason: error.to_string() })
            }
            None => Ok(()),
        }
    }

    fn out_of_memory(&mut self, arena: ArenaKind, bytes: u64, error: DriverError) -> BackendError {
        if error.is_sticky() {
            return self.failed("taking memory", error);
        }
        BackendError::OutOfMemory { device: self.facts.id.clone(), arena, bytes, reason: error.to_string() }
    }

    fn arenas(&self) -> Result<&Arenas, BackendError> {
        self.arenas.as_ref().ok_or_else(|| self.rejected("no arenas are open"))
    }

    fn piece(&self, slice: Slice) -> Result<DevicePiece, BackendError> {
        let arenas = self.arenas()?;
        arenas.piece(slice.arena, slice.offset_bytes, slice.len_bytes).ok_or_else(|| BackendError::OutOfBounds {
            device: self.facts.id.clone(),
            what: format!("a slice of {} bytes at {}", slice.len_bytes, slice.offset_bytes),
            arena: slice.arena,
            arena_bytes: arenas.sizes.get(slice.arena),
        })
    }

    /// Where `bytes` bytes go, no more and no fewer than the slice has.
    fn target_of(&self, to: Slice, bytes: usize) -> Result<DevicePiece, BackendError> {
        self.check_alive()?;
        let piece = self.piece(to)?;
        if piece.bytes() != bytes {
            return Err(self.rejected(format!("{bytes} bytes for a slice of {}", piece.bytes())));
        }
        Ok(piece)
    }

    /// Takes host memory for copies if there is none yet.
    fn provide(&mut self, slot_bytes: usize) -> Result<(), BackendError> {
        if self.copies.is_provided() {
            return Ok(());
        }
        self.late_allocations += u64::from(self.frozen);
        self.copies.provide(slot_bytes).map_err(|error| self.failed("taking host memory for copies", error))
    }

    fn copy_in(&mut self, to: DevicePiece, bytes: &[u8], what: &str) -> Result<(), BackendError> {
        self.provide(LOAD_SLOT_BYTES)?;
        let DeviceBackend { copies, finished, .. } = self;
        copies.copy_in(to, bytes, finished).map_err(|error| self.failed(what, error))
    }

    fn copy_out(&mut self, from: DevicePiece, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.provide(LOAD_SLOT_BYTES)?;
        let DeviceBackend { copies, finished, .. } = self;
        copies.copy_out(bytes, from, finished).map_err(|error| self.failed("a copy from the card", error))
    }

    /// All programs of a stage as kernel calls; they are lowered once.
    fn lowered(&self, stage: &Arc<Stage>, sizes: ArenaSizes) -> Result<Arc<[Lowered]>, BackendError> {
        let sizes = ArenaSizes { scratch_bytes: 0, ..sizes };
        let mut kept = self.lowered.borrow_mut();
        if let Some(known) = &*kept
            && Arc::ptr_eq(&known.stage, stage)
            && known.sizes == sizes
        {
            return Ok(Arc::clone(&known.programs));
        }
        let target = target();
        let programs: Result<Arc<[Lowered]>, _> = (0..stage.programs.len()).map(|i| lower(stage, i, sizes, &target)).collect();
        let unsupported = |(op, reason)| BackendError::Unsupported { device: self.facts.id.clone(), op, reason };
        let programs = programs.map_err(unsupported)?;
        *kept = Some(LoweredStage { stage: Arc::clone(stage), sizes, programs: Arc::clone(&programs) });
        Ok(programs)
    }

    /// Why a kernel of a program cannot be had.
    fn no_kernel(&mut self, program: &Program, kernel: &str, why: NoKernel) -> BackendError {
        let reason = match why {
            NoKernel::Driver(error) if error.cause != Cause::NotFound => {
                return self.failed(&format!("loading the kernel '{kernel}'"), error);
            }
            NoKernel::Driver(_) => format!("its code lacks the kernel '{kernel}'"),
            NoKernel::Image(error) => error.to_string(),
        };
        BackendError::Unsupported { device: self.facts.id.clone(), op: program.name.clone(), reason }
    }

    /// Scratch that holds the programs of a stage: what `open` took, unless it was not told of them.
    fn scratch(&mut self, layout: ScratchLayout) -> Result<Arc<Scratch>, BackendError> {
        match &self.scratch {
            Some(scratch) if scratch.holds(layout) => Ok(Arc::clone(scratch)),
            _ => self.take_scratch(layout.total_bytes),
        }
    }

    fn take_scratch(&mut self, bytes: u64) -> Result<Arc<Scratch>, BackendError> {
        let scratch = Scratch::new(self.card.context(), bytes);
        let scratch = scratch.map_err(|error| self.out_of_memory(ArenaKind::Work, bytes, error))?;
        Ok(Arc::clone(self.scratch.insert(Arc::new(scratch))))
    }

    /// Checks a run, copies its block to the card with its first segment, and lets computing wait for all copies.
    fn begin(&mut self, id: PreparedId, segment: usize, params: &RunParams<'_>) -> Result<(), BackendError> {
        self.check_alive()?;
        if self.cancel.load(Ordering::Relaxed) {
            return Err(BackendError::Interrupted { device: self.facts.id.clone() });
        }
        self.provide(LOAD_SLOT_BYTES)?;
        let DeviceBackend { prepared, copies, finished, stream, facts, .. } = self;
        let rejected = |problem| BackendError::Rejected { device: facts.id.clone(), problem };
        let prepared = prepared.get_mut(id.0).ok_or_else(|| rejected(format!("program {} has not been prepared", id.0)))?;
        if prepared.steps(segment).is_none() {
            return Err(rejected(format!("program '{}' has no segment {segment}", prepared.program().name)));
        }
        if segment == 0 {
            let begun = prepared.begin(params);
            begun.map_err(|problem| rejected(format!("program '{}': {problem}", prepared.program().name)))?;
        }
        let (bytes, to) = prepared.block();
        let to = to.ok_or_else(|| rejected("the run block lies outside the scratch".into()))?;
        let sent = if segment == 0 { copies.copy_in(to, bytes, finished) } else { Ok(()) };
        let ordered = sent.and_then(|()| copies.hold_back(stream));
        ordered.map_err(|error| self.failed("copying the parameters of a run", error))
    }

    fn run_name(&self, id: PreparedId) -> String {
        format!("the run of program '{}'", self.prepared[id.0].program().name)
    }

    /// Runs one step of a run that has begun, and waits for it.
    fn run_step(&mut self, id: PreparedId, step: usize) -> Result<(), BackendError> {
        let prepared = &self.prepared[id.0];
        let started = prepared.start_step(step, &self.stream, &self.finished);
        let done = started.and_then(|()| self.finished.wait());
        let name = format!("step '{}'", prepared.program().steps[step].name);
        done.map_err(|error| self.failed(&name, error))?;
        self.copies.follow();
        Ok(())
    }
}

/// Bytes of the largest buffer that the host writes or reads.
fn largest_port_bytes(program: &Program) -> usize {
    let ports = program.buffers.iter().filter(|b| b.input.is_some() || b.output.is_some());
    ports.map(|b| b.bytes(program.shape.rows(b.rows)) as usize).max().unwrap_or(0)
}

impl Drop for DeviceBackend {
    fn drop(&mut self) {
        // Memory must not go while a run uses it. A broken context has stopped running.
        let _ = self.stream.synchronise();
    }
}

impl Backend for DeviceBackend {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn supports(&self, stage: &Stage, op: &Op) -> Result<(), String> {
        supports(stage, op, &target())
    }

    fn scratch_bytes(&self, stage: &Arc<Stage>) -> Result<u64, BackendError> {
        Ok(ScratchLayout::of(&self.lowered(stage, ArenaSizes::of(stage))?).total_bytes)
    }

    fn load_code(&mut self, stage: &Arc<Stage>) -> Result<(), BackendError> {
        self.check_alive()?;
        let programs = self.lowered(stage, ArenaSizes::of(stage))?;
        for (lowered, program) in programs.iter().zip(&stage.programs) {
            for variant in lowered.launches.iter().flat_map(Launch::variants) {
                let found = self.card.function(&variant).map(drop);
                found.map_err(|why| self.no_kernel(program, &entry_of(&variant), why))?;
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(memory_of(self.card.context()).ok()?.free_bytes)
    }

    fn open(&mut self, sizes: ArenaSizes) -> Result<(), BackendError> {
        self.check_alive()?;
        if self.arenas.is_some() {
            return Err(self.rejected("the arenas are open already"));
        }
        self.late_allocations += u64::from(self.frozen);
        let arenas = Arenas::open(self.card.context(), sizes);
        let arenas = arenas.map_err(|(arena, error)| self.out_of_memory(arena, sizes.get(arena), error))?;
        self.take_scratch(sizes.scratch_bytes)?;
        self.arenas = Some(arenas);
        self.clear(Slice { arena: ArenaKind::State, offset_bytes: 0, len_bytes: sizes.state_bytes })
    }

    fn upload(&mut self, to: Slice, bytes: &[u8]) -> Result<(), BackendError> {
        let piece = self.target_of(to, bytes.len())?;
        self.copy_in(piece, bytes, "a copy to the card")
    }

    fn upload_beside(&mut self, to: Slice, bytes: &[u8]) -> Result<(), BackendError> {
        let piece = self.target_of(to, bytes.len())?;
        self.provide(LOAD_SLOT_BYTES)?;
        self.copies.copy_in_beside(piece, bytes).map_err(|error| self.failed("a copy to the card", error))
    }

    fn host_bytes_mut(&mut self, _slice: Slice) -> Option<&mut [u8]> {
        None
    }

    fn download(&mut self, from: Slice, bytes: &mut [u8]) -> Result<(), BackendError> {
        let piece = self.target_of(from, bytes.len())?;
        self.copy_out(piece, bytes)
    }

    fn clear(&mut self, slice: Slice) -> Result<(), BackendError> {
        self.check_alive()?;
        let piece = self.piece(slice)?;
        let DeviceBackend { copies, finished, .. } = self;
        copies.fill(piece, 0, finished).map_err(|error| self.failed("clearing memory", error))
    }

    fn prepare(&mut self, stage: &Arc<Stage>, program: usize) -> Result<PreparedId, BackendError> {
        self.check_alive()?;
        let sizes = self.arenas()?.sizes;
        self.late_allocations += u64::from(self.frozen);
        let programs = self.lowered(stage, sizes)?;
        let layout = ScratchLayout::of(&programs);
        let scratch = self.scratch(layout)?;
        if program >= programs.len() {
            return Err(self.rejected(format!("the stage has no program {program}")));
        }
        let made = Prepared::new(stage, program, programs, &self.card, self.arenas()?, (scratch, layout));
        let mut prepared = made.map_err(|(kernel, why)| self.no_kernel(&stage.programs[program], &kernel, why))?;
        prepared.capture(&self.stream).map_err(|error| self.failed("capturing a graph", error))?;
        self.prepared.push(prepared);
        Ok(PreparedId(self.prepared.len() - 1))
    }

    /// Exchanges the host memory for loading for what runs need.
    fn freeze(&mut self) {
        let largest = self.prepared.iter().map(|p| largest_port_bytes(p.program())).max().unwrap_or(0);
        // An error cannot be told here: the next copy tries again, and does.
        let _ = self.copies.provide(largest.clamp(RUN_SLOT_BYTES, LOAD_SLOT_BYTES));
        if let Some(reason) = self.copies.unpinned() {
            self.facts.detail += &format!(", copies through memory that is not pinned: {reason}");
        }
        self.frozen = true;
    }

    fn run(&mut self, program: PreparedId, segment: usize, params: &RunParams<'_>) -> Result<Ticket, BackendError> {
        self.begin(program, segment, params)?;
        let started = self.prepared[program.0].start(segment, &self.stream, &self.finished);
        started.map_err(|error| self.failed(&self.run_name(program), error))?;
        self.copies.follow();
        self.running = Some(program);
        self.runs += 1;
        Ok(Ticket(self.runs))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), BackendError> {
        self.check_alive()?;
        if ticket.0 == 0 || ticket.0 > self.runs {
            return Err(self.rejected(format!("run {} was never started", ticket.0)));
        }
        let waited = self.finished.wait();
        waited.map_err(|error| self.failed(&self.running.map_or("a run".into(), |id| self.run_name(id)), error))
    }

    fn trace(
        &mut self,
        program: PreparedId,
        segment: usize,
        params: &RunParams<'_>,
        see: &mut dyn FnMut(usize, BufferId, &[f32]),
    ) -> Result<(), BackendError> {
        self.begin(program, segment, params)?;
        let steps = self.prepared[program.0].steps(segment).unwrap_or_default();
        let run = |device: &mut Self, step| device.run_step(program, step);
        trace_steps(self, |device| device.prepared[program.0].program(), steps, params, run, see)
    }

    fn lends_slots(&self) -> bool {
        true
    }

    fn pinner(&self) -> Option<Box<dyn Pinner>> {
        Some(Box::new(CardPinner { context: Arc::clone(self.card.context()), pieces: Arc::clone(self.copies.pinned()) }))
    }

    /// Launches return at once, and graphs too.
    fn overlaps_host(&self) -> bool {
        true
    }

    fn memory(&self) -> MemoryReport {
        let opened = self.arenas.as_ref().map_or(0, |arenas| arenas.sizes.total_bytes());
        let planned = self.arenas.as_ref().map_or(0, |arenas| arenas.sizes.scratch_bytes);
        let scratch = self.scratch.as_ref().map_or(0, |scratch| scratch.size_bytes());
        MemoryReport {
            arenas_bytes: opened,
            scratch_bytes: scratch.saturating_sub(planned),
            late_allocations: self.late_allocations,
        }
    }
}
