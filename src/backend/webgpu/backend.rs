//! The backend: arenas, prepared programs, runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wgpu::{Adapter, Buffer, BufferUsages, CommandEncoderDescriptor, ComputePassDescriptor};

use super::arena::{Arena, download_staging};
use super::device::Gpu;
use super::kept::KeptKernels;
use super::pipelines::Pipelines;
use super::prepare::{Memory, Parameters, Prepared, buffer};
use super::shader;
use super::timing::{LaunchTime, time_launches};
use super::tuning::Tuning;
use crate::backend::discovery::CardOptions;
use crate::backend::gpu::{Lowered, lower, supports};
use crate::backend::trace::trace_steps;
use crate::backend::{ArenaSizes, Backend, BackendError, DeviceFacts, MemoryReport, PreparedId, Ticket};
use crate::program::{ArenaKind, BufferId, Op, RunParams, Slice, Stage};

/// Launches of one submission in programs of many rows, so that no submission keeps a desktop's card for long.
const SUBMIT_LAUNCHES: usize = 64;

/// A card reached through wgpu.
pub struct WebGpuBackend {
    gpu: Gpu,
    options: CardOptions,
    sizes: Option<ArenaSizes>,
    memory: Option<Memory>,
    /// Of what `scratch_bytes` promised last, the part that kernels only read.
    parameter_bytes: AtomicU64,
    /// Scratch beyond what was planned, taken for stages that were prepared without a plan.
    unplanned_bytes: u64,
    staging: Option<Buffer>,
    /// Bytes of uploads since the last wait.
    pending_bytes: u64,
    pipelines: Pipelines,
    prepared: Vec<Prepared>,
    runs: u64,
    frozen: bool,
    late_allocations: u64,
}

impl WebGpuBackend {
    /// # Errors
    /// The driver refuses a device.
    pub fn new(adapter: &Adapter, id: &str, options: CardOptions, tuning: Option<Tuning>) -> Result<WebGpuBackend, BackendError> {
        let mut gpu = Gpu::open(adapter, id, tuning)?;
        let kept = match &options.cache_folder {
            Some(folder) => {
                let (kept, problem) = KeptKernels::open(&gpu, folder, &adapter.get_info())?;
                gpu.facts.detail += &problem.map_or_else(String::new, |problem| format!("; {problem}"));
                kept
            }
            None => None,
        };
        Ok(WebGpuBackend {
            gpu,
            options,
            sizes: None,
            memory: None,
            parameter_bytes: AtomicU64::new(0),
            unplanned_bytes: 0,
            staging: None,
            pending_bytes: 0,
            pipelines: Pipelines::new(kept),
            prepared: vec![],
            runs: 0,
            frozen: false,
            late_allocations: 0,
        })
    }
}

impl WebGpuBackend {
    /// Gives the device up as if the driver had lost it: for tests of what happens then.
    pub fn lose(&self) {
        self.gpu.device.destroy();
    }

    /// Adds to what is told of the device.
    pub(super) fn note(&mut self, text: &str) {
        self.gpu.facts.detail += text;
    }

    /// Refuses the `next`-th buffer from now on, as if the card were full: for tests of what happens then.
    pub fn refuse_buffer(&self, next: u64) {
        self.gpu.refuse_buffer(next);
    }

    /// Times each kernel of a window of a prepared program alone, `times` in a row: for benches.
    ///
    /// # Errors
    /// As a run.
    pub fn time_kernels(
        &mut self,
        program: PreparedId,
        params: &RunParams<'_>,
        times: u32,
    ) -> Result<Vec<LaunchTime>, BackendError> {
        self.begin(program, 0, params)?;
        let prepared = self.prepared.get(program.0).ok_or_else(|| self.unprepared(program))?;
        time_launches(&self.gpu, prepared, times)
    }
}

impl WebGpuBackend {
    fn memory_of(&self) -> Result<&Memory, BackendError> {
        self.memory.as_ref().ok_or_else(|| self.gpu.rejected("no arenas are open"))
    }

    fn arena(&self, kind: ArenaKind) -> Result<&Arena, BackendError> {
        let memory = self.memory_of()?;
        Ok(match kind {
            ArenaKind::Weights => &memory.weights,
            ArenaKind::State => &memory.state,
            ArenaKind::Work => &memory.work,
        })
    }

    fn unprepared(&self, id: PreparedId) -> BackendError {
        self.gpu.rejected(format!("program {} has not been prepared", id.0))
    }

