//! The loop of [`Backend::trace`], the same for all devices.

use std::ops::Range;

use super::{Backend, BackendError};
use crate::program::{BufferId, Element, Program, Rows, RunParams, Slice};

/// A buffer that a step wrote: the rows in use.
struct Written {
    buffer: BufferId,
    slice: Slice,
    element: Element,
}

/// Each buffer once, in the order of the step's operands.
fn written(program: &Program, step: usize, params: &RunParams<'_>) -> Vec<Written> {
    let mut all: Vec<Written> = vec![];
    for view in program.steps[step].op.writes() {
        if all.iter().any(|w| w.buffer == view.buffer) {
            continue;
        }
        let decl = program.buffer(view.buffer);
        let rows = match decl.rows {
            Rows::Batch => params.rows.len(),
            Rows::Outputs => params.outputs.len(),
        };
        let slice = program.buffer_slice(view.buffer, rows as u32);
        all.push(Written { buffer: view.buffer, slice, element: decl.element });
    }
    all
}

/// The elements of a buffer; ids as numbers.
fn values(backend: &mut impl Backend, written: &Written) -> Result<Vec<f32>, BackendError> {
    let mut words = vec![0u32; written.slice.len_bytes as usize / 4];
    backend.download(written.slice, bytemuck::cast_slice_mut(&mut words))?;
    Ok(match written.element {
        Element::F32 => words.into_iter().map(f32::from_bits).collect(),
        Element::U32 => words.into_iter().map(|id| id as f32).collect(),
    })
}

/// Runs steps of a program one at a time and shows every buffer that each of them wrote.
///
/// # Errors
/// Those of `run` and of downloads.
pub fn trace_steps<B: Backend>(
    backend: &mut B,
    program: impl Fn(&B) -> &Program,
    steps: Range<usize>,
    params: &RunParams<'_>,
    run: impl Fn(&mut B, usize) -> Result<(), BackendError>,
    see: &mut dyn FnMut(usize, BufferId, &[f32]),
) -> Result<(), BackendError> {
    for step in steps {
        run(backend, step)?;
        for buffer in written(program(backend), step, params) {
            let values = values(backend, &buffer)?;
            see(step, buffer.buffer, &values);
        }
    }
    Ok(())
}
