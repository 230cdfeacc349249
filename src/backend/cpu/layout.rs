//! Resolves the operands of a program to byte offsets, once, when the program is prepared.

use super::exec::{Run, Thread};
use super::ops::Style;
use super::vector::Level;
use super::view::{Mat, MatMut};
use crate::backend::ArenaSizes;
use crate::program::{ExpertMatrix, Heads, NO_SLOT, Op, Program, Rope, RopeId, Rows, Stage, StateId, StateKind, View, WeightId};
use crate::quant::Format;
use bytemuck::Pod;

/// Columns of a buffer: where in the work arena they lie.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    offset_bytes: usize,
    /// Elements from one row to the next.
    stride: usize,
    pub width: usize,
    rows: Rows,
    pub max_rows: usize,
}

impl Place {
    pub fn rows(&self, run: &Run<'_>) -> usize {
        match self.rows {
            Rows::Batch => run.rows.len(),
            Rows::Outputs => run.outputs.len(),
        }
    }

    /// An operand that this step only reads.
    pub fn read<'a, T: Pod>(&self, run: &Run<'a>) -> Mat<'a, T> {
        // SAFETY: `check_operands` has refused steps that write an operand they read, except in place, where the kernel uses
        // `write` alone.
        unsafe { Mat::new(run.work, self.offset_bytes, self.rows(run), self.width, self.stride) }
    }

    /// An operand that this step writes, perhaps in place. A kernel calls this once.
    pub fn write<'a, T: Pod>(&self, thread: &Thread<'a>) -> MatMut<'a, T> {
        let run = thread.run;
        // SAFETY: all threads run the same kernel; `check_operands` has refused steps that write the same columns twice or also
        // read them as another operand.
        unsafe { MatMut::new(run.work, self.offset_bytes, self.rows(run), self.width, self.stride, thread.member()) }
    }
}

/// Heads within the columns of a [`Place`].
#[derive(Debug, Clone, Copy)]
pub struct HeadsPlace {
    pub place: Place,
    pub count: usize,
    pub dim: usize,
    /// Elements from one head to the next.
    pub step: usize,
}

impl HeadsPlace {
    pub fn head<'a>(&self, mat: &Mat<'a, f32>, row: usize, head: usize) -> &'a [f32] {
        mat.part(row, head * self.step, self.dim)
    }
}

/// An F32 vector among the weights.
#[derive(Debug, Clone, Copy)]
pub struct Vector {
    offset_bytes: usize,
    pub len: usize,
}

impl Vector {
    pub fn get<'a>(&self, run: &Run<'a>) -> &'a [f32] {
        // SAFETY: nothing writes weights during a run.
        unsafe { run.weights.read(self.offset_bytes, self.len) }
    }
}

/// Rows of a matrix, or of one matrix for each expert.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    pub format: Format,
    pub cols: usize,
    pub rows: usize,
    pub row_bytes: usize,
    pub experts: usize,
    /// Matrices that are there.
    pub slots: usize,
    offset_bytes: usize,
    expert_stride_bytes: usize,
}

impl Matrix {
    /// `count` neighbouring rows of the matrix in a slot (slot 0 of an ordinary one).
    pub fn rows<'a>(&self, run: &Run<'a>, slot: usize, first: usize, count: usize) -> &'a [u8] {
        assert!(slot < self.slots && first + count <= self.rows);
        let offset = self.offset_bytes + slot * self.expert_stride_bytes + first * self.row_bytes;
        // SAFETY: nothing writes weights during a run.
        unsafe { run.weights.read(offset, count * self.row_bytes) }
    }

    pub fn row<'a>(&self, run: &Run<'a>, slot: usize, row: usize) -> &'a [u8] {
        self.rows(run, slot, row, 1)
    }
}

/// Where the matrix of an expert lies: in the slot of its number, or as a table says.
#[derive(Debug, Clone, Copy)]
pub enum Slots {
    All,
    Table { offset_bytes: usize, experts: usize },
}

impl Slots {
    /// The slot of an expert, if it has one.
    pub fn of(&self, run: &Run<'_>, expert: usize) -> Option<usize> {
        let Slots::Table { offset_bytes, experts } = *self else { return Some(expert) };
        // SAFETY: nothing writes tables of slots during a run.
        let table: &[u32] = unsafe { run.state.read(offset_bytes, experts) };
        table.get(expert).filter(|slot| **slot != NO_SLOT).map(|slot| *slot as usize)
    }
}

/// A piece of per-sequence state.
#[derive(Debug, Clone, Copy)]
pub struct StatePlace {
    pub kind: StateKind,
    offset_bytes: usize,
    slot_stride_bytes: usize,
}

impl StatePlace {
    /// First byte of a slot in the state arena.
    pub fn slot(&self, slot: u32) -> usize {
        self.offset_bytes + slot as usize * self.slot_stride_bytes
    }
}

/// A program being prepared.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    pub stage: &'a Stage,
    pub program: &'a Program,
    pub sizes: ArenaSizes,
    /// `None`: reference.
    pub style: Option<Style>,
}

fn to_usize(value: u64) -> Result<usize, String> {
    usize::try_from(value).map_err(|_| format!("{value} is more than this machine can address"))
}

fn within(what: &str, end: u64, arena_bytes: u64) -> Result<(), String> {
    if end <= arena_bytes { Ok(()) } else { Err(format!("{what} reaches to byte {end} of an arena of {arena_bytes}")) }
}

