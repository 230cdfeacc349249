//! The shape of a layer whose experts are partly held, read off the stage that runs it.

use super::loan::LentSlots;
use super::{ExpertError, SlotPiece};
use crate::program::{
    ArenaKind, ExpertMatrix, GateActivation, Op, Program, Row, Slice, Stage, StateId, StateKind, View, WeightDecl, WeightId,
};

/// A matrix of every expert, as rows of one of the slab's parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// Index into [`Geometry::parts`].
    pub part: usize,
    pub row_offset: u32,
    pub rows: u32,
    /// F32 `[experts]`.
    pub scale: Option<WeightDecl>,
}

/// What the tiers know of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Geometry {
    /// Number of the layer in the model.
    pub layer: u32,
    pub stage: usize,
    pub experts: u32,
    /// Experts that a token chooses.
    pub used: u32,
    /// Width of the input.
    pub width: u32,
    /// Width of an expert's result.
    pub out_width: u32,
    pub activation: GateActivation,
    /// The tensors of a slab in their order, as the device declares them.
    pub parts: Vec<WeightDecl>,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    /// Slots on the device, and those of them that prompts borrow.
    pub card_slots: u32,
    pub lent: LentSlots,
    pub slab_bytes: u64,
    /// The device's table.
    pub table: Slice,
    /// Operands of the host step, by program of the stage.
    pub ports: Vec<Ports>,
}

/// Operands of a layer's host step in one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    pub max_rows: u32,
    pub x: Columns,
    pub ids: Columns,
    pub out: Columns,
}

/// Columns of a buffer in the device's work arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    offset_bytes: u64,
    /// Elements from row to row.
    stride: u32,
    pub width: u32,
}

impl Columns {
    fn of(program: &Program, view: View) -> Columns {
        let buffer = program.buffer(view.buffer);
        Columns { offset_bytes: buffer.offset_bytes + u64::from(view.offset) * 4, stride: buffer.width, width: view.width }
    }

    /// All rows, where nothing lies between them.
    pub fn whole(&self, rows: usize) -> Option<Slice> {
        let len_bytes = rows as u64 * u64::from(self.width) * 4;
        (self.stride == self.width).then_some(Slice { arena: ArenaKind::Work, offset_bytes: self.offset_bytes, len_bytes })
    }

    /// `count` columns of a row from `column`.
    pub fn part(&self, row: usize, column: usize, count: usize) -> Slice {
        let at = row as u64 * u64::from(self.stride) + column as u64;
        Slice { arena: ArenaKind::Work, offset_bytes: self.offset_bytes + at * 4, len_bytes: count as u64 * 4 }
    }
}

/// A window as the tiers see it, on the host.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    pub rows: &'a [Row],
    pub width: usize,
    /// Choices of a row.
    pub used: usize,
    /// `[row][width]`
    pub x: &'a [f32],
    /// `[row][used]`
    pub ids: &'a [u32],
}

impl Geometry {
    /// All layers of a stage with host steps, in the order of the steps.
    ///
    /// # Errors
    /// Programs that do not agree: a defect of the family that wrote them.
    pub fn of_stage(index: usize, stage: &Stage) -> Result<Vec<Geometry>, ExpertError> {
        let mut layers: Vec<Geometry> = vec![];
        for (p, program) in stage.programs.iter().enumerate() {
            let steps = program.host_steps().filter(|i| matches!(program.steps[*i].op, Op::HostExperts { .. }));
            for (n, i) in steps.enumerate() {
                let found = Geometry::of_step(index, stage, program, i)?;
                match layers.get_mut(n) {
                    None if p == 0 => layers.push(found),
                    Some(layer) if layer.table == found.table => layer.ports.extend(found.ports),
                    _ => return Err(defect("the programs of a stage have different layers")),
                }
            }
        }
        Ok(layers)
    }

