//! A program made ready: its launches with their arguments in one buffer, and a bind group each.

use std::ops::Range;
use std::sync::Arc;

use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindingResource, Buffer, BufferBinding, BufferDescriptor, BufferUsages,
    ComputePass, ComputePipeline,
};

use super::arena::Arena;
use super::device::Gpu;
use super::pipelines::{Compiled, Pipelines, Shape};
use super::shader::{self, ARGS_BYTES, TABLES_BINDING};
use crate::backend::BackendError;
use crate::backend::gpu::join::{Joined, JoinedLaunches, join};
use crate::backend::gpu::source::binding;
use crate::backend::gpu::{Counts, Kernel, Launch, Lowered, Operand, Region, RunBlock, Window};
use crate::program::{Program, RunParams, Stage, align_up};

/// Distance between the arguments of two launches: the strictest alignment of uniform bindings.
const ARGS_STRIDE_BYTES: u64 = 256;
const _: () = assert!(ARGS_BYTES <= ARGS_STRIDE_BYTES);

/// Memory that launches refer to.
#[derive(Debug)]
pub struct Memory {
    pub weights: Arena,
    pub state: Arena,
    pub work: Arena,
    pub scratch: Buffer,
    /// Codebooks.
    pub tables: Piece,
    /// Stand in for absent operands: one that is read, and two that may be written.
    pub absent: [Buffer; 3],
    pub parameters: Parameters,
}

/// Memory that kernels only read beside the weights: codebooks, arguments and run blocks.
#[derive(Debug)]
pub struct Parameters {
    buffer: Buffer,
    used: u64,
    /// Bytes that were not planned for and had to be taken apart.
    pub unplanned_bytes: u64,
}

/// A piece of a buffer that is written by the host and read by kernels.
#[derive(Debug, Clone)]
pub struct Piece {
    pub buffer: Buffer,
    pub offset: u64,
    pub bytes: u64,
}

const PARAMETER_USAGES: BufferUsages = BufferUsages::UNIFORM.union(BufferUsages::STORAGE);

impl Parameters {
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Parameters, BackendError> {
        Ok(Parameters { buffer: buffer(gpu, "parameters", bytes, PARAMETER_USAGES)?, used: 0, unplanned_bytes: 0 })
    }

    /// What the codebooks, and the arguments and run blocks of lowered programs take.
    pub fn bytes_of<'a>(lowered: impl Iterator<Item = &'a Lowered>) -> u64 {
        let program = |l: &Lowered| args_bytes(l) + align_up(l.run.bytes(), ARGS_STRIDE_BYTES);
        align_up(shader::tables().len() as u64 * 4, ARGS_STRIDE_BYTES) + lowered.map(program).sum::<u64>()
    }

    pub fn take(&mut self, gpu: &Gpu, bytes: u64) -> Result<Piece, BackendError> {
        let bytes = align_up(bytes.max(16), ARGS_STRIDE_BYTES);
        if self.used + bytes <= self.buffer.size() {
            self.used += bytes;
            return Ok(Piece { buffer: self.buffer.clone(), offset: self.used - bytes, bytes });
        }
        let apart = buffer(gpu, "parameters", bytes, PARAMETER_USAGES)?;
        self.unplanned_bytes += bytes;
        Ok(Piece { buffer: apart, offset: 0, bytes })
    }
}

fn args_bytes(lowered: &Lowered) -> u64 {
    lowered.launches.len() as u64 * ARGS_STRIDE_BYTES
}

impl Memory {
    fn resolve(&self, window: &Window) -> Option<(&Buffer, u64)> {
        match window.region {
            Region::Weights => self.weights.resolve(window),
            Region::State => self.state.resolve(window),
            Region::Work => self.work.resolve(window),
            Region::Scratch => Some((&self.scratch, window.offset_bytes)),
        }
    }
}

/// Arguments of all launches as they lie in memory, and where those of each do, with their length.
fn place_args(launches: &[Joined]) -> (Vec<(u64, u64)>, Vec<u8>) {
    let (mut places, mut bytes) = (vec![], vec![]);
    for joined in launches {
        let words: Vec<u32> = joined.parts.concat();
        let len = (words.len() as u64 * 4).next_multiple_of(16);
        places.push((bytes.len() as u64, len));
        bytes.extend_from_slice(bytemuck::cast_slice(&words));
        bytes.resize(align_up(bytes.len() as u64, ARGS_STRIDE_BYTES) as usize, 0);
    }
    (places, bytes)
}