    fn lower(&self, stage: &Stage, program: usize, sizes: ArenaSizes) -> Result<Lowered, BackendError> {
        lower(stage, program, sizes, &self.gpu.target).map_err(|(op, reason)| self.unsupported(op, reason))
    }

    fn lower_all(&self, stage: &Stage) -> Result<Vec<Lowered>, BackendError> {
        (0..stage.programs.len()).map(|program| self.lower(stage, program, ArenaSizes::of(stage))).collect()
    }

    /// Makes the scratch large enough for a program that nobody planned.
    fn grow_scratch(&mut self, bytes: u64) -> Result<(), BackendError> {
        if self.memory_of()?.scratch.size() >= bytes {
            return Ok(());
        }
        self.late_allocations += u64::from(self.frozen);
        let scratch = buffer(&self.gpu, "partial results", bytes, BufferUsages::STORAGE)?;
        let Some(memory) = &mut self.memory else { return Err(self.gpu.rejected("no arenas are open")) };
        memory.scratch = scratch;
        self.unplanned_bytes += bytes;
        Ok(())
    }

    fn unsupported(&self, op: String, reason: String) -> BackendError {
        BackendError::Unsupported { device: self.gpu.id.clone(), op, reason }
    }

    /// Starts the given steps; the window has begun.
    fn submit(&mut self, id: PreparedId, steps: std::ops::Range<usize>) -> Result<(), BackendError> {
        let prepared = self.prepared.get(id.0).ok_or_else(|| self.unprepared(id))?;
        let launches = prepared.launches_of(steps);
        let few = prepared.program().shape.max_rows <= crate::backend::gpu::kernels::MAX_VECTOR_ROWS;
        let each = if few { launches.len().max(1) } else { SUBMIT_LAUNCHES };
        for start in launches.clone().step_by(each) {
            self.gpu.checked("a run", || {
                let mut encoder = self.gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
                let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
                prepared.record(&mut pass, start..(start + each).min(launches.end));
                drop(pass);
                self.gpu.queue.submit([encoder.finish()])
            })?;
        }
        Ok(())
    }

    fn begin(&mut self, id: PreparedId, segment: usize, params: &RunParams<'_>) -> Result<std::ops::Range<usize>, BackendError> {
        if self.options.cancel.load(Ordering::Relaxed) {
            return Err(BackendError::Interrupted { device: self.gpu.id.clone() });
        }
        let unprepared = self.unprepared(id);
        let prepared = self.prepared.get_mut(id.0).ok_or(unprepared)?;
        prepared.begin(&self.gpu, segment, params)?;
        Ok(prepared.segments[segment].clone())
    }
}

impl Backend for WebGpuBackend {
    fn facts(&self) -> &DeviceFacts {
        &self.gpu.facts
    }

    fn supports(&self, stage: &Stage, op: &Op) -> Result<(), String> {
        supports(stage, op, &self.gpu.target)
    }

    fn scratch_bytes(&self, stage: &Arc<Stage>) -> Result<u64, BackendError> {
        let lowered = self.lower_all(stage)?;
        let parameters = Parameters::bytes_of(lowered.iter());
        self.parameter_bytes.store(parameters, Ordering::Relaxed);
        Ok(parameters + lowered.iter().map(|l| l.scratch_bytes).max().unwrap_or(0))
    }

    fn open(&mut self, sizes: ArenaSizes) -> Result<(), BackendError> {
        if self.memory.is_some() {
            return Err(self.gpu.rejected("the arenas are open already"));
        }
        self.late_allocations += u64::from(self.frozen);
        let gpu = &self.gpu;
        let arena = |kind| Arena::open(gpu, kind, sizes.get(kind));
        let (weights, state, work) = (arena(ArenaKind::Weights)?, arena(ArenaKind::State)?, arena(ArenaKind::Work)?);
        let words = shader::tables();
        let parameter_bytes = self.parameter_bytes.load(Ordering::Relaxed).min(sizes.scratch_bytes);
        let mut parameters = Parameters::new(gpu, parameter_bytes)?;
        let scratch_bytes = sizes.scratch_bytes - parameter_bytes;
        let scratch = buffer(gpu, "partial results", scratch_bytes, BufferUsages::STORAGE)?;
        let tables = parameters.take(gpu, words.len() as u64 * 4)?;
        gpu.queue.write_buffer(&tables.buffer, tables.offset, bytemuck::cast_slice(&words));
        let small = |label| buffer(gpu, label, 16, BufferUsages::STORAGE);
        let absent = [small("no weights")?, small("no state")?, small("no memory")?];
        self.staging = Some(download_staging(gpu)?);
        self.memory = Some(Memory { weights, state, work, scratch, tables, absent, parameters });
        self.sizes = Some(sizes);
        Ok(())
    }