    fn of_step(index: usize, stage: &Stage, program: &Program, i: usize) -> Result<Geometry, ExpertError> {
        let (Some(host), Some(gated), Some(each)) = (program.steps.get(i), program.steps.get(i + 1), program.steps.get(i + 2))
        else {
            return Err(defect("a host step at the end of a program"));
        };
        let (
            Op::HostExperts { x, ids, slots, out },
            Op::ExpertGated { gate, up, activation, .. },
            Op::ExpertDownEach { down, .. },
        ) = (&host.op, &gated.op, &each.op)
        else {
            return Err(defect("a host step without the held experts after it"));
        };
        let ids_of_parts = parts(stage, [gate, up, down]);
        let matrix = |m: &ExpertMatrix, scale: Option<WeightId>| {
            let part = ids_of_parts.iter().position(|id| *id == m.weight).unwrap_or(0);
            Matrix { part, row_offset: m.row_offset, rows: m.rows, scale: scale.map(|s| stage.weight(s).clone()) }
        };
        let parts: Vec<WeightDecl> = ids_of_parts.iter().map(|id| stage.weight(*id).clone()).collect();
        let StateKind::ExpertSlots { layer, experts } = stage.state(*slots).kind else {
            return Err(defect("a host step without a table"));
        };
        Ok(Geometry {
            layer,
            stage: index,
            experts,
            used: ids.width,
            width: x.width,
            out_width: down.rows,
            activation: *activation,
            gate: matrix(gate, gate.scale),
            up: matrix(up, up.scale),
            // The scale of the last product is applied where the results are added.
            down: matrix(down, None),
            card_slots: parts[0].slots,
            lent: lent_slots(stage, &parts[0]),
            slab_bytes: parts[0].slab_bytes,
            parts,
            table: table_slice(stage, *slots),
            ports: vec![Ports {
                max_rows: program.shape.max_rows,
                x: Columns::of(program, *x),
                ids: Columns::of(program, *ids),
                out: Columns::of(program, *out),
            }],
        })
    }

    /// All parts of the expert in a slot of the device.
    pub fn slab(&self, slot: u32) -> Slice {
        let offset_bytes = self.parts[0].slice(slot).offset_bytes;
        Slice { arena: ArenaKind::Weights, offset_bytes, len_bytes: self.slab_bytes }
    }

    /// Slots whose experts stay whatever a prompt needs.
    pub fn kept_slots(&self) -> u32 {
        self.card_slots - self.lent.count
    }

    /// The stretches of the files that make up an expert in a slot.
    pub fn pieces(&self, expert: u32, slot: Slice, pieces: &mut Vec<SlotPiece>) {
        for (p, part) in self.parts.iter().enumerate() {
            let len_bytes = part.matrix_bytes();
            let to = Slice { offset_bytes: slot.offset_bytes + self.part_offset(p), len_bytes, ..slot };
            pieces.push(SlotPiece { tensor: part.tensor.clone(), from_bytes: u64::from(expert) * len_bytes, to });
        }
    }

    /// Where a part lies in the slab.
    pub fn part_offset(&self, part: usize) -> u64 {
        self.parts[part].offset_bytes - self.parts[0].offset_bytes
    }
}

/// Where the lent slots of a slab with this first part lie on the work arena.
fn lent_slots(stage: &Stage, first: &WeightDecl) -> LentSlots {
    if first.lent == 0 {
        return LentSlots::default();
    }
    let work_from = stage.weights_bytes - stage.lent_bytes;
    LentSlots {
        count: first.lent,
        first_bytes: first.slice(first.kept()).offset_bytes - work_from,
        stride_bytes: first.expert_stride_bytes,
        slab_bytes: first.slab_bytes,
    }
}

fn table_slice(stage: &Stage, slots: StateId) -> Slice {
    stage.state(slots).slice(0)
}

/// The weights of a slab in the order in which they lie in it.
fn parts(stage: &Stage, matrices: [&ExpertMatrix; 3]) -> Vec<WeightId> {
    let mut ids: Vec<WeightId> = matrices.iter().map(|m| m.weight).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.sort_by_key(|id| stage.weight(*id).offset_bytes);
    ids
}

fn defect(problem: &str) -> ExpertError {
    ExpertError::Defect { problem: problem.into() }
}
