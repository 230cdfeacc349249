//! One opened device, and what becomes of its errors: they are caught in scopes where they belong to a call, and kept for the
//! next wait where they do not. wgpu would end the process otherwise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wgpu::{
    Adapter, Buffer, BufferDescriptor, CooperativeScalarType, Device, DeviceDescriptor, DeviceType, ErrorFilter,
    ExperimentalFeatures, Features, Limits, MemoryHints, PollType, Queue,
};

use super::arena::PADDING_BYTES;
use super::memory::memory_facts;
use super::shader;
use super::tuning::{AdapterKind, Tuning};
use crate::backend::gpu::{Activations, Room, Target, Tiles};
use crate::backend::{BackendError, DeviceFacts};
use crate::program::ArenaKind;

/// Bytes after a cut of the weights that the buffer before holds too, so that no row of a matrix is torn.
pub const CUT_OVERLAP_BYTES: u64 = 1 << 20;

/// What went wrong outside of any call.
#[derive(Debug, Default)]
struct Health {
    lost: Mutex<Option<String>>,
    error: Mutex<Option<String>>,
}

fn keep_first(place: &Mutex<Option<String>>, text: String) {
    place.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(text);
}

fn kept(place: &Mutex<Option<String>>) -> Option<String> {
    place.lock().unwrap_or_else(|e| e.into_inner()).clone()
}

#[derive(Debug)]
pub struct Gpu {
    pub id: String,
    pub device: Device,
    pub queue: Queue,
    pub facts: DeviceFacts,
    pub limits: Limits,
    pub target: Target,
    pub tuning: Tuning,
    health: Arc<Health>,
    /// All memory that the card has, where the driver says so.
    pub total_bytes: Option<u64>,
    /// Buffers that were asked for, and which of them is refused; 0 for none.
    buffers: AtomicU64,
    refused: AtomicU64,
}

/// A failed call, before it is known what it was for.
pub enum Fault {
    OutOfMemory(String),
    Other(String),
}

impl Gpu {
    pub fn open(adapter: &Adapter, id: &str, tuned: Option<Tuning>) -> Result<Gpu, BackendError> {
        let info = adapter.get_info();
        let kind = adapter_kind(adapter);
        let tuning = tuned.unwrap_or_else(|| Tuning::of(&kind));
        if !kind.has(tuning.tile) {
            let problem = format!("kernels with tiles of {} were asked for, which the card cannot run", tuning.tile.name());
            return Err(BackendError::Rejected { device: id.into(), problem });
        }
        let mut wanted = Features::PIPELINE_CACHE | Features::SUBGROUP | Features::SHADER_F16;
        wanted.set(Features::EXPERIMENTAL_COOPERATIVE_MATRIX, tuning.tile.is_cooperative());
        let descriptor = DeviceDescriptor {
            label: Some("strata"),
            required_features: adapter.features() & wanted,
            required_limits: adapter.limits(),
            // Memory is planned to the byte: no blocks in advance.
            memory_hints: MemoryHints::MemoryUsage,
            experimental_features: experimental_features(&tuning),
            ..DeviceDescriptor::default()
        };
        let rejected = |problem: String| BackendError::Rejected { device: id.into(), problem };
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|e| rejected(format!("the driver refuses a device: {e}")))?;
        let health = Arc::new(Health::default());
        let (for_lost, for_errors) = (Arc::clone(&health), Arc::clone(&health));
        device.set_device_lost_callback(move |reason, text| keep_first(&for_lost.lost, format!("{reason:?}: {text}")));
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| keep_first(&for_errors.error, error.to_string())));
        let limits = device.limits();
        let facts = DeviceFacts {
            id: id.into(),
            name: info.name.clone(),
            detail: format!("{:?}, {} {}, {}", info.backend, info.driver, info.driver_info, activations(&tuning)),
        };
        let target = target(&limits, &tuning);
        let total_bytes = memory_facts(adapter).map(|facts| facts.total_bytes);
        Ok(Gpu {
            id: id.into(),
            device,
            queue,
            facts,
            limits,
            target,
            tuning,
            health,
            total_bytes,
            buffers: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    pub fn rejected(&self, problem: impl Into<String>) -> BackendError {
        BackendError::Rejected { device: self.id.clone(), problem: problem.into() }
    }

    /// Runs a call that makes something, and catches what it does wrong.
    pub fn catch<T>(&self, make: impl FnOnce() -> T) -> Result<T, Fault> {
        let validation = self.device.push_error_scope(ErrorFilter::Validation);
        let internal = self.device.push_error_scope(ErrorFilter::Internal);
        let memory = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let made = make();
        // The innermost scope is closed first.
        let memory = pollster::block_on(memory.pop());
        let internal = pollster::block_on(internal.pop());
        let validation = pollster::block_on(validation.pop());
        if let Some(error) = memory {
            return Err(Fault::OutOfMemory(error.to_string()));
        }
        match internal.or(validation) {
            Some(error) => Err(Fault::Other(error.to_string())),
            None => Ok(made),
        }
    }

    /// Takes memory: every buffer of this backend comes from here.
    pub fn buffer(&self, descriptor: &BufferDescriptor<'_>) -> Result<Buffer, Fault> {
        let number = self.buffers.fetch_add(1, Ordering::Relaxed) + 1;
        if number == self.refused.load(Ordering::Relaxed) {
            return Err(Fault::OutOfMemory("refused, as a test wants it".into()));
        }
        self.catch(|| self.device.create_buffer(descriptor))
    }

    /// As [`Gpu::buffer`], for memory beside the arenas, which is scratch in plans.
    pub fn scratch_buffer(&self, what: &str, descriptor: &BufferDescriptor<'_>) -> Result<Buffer, BackendError> {
        let buffer = self.buffer(descriptor).map_err(|fault| match fault {
            Fault::OutOfMemory(reason) => BackendError::OutOfMemory {
                device: self.id.clone(),
                arena: ArenaKind::Work,
                bytes: descriptor.size,
                reason: format!("scratch, {what}: {reason}"),
            },
            Fault::Other(reason) => self.rejected(format!("{what}: {reason}")),
        })?;
        self.healthy(what)?;
        Ok(buffer)
    }

    /// The `next`-th buffer from now on is refused, as if the card were full.
    pub fn refuse_buffer(&self, next: u64) {
        self.refused.store(self.buffers.load(Ordering::Relaxed) + next, Ordering::Relaxed);
    }

    /// As [`Gpu::catch`], for calls that take no arena.
    pub fn checked<T>(&self, what: &str, make: impl FnOnce() -> T) -> Result<T, BackendError> {
        let made = self.catch(make).map_err(|fault| match fault {
            Fault::OutOfMemory(reason) => self.rejected(format!("{what}: out of memory: {reason}")),
            Fault::Other(reason) => self.rejected(format!("{what}: {reason}")),
        })?;
        self.healthy(what)?;
        Ok(made)
    }

    /// Whether the device still works; errors stay.
    pub fn healthy(&self, during: &str) -> Result<(), BackendError> {
        if let Some(reason) = kept(&self.health.lost) {
            return Err(BackendError::Lost { device: self.id.clone(), during: during.into(), reason });
        }
        match kept(&self.health.error) {
            Some(reason) => Err(self.rejected(format!("{during}: {reason}"))),
            None => Ok(()),
        }
    }

    /// Waits for everything that was submitted.
    pub fn drain(&self, during: &str) -> Result<(), BackendError> {
        let polled = self.device.poll(PollType::wait_indefinitely());
        self.healthy(during)?;
        polled.map(drop).map_err(|e| self.rejected(format!("{during}: {e}")))
    }
}

/// What an adapter has, as far as kernels depend on it.
pub fn adapter_kind(adapter: &Adapter) -> AdapterKind {
    let (info, features) = (adapter.get_info(), adapter.features());
    let cooperative = |size: u32, ab: CooperativeScalarType| {
        features.contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX)
            && adapter.cooperative_matrix_properties().iter().any(|p| {
                [p.m_size, p.n_size, p.k_size] == [size; 3] && p.ab_type == ab && p.cr_type == CooperativeScalarType::F32
            })
    };
    AdapterKind {
        software: info.device_type == DeviceType::Cpu,
        subgroups: features.contains(Features::SUBGROUP),
        least_subgroup: info.subgroup_min_size,
        largest_subgroup: info.subgroup_max_size,
        f16: features.contains(Features::SHADER_F16),
        cooperative_float: cooperative(8, CooperativeScalarType::F32),
        cooperative_half: cooperative(16, CooperativeScalarType::F16),
    }
}

