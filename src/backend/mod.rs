//! Devices: memory, programs and tickets, nothing else. A backend knows no model and no plan.

pub mod cpu;
#[cfg(any(target_os = "linux", windows))]
pub mod cuda;
#[cfg(any(target_os = "linux", windows))]
pub mod device;
pub mod discovery;
pub mod gpu;
#[cfg(all(target_arch = "x86_64", any(target_os = "linux", windows)))]
pub mod hip;
pub mod params;
pub mod rope;
mod trace;
mod virtual_card;
pub mod webgpu;

pub use discovery::Finder;
pub use virtual_card::{CardUse, Faults, VirtualCard, VirtualFacts};

use std::any::Any;
use std::sync::Arc;

use thiserror::Error;

use crate::program::{ArenaKind, BufferId, Op, RunParams, Slice, Stage};

/// Everything that finds cards; one line a backend.
pub static FINDERS: &[&dyn Finder] = &[
    #[cfg(any(target_os = "linux", windows))]
    &cuda::FINDER,
    #[cfg(all(target_arch = "x86_64", any(target_os = "linux", windows)))]
    &hip::FINDER,
    &webgpu::VULKAN,
    &webgpu::DX12,
    &webgpu::METAL,
];

/// What a device is.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceFacts {
    /// How the user names it: `cpu`, `cuda:0`, `vulkan:1`.
    pub id: String,
    /// What the vendor calls it.
    pub name: String,
    /// Arithmetic in use, for reports: `avx512-vnni, 2 threads`.
    pub detail: String,
}

/// Sizes of the arenas of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaSizes {
    pub weights_bytes: u64,
    pub state_bytes: u64,
    pub work_bytes: u64,
    /// What the device's kernels keep beside the arenas, from [`Backend::scratch_bytes`].
    pub scratch_bytes: u64,
    /// The first so many bytes of the work arena are the last ones of the weights arena.
    pub lent_bytes: u64,
}

impl ArenaSizes {
    /// The arenas of a stage, without scratch.
    pub fn of(stage: &Stage) -> ArenaSizes {
        let Stage { weights_bytes, state_bytes, work_bytes, lent_bytes, .. } = *stage;
        ArenaSizes { weights_bytes, state_bytes, work_bytes, scratch_bytes: 0, lent_bytes }
    }

    pub fn get(&self, arena: ArenaKind) -> u64 {
        match arena {
            ArenaKind::Weights => self.weights_bytes,
            ArenaKind::State => self.state_bytes,
            ArenaKind::Work => self.work_bytes,
        }
    }

    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.state_bytes + self.own_work_bytes() + self.scratch_bytes
    }

    /// Bytes of the work arena that are not those of the weights arena as well.
    pub fn own_work_bytes(&self) -> u64 {
        self.work_bytes.saturating_sub(self.lent_bytes)
    }

    /// Where the work arena begins, if it is one piece with the weights arena.
    pub fn work_from_bytes(&self) -> u64 {
        self.weights_bytes.saturating_sub(self.lent_bytes)
    }
}

/// Bytes in use as the device itself counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// What [`Backend::open`] took.
    pub arenas_bytes: u64,
    /// Scratch that the backend keeps beside that, fixed by [`Backend::prepare`].
    pub scratch_bytes: u64,
    /// Allocations after [`Backend::freeze`]. Each one is a defect.
    pub late_allocations: u64,
}

#[derive(Debug, Error)]
pub enum BackendError {
    #[error("{device}: the {arena:?} arena of {bytes} bytes could not be allocated: {reason}")]
    OutOfMemory { device: String, arena: ArenaKind, bytes: u64, reason: String },
    #[error("{device}: {what} lies outside the {arena:?} arena of {arena_bytes} bytes")]
    OutOfBounds { device: String, what: String, arena: ArenaKind, arena_bytes: u64 },
    #[error("{device} cannot run '{op}' ({reason})")]
    Unsupported { device: String, op: String, reason: String },
    #[error("{device}: {problem}")]
    Rejected { device: String, problem: String },
    /// The device does nothing more until the model is opened again.
    #[error("{device} was lost during {during}: {reason}; open the model again")]
    Lost { device: String, during: String, reason: String },
    #[error("{device} was interrupted")]
    Interrupted { device: String },
}

/// A prepared program: an index that [`Backend::prepare`] gave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PreparedId(pub usize);

/// A run that has been started; wait for it before reading its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a run's errors surface in wait"]
pub struct Ticket(pub u64);

/// Pins host memory for one device.
pub trait Pinner {
    /// Pins memory until what is returned is dropped.
    ///
    /// # Errors
    /// Why the system refuses; in words.
    ///
    /// # Safety
    /// The memory stays mapped at its place until what is returned is dropped.
    unsafe fn pin(&self, memory: *mut [u8]) -> Result<Pinned, String>;
}

