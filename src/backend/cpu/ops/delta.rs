//! The gated delta rule (2.1), token after token.

use super::super::exec::{Kernel, Run, Span, Thread};
use super::super::layout::{HeadsPlace, Layout, Place, StatePlace, Vector};
use super::super::pool::Poisoned;
use super::super::view::{Mat, MatMut, carve, carve_bytes};
use super::math::{dot, rms_scale, sum_squares};
use super::wrong_op;
use crate::program::{Op, StateKind};

/// Added to the sum of squares before q and k are normalised.
const L2_EPS: f32 = 1e-6;

#[derive(Debug)]
pub struct DeltaRule {
    pub q: HeadsPlace,
    pub k: HeadsPlace,
    pub v: HeadsPlace,
    pub decay: Place,
    pub beta: Place,
    pub gate: Place,
    pub norm: Vector,
    pub eps: f32,
    pub state: StatePlace,
    pub out: Place,
}

/// The operands of a run.
pub struct Inputs<'a> {
    pub q: Mat<'a, f32>,
    pub k: Mat<'a, f32>,
    pub v: Mat<'a, f32>,
    pub decay: Mat<'a, f32>,
    pub beta: Mat<'a, f32>,
    pub gate: Mat<'a, f32>,
    pub norm: &'a [f32],
}

impl DeltaRule {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<DeltaRule, String> {
        let Op::DeltaRule { q, k, v, decay, beta, gate, norm, eps, state, out } = op else { return wrong_op() };
        let kernel = DeltaRule {
            q: layout.heads(*q)?,
            k: layout.heads(*k)?,
            v: layout.heads(*v)?,
            decay: layout.view(*decay)?,
            beta: layout.view(*beta)?,
            gate: layout.view(*gate)?,
            norm: layout.vector(*norm)?,
            eps: *eps,
            state: layout.state(*state)?,
            out: layout.view(*out)?,
        };
        kernel.check()?;
        Ok(kernel)
    }

    fn check(&self) -> Result<(), String> {
        let StateKind::Delta { heads, key_dim, value_dim, .. } = self.state.kind else {
            return Err("the state is no delta-rule state".into());
        };
        let (heads, key_dim, value_dim) = (heads as usize, key_dim as usize, value_dim as usize);
        let fits = self.q.count == self.k.count
            && heads.is_multiple_of(self.q.count)
            && [self.q.dim, self.k.dim] == [key_dim; 2]
            && (self.v.count, self.v.dim) == (heads, value_dim)
            && [self.decay.width, self.beta.width] == [heads; 2]
            && [self.gate.width, self.out.width] == [heads * value_dim; 2]
            && self.norm.len == value_dim;
        if fits { Ok(()) } else { Err("operands of different shapes".into()) }
    }

    pub fn inputs<'a>(&self, run: &Run<'a>) -> Inputs<'a> {
        Inputs {
            q: self.q.place.read(run),
            k: self.k.place.read(run),
            v: self.v.place.read(run),
            decay: self.decay.read(run),
            beta: self.beta.read(run),
            gate: self.gate.read(run),
            norm: self.norm.get(run),
        }
    }

    /// First byte of a head's state in one version of a slot.
    pub fn head_state(&self, slot: u32, version: u32, head: usize) -> usize {
        let index = version as usize * self.v.count + head;
        self.state.slot(slot) + index * self.q.dim * self.v.dim * size_of::<f32>()
    }

    /// The norm and the gate of a head's output.
    pub fn finish(&self, inputs: &Inputs<'_>, row: usize, head: usize, out: &mut [f32], scale: f32) {
        let gate = inputs.gate.part(row, head * self.v.dim, self.v.dim);
        out.iter_mut().zip(inputs.norm).zip(gate).for_each(|((o, n), g)| *o = *o * scale * n * g);
    }

    /// All rows of a sequence for one value head.
    fn head(&self, run: &Run<'_>, inputs: &Inputs<'_>, span: &Span, head: usize, out: &MatMut<'_, f32>, scratch: &mut [f32]) {
        let (q, k) = scratch.split_at_mut(self.q.dim);
        let (key_head, len) = (head % self.q.count, self.q.dim * self.v.dim);
        let columns = head * self.v.dim..(head + 1) * self.v.dim;
        for row in span.first..span.first + span.len {
            normalise(self.q.head(&inputs.q, row, key_head), 1.0 / (self.q.dim as f32).sqrt(), q);
            normalise(self.k.head(&inputs.k, row, key_head), 1.0, k);
            let token = Token {
                q,
                k,
                v: self.v.head(&inputs.v, row, head),
                decay: inputs.decay.row(row)[head].exp(),
                beta: inputs.beta.row(row)[head],
            };
            let (read, write) = (run.rows[row].state_read, run.rows[row].state_write);
            // SAFETY: this head belongs to this thread in every version and slot; these columns too.
            let (state, out) =
                unsafe { (run.state.write::<f32>(self.head_state(span.slot, write, head), len), out.part(row, columns.clone())) };
            if read != write {
                // SAFETY: as above, and another version is another place.
                state.copy_from_slice(unsafe { run.state.read(self.head_state(span.slot, read, head), len) });
            }
            token.step(state, out);
            self.finish(inputs, row, head, out, rms_scale(out, self.eps));
        }
    }
}

/// `out = x / |x| * factor`
pub fn normalise(x: &[f32], factor: f32, out: &mut [f32]) {
    let scale = (1.0 / (sum_squares(x) + f64::from(L2_EPS)).sqrt()) as f32 * factor;
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale);
}

/// One token of one head.
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    /// Factor on the old state, already exponentiated.
    decay: f32,
    beta: f32,
}

impl Token<'_> {
    /// Decays and updates the state `[value channel][key channel]`, then reads it.
    fn step(&self, state: &mut [f32], out: &mut [f32]) {
        for ((state, v), out) in state.chunks_exact_mut(self.k.len()).zip(self.v).zip(out) {
            state.iter_mut().for_each(|s| *s *= self.decay);
            let correction = (v - dot(state, self.k)) * self.beta;
            state.iter_mut().zip(self.k).for_each(|(s, k)| *s += k * correction);
            *out = dot(state, self.q);
        }
    }
}

impl Kernel for DeltaRule {
    fn scratch_bytes(&self) -> usize {
        carve_bytes::<f32>(2 * self.q.dim)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let inputs = self.inputs(run);
        let out = self.out.write::<f32>(thread);
        let mine = thread.member().share(self.v.count);
        let scratch: &mut [f32] = carve(&mut thread.scratch, 2 * self.q.dim);
        for head in mine {
            for span in run.spans {
                self.head(run, &inputs, span, head, &out, scratch);
            }
        }
        Ok(())
    }
}
