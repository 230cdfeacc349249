//! A program made ready: kernels with resolved operands, tables, and the sizes of the scratch they need.

use std::ops::Range;
use std::sync::Arc;

use super::exec::{Kernel, Span};
use super::layout::Layout;
use super::ops;
use super::ops::Style;
use crate::backend::ArenaSizes;
use crate::backend::params::Limits;
use crate::backend::rope::RopeTable;
use crate::program::{Program, RunParams, Stage, Step};

#[derive(Debug)]
pub struct Prepared {
    stage: Arc<Stage>,
    program: usize,
    /// Of each segment.
    pub kernels: Vec<Vec<Box<dyn Kernel>>>,
    /// The steps of each segment.
    pub segments: Vec<Range<usize>>,
    limits: Limits,
    /// Of the run at hand. Room for the largest window was taken when the program was prepared.
    pub spans: Vec<Span>,
    /// One table for each rope of the stage; empty for those that no step reads by row.
    pub ropes: Vec<RopeTable>,
    /// Largest scratch of a step: for each thread, and for all together.
    pub scratch_bytes: usize,
    pub shared_bytes: usize,
}

impl Prepared {
    /// The failing step's name and the reason.
    pub fn new(stage: &Arc<Stage>, index: usize, sizes: ArenaSizes, style: Option<Style>) -> Result<Prepared, (String, String)> {
        let Some(program) = stage.programs.get(index) else {
            return Err((format!("program {index}"), "the stage has no such program".into()));
        };
        let layout = Layout { stage, program, sizes, style };
        let segments = program.segments();
        let mut kernels: Vec<Vec<Box<dyn Kernel>>> = Vec::with_capacity(segments.len());
        for steps in &segments {
            let build = |step: &Step| ops::build(&layout, &step.op).map_err(|problem| (step.name.clone(), problem));
            kernels.push(program.steps[steps.clone()].iter().map(build).collect::<Result<_, _>>()?);
        }
        let all = || kernels.iter().flatten();
        let scratch_bytes = all().map(|k| k.scratch_bytes()).max().unwrap_or(0);
        let shared_bytes = all().map(|k| k.shared_bytes()).max().unwrap_or(0);
        let max_rows = program.shape.max_rows as usize;
        Ok(Prepared {
            stage: stage.clone(),
            program: index,
            kernels,
            segments,
            limits: Limits::of(stage, program),
            spans: Vec::with_capacity(max_rows),
            ropes: stage.ropes.iter().map(|rope| RopeTable::new(rope, max_rows)).collect(),
            scratch_bytes,
            shared_bytes,
        })
    }

    pub fn program(&self) -> &Program {
        &self.stage.programs[self.program]
    }

    /// Bytes that this program keeps beside the arenas and the scratch.
    pub fn own_bytes(&self) -> usize {
        let tables: usize = self.ropes.iter().map(RopeTable::bytes).sum();
        tables + self.spans.capacity() * size_of::<Span>()
    }

    /// Checks the parameters of a window and computes what depends on them alone: once, for the first segment.
    pub fn begin(&mut self, segment: usize, params: &RunParams<'_>) -> Result<(), String> {
        if segment >= self.segments.len() {
            return Err(format!("segment {segment} of {}", self.segments.len()));
        }
        if segment > 0 {
            let begun: usize = self.spans.iter().map(|span| span.len).sum();
            let same = begun == params.rows.len();
            return if same { Ok(()) } else { Err(format!("{} rows in a window of {begun}", params.rows.len())) };
        }
        self.limits.check(params, &mut self.spans)?;
        for (table, rope) in self.ropes.iter_mut().zip(&self.stage.ropes) {
            table.fill(rope, params.rows);
        }
        Ok(())
    }
}