    fn upload(&mut self, to: Slice, bytes: &[u8]) -> Result<(), BackendError> {
        if to.len_bytes != bytes.len() as u64 {
            return Err(self.gpu.rejected(format!("{} bytes for a slice of {}", bytes.len(), to.len_bytes)));
        }
        let mut pending = self.pending_bytes;
        let outcome = self.arena(to.arena)?.upload(&self.gpu, &mut pending, to.offset_bytes, bytes);
        self.pending_bytes = pending;
        outcome?;
        self.gpu.healthy("an upload")
    }

    fn host_bytes_mut(&mut self, _slice: Slice) -> Option<&mut [u8]> {
        None
    }

    fn download(&mut self, from: Slice, bytes: &mut [u8]) -> Result<(), BackendError> {
        if from.len_bytes != bytes.len() as u64 {
            return Err(self.gpu.rejected(format!("{} bytes for a slice of {}", bytes.len(), from.len_bytes)));
        }
        let staging = self.staging.as_ref().ok_or_else(|| self.gpu.rejected("no arenas are open"))?;
        self.arena(from.arena)?.download(&self.gpu, staging, from.offset_bytes, bytes)
    }

    fn clear(&mut self, slice: Slice) -> Result<(), BackendError> {
        self.arena(slice.arena)?.clear(&self.gpu, slice.offset_bytes, slice.len_bytes)
    }

    fn prepare(&mut self, stage: &Arc<Stage>, program: usize) -> Result<PreparedId, BackendError> {
        let sizes = self.sizes.ok_or_else(|| self.gpu.rejected("no arenas are open"))?;
        self.late_allocations += u64::from(self.frozen);
        let lowered = self.lower(stage, program, sizes)?;
        self.grow_scratch(lowered.scratch_bytes)?;
        let WebGpuBackend { gpu, memory, pipelines, .. } = self;
        let memory = memory.as_mut().ok_or_else(|| gpu.rejected("no arenas are open"))?;
        let prepared = Prepared::new(gpu, memory, pipelines, stage, program, lowered)?;
        self.prepared.push(prepared);
        Ok(PreparedId(self.prepared.len() - 1))
    }

    fn freeze(&mut self) {
        self.frozen = true;
        if let Err(e) = self.pipelines.keep() {
            self.gpu.facts.detail += &format!("; compiled kernels cannot be kept: {e}");
        }
    }

    fn run(&mut self, program: PreparedId, segment: usize, params: &RunParams<'_>) -> Result<Ticket, BackendError> {
        let steps = self.begin(program, segment, params)?;
        self.submit(program, steps)?;
        self.runs += 1;
        Ok(Ticket(self.runs))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), BackendError> {
        if ticket.0 == 0 || ticket.0 > self.runs {
            return Err(self.gpu.rejected(format!("run {} was never started", ticket.0)));
        }
        self.pending_bytes = 0;
        self.gpu.drain("a run")?;
        match self.options.cancel.load(Ordering::Relaxed) {
            true => Err(BackendError::Interrupted { device: self.gpu.id.clone() }),
            false => Ok(()),
        }
    }

    fn trace(
        &mut self,
        program: PreparedId,
        segment: usize,
        params: &RunParams<'_>,
        see: &mut dyn FnMut(usize, BufferId, &[f32]),
    ) -> Result<(), BackendError> {
        let steps = self.begin(program, segment, params)?;
        let run = |device: &mut Self, step| device.submit(program, step..step + 1);
        trace_steps(self, |device| device.prepared[program.0].program(), steps, params, run, see)
    }

    fn memory(&self) -> MemoryReport {
        let arenas_bytes = self.sizes.map_or(0, |sizes| sizes.total_bytes());
        let parameters = self.memory.as_ref().map_or(0, |m| m.parameters.unplanned_bytes);
        let staging = self.staging.as_ref().map_or(0, Buffer::size);
        MemoryReport {
            arenas_bytes,
            scratch_bytes: self.unplanned_bytes + parameters + staging,
            late_allocations: self.late_allocations,
        }
    }
}