fn activations(tuning: &Tuning) -> &'static str {
    match tuning.tile.rounds_inputs() {
        true => "float32 activations, 15-bit in prompts",
        false => "float32 activations",
    }
}

fn experimental_features(tuning: &Tuning) -> ExperimentalFeatures {
    if !tuning.tile.is_cooperative() {
        return ExperimentalFeatures::disabled();
    }
    // SAFETY: what wgpu may get wrong in experimental features is out of reach here: of all that it calls so, the kernels use
    // cooperative matrices alone, on workgroup memory, at constant places within its bounds, with all threads of a subgroup.
    unsafe { ExperimentalFeatures::enabled() }
}

fn target(limits: &Limits, tuning: &Tuning) -> Target {
    let whole = |bytes: u64| bytes / 256 * 256;
    let has_chunks = limits.max_compute_workgroup_storage_size >= shader::chunk_bytes(tuning);
    let beside = CUT_OVERLAP_BYTES + PADDING_BYTES;
    Target {
        // Kernels count bytes of weights and caches in 32 bits.
        max_binding_bytes: whole(limits.max_storage_buffer_binding_size.min(u32::MAX.into())),
        cut_bytes: whole(limits.max_buffer_size - beside.min(limits.max_buffer_size / 2)),
        cut_overlap_bytes: CUT_OVERLAP_BYTES,
        max_groups_x: limits.max_compute_workgroups_per_dimension,
        max_groups_yz: limits.max_compute_workgroups_per_dimension,
        activations: if tuning.tile.rounds_inputs() { Activations::TwoBytesOfMany } else { Activations::Float },
        caches: shader::CACHES,
        tiles: Tiles {
            vector_outs: tuning.vector_outs(),
            matrix_outs: tuning.matrix_tile().0,
            matrix_rows: tuning.matrix_tile().1,
            attention_splits: 8,
            delta_channels: tuning.delta_threads,
            delta_chunk_channels: if has_chunks { tuning.chunk_channels } else { 0 },
        },
        // Indexer keys stay in the state.
        room: Room {
            head_dim: shader::MAX_HEAD_DIM,
            delta_keys: shader::MAX_KEY_DIM,
            delta_chunk_keys: shader::MAX_CHUNK_KEYS,
            index_keys: u32::MAX,
            experts: shader::MAX_EXPERTS,
        },
    }
}
