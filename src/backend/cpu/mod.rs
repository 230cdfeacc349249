//! The CPU backend: host memory, a team of threads, and one kernel for each op.
//!
//! *Reference* mode is scalar arithmetic with float32 activations: the specification of every op and the oracle of all other
//! backends. *Fast* mode uses the vector units and 8-bit activations. In both, results do not depend on the number of threads.
//!
//! A program is prepared once: operands become byte offsets, scratch is sized. A run then walks the kernels on all threads with
//! a barrier after each. Nothing allocates during a run. Where to start: [`CpuBackend`], then `exec`, then `ops`.

mod affinity;
mod barrier;
mod exec;
pub mod kernels;
mod layout;
mod memory;
mod ops;
mod pool;
mod prepare;
mod sync;
mod topology;
mod vector;
mod view;

pub use self::affinity::pin_this_thread;
pub use self::kernels::Rounding;
pub use self::pool::SharedThreads;
pub use self::topology::{Topology, fastest};

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use self::exec::{Ending, Kernel, Run, run_kernels};
use self::kernels::Simd;
use self::layout::Layout;
use self::memory::Mapping;
use self::ops::Style;
use self::pool::{Pool, SharedPool};
use self::prepare::Prepared;
use self::vector::Level;
use self::view::{Memory, SCRATCH_ALIGN};
use super::trace::trace_steps;
use super::{ArenaSizes, Backend, BackendError, DeviceFacts, MemoryReport, Pinner, PreparedId, Ticket};
use crate::program::{ArenaKind, BufferId, Op, RunParams, Slice, Stage};

const ID: &str = "cpu";

/// How numbers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Scalar, float32 activations: matches the float32 references of the models.
    Reference,
    /// Vector units, 8-bit activations in products with quantised weights.
    Fast,
}

#[derive(Debug, Clone)]
pub struct CpuOptions {
    pub mode: Mode,
    pub threads: NonZeroUsize,
    /// Vector instructions of the fast mode; `None`: the best that the processor has.
    pub simd: Option<Simd>,
    /// How the fast mode rounds activations for quantised weights.
    pub rounding: Rounding,
    /// Ask for huge pages (Linux).
    pub huge_pages: bool,
    /// Give each worker a processor of its own (Linux), if there are enough.
    pub pin_threads: bool,
    /// The threads, which all devices share that are made with clones of these options.
    pub shared: SharedThreads,
    /// Set it from anywhere to end the run at hand after its current step. The owner resets it.
    pub cancel: Arc<AtomicBool>,
}

impl CpuOptions {
    /// All processors that this process may use.
    pub fn new(mode: Mode) -> CpuOptions {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        CpuOptions {
            mode,
            threads,
            simd: None,
            rounding: Rounding::Bits15,
            huge_pages: true,
            pin_threads: true,
            shared: SharedThreads::default(),
            cancel: Arc::default(),
        }
    }

    pub fn with_threads(self, threads: NonZeroUsize) -> CpuOptions {
        CpuOptions { threads, shared: SharedThreads::default(), ..self }
    }

    fn pool(&self) -> Result<SharedPool, BackendError> {
        let start = || {
            let processors = if self.pin_threads { Topology::here().order() } else { vec![] };
            Pool::new(self.threads, &processors)
        };
        self.shared.pool(self.threads, start).map_err(rejected)
    }
}

#[derive(Debug)]
struct Arenas {
    sizes: ArenaSizes,
    /// Weights, then work, which may begin before the weights end.
    weights_and_work: Mapping,
    state: Mapping,
}

impl Arenas {
    /// With the pages on `nodes` in turn, where there are several. Also why that could not be, if it could not.
    fn open(sizes: ArenaSizes, huge_pages: bool, nodes: &[usize]) -> Result<(Arenas, Option<String>), BackendError> {
        let map = |arena, bytes| {
            let failed = |reason| BackendError::OutOfMemory { device: ID.into(), arena, bytes, reason };
            Mapping::new(bytes, huge_pages).map_err(failed)
        };
        let together = sizes.weights_bytes.saturating_add(sizes.own_work_bytes());
        let (weights_and_work, state) = (map(ArenaKind::Weights, together)?, map(ArenaKind::State, sizes.state_bytes)?);
        let spread = |mapping: &Mapping| if nodes.len() > 1 { mapping.spread(nodes).err() } else { None };
        let refusal = spread(&weights_and_work).or_else(|| spread(&state));
        Ok((Arenas { sizes, weights_and_work, state }, refusal))
    }

