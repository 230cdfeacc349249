//! A program made ready: kernels with resolved operands, tables, and the sizes of the scratch they need.

use std::sync::Arc;

use super::exec::{Kernel, Span};
use super::layout::Layout;
use super::ops;
use super::ops::Style;
use crate::backend::ArenaSizes;
use crate::backend::params::Limits;
use crate::backend::rope::RopeTable;
use crate::program::{Program, RunParams, Stage};

#[derive(Debug)]
pub struct Prepared {
    stage: Arc<Stage>,
    program: usize,
    pub kernels: Vec<Box<dyn Kernel>>,
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
        let mut kernels = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            kernels.push(ops::build(&layout, &step.op).map_err(|problem| (step.name.clone(), problem))?);
        }
        let scratch_bytes = kernels.iter().map(|k| k.scratch_bytes()).max().unwrap_or(0);
        let shared_bytes = kernels.iter().map(|k| k.shared_bytes()).max().unwrap_or(0);
        let max_rows = program.shape.max_rows as usize;
        Ok(Prepared {
            stage: stage.clone(),
            program: index,
            kernels,
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

    /// Checks the parameters of a run and computes what depends on them alone.
    pub fn begin(&mut self, params: &RunParams<'_>) -> Result<(), String> {
        self.limits.check(params, &mut self.spans)?;
        for (table, rope) in self.ropes.iter_mut().zip(&self.stage.ropes) {
            table.fill(rope, params.rows);
        }
        Ok(())
    }
}
