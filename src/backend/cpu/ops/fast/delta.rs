//! The delta rule with vector units. Heads are dealt to the threads; a few tokens at a time pass over a few value channels
//! at a time, so that the state is read from the inner cache.

use super::super::super::exec::{Kernel, Run, Span, Thread};
use super::super::super::kernels::floats;
use super::super::super::pool::Poisoned;
use super::super::super::vector::{LANES, Lanes, Level, for_each_level};
use super::super::super::view::{MatMut, carve, carve_bytes};
use super::super::delta::{self, Inputs, normalise};
use super::super::math::rms_scale;

/// Tokens whose keys and queries are kept normalised at once.
const TOKENS: usize = 8;
/// Value channels of the state that are passed over at once.
const CHANNELS: usize = 32;

#[derive(Debug)]
pub struct DeltaRule {
    pub op: delta::DeltaRule,
    pub level: Level,
}

/// What a token does to a head.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Factor on the old state.
    decay: f32,
    beta: f32,
    /// `q · k`
    match_: f32,
}

/// Passes a token over rows of the state `[value channel][key channel]`. The output `q · (decay S + k d)` is found from the old
/// state, so one pass reads and one writes.
#[inline(always)]
fn pass_body<L: Lanes>(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], step: Step, out: &mut [f32]) {
    const ROWS: usize = 4;
    let dim = k.len();
    let whole = v.len() / ROWS * ROWS;
    for first in (0..whole).step_by(ROWS) {
        let rows = &mut state[first * dim..(first + ROWS) * dim];
        pass_rows::<L, ROWS>(rows, q, k, &v[first..], step, &mut out[first..]);
    }
    for row in whole..v.len() {
        pass_rows::<L, 1>(&mut state[row * dim..(row + 1) * dim], q, k, &v[row..], step, &mut out[row..]);
    }
}

#[inline(always)]
fn pass_rows<L: Lanes, const R: usize>(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], step: Step, out: &mut [f32]) {
    let dim = k.len();
    let whole = dim / LANES;
    let (mut with_k, mut with_q) = ([L::splat(0.0); R], [L::splat(0.0); R]);
    let ((q_groups, q_rest), (k_groups, k_rest)) = (q.as_chunks::<LANES>(), k.as_chunks::<LANES>());
    for (i, (q, k)) in q_groups.iter().zip(k_groups).enumerate() {
        let (q, k) = (L::load(q), L::load(k));
        for r in 0..R {
            let Some(s) = state[r * dim + i * LANES..].first_chunk::<LANES>() else { break };
            let s = L::load(s);
            with_k[r] = s.mul_add(k, with_k[r]);
            with_q[r] = s.mul_add(q, with_q[r]);
        }
    }
    for r in 0..R {
        let rest = &state[r * dim + whole * LANES..(r + 1) * dim];
        let tail = |x: &[f32]| rest.iter().zip(x).map(|(s, x)| s * x).sum::<f32>();
        let (with_k, with_q) = (with_k[r].sum() + tail(k_rest), with_q[r].sum() + tail(q_rest));
        let correction = (v[r] - step.decay * with_k) * step.beta;
        out[r] = step.decay * with_q + step.match_ * correction;
        update::<L>(&mut state[r * dim..(r + 1) * dim], step.decay, correction, k);
    }
}

/// `state = decay * state + correction * k`
#[inline(always)]
fn update<L: Lanes>(state: &mut [f32], decay: f32, correction: f32, k: &[f32]) {
    let (groups, rest) = state.as_chunks_mut::<LANES>();
    let (k_groups, k_rest) = k.as_chunks::<LANES>();
    let (decay_all, correction_all) = (L::splat(decay), L::splat(correction));
    for (state, k) in groups.iter_mut().zip(k_groups) {
        L::load(k).mul_add(correction_all, L::load(state).mul(decay_all)).store(state);
    }
    for (state, k) in rest.iter_mut().zip(k_rest) {
        *state = *state * decay + k * correction;
    }
}