/// What a launch needs when it is recorded.
#[derive(Debug)]
struct Call {
    group: BindGroup,
    /// Compiled code, in the order of [`Launch::variants`].
    code: Vec<ComputePipeline>,
}

#[derive(Debug)]
pub struct Prepared {
    stage: Arc<Stage>,
    program: usize,
    lowered: Lowered,
    launches: JoinedLaunches,
    pub segments: Vec<Range<usize>>,
    calls: Vec<Call>,
    block: RunBlock,
    block_place: Piece,
    /// Of the window at hand.
    counts: Counts,
}

pub fn buffer(gpu: &Gpu, label: &str, size: u64, usage: BufferUsages) -> Result<Buffer, BackendError> {
    let size = size.next_multiple_of(16).max(16);
    let descriptor =
        BufferDescriptor { label: Some(label), size, usage: usage | BufferUsages::COPY_DST, mapped_at_creation: false };
    gpu.scratch_buffer(label, &descriptor)
}

impl Prepared {
    pub fn new(
        gpu: &Gpu,
        memory: &mut Memory,
        pipelines: &mut Pipelines,
        stage: &Arc<Stage>,
        program: usize,
        lowered: Lowered,
    ) -> Result<Prepared, BackendError> {
        let launches = join(&lowered, &gpu.target);
        let (places, bytes) = place_args(&launches.launches);
        // What was planned is for launches that are not joined, and so is enough.
        let args = memory.parameters.take(gpu, args_bytes(&lowered).max(bytes.len() as u64))?;
        let block_place = memory.parameters.take(gpu, lowered.run.bytes())?;
        gpu.queue.write_buffer(&args.buffer, args.offset, &bytes);
        let bind = Bind { gpu, memory, args: &args, block: &block_place };
        let mut calls = Vec::with_capacity(launches.launches.len());
        for (joined, place) in launches.launches.iter().zip(places) {
            let (launch, parts) = (&joined.launch, joined.parts.len() as u32);
            let compiled: Vec<Compiled> = launch.variants().map(|v| pipelines.get(gpu, &v, parts)).collect::<Result<_, _>>()?;
            let Some(Compiled { shape, layout, .. }) = compiled.first() else {
                return Err(gpu.rejected("a launch without code"));
            };
            let group = bind.group(place, launch, *shape, layout)?;
            calls.push(Call { group, code: compiled.into_iter().map(|c| c.pipeline).collect() });
        }
        let segments = stage.programs[program].segments();
        let block = RunBlock::new(&lowered.run);
        let counts = Counts { rows: 0, outputs: 0, spans: 0 };
        Ok(Prepared { stage: stage.clone(), program, lowered, launches, segments, calls, block, block_place, counts })
    }

    pub fn program(&self) -> &Program {
        &self.stage.programs[self.program]
    }

    /// Checks the parameters of a window and writes its block: once, for the first segment.
    pub fn begin(&mut self, gpu: &Gpu, segment: usize, params: &RunParams<'_>) -> Result<(), BackendError> {
        let refuse = |problem: String| gpu.rejected(format!("program '{}': {problem}", self.stage.programs[self.program].name));
        if segment >= self.segments.len() {
            return Err(refuse(format!("segment {segment} of {}", self.segments.len())));
        }
        if segment > 0 {
            let begun = self.counts.rows as usize;
            let same = begun == params.rows.len();
            return if same { Ok(()) } else { Err(refuse(format!("{} rows in a window of {begun}", params.rows.len()))) };
        }
        let filled = self.block.fill(&self.lowered.run, &self.lowered.limits, &self.stage, params);
        self.counts = filled.map_err(refuse)?;
        gpu.queue.write_buffer(&self.block_place.buffer, self.block_place.offset, self.block.bytes());
        Ok(())
    }

    pub fn launches_of(&self, steps: Range<usize>) -> Range<usize> {
        let ranges = &self.launches.steps[steps];
        match (ranges.first(), ranges.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        }
    }

