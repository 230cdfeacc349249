//! The processor's side: a stage of its own on the CPU backend. Its weights arena is the RAM tier, slab by slab in the same
//! layout as on the card, and one small program a layer computes chosen experts with the kernels of the CPU backend.

use std::ops::Range;
use std::sync::Arc;

use super::ExpertError;
use super::layer::{Geometry, Window};
use crate::backend::cpu::CpuBackend;
use crate::backend::{ArenaSizes, Backend, BackendError, Pinner, PreparedId};
use crate::program::{
    ArenaKind, BufferId, ExpertMatrix, MatrixSpec, NO_SLOT, Op, OutputKind, ProgramBuilder, RunParams, ShapeClass, Slice,
    SlotRoom, Stage, StageBuilder, StateId, StateKind, WeightDecl, WeightId, check_stage,
};

/// Rows that the processor takes at once. Larger windows go through it in pieces, each of which reads the weights anew; at so
/// many rows that costs less than the arithmetic.
pub const MOST_ROWS: u32 = 512;

/// The shape classes of the host's programs: the rows of a decode window, and of a piece of a prompt.
pub fn shapes(stages: &[Arc<Stage>]) -> Vec<u32> {
    let mut rows: Vec<u32> = stages.iter().flat_map(|s| &s.programs).map(|p| p.shape.max_rows.min(MOST_ROWS)).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Buffers of one program.
#[derive(Debug, Clone, Copy)]
struct Ports {
    x: BufferId,
    ids: BufferId,
    out: BufferId,
}

/// A layer on the host.
#[derive(Debug)]
struct HostLayer {
    /// First part of the slab.
    first: WeightId,
    table: StateId,
    /// By shape class.
    programs: Vec<(PreparedId, usize, Ports)>,
}

#[derive(Debug)]
pub struct Host {
    backend: CpuBackend,
    stage: Arc<Stage>,
    shapes: Vec<u32>,
    layers: Vec<HostLayer>,
}

/// The stage of the host for some layers, the number of whose RAM slots is given, and for each layer its first weight, its
/// table and its programs.
type Built = (Stage, Vec<(WeightId, StateId, Vec<(usize, Ports)>)>);

fn build(layers: &[Geometry], ram_slots: &[u32], shapes: &[u32]) -> Result<Built, ExpertError> {
    let mut stage = StageBuilder::new("experts on the host");
    let mut made = vec![];
    let mut programs = 0;
    for (layer, slots) in layers.iter().zip(ram_slots) {
        let spec = |w: &WeightDecl| MatrixSpec { tensor: w.tensor.clone(), format: w.format, cols: w.cols, rows: w.rows };
        let ids =
            stage.expert_slots(layer.parts.iter().map(spec).collect(), layer.experts, SlotRoom { slots: *slots, lent: None });
        let mut matrix = |m: &super::layer::Matrix| {
            let scale = m.scale.as_ref().map(|w| stage.weight(spec(w)));
            ExpertMatrix { weight: ids[m.part], row_offset: m.row_offset, rows: m.rows, scale }
        };
        let (gate, up, down) = (matrix(&layer.gate), matrix(&layer.up), matrix(&layer.down));
        let kind = StateKind::ExpertSlots { layer: layer.layer, experts: layer.experts };
        let table = stage.state(format!("L{} experts in RAM", layer.layer), kind, 1);
        let mut own = vec![];
        for rows in shapes {
            let shape = ShapeClass { max_rows: *rows, max_outputs: 0 };
            let mut p = ProgramBuilder::new(format!("L{} of {rows} rows", layer.layer), shape);
            let x = p.input("x", layer.width, crate::program::InputKind::HandOff);
            let ids = p.id_input("expert ids", layer.used, crate::program::InputKind::HandOff);
            let hidden = p.buffer("expert hidden", layer.used * gate.rows);
            let out = p.buffer("expert out", layer.used * down.rows);
            p.mark_output(out, OutputKind::HandOff);
            let activation = layer.activation;
            p.step("experts in", Op::ExpertGated { x, ids, gate, up, activation, slots: Some(table), out: hidden });
            p.step("experts out", Op::ExpertDownEach { x: hidden, ids, down, slots: table, out });
            stage.program(p);
            own.push((programs, Ports { x: x.buffer, ids: ids.buffer, out: out.buffer }));
            programs += 1;
        }
        made.push((ids[0], table, own));
    }
    let stage = stage.finish();
    check_stage(&stage).map_err(|e| ExpertError::Defect { problem: e.to_string() })?;
    Ok((stage, made))
}

impl Host {
    /// Takes the memory and prepares the programs.
    ///
    /// # Errors
    /// No memory, or an op that the processor cannot run.
    pub fn open(mut backend: CpuBackend, layers: &[Geometry], ram_slots: &[u32], shapes: Vec<u32>) -> Result<Host, ExpertError> {
        let (stage, made) = build(layers, ram_slots, &shapes)?;
        let stage = Arc::new(stage);
        backend.open(ArenaSizes::of(&stage))?;
        let mut host_layers = vec![];
        for (first, table, own) in made {
            let prepare = |(i, ports): (usize, Ports)| Ok((backend.prepare(&stage, i)?, i, ports));
            let programs = own.into_iter().map(prepare).collect::<Result<_, BackendError>>()?;
            host_layers.push(HostLayer { first, table, programs });
        }
        Ok(Host { backend, stage, shapes, layers: host_layers })
    }

    pub fn stage(&self) -> &Arc<Stage> {
        &self.stage
    }

    pub fn backend_mut(&mut self) -> &mut CpuBackend {
        &mut self.backend
    }

    pub fn backend(&self) -> &CpuBackend {
        &self.backend
    }

    /// All parts of the expert in a slot of RAM.
    pub fn slab_slice(&self, layer: usize, slot: u32) -> Slice {
        let first = self.stage.weight(self.layers[layer].first);
        let len_bytes = first.expert_stride_bytes;
        Slice { arena: ArenaKind::Weights, offset_bytes: first.offset_bytes + u64::from(slot) * len_bytes, len_bytes }
    }

    /// Pins a piece of RAM for a device.
    ///
    /// # Errors
    /// Why that is refused; in words.
    pub fn pin(&mut self, piece: Range<u64>, pinner: &dyn Pinner) -> Result<(), String> {
        self.backend.pin_weights(piece, pinner)
    }

    /// The bytes of a slot of RAM.
    pub fn slab(&mut self, layer: usize, slot: u32) -> Result<&mut [u8], ExpertError> {
        let slice = self.slab_slice(layer, slot);
        let missing = || ExpertError::Defect { problem: format!("slot {slot} of layer {layer} lies outside RAM") };
        self.backend.host_bytes_mut(slice).ok_or_else(missing)
    }

    /// Computes the experts that `table` has slots for, of all rows of the window, and gives each choice's result to `see`:
    /// `(row, choice, values)`.
    ///
    /// # Errors
    /// A failing backend, or an interruption.
    pub fn compute(
        &mut self,
        layer: usize,
        window: &Window<'_>,
        table: &[u32],
        see: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), ExpertError> {
        let Host { backend, stage, shapes, layers } = self;
        let layer = &layers[layer];
        backend.upload(stage.state(layer.table).slice(0), bytemuck::cast_slice(table))?;
        let most = shapes.last().copied().unwrap_or(1) as usize;
        let (width, used) = (window.width, window.used);
        for first in (0..window.rows.len()).step_by(most) {
            let rows = first..(first + most).min(window.rows.len());
            let count = rows.len() as u32;
            let class = shapes.iter().position(|r| *r >= count).unwrap_or(shapes.len() - 1);
            let (prepared, program, ports) = layer.programs[class];
            let slice = |buffer| stage.programs[program].buffer_slice(buffer, count);
            backend.upload(slice(ports.x), bytemuck::cast_slice(&window.x[rows.start * width..rows.end * width]))?;
            backend.upload(slice(ports.ids), bytemuck::cast_slice(&window.ids[rows.start * used..rows.end * used]))?;
            let params = RunParams { rows: &window.rows[rows.clone()], outputs: &[], earlier: &[] };
            let ticket = backend.run(prepared, 0, &params)?;
            backend.wait(ticket)?;
            let out = slice(ports.out);
            let gone = || ExpertError::Defect { problem: "the host's results lie outside its memory".into() };
            let values: &[f32] = bytemuck::cast_slice(backend.host_bytes_mut(out).ok_or_else(gone)?);
            let dim = values.len() / count as usize / used;
            for (choice, values) in values.chunks_exact(dim).enumerate() {
                let (row, j) = (rows.start + choice / used, choice % used);
                if table.get(window.ids[row * used + j] as usize).is_some_and(|slot| *slot != NO_SLOT) {
                    see(row, j, values);
                }
            }
        }
        Ok(())
    }
}