    fn bytes_mut(&mut self, slice: Slice) -> Result<&mut [u8], BackendError> {
        let arena_bytes = self.sizes.get(slice.arena);
        let (mapping, from) = match slice.arena {
            ArenaKind::Weights => (&mut self.weights_and_work, 0),
            ArenaKind::State => (&mut self.state, 0),
            ArenaKind::Work => (&mut self.weights_and_work, self.sizes.work_from_bytes()),
        };
        let range = slice.offset_bytes.checked_add(slice.len_bytes).filter(|end| *end <= arena_bytes);
        // Both ends fit: the mapping has `from + arena_bytes` bytes.
        let bytes =
            range.and_then(|end| mapping.bytes_mut().get_mut((from + slice.offset_bytes) as usize..(from + end) as usize));
        bytes.ok_or_else(|| BackendError::OutOfBounds {
            device: ID.into(),
            what: format!("a slice of {} bytes at {}", slice.len_bytes, slice.offset_bytes),
            arena: slice.arena,
            arena_bytes,
        })
    }
}

/// The processor as a device.
#[derive(Debug)]
pub struct CpuBackend {
    options: CpuOptions,
    facts: DeviceFacts,
    /// Nodes of memory that the threads are near to.
    nodes: Vec<usize>,
    pool: SharedPool,
    arenas: Option<Arenas>,
    prepared: Vec<Prepared>,
    /// Private scratch of all threads, then the shared scratch. Large enough for every prepared program.
    scratch: Mapping,
    private_bytes: usize,
    shared_bytes: usize,
    runs: u64,
    frozen: bool,
    late_allocations: u64,
    /// How the last run failed, until it is waited for.
    failure: Option<BackendError>,
}

fn rejected(problem: String) -> BackendError {
    BackendError::Rejected { device: ID.into(), problem }
}

impl CpuBackend {
    pub fn new(options: CpuOptions) -> Result<CpuBackend, BackendError> {
        let pool = options.pool()?;
        let plural = if pool.threads() == 1 { "" } else { "s" };
        let arithmetic = match options.mode {
            Mode::Reference => "scalar reference".to_string(),
            Mode::Fast => format!("{}, {} activations", Level::new(options.simd).simd(), options.rounding.name()),
        };
        let facts = DeviceFacts {
            id: ID.into(),
            name: processor_name(),
            detail: format!("{arithmetic}, {} thread{plural}", pool.threads()),
        };
        let scratch = Mapping::new(0, false).map_err(rejected)?;
        Ok(CpuBackend {
            options,
            facts,
            nodes: Topology::here().nodes(),
            pool,
            arenas: None,
            prepared: vec![],
            scratch,
            private_bytes: 0,
            shared_bytes: 0,
            runs: 0,
            frozen: false,
            late_allocations: 0,
            failure: None,
        })
    }

    /// Pins a piece of the weights arena for another device, which then copies from it without a detour.
    ///
    /// # Errors
    /// Why that is refused; in words.
    pub fn pin_weights(&mut self, piece: Range<u64>, pinner: &dyn Pinner) -> Result<(), String> {
        let arenas = self.arenas.as_mut().ok_or("no arenas are open")?;
        arenas.weights_and_work.pin(piece.start as usize..piece.end as usize, pinner)
    }

    /// What kernels are made for; `None` in reference mode.
    fn style(&self) -> Option<Style> {
        let rounding = self.options.rounding;
        (self.options.mode == Mode::Fast).then(|| Style { level: Level::new(self.options.simd), rounding })
    }

    fn arenas(&mut self) -> Result<&mut Arenas, BackendError> {
        self.arenas.as_mut().ok_or_else(|| rejected("no arenas are open".into()))
    }

    fn prepared_program(&self, stage: &Arc<Stage>, program: usize, sizes: ArenaSizes) -> Result<Prepared, BackendError> {
        let prepared = Prepared::new(stage, program, sizes, self.style());
        prepared.map_err(|(op, reason)| BackendError::Unsupported { device: ID.into(), op, reason })
    }