    /// Records launches for the window at hand: each with the bind group and code that it got when the program was prepared.
    pub fn record(&self, pass: &mut ComputePass<'_>, launches: Range<usize>) {
        for (Joined { launch, .. }, call) in self.launches.launches[launches.clone()].iter().zip(&self.calls[launches]) {
            if let Some(code) = launch.choice(&self.counts).and_then(|choice| call.code.get(choice)) {
                let [x, y, z] = launch.grid.map(|extent| extent.get(&self.counts));
                pass.set_pipeline(code);
                pass.set_bind_group(0, &call.group, &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
    }
}

impl Prepared {
    /// The launches that the window at hand needs: index, name of the variant, bytes of matrices that it reads.
    pub fn kernels_at_hand(&self) -> impl Iterator<Item = (usize, (String, u64))> {
        let named = |Joined { launch, parts }: &Joined| {
            let mut name = launch.variant(&self.counts)?.name();
            if parts.len() > 1 {
                name += &format!(", {} parts", parts.len());
            }
            let place = |field| launch.args.layout().fields.iter().position(|f| f.name == field);
            let bytes = |part: &Vec<u32>| Some(u64::from(part[place("outs")?]) * u64::from(part[place("row_bytes")?]));
            let matrix_bytes: u64 = parts.iter().filter_map(bytes).sum();
            let pairs = if launch.kernel == Kernel::ExpertVec { launch.grid[1].get(&self.counts) } else { 1 };
            let matrices = u64::from(pairs) * (1 + u64::from(launch.gated));
            Some((name, matrices * matrix_bytes))
        };
        self.launches.launches.iter().enumerate().filter_map(move |(i, joined)| Some((i, named(joined)?)))
    }
}

/// What bind groups of a program are made of.
struct Bind<'a> {
    gpu: &'a Gpu,
    memory: &'a Memory,
    args: &'a Piece,
    block: &'a Piece,
}

fn part(buffer: &Buffer, offset: u64, size: Option<u64>) -> BindingResource<'_> {
    BindingResource::Buffer(BufferBinding { buffer, offset, size: size.and_then(std::num::NonZeroU64::new) })
}

fn whole(piece: &Piece) -> BindingResource<'_> {
    part(&piece.buffer, piece.offset, Some(piece.bytes))
}

impl<'a> Bind<'a> {
    fn group(
        &self,
        (offset, args_bytes): (u64, u64),
        launch: &Launch,
        (_, tables): Shape,
        layout: &wgpu::BindGroupLayout,
    ) -> Result<BindGroup, BackendError> {
        let mut entries =
            vec![BindGroupEntry { binding: 0, resource: part(&self.args.buffer, self.args.offset + offset, Some(args_bytes)) }];
        for operand in launch.kernel.info().operands {
            entries.push(BindGroupEntry { binding: binding(*operand), resource: self.operand(launch, *operand)? });
        }
        if tables {
            entries.push(BindGroupEntry { binding: TABLES_BINDING, resource: whole(&self.memory.tables) });
        }
        let name = launch.kernel.info().name;
        let descriptor = BindGroupDescriptor { label: Some(name), layout, entries: &entries };
        self.gpu.checked(&format!("operands of {name}"), || self.gpu.device.create_bind_group(&descriptor))
    }

    fn operand(&self, launch: &Launch, operand: Operand) -> Result<BindingResource<'a>, BackendError> {
        if operand == Operand::Run {
            return Ok(whole(self.block));
        }
        let [read, state, other] = &self.memory.absent;
        let Some(window) = launch.window(operand) else {
            return Ok(match operand {
                Operand::State => part(state, 0, None),
                Operand::Work | Operand::Scratch => part(other, 0, None),
                _ => part(read, 0, None),
            });
        };
        let (buffer, offset) =
            self.memory.resolve(&window).ok_or_else(|| self.gpu.rejected("an operand lies outside its arena"))?;
        // Kernels read whole words, the last of them perhaps past the end of a weight.
        let size = (window.len_bytes + 4).min(buffer.size() - offset).min(self.gpu.limits.max_storage_buffer_binding_size);
        Ok(part(buffer, offset, Some(size / 4 * 4)))
    }
}
