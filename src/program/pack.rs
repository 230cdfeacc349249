//! Lifetimes to offsets: buffers that are never alive together may share bytes.

use super::decl::{BufferDecl, Program, ShapeClass};

/// Every weight, state slot and buffer begins at a multiple of this: the strictest of the backends' binding alignments.
pub const ARENA_ALIGN_BYTES: u64 = 256;

/// Sizes too large for any machine end at `u64::MAX`; [`check_stage`](super::check_stage) refuses them.
pub fn align_up(bytes: u64, align: u64) -> u64 {
    bytes.checked_next_multiple_of(align).unwrap_or(u64::MAX)
}

/// What packing reached, and the bound that no packing can beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackReport {
    pub bytes: u64,
    /// The largest sum of bytes alive at one step.
    pub bound_bytes: u64,
}

/// Bytes of a buffer for the largest window.
fn buffer_bytes(buffer: &BufferDecl, shape: ShapeClass) -> u64 {
    align_up(buffer.bytes(shape.rows(buffer.rows)), ARENA_ALIGN_BYTES)
}

/// Sets first and last step of every buffer. An input lives from the first step, an output to the last.
fn find_lifetimes(program: &mut Program) {
    let last = program.steps.len().saturating_sub(1) as u32;
    for buffer in &mut program.buffers {
        buffer.first_step = if buffer.input.is_some() { 0 } else { u32::MAX };
        buffer.last_step = if buffer.output.is_some() { last } else { 0 };
    }
    for (i, step) in program.steps.iter().enumerate() {
        for view in step.op.reads().into_iter().chain(step.op.writes()) {
            let buffer = &mut program.buffers[view.buffer.0 as usize];
            buffer.first_step = buffer.first_step.min(i as u32);
            buffer.last_step = buffer.last_step.max(i as u32);
        }
    }
    for buffer in &mut program.buffers {
        buffer.first_step = buffer.first_step.min(buffer.last_step);
    }
}

/// Gives every buffer its offset: largest first, each at the lowest place that is free over its whole life.
pub fn pack_buffers(program: &mut Program) -> PackReport {
    find_lifetimes(program);
    let shape = program.shape;
    let mut order: Vec<usize> = (0..program.buffers.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(buffer_bytes(&program.buffers[i], shape)), i));

    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut total = 0;
    for i in order {
        let (bytes, first, last) = {
            let b = &program.buffers[i];
            (buffer_bytes(b, shape), b.first_step, b.last_step)
        };
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .map(|&j| &program.buffers[j])
            .filter(|b| b.first_step <= last && first <= b.last_step)
            .map(|b| (b.offset_bytes, b.offset_bytes.saturating_add(buffer_bytes(b, shape))))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if bytes <= start.saturating_sub(offset) {
                break;
            }
            offset = offset.max(end);
        }
        program.buffers[i].offset_bytes = offset;
        total = total.max(offset.saturating_add(bytes));
        placed.push(i);
    }
    program.work_bytes = total;
    PackReport { bytes: total, bound_bytes: live_bound(program) }
}

fn live_bound(program: &Program) -> u64 {
    (0..program.steps.len() as u32)
        .map(|step| {
            let alive = program.buffers.iter().filter(|b| b.first_step <= step && step <= b.last_step);
            alive.map(|b| buffer_bytes(b, program.shape)).fold(0, u64::saturating_add)
        })
        .max()
        .unwrap_or(0)
}