/// Keeps memory pinned.
pub type Pinned = Box<dyn Any + Send + Sync>;

/// One device with one stage on it. All memory is taken in `open` and `prepare`; afterwards nothing allocates.
pub trait Backend: Send {
    fn facts(&self) -> &DeviceFacts;

    /// Whether the device can execute an op of a stage, with the reason if not.
    fn supports(&self, stage: &Stage, op: &Op) -> Result<(), String>;

    /// Bytes that the kernels of a stage's programs need beside its arenas. Asks no driver. Devices whose scratch is host memory
    /// take it in [`Backend::prepare`] and need none here.
    ///
    /// # Errors
    /// A step that the device cannot run.
    fn scratch_bytes(&self, _stage: &Arc<Stage>) -> Result<u64, BackendError> {
        Ok(0)
    }

    /// Loads the code of a stage's programs, so that [`Backend::free_bytes`] is the truth before arenas are planned. Devices
    /// that take nothing for it do it in [`Backend::prepare`].
    ///
    /// # Errors
    /// A step that the device cannot run, or code that cannot be loaded.
    fn load_code(&mut self, _stage: &Arc<Stage>) -> Result<(), BackendError> {
        Ok(())
    }

    /// Bytes of the device's memory that can be taken now; `None` where nobody tells.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of the host's memory that [`Backend::prepare`] will take for all programs of a stage.
    ///
    /// # Errors
    /// A step that the device cannot run.
    fn host_scratch_bytes(&self, _stage: &Arc<Stage>) -> Result<u64, BackendError> {
        Ok(0)
    }

    /// Takes the arenas and the scratch. The only call that allocates device memory. State begins as zeroes.
    fn open(&mut self, sizes: ArenaSizes) -> Result<(), BackendError>;

    /// Copies bytes into an arena.
    fn upload(&mut self, to: Slice, bytes: &[u8]) -> Result<(), BackendError>;

    /// As [`Backend::upload`], of bytes that the run under way does not touch: the device may copy while it computes. Later runs
    /// find them.
    fn upload_beside(&mut self, to: Slice, bytes: &[u8]) -> Result<(), BackendError> {
        self.upload(to, bytes)
    }

    /// The bytes of a slice where the host can write them in place (host memory); `None` where `upload` is needed.
    fn host_bytes_mut(&mut self, slice: Slice) -> Option<&mut [u8]>;

    /// Copies bytes out of an arena.
    fn download(&mut self, from: Slice, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Sets a slice to zero bytes.
    fn clear(&mut self, slice: Slice) -> Result<(), BackendError>;

    /// Makes program `program` of `stage` ready to run. The stage has been checked. Host steps are not the device's: it runs the
    /// segments between them ([`Program::segments`](crate::program::Program::segments)).
    fn prepare(&mut self, stage: &Arc<Stage>, program: usize) -> Result<PreparedId, BackendError>;

    /// Everything is loaded and prepared. From here on an allocation is a defect, and counted.
    fn freeze(&mut self);

    /// Starts a segment of a program. Inputs were uploaded to their buffers before. The segments of a window are run in order with
    /// the same parameters, so what depends on them need be computed for segment 0 only. The segment after a `HostExperts` step
    /// may run more than once, with another slot table each time.
    fn run(&mut self, program: PreparedId, segment: usize, params: &RunParams<'_>) -> Result<Ticket, BackendError>;

    /// Waits for a run. Errors are sticky and surface here.
    fn wait(&mut self, ticket: Ticket) -> Result<(), BackendError>;

    /// Runs a segment one step at a time and shows every buffer the step wrote: `(step, buffer, rows × width elements)`, steps
    /// counted from the program's first.
    /// For comparing devices and for finding the first wrong op; may be slow.
    fn trace(
        &mut self,
        program: PreparedId,
        segment: usize,
        params: &RunParams<'_>,
        see: &mut dyn FnMut(usize, BufferId, &[f32]),
    ) -> Result<(), BackendError>;

    fn memory(&self) -> MemoryReport;

    /// What pins host memory so that [`Backend::upload`] from it needs no detour; `None` where there is no such thing.
    fn pinner(&self) -> Option<Box<dyn Pinner>> {
        None
    }

    /// Names the arithmetic: devices with equal names give equal bits for equal work. By default a device is like no other.
    fn arithmetic(&self) -> String {
        self.facts().id.clone()
    }

    /// Whether the host's processor is free while a run is under way. Where it is not, every expert that the device misses is the
    /// processor's, unless `--expert-misses card` or `--reproducible` says otherwise.
    fn overlaps_host(&self) -> bool {
        false
    }

    /// Whether the arenas of work and weights may share bytes ([`ArenaSizes::lent_bytes`]). A device that binds a buffer either to
    /// read or to write cannot.
    fn lends_slots(&self) -> bool {
        false
    }
}
