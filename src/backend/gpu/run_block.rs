//! The run block: everything that changes from run to run, in one small piece of memory with a fixed layout.
//!
//! ```text
//! words 0..8      rows, outputs, spans, first word of the spans, first word of the outputs, 0, 0, 0
//! rows            [max_rows] RunRow
//! spans           [max_rows] RunSpan
//! outputs         [max_outputs] index of a row
//! angles          tables of [max_rows][cosines of the pairs, sines of the pairs] f32
//! ```

use bytemuck::{Pod, Zeroable};

use super::launch::Counts;
use crate::backend::params::{Limits, Span};
use crate::backend::rope::angles;
use crate::program::{Op, Program, RopeId, RunParams, Stage, StateKind};

/// One row of the window.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct RunRow {
    pub slot: u32,
    /// Index of the token in its sequence.
    pub index: u32,
    pub state_read: u32,
    pub state_write: u32,
    /// The span it belongs to, and its place in it.
    pub span: u32,
    pub in_span: u32,
    pub reserved: [u32; 2],
}

/// Rows of one sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct RunSpan {
    pub first_row: u32,
    pub rows: u32,
    pub slot: u32,
    /// Token index of the first row.
    pub index: u32,
}

pub const ROW_WORDS: usize = size_of::<RunRow>() / 4;
pub const SPAN_WORDS: usize = size_of::<RunSpan>() / 4;
pub const HEADER_WORDS: usize = 8;

/// Words of the header, by the names they have in the kernels.
pub const RUN_ROWS: u32 = 0;
pub const RUN_OUTPUTS: u32 = 1;
pub const RUN_SPANS: u32 = 2;
pub const RUN_SPANS_AT: u32 = 3;
pub const RUN_OUTPUTS_AT: u32 = 4;

/// Angles for which position of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnglesOf {
    /// The row's own.
    Row,
    /// That of the first token of the block of `ratio` tokens that the row completes. Other rows have none.
    BlockStart { ratio: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AngleTable {
    rope: RopeId,
    of: AnglesOf,
    pairs: usize,
    at: usize,
}

/// Where everything lies in the block of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLayout {
    max_rows: usize,
    max_outputs: usize,
    tables: Vec<AngleTable>,
    words: usize,
}

impl RunLayout {
    pub fn new(stage: &Stage, program: &Program) -> RunLayout {
        let (max_rows, max_outputs) = (program.shape.max_rows as usize, program.shape.max_outputs as usize);
        let words = HEADER_WORDS + max_rows * (ROW_WORDS + SPAN_WORDS) + max_outputs.next_multiple_of(4);
        let mut layout = RunLayout { max_rows, max_outputs, tables: vec![], words };
        for step in &program.steps {
            match &step.op {
                Op::HeadNormRope { rope: Some(rope), .. } => layout.add_table(stage, *rope, AnglesOf::Row),
                Op::IndexAppend { rope, cache, .. } => {
                    if let StateKind::IndexKeys { ratio, .. } = stage.state(*cache).kind {
                        layout.add_table(stage, *rope, AnglesOf::BlockStart { ratio });
                    }
                }
                _ => {}
            }
        }
        layout
    }

    fn add_table(&mut self, stage: &Stage, rope: RopeId, of: AnglesOf) {
        if self.tables.iter().any(|t| t.rope == rope && t.of == of) {
            return;
        }
        let pairs = stage.rope(rope).inv_freq.len();
        self.tables.push(AngleTable { rope, of, pairs, at: self.words });
        self.words += self.max_rows * pairs * 2;
    }

    pub fn bytes(&self) -> u64 {
        self.words as u64 * 4
    }

    pub fn spans_at(&self) -> u32 {
        (HEADER_WORDS + self.max_rows * ROW_WORDS) as u32
    }

    pub fn outputs_at(&self) -> u32 {
        (HEADER_WORDS + self.max_rows * (ROW_WORDS + SPAN_WORDS)) as u32
    }

    pub fn angles_at(&self, rope: RopeId, of: AnglesOf) -> Option<u32> {
        self.tables.iter().find(|t| t.rope == rope && t.of == of).map(|t| t.at as u32)
    }
}

/// A block being filled; its room is taken once.
#[derive(Debug)]
pub struct RunBlock {
    words: Vec<u32>,
    spans: Vec<Span>,
}

impl RunBlock {
    pub fn new(layout: &RunLayout) -> RunBlock {
        RunBlock { words: vec![0; layout.words], spans: Vec::with_capacity(layout.max_rows) }
    }

    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    /// Checks a run and writes its block; allocates nothing.
    ///
    /// # Errors
    /// The parameters do not fit the program; in words.
    pub fn fill(&mut self, layout: &RunLayout, limits: &Limits, stage: &Stage, params: &RunParams<'_>) -> Result<Counts, String> {
        limits.check(params, &mut self.spans)?;
        let counts =
            Counts { rows: params.rows.len() as u32, outputs: params.outputs.len() as u32, spans: self.spans.len() as u32 };
        let header = [counts.rows, counts.outputs, counts.spans, layout.spans_at(), layout.outputs_at()];
        self.words[..header.len()].copy_from_slice(&header);
        self.words[layout.outputs_at() as usize..][..params.outputs.len()].copy_from_slice(params.outputs);
        for s in 0..self.spans.len() {
            let span = self.spans[s];
            let (first_row, rows) = (span.first as u32, span.len as u32);
            let words = RunSpan { first_row, rows, slot: span.slot, index: span.index };
            self.words[layout.spans_at() as usize + s * SPAN_WORDS..][..SPAN_WORDS]
                .copy_from_slice(bytemuck::cast_ref::<_, [u32; SPAN_WORDS]>(&words));
            for i in 0..span.len {
                self.fill_row(layout, stage, params, s, i);
            }
        }
        Ok(counts)
    }

    fn fill_row(&mut self, layout: &RunLayout, stage: &Stage, params: &RunParams<'_>, s: usize, i: usize) {
        let span = self.spans[s];
        let at = span.first + i;
        let row = &params.rows[at];
        let words = RunRow {
            slot: row.slot,
            index: row.index,
            state_read: row.state_read,
            state_write: row.state_write,
            span: s as u32,
            in_span: i as u32,
            reserved: [0; 2],
        };
        self.words[HEADER_WORDS + at * ROW_WORDS..][..ROW_WORDS]
            .copy_from_slice(bytemuck::cast_ref::<_, [u32; ROW_WORDS]>(&words));
        for table in &layout.tables {
            let position = match table.of {
                AnglesOf::Row => row.position,
                AnglesOf::BlockStart { ratio } if (row.index + 1).is_multiple_of(ratio) => {
                    span.position_before(params.rows, params.earlier, i, ratio as usize - 1)
                }
                AnglesOf::BlockStart { .. } => continue,
            };
            let turns = &mut self.words[table.at + at * table.pairs * 2..][..table.pairs * 2];
            angles(stage.rope(table.rope), position, bytemuck::cast_slice_mut(turns));
        }
    }
}
