//! A card played by the CPU: host memory with a limit of its own, so that splits, refusals and failing allocations can be
//! tried on any machine. Results are those of the CPU backend, bit by bit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cpu::CpuBackend;
use super::{ArenaSizes, Backend, BackendError, DeviceFacts, MemoryReport, PreparedId, Ticket};
use crate::program::{ArenaKind, BufferId, Op, RunParams, Slice, Stage, WeightDecl};

/// Counts the allocations of a start over all its cards, and lets one of them fail.
#[derive(Debug, Default)]
pub struct Faults {
    asked: AtomicU64,
    /// Position of the one that fails, from 0.
    fails: Option<u64>,
}

impl Faults {
    /// The allocation after `position` others fails.
    pub fn at(position: u64) -> Faults {
        Faults { asked: AtomicU64::new(0), fails: Some(position) }
    }

    /// Allocations asked for so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    fn strikes(&self) -> bool {
        self.fails == Some(self.asked.fetch_add(1, Ordering::SeqCst))
    }
}

/// Bytes of virtual cards in use, seen from outside: what is left after a failed start was not given back.
#[derive(Debug, Default)]
pub struct CardUse {
    bytes: AtomicU64,
    peak: AtomicU64,
}

impl CardUse {
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// The most that was ever in use.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::SeqCst)
    }

    fn take(&self, bytes: u64) {
        let now = self.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.peak.fetch_max(now, Ordering::SeqCst);
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// What a virtual card has.
#[derive(Debug, Clone)]
pub struct VirtualFacts {
    pub id: String,
    pub name: String,
    /// Bytes that all arenas together may take.
    pub limit_bytes: u64,
    /// Bytes of the largest piece that need not be cut.
    pub max_piece_bytes: u64,
    pub faults: Arc<Faults>,
    pub in_use: Arc<CardUse>,
}

#[derive(Debug)]
pub struct VirtualCard {
    card: VirtualFacts,
    facts: DeviceFacts,
    inner: CpuBackend,
    taken_bytes: u64,
}

impl VirtualCard {
    pub fn new(inner: CpuBackend, card: VirtualFacts) -> VirtualCard {
        let detail = format!("played by the CPU: {}", inner.facts().detail);
        let facts = DeviceFacts { id: card.id.clone(), name: card.name.clone(), detail };
        VirtualCard { card, facts, inner, taken_bytes: 0 }
    }

    fn no_memory(&self, arena: ArenaKind, bytes: u64, reason: String) -> BackendError {
        BackendError::OutOfMemory { device: self.card.id.clone(), arena, bytes, reason }
    }

    fn take(&mut self, arena: ArenaKind, bytes: u64) -> Result<(), BackendError> {
        if self.card.faults.strikes() {
            return Err(self.no_memory(arena, bytes, "the driver refused (on purpose)".into()));
        }
        let left = self.card.limit_bytes - self.taken_bytes;
        if bytes > left {
            return Err(self.no_memory(arena, bytes, format!("{left} bytes are left of {}", self.card.limit_bytes)));
        }
        self.taken_bytes += bytes;
        self.card.in_use.take(bytes);
        Ok(())
    }

    /// Matrices and slabs are not cut.
    fn check_pieces(&self, stage: &Stage) -> Result<(), BackendError> {
        let most = self.card.max_piece_bytes;
        let piece = |w: &WeightDecl| if w.experts > 1 { w.slab_bytes } else { w.matrix_bytes() };
        let Some(weight) = stage.weights.iter().find(|w| piece(w) > most) else { return Ok(()) };
        let reason = format!("'{}' is larger than a buffer of this card may be ({most} bytes)", weight.tensor);
        Err(self.no_memory(ArenaKind::Weights, piece(weight), reason))
    }

    /// An error of the CPU under the name of this card.
    fn own(&self, mut error: BackendError) -> BackendError {
        let (BackendError::OutOfMemory { device, .. }
        | BackendError::OutOfBounds { device, .. }
        | BackendError::Unsupported { device, .. }
        | BackendError::Rejected { device, .. }
        | BackendError::Lost { device, .. }
        | BackendError::Interrupted { device }) = &mut error;
        device.clone_from(&self.card.id);
        error
    }
}

impl Drop for VirtualCard {
    fn drop(&mut self) {
        self.card.in_use.give_back(self.taken_bytes);
    }
}

impl Backend for VirtualCard {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn supports(&self, stage: &Stage, op: &Op) -> Result<(), String> {
        self.inner.supports(stage, op)
    }

    fn host_scratch_bytes(&self, stage: &Arc<Stage>) -> Result<u64, BackendError> {
        self.inner.host_scratch_bytes(stage).map_err(|e| self.own(e))
    }

    fn open(&mut self, sizes: ArenaSizes) -> Result<(), BackendError> {
        let work = sizes.own_work_bytes();
        for (arena, bytes) in
            [(ArenaKind::Weights, sizes.weights_bytes), (ArenaKind::State, sizes.state_bytes), (ArenaKind::Work, work)]
        {
            if bytes > 0 {
                self.take(arena, bytes)?;
            }
        }
        self.inner.open(sizes).map_err(|e| self.own(e))
    }

    fn upload(&mut self, to: Slice, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.upload(to, bytes).map_err(|e| self.own(e))
    }

    fn upload_beside(&mut self, to: Slice, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.upload_beside(to, bytes).map_err(|e| self.own(e))
    }

    fn host_bytes_mut(&mut self, slice: Slice) -> Option<&mut [u8]> {
        self.inner.host_bytes_mut(slice)
    }

    fn download(&mut self, from: Slice, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.inner.download(from, bytes).map_err(|e| self.own(e))
    }

    fn clear(&mut self, slice: Slice) -> Result<(), BackendError> {
        self.inner.clear(slice).map_err(|e| self.own(e))
    }

    /// The scratch of the CPU that plays the card is the host's: it does not count against the card, but it can fail.
    fn prepare(&mut self, stage: &Arc<Stage>, program: usize) -> Result<PreparedId, BackendError> {
        self.check_pieces(stage)?;
        let before = self.inner.memory().scratch_bytes;
        let prepared = self.inner.prepare(stage, program).map_err(|e| self.own(e))?;
        let grown = self.inner.memory().scratch_bytes - before;
        if grown > 0 && self.card.faults.strikes() {
            return Err(self.no_memory(ArenaKind::Work, grown, "the host refused scratch (on purpose)".into()));
        }
        Ok(prepared)
    }

    fn freeze(&mut self) {
        self.inner.freeze();
    }

    fn run(&mut self, program: PreparedId, segment: usize, params: &RunParams<'_>) -> Result<Ticket, BackendError> {
        self.inner.run(program, segment, params).map_err(|e| self.own(e))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), BackendError> {
        self.inner.wait(ticket).map_err(|e| self.own(e))
    }

    fn trace(
        &mut self,
        program: PreparedId,
        segment: usize,
        params: &RunParams<'_>,
        see: &mut dyn FnMut(usize, BufferId, &[f32]),
    ) -> Result<(), BackendError> {
        self.inner.trace(program, segment, params, see).map_err(|e| self.own(e))
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn lends_slots(&self) -> bool {
        self.inner.lends_slots()
    }
}
