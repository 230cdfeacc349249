//! Lifetimes to offsets: buffers that are never alive together may share bytes.

use super::decl::{BufferDecl, Program, ShapeClass};

/// Every weight, state slot and buffer begins at a multiple of this: the strictest of the backends' binding alignments.
pub const ARENA_ALIGN_BYTES: u64 = 256;

/// Sizes too large for any machine end at `u64::MAX`; [`check_stage`](super::check_stage) refuses them.
pub fn align_up(bytes: u64, align: u64) -> u64 {
    bytes.checked_next_multiple_of(align).unwrap_or(u64::MAX)
}

/// What packing reached, and the bound that no packing can beat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackReport {
    pub bytes: u64,
    /// The largest sum of bytes alive at one step.
    pub bound_bytes: u64,
}

/// A buffer as packing sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Of the largest window, aligned.
    pub bytes: u64,
    /// First and last step that touch it.
    pub first_step: u32,
    pub last_step: u32,
    /// It passes from layer to layer.
    pub carried: bool,
}

impl Piece {
    fn meets(&self, other: &Piece) -> bool {
        self.first_step <= other.last_step && other.first_step <= self.last_step
    }
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

/// Gives every buffer its offset.
pub fn pack_buffers(program: &mut Program) -> PackReport {
    find_lifetimes(program);
    let shape = program.shape;
    let piece = |b: &BufferDecl| Piece {
        bytes: buffer_bytes(b, shape),
        first_step: b.first_step,
        last_step: b.last_step,
        carried: b.carried,
    };
    let pieces: Vec<Piece> = program.buffers.iter().map(piece).collect();
    let (offsets, report) = pack(&pieces);
    for (buffer, offset_bytes) in program.buffers.iter_mut().zip(offsets) {
        buffer.offset_bytes = offset_bytes;
    }
    program.work_bytes = report.bytes;
    report
}

/// An offset for each piece. What passes from layer to layer comes first, in order; then the largest, each at the lowest place
/// that is free over its whole life. So the pieces of a layer lie as they would if it were the only one, and a stage needs what its
/// hungriest layer needs.
pub fn pack(pieces: &[Piece]) -> (Vec<u64>, PackReport) {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|&i| (!pieces[i].carried, if pieces[i].carried { 0 } else { u64::MAX - pieces[i].bytes }, i));

    let mut offsets = vec![0; pieces.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut taken: Vec<(u64, u64)> = Vec::new();
    let mut total = 0;
    for i in order {
        taken.clear();
        let beside = placed.iter().filter(|&&j| pieces[j].meets(&pieces[i]));
        taken.extend(beside.map(|&j| (offsets[j], pieces[j].bytes.saturating_add(offsets[j]))));
        taken.sort_unstable();
        let mut offset = 0;
        for &(start, end) in &taken {
            if pieces[i].bytes <= start.saturating_sub(offset) {
                break;
            }
            offset = offset.max(end);
        }
        offsets[i] = offset;
        total = total.max(offset.saturating_add(pieces[i].bytes));
        placed.push(i);
    }
    (offsets, PackReport { bytes: total, bound_bytes: live_bound(pieces) })
}

/// The most that is alive at one step. It is reached where something begins.
fn live_bound(pieces: &[Piece]) -> u64 {
    let at = |step: u32| {
        let alive = pieces.iter().filter(|b| b.first_step <= step && step <= b.last_step);
        alive.map(|b| b.bytes).fold(0, u64::saturating_add)
    };
    let mut starts: Vec<u32> = pieces.iter().map(|b| b.first_step).collect();
    starts.sort_unstable();
    starts.dedup();
    starts.into_iter().map(at).max().unwrap_or(0)
}