    /// Makes the scratch large enough for one more program.
    fn grow_scratch(&mut self, private_bytes: usize, shared_bytes: usize) -> Result<(), BackendError> {
        let private = self.private_bytes.max(private_bytes.next_multiple_of(SCRATCH_ALIGN));
        let shared = self.shared_bytes.max(shared_bytes);
        let total = scratch_bytes(private, shared, self.pool.threads()) as u64;
        if total > self.scratch.len() as u64 {
            self.scratch = Mapping::new(total, self.options.huge_pages).map_err(|reason| BackendError::OutOfMemory {
                device: ID.into(),
                arena: ArenaKind::Work,
                bytes: total,
                reason,
            })?;
        }
        (self.private_bytes, self.shared_bytes) = (private, shared);
        Ok(())
    }

    /// Runs the kernels in `steps` of a segment, counted from its first step. The parameters have been checked by
    /// `Prepared::begin`.
    fn execute(
        &mut self,
        id: PreparedId,
        segment: usize,
        params: &RunParams<'_>,
        steps: std::ops::Range<usize>,
    ) -> Result<(), BackendError> {
        let CpuBackend { options, pool, arenas, prepared, scratch, private_bytes, .. } = self;
        let (Some(arenas), Some(prepared)) = (arenas.as_mut(), prepared.get(id.0)) else {
            return Err(rejected(format!("program {} has not been prepared", id.0)));
        };
        let (private, shared) = scratch.bytes_mut().split_at_mut(*private_bytes * pool.threads());
        let sizes = arenas.sizes;
        let (weights, work_from) = (sizes.weights_bytes as usize, sizes.work_from_bytes() as usize);
        let both = Memory::new(arenas.weights_and_work.bytes_mut());
        let run = Run {
            weights: both.part(0..weights),
            state: Memory::new(arenas.state.bytes_mut()),
            work: both.part(work_from..work_from + sizes.work_bytes as usize),
            shared: Memory::new(shared),
            private: Memory::new(private),
            private_bytes: *private_bytes,
            rows: params.rows,
            outputs: params.outputs,
            earlier: params.earlier,
            spans: &prepared.spans,
            ropes: &prepared.ropes,
        };
        let kernels: &[Box<dyn Kernel>] = &prepared.kernels[segment][steps];
        match run_kernels(&mut pool.lock(), &run, kernels, &options.cancel) {
            Ok(Ending::Complete) => Ok(()),
            Ok(Ending::Cancelled) => Err(BackendError::Interrupted { device: ID.into() }),
            Err(_) => Err(rejected("a thread of the backend failed; open the model again".into())),
        }
    }

    fn begin(&mut self, id: PreparedId, segment: usize, params: &RunParams<'_>) -> Result<(), BackendError> {
        let prepared = self.prepared.get_mut(id.0);
        let prepared = prepared.ok_or_else(|| rejected(format!("program {} has not been prepared", id.0)))?;
        prepared.begin(segment, params).map_err(|problem| rejected(format!("program '{}': {problem}", prepared.program().name)))
    }
}

/// Private scratch of every thread, each on lines of its own, and the shared scratch.
fn scratch_bytes(private: usize, shared: usize, threads: usize) -> usize {
    private.next_multiple_of(SCRATCH_ALIGN) * threads + shared
}

/// The processor's name as the system tells it.
fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_string());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

impl Backend for CpuBackend {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn supports(&self, stage: &Stage, op: &Op) -> Result<(), String> {
        let Some(program) = stage.programs.iter().find(|p| p.steps.iter().any(|step| step.op == *op)) else {
            return Err("the op belongs to no program of the stage".into());
        };
        if op.is_host() {
            return Ok(());
        }
        ops::build(&Layout { stage, program, sizes: ArenaSizes::of(stage), style: self.style() }, op).map(|_| ())
    }

    /// Every thread has scratch of its own, large enough for every step; one piece is shared.
    fn host_scratch_bytes(&self, stage: &Arc<Stage>) -> Result<u64, BackendError> {
        let (mut private, mut shared, mut own) = (0, 0, 0);
        for program in 0..stage.programs.len() {
            let prepared = self.prepared_program(stage, program, ArenaSizes::of(stage))?;
            private = private.max(prepared.scratch_bytes);
            shared = shared.max(prepared.shared_bytes);
            own += prepared.own_bytes();
        }
        Ok((scratch_bytes(private, shared, self.pool.threads()) + own) as u64)
    }

