//! Causal depthwise convolution over tokens.

use super::super::exec::{Kernel, Run, Span, Thread};
use super::super::kernels::floats;
use super::super::layout::{Layout, Place, StatePlace, Vector};
use super::super::pool::Poisoned;
use super::super::vector::Level;
use super::super::view::{Mat, MatMut, carve, carve_bytes};
use super::math::{add_products_of, silu};
use super::wrong_op;
use crate::program::{Op, StateKind, WeightId};
use crate::quant::Format;

/// Channels that a thread works on at once.
const CHANNELS: usize = 64;

#[derive(Debug)]
pub struct CausalConv {
    x: Place,
    out: Place,
    /// `[channel][tap]`, the last tap is the current token.
    weight: Vector,
    taps: usize,
    dilation: usize,
    history: StatePlace,
    ring_rows: usize,
    level: Option<Level>,
}

impl CausalConv {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<CausalConv, String> {
        let Op::CausalConv { x, weight, history, out, dilation } = op else { return wrong_op() };
        let history = layout.state(*history)?;
        let StateKind::ConvHistory { ring_rows, channels } = history.kind else {
            return Err("the state is no convolution history".into());
        };
        let (taps, dilation) = (taps_of(layout, *weight, x.width)?, *dilation as usize);
        if channels != x.width || out.width != x.width || dilation == 0 {
            return Err("operands of different widths, or no dilation".into());
        }
        let ring_rows = ring_rows as usize;
        if taps == 0 || ring_rows < (taps - 1) * dilation {
            return Err(format!("{taps} taps {dilation} apart over {ring_rows} rows of history"));
        }
        Ok(CausalConv {
            x: layout.view(*x)?,
            out: layout.view(*out)?,
            weight: layout.vector(*weight)?,
            taps,
            dilation,
            history,
            ring_rows,
            level: layout.level(),
        })
    }
}

fn taps_of(layout: &Layout<'_>, weight: WeightId, channels: u32) -> Result<usize, String> {
    let m = layout.matrix(weight)?;
    if m.format != Format::F32 || m.rows != channels as usize {
        return Err(format!("convolution weights must be F32 for {channels} channels; they are {} for {}", m.format, m.rows));
    }
    Ok(m.cols)
}

/// Some channels of one sequence: the window's inputs and the ring of those before.
struct Lane<'a> {
    span: Span,
    x: Mat<'a, f32>,
    first: usize,
    len: usize,
    ring: usize,
    ring_rows: usize,
    run: &'a Run<'a>,
}

impl<'a> Lane<'a> {
    fn ring_row(&self, token: usize) -> usize {
        self.ring + ((token % self.ring_rows) * self.x.width() + self.first) * size_of::<f32>()
    }

    /// The inputs of the token `back` tokens before row `i` of the span; `None` before the start of the sequence.
    fn input(&self, i: usize, back: usize) -> Option<&'a [f32]> {
        if back <= i {
            return Some(self.x.part(self.span.first + i - back, self.first, self.len));
        }
        let token = (self.span.index as usize + i).checked_sub(back)?;
        // SAFETY: only the owner of these channels writes them, in `keep`, after the last call of `input`.
        Some(unsafe { self.run.state.read(self.ring_row(token), self.len) })
    }

    /// Brings the ring up to date.
    fn keep(&self) {
        for i in self.span.len.saturating_sub(self.ring_rows)..self.span.len {
            let row = self.ring_row(self.span.index as usize + i);
            // SAFETY: these channels of the slot belong to this thread, and no slice of the ring is alive.
            let kept: &mut [f32] = unsafe { self.run.state.write(row, self.len) };
            kept.copy_from_slice(self.x.part(self.span.first + i, self.first, self.len));
        }
    }
}

impl CausalConv {
    /// The convolution of the channels of a lane. `weights` are theirs, `[tap][channel]`.
    fn convolve(&self, lane: &Lane<'_>, weights: &[f32], out: &MatMut<'_, f32>) {
        for i in 0..lane.span.len {
            // SAFETY: these columns lie in a tile of this thread's share.
            let out = unsafe { out.part(lane.span.first + i, lane.first..lane.first + lane.len) };
            out.fill(0.0);
            for (tap, weights) in weights.chunks_exact(lane.len).enumerate() {
                if let Some(input) = lane.input(i, (self.taps - 1 - tap) * self.dilation) {
                    add_products_of(out, weights, input);
                }
            }
            match self.level {
                None => out.iter_mut().for_each(|v| *v = silu(*v)),
                Some(level) => floats::silu(level.simd(), out),
            }
        }
    }
}

impl Kernel for CausalConv {
    fn scratch_bytes(&self) -> usize {
        carve_bytes::<f32>(self.taps * CHANNELS)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let x = self.x.read::<f32>(run);
        let weight = self.weight.get(run);
        let out = self.out.write::<f32>(thread);
        let mine = thread.member().share(self.x.width.div_ceil(CHANNELS));
        let by_tap: &mut [f32] = carve(&mut thread.scratch, self.taps * CHANNELS);
        for tile in mine {
            let first = tile * CHANNELS;
            let len = CHANNELS.min(self.x.width - first);
            let by_tap = &mut by_tap[..self.taps * len];
            for (i, w) in by_tap.iter_mut().enumerate() {
                *w = weight[(first + i % len) * self.taps + i / len];
            }
            for span in run.spans {
                let ring = self.history.slot(span.slot);
                let lane = Lane { span: *span, x, first, len, ring, ring_rows: self.ring_rows, run };
                self.convolve(&lane, by_tap, &out);
                lane.keep();
            }
        }
        Ok(())
    }
}