for_each_level! {
    fn pass = pass_body(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], step: Step, out: &mut [f32]);
}

impl DeltaRule {
    /// Tokens from row `first` that update one version of the state in place one after the other, at most [`TOKENS`]. A token
    /// that reads another version than it writes stands alone.
    fn chain(&self, run: &Run<'_>, first: usize, end: usize) -> usize {
        let version = run.rows[first].state_write;
        let in_place = |row: &usize| run.rows[*row].state_read == version && run.rows[*row].state_write == version;
        (first..end.min(first + TOKENS)).take_while(in_place).count().max(1)
    }

    fn head(
        &self,
        run: &Run<'_>,
        inputs: &Inputs<'_>,
        span: &Span,
        head: usize,
        out: &MatMut<'_, f32>,
        (q, k): (&mut [f32], &mut [f32]),
    ) {
        let op = &self.op;
        let (dk, dv, key_head) = (op.q.dim, op.v.dim, head % op.q.count);
        let end = span.first + span.len;
        let mut first = span.first;
        while first < end {
            let count = self.chain(run, first, end);
            let mut steps = [Step { decay: 0.0, beta: 0.0, match_: 0.0 }; TOKENS];
            for (i, step) in steps[..count].iter_mut().enumerate() {
                let (row, at) = (first + i, i * dk..(i + 1) * dk);
                normalise(op.q.head(&inputs.q, row, key_head), 1.0 / (dk as f32).sqrt(), &mut q[at.clone()]);
                normalise(op.k.head(&inputs.k, row, key_head), 1.0, &mut k[at.clone()]);
                let match_ = floats::dot(self.level.simd(), &q[at.clone()], &k[at]);
                *step = Step { decay: inputs.decay.row(row)[head].exp(), beta: inputs.beta.row(row)[head], match_ };
            }
            let (read, write) = (run.rows[first].state_read, run.rows[first].state_write);
            // SAFETY: this head belongs to this thread in every version and slot.
            let state: &mut [f32] = unsafe { run.state.write(op.head_state(span.slot, write, head), dk * dv) };
            if read != write {
                // SAFETY: as above, and another version is another place.
                state.copy_from_slice(unsafe { run.state.read(op.head_state(span.slot, read, head), dk * dv) });
            }
            for channel in (0..dv).step_by(CHANNELS) {
                let channels = channel..(channel + CHANNELS).min(dv);
                let state = &mut state[channels.start * dk..channels.end * dk];
                for (i, step) in steps[..count].iter().enumerate() {
                    let (row, at) = (first + i, i * dk..(i + 1) * dk);
                    let v = &op.v.head(&inputs.v, row, head)[channels.clone()];
                    // SAFETY: the columns of this head belong to this thread.
                    let out = unsafe { out.part(row, head * dv + channels.start..head * dv + channels.end) };
                    pass(self.level, state, &q[at.clone()], &k[at], v, *step, out);
                }
            }
            for row in first..first + count {
                // SAFETY: as above.
                let out = unsafe { out.part(row, head * dv..(head + 1) * dv) };
                op.finish(inputs, row, head, out, rms_scale(out, op.eps));
            }
            first += count;
        }
    }
}

impl Kernel for DeltaRule {
    fn scratch_bytes(&self) -> usize {
        2 * carve_bytes::<f32>(TOKENS * self.op.q.dim)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let inputs = self.op.inputs(run);
        let out = self.op.out.write::<f32>(thread);
        let mine = thread.member().share(self.op.v.count);
        let q: &mut [f32] = carve(&mut thread.scratch, TOKENS * self.op.q.dim);
        let k: &mut [f32] = carve(&mut thread.scratch, TOKENS * self.op.q.dim);
        for head in mine {
            for span in run.spans {
                self.head(run, &inputs, span, head, &out, (q, k));
            }
        }
        Ok(())
    }
}