    fn open(&mut self, sizes: ArenaSizes) -> Result<(), BackendError> {
        if self.arenas.is_some() {
            return Err(rejected("the arenas are open already".into()));
        }
        self.late_allocations += u64::from(self.frozen);
        let (arenas, refusal) = Arenas::open(sizes, self.options.huge_pages, &self.nodes)?;
        if let Some(reason) = refusal {
            self.facts.detail += &format!(", memory not spread over {} nodes: {reason}", self.nodes.len());
        }
        self.arenas = Some(arenas);
        Ok(())
    }

    fn upload(&mut self, to: Slice, bytes: &[u8]) -> Result<(), BackendError> {
        let target = self.arenas()?.bytes_mut(to)?;
        if target.len() != bytes.len() {
            return Err(rejected(format!("{} bytes for a slice of {}", bytes.len(), target.len())));
        }
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn host_bytes_mut(&mut self, slice: Slice) -> Option<&mut [u8]> {
        self.arenas.as_mut()?.bytes_mut(slice).ok()
    }

    fn download(&mut self, from: Slice, bytes: &mut [u8]) -> Result<(), BackendError> {
        let source = self.arenas()?.bytes_mut(from)?;
        if source.len() != bytes.len() {
            return Err(rejected(format!("{} bytes for a slice of {}", bytes.len(), source.len())));
        }
        bytes.copy_from_slice(source);
        Ok(())
    }

    fn clear(&mut self, slice: Slice) -> Result<(), BackendError> {
        self.arenas()?.bytes_mut(slice)?.fill(0);
        Ok(())
    }

    fn prepare(&mut self, stage: &Arc<Stage>, program: usize) -> Result<PreparedId, BackendError> {
        let sizes = self.arenas()?.sizes;
        self.late_allocations += u64::from(self.frozen);
        let prepared = self.prepared_program(stage, program, sizes)?;
        self.grow_scratch(prepared.scratch_bytes, prepared.shared_bytes)?;
        self.prepared.push(prepared);
        Ok(PreparedId(self.prepared.len() - 1))
    }

    fn freeze(&mut self) {
        self.frozen = true;
    }

    fn run(&mut self, program: PreparedId, segment: usize, params: &RunParams<'_>) -> Result<Ticket, BackendError> {
        self.begin(program, segment, params)?;
        let steps = 0..self.prepared[program.0].kernels[segment].len();
        self.failure = self.execute(program, segment, params, steps).err();
        self.runs += 1;
        Ok(Ticket(self.runs))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), BackendError> {
        if ticket.0 == 0 || ticket.0 > self.runs {
            return Err(rejected(format!("run {} was never started", ticket.0)));
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn trace(
        &mut self,
        program: PreparedId,
        segment: usize,
        params: &RunParams<'_>,
        see: &mut dyn FnMut(usize, BufferId, &[f32]),
    ) -> Result<(), BackendError> {
        self.begin(program, segment, params)?;
        let steps = self.prepared[program.0].segments[segment].clone();
        let first = steps.start;
        let run = |device: &mut Self, step| device.execute(program, segment, params, step - first..step - first + 1);
        trace_steps(self, |device| device.prepared[program.0].program(), steps, params, run, see)
    }

    fn memory(&self) -> MemoryReport {
        let arenas_bytes = self.arenas.as_ref().map_or(0, |arenas| arenas.sizes.total_bytes());
        let own: usize = self.prepared.iter().map(Prepared::own_bytes).sum();
        let scratch_bytes = (self.scratch.len() + own) as u64;
        MemoryReport { arenas_bytes, scratch_bytes, late_allocations: self.late_allocations }
    }

    fn lends_slots(&self) -> bool {
        true
    }

    /// Results do not depend on the number of threads.
    fn arithmetic(&self) -> String {
        match self.style() {
            None => format!("{ID} scalar"),
            Some(Style { level, rounding }) => format!("{ID} {} {}", level.simd(), rounding.name()),
        }
    }
}
