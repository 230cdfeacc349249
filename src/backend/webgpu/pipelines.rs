//! Compiled kernels, each compiled once for a device.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use wgpu::{
    BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType, BufferBindingType, ComputePipeline,
    ComputePipelineDescriptor, PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModuleDescriptor, ShaderRuntimeChecks,
    ShaderSource, ShaderStages,
};

use super::device::Gpu;
use super::kept::KeptKernels;
use super::shader::{TABLES_BINDING, compose, uses_tables};
use crate::backend::BackendError;
use crate::backend::gpu::source::binding;
use crate::backend::gpu::{Kernel, Variant};

/// What bind groups of a kernel look like: the kernel, and whether it reads the codebooks.
pub type Shape = (Kernel, bool);

#[derive(Debug, Clone)]
pub struct Compiled {
    pub pipeline: ComputePipeline,
    pub shape: Shape,
    pub layout: BindGroupLayout,
}

#[derive(Debug, Default)]
pub struct Pipelines {
    layouts: HashMap<Shape, BindGroupLayout>,
    compiled: HashMap<(Variant, u32), Compiled>,
    kept: Option<KeptKernels>,
}

impl Pipelines {
    pub fn new(kept: Option<KeptKernels>) -> Pipelines {
        Pipelines { kept, ..Pipelines::default() }
    }

    /// Keeps what has been compiled for the next start.
    pub fn keep(&mut self) -> std::io::Result<()> {
        self.kept.as_mut().map_or(Ok(()), KeptKernels::keep)
    }

    /// A kernel's code for launches of so many parts, compiled at its first use.
    pub fn get(&mut self, gpu: &Gpu, variant: &Variant, parts: u32) -> Result<Compiled, BackendError> {
        if let Some(compiled) = self.compiled.get(&(*variant, parts)) {
            return Ok(compiled.clone());
        }
        let source = compose(variant, &gpu.tuning, parts).map_err(|problem| gpu.rejected(problem))?;
        let shape = (variant.kernel, uses_tables(&source));
        let layout = match self.layouts.entry(shape) {
            Entry::Occupied(made) => made.get().clone(),
            Entry::Vacant(place) => place.insert(bind_group_layout(gpu, shape)?).clone(),
        };
        let name = variant.name();
        let pipeline = gpu.checked(&format!("kernel {name}"), || {
            let descriptor = ShaderModuleDescriptor { label: Some(&name), source: ShaderSource::Wgsl(Cow::Owned(source)) };
            // SAFETY: the kernels are this program's own. Every index they form lies in the windows of their launch: programs and
            // runs are checked before, and rows past the window and ids of experts are clamped; ids of blocks are made by our own
            // kernels. Products alone read past a row, and what they read there counts for nothing: of plain numbers, whose rows
            // need not be whole blocks, the rest of 32 weights and activations, of other weights the rest of a word. That is at
            // most `arena::PADDING_BYTES`, which lie behind the weights and the work arena. Loops are bounded by
            // arguments.
            let module = unsafe { gpu.device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked()) };
            let pipeline_layout = gpu.device.create_pipeline_layout(&PipelineLayoutDescriptor {
                label: Some(&name),
                bind_group_layouts: &[Some(&layout)],
                ..PipelineLayoutDescriptor::default()
            });
            gpu.device.create_compute_pipeline(&ComputePipelineDescriptor {
                label: Some(&name),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                // Kernels write workgroup memory before they read it.
                compilation_options: PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..PipelineCompilationOptions::default()
                },
                cache: self.kept.as_ref().map(|kept| &kept.cache),
            })
        })?;
        let compiled = Compiled { pipeline, shape, layout };
        self.compiled.insert((*variant, parts), compiled.clone());
        Ok(compiled)
    }
}

fn bind_group_layout(gpu: &Gpu, (kernel, tables): Shape) -> Result<BindGroupLayout, BackendError> {
    let entry = |binding, ty| BindGroupLayoutEntry {
        binding,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let storage = |read_only| BufferBindingType::Storage { read_only };
    let args = if gpu.tuning.args_in_storage { storage(true) } else { BufferBindingType::Uniform };
    let mut entries = vec![entry(0, args)];
    entries.extend(kernel.info().operands.iter().map(|o| entry(binding(*o), storage(o.is_read_only()))));
    if tables {
        entries.push(entry(TABLES_BINDING, storage(true)));
    }
    let descriptor = BindGroupLayoutDescriptor { label: Some(kernel.info().name), entries: &entries };
    gpu.checked("a bind group layout", || gpu.device.create_bind_group_layout(&descriptor))
}