impl Layout<'_> {
    /// Vector instructions in use; `None` for the reference.
    pub fn level(&self) -> Option<Level> {
        self.style.map(|style| style.level)
    }

    pub fn view(&self, view: View) -> Result<Place, String> {
        let buffer = self.program.buffers.get(view.buffer.0 as usize).ok_or("an operand's buffer does not exist")?;
        let max_rows = self.program.shape.rows(buffer.rows);
        let end = buffer.offset_bytes + u64::from(max_rows) * u64::from(buffer.width) * 4;
        within(&format!("buffer '{}'", buffer.name), end, self.sizes.work_bytes)?;
        if u64::from(view.offset) + u64::from(view.width) > u64::from(buffer.width) || view.width == 0 {
            return Err(format!("an operand lies outside buffer '{}'", buffer.name));
        }
        Ok(Place {
            offset_bytes: to_usize(buffer.offset_bytes + u64::from(view.offset) * 4)?,
            stride: buffer.width as usize,
            width: view.width as usize,
            rows: buffer.rows,
            max_rows: max_rows as usize,
        })
    }

    pub fn heads(&self, heads: Heads) -> Result<HeadsPlace, String> {
        if heads.count == 0 || heads.dim == 0 || heads.stride < heads.dim {
            return Err(format!("{} heads of {} elements, {} apart", heads.count, heads.dim, heads.stride));
        }
        let (count, dim, step) = (heads.count as usize, heads.dim as usize, heads.stride as usize);
        Ok(HeadsPlace { place: self.view(heads.view())?, count, dim, step })
    }

    pub fn matrix(&self, id: WeightId) -> Result<Matrix, String> {
        let w = self.stage.weights.get(id.0 as usize).ok_or("a weight does not exist")?;
        within(&w.tensor, w.end_bytes(), self.sizes.weights_bytes)?;
        Ok(Matrix {
            format: w.format,
            cols: w.cols as usize,
            rows: w.rows as usize,
            row_bytes: to_usize(w.row_bytes())?,
            experts: w.experts as usize,
            slots: w.slots as usize,
            offset_bytes: to_usize(w.offset_bytes)?,
            expert_stride_bytes: to_usize(w.expert_stride_bytes)?,
        })
    }

    /// The rows of every expert that an operand means.
    pub fn expert_matrix(&self, m: &ExpertMatrix) -> Result<(Matrix, Option<Vector>), String> {
        let mut matrix = self.matrix(m.weight)?;
        let (first, rows) = (m.row_offset as usize, m.rows as usize);
        if first + rows > matrix.rows {
            return Err("an expert's rows lie outside its matrix".into());
        }
        matrix.offset_bytes += first * matrix.row_bytes;
        matrix.rows = rows;
        Ok((matrix, m.scale.map(|s| self.vector(s)).transpose()?))
    }

    /// How the experts of a matrix are found.
    pub fn slots(&self, table: Option<StateId>, matrix: &Matrix) -> Result<Slots, String> {
        let Some(id) = table else {
            let all = matrix.slots == matrix.experts;
            return if all { Ok(Slots::All) } else { Err("only some experts are held, and no table tells which".into()) };
        };
        let place = self.state(id)?;
        match place.kind {
            StateKind::ExpertSlots { experts, .. } if experts as usize == matrix.experts => {
                Ok(Slots::Table { offset_bytes: place.slot(0), experts: matrix.experts })
            }
            _ => Err("the state is no table of this layer's expert slots".into()),
        }
    }

    pub fn vector(&self, id: WeightId) -> Result<Vector, String> {
        let m = self.matrix(id)?;
        if m.format != Format::F32 {
            return Err(format!("{} must be F32, it is {}", self.stage.weight(id).tensor, m.format));
        }
        Ok(Vector { offset_bytes: m.offset_bytes, len: m.rows * m.cols })
    }

    pub fn state(&self, id: StateId) -> Result<StatePlace, String> {
        let s = self.stage.states.get(id.0 as usize).ok_or("a state does not exist")?;
        within(&s.name, s.offset_bytes + s.slot_stride_bytes * u64::from(s.slots), self.sizes.state_bytes)?;
        if s.slot_stride_bytes < s.kind.bytes_per_slot() {
            return Err(format!("the slots of {} overlap", s.name));
        }
        Ok(StatePlace {
            kind: s.kind,
            offset_bytes: to_usize(s.offset_bytes)?,
            slot_stride_bytes: to_usize(s.slot_stride_bytes)?,
        })
    }

    pub fn rope(&self, id: RopeId) -> Result<Rope, String> {
        self.stage.ropes.get(id.0 as usize).cloned().ok_or_else(|| "a rope does not exist".into())
    }
}

/// Refuses steps whose written operands overlap another operand, except the in-place operands of an op.
pub fn check_operands(op: &Op) -> Result<(), String> {
    let overlap = |a: &View, b: &View| a.buffer == b.buffer && a.offset < b.offset + b.width && b.offset < a.offset + a.width;
    let (reads, writes) = (op.reads(), op.writes());
    for (i, written) in writes.iter().enumerate() {
        if writes[i + 1..].iter().any(|other| overlap(written, other)) {
            return Err("two results share columns".into());
        }
        let mut others: Vec<View> = reads.clone();
        if let Some(at) = others.iter().position(|read| read == written).filter(|_| works_in_place(op)) {
            others.swap_remove(at);
        }
        if others.iter().any(|read| overlap(written, read)) {
            return Err("a result shares columns with an operand that is read".into());
        }
    }
    Ok(())
}

fn works_in_place(op: &Op) -> bool {
    matches!(op, Op::HcCombine { .. } | Op::Add { .. } | Op::HeadNormRope { .. } | Op::RmsNorm { .. } | Op::MatMul { .. })
}
