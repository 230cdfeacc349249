//! Mixture of experts (2.3), reference: the window's choices are grouped by expert, so that every weight row in use is
//! decoded once.

use super::super::exec::{Kernel, Run, Thread};
use super::super::kernels::floats;
use super::super::layout::{Layout, Matrix, Place, Slots, Vector};
use super::super::pool::Poisoned;
use super::super::vector::{self, Level};
use super::super::view::{Mat, carve, carve_bytes};
use super::math::dot;
use super::matmul::{ROW_TILE, activate, decode};
use super::wrong_op;
use crate::program::{GateActivation, Op, RouterScore};

/// Columns of a row that are summed at once: whole vectors, so that cutting them changes no result.
const SUM_COLUMNS: usize = 256;

/// Smallest divisor of expert weights.
const MIN_SUM: f32 = 1.0 / 16384.0;

#[derive(Debug)]
pub struct Router {
    logits: Place,
    ids: Place,
    weights: Place,
    normalise: bool,
    level: Option<Level>,
}

impl Router {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<Router, String> {
        let Op::Router { logits, score: RouterScore::SoftmaxAll, normalise, ids, weights } = op else { return wrong_op() };
        if ids.width != weights.width || ids.width > logits.width {
            return Err(format!("{} of {} experts with {} weights", ids.width, logits.width, weights.width));
        }
        let (logits, ids, weights) = (layout.view(*logits)?, layout.view(*ids)?, layout.view(*weights)?);
        Ok(Router { logits, ids, weights, normalise: *normalise, level: layout.level() })
    }
}

impl Kernel for Router {
    fn scratch_bytes(&self) -> usize {
        carve_bytes::<f32>(self.logits.width)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let logits = self.logits.read::<f32>(thread.run);
        let mut ids = self.ids.write::<u32>(thread);
        let mut weights = self.weights.write::<f32>(thread);
        let p: &mut [f32] = carve(&mut thread.scratch, self.logits.width);
        for (ids, weights) in ids.whole_rows().zip(weights.whole_rows()) {
            softmax(self.level, logits.row(ids.row), p);
            choose(p, ids.data, weights.data);
            if self.normalise {
                let sum: f32 = weights.data.iter().sum();
                weights.data.iter_mut().for_each(|w| *w /= sum.max(MIN_SUM));
            }
        }
        Ok(())
    }
}

fn softmax(level: Option<Level>, logits: &[f32], p: &mut [f32]) {
    if let Some(level) = level {
        p.copy_from_slice(logits);
        let max = vector::max(level, p);
        let sum = vector::exponentials(level, p, max);
        return p.iter_mut().for_each(|p| *p /= sum);
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    p.iter_mut().zip(logits).for_each(|(p, x)| *p = (x - max).exp());
    let sum: f32 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
}

/// The largest of `p`, descending; of equals the one with the lower number. Marks what it took in `p`.
fn choose(p: &mut [f32], ids: &mut [u32], weights: &mut [f32]) {
    for (id, weight) in ids.iter_mut().zip(weights) {
        let mut best = 0;
        for (i, value) in p.iter().enumerate() {
            // NaN loses to everything, so garbage in still gives valid numbers of experts.
            if *value > p[best] || p[best].is_nan() {
                best = i;
            }
        }
        (*id, *weight) = (best as u32, p[best]);
        p[best] = f32::NEG_INFINITY;
    }
}

/// The choices `(row, j)` of a window, as `row * used + j`, grouped by expert and ascending within a group.
pub struct Groups<'s> {
    /// Where each expert's choices begin; one more at the end.
    starts: &'s mut [u32],
    choices: &'s mut [u32],
}

impl<'s> Groups<'s> {
    pub fn scratch_bytes(experts: usize, max_choices: usize) -> usize {
        carve_bytes::<u32>(experts + 1) + carve_bytes::<u32>(max_choices)
    }

    /// Sorts by counting. A number that is no expert counts as the last one: the router never gives such.
    pub fn new(ids: &Mat<'_, u32>, experts: usize, scratch: &mut &'s mut [u8]) -> Groups<'s> {
        let starts: &mut [u32] = carve(scratch, experts + 1);
        let choices: &mut [u32] = carve(scratch, ids.rows() * ids.width());
        let expert_of = |id: &u32| (*id as usize).min(experts - 1);
        starts.fill(0);
        for row in 0..ids.rows() {
            ids.row(row).iter().for_each(|id| starts[expert_of(id)] += 1);
        }
        let mut end = 0;
        for start in starts.iter_mut() {
            end += *start;
            *start = end;
        }
        // Backwards, so that every start moves from the end of its group to the beginning.
        for row in (0..ids.rows()).rev() {
            for (j, id) in ids.row(row).iter().enumerate().rev() {
                let start = &mut starts[expert_of(id)];
                *start -= 1;
                choices[*start as usize] = (row * ids.width() + j) as u32;
            }
        }
        Groups { starts, choices }
    }

    /// Experts in use, ascending, with their choices.
    pub fn in_use(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.starts
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| pair[0] < pair[1])
            .map(|(expert, pair)| (expert, &self.choices[pair[0] as usize..pair[1] as usize]))
    }

    /// As [`Groups::in_use`], of experts that are held, each with its slot.
    pub fn held(&self, run: &Run<'_>, slots: Slots) -> impl Iterator<Item = (usize, usize, &[u32])> {
        self.in_use().filter_map(move |(expert, choices)| Some((expert, slots.of(run, expert)?, choices)))
    }
}

#[derive(Debug)]
pub struct ExpertGated {
    pub x: Place,
    pub ids: Place,
    pub gate: (Matrix, Option<Vector>),
    pub up: (Matrix, Option<Vector>),
    pub slots: Slots,
    pub activation: GateActivation,
    pub out: Place,
}

impl ExpertGated {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<ExpertGated, String> {
        let Op::ExpertGated { x, ids, gate, up, activation, slots, out } = op else { return wrong_op() };
        let (gate, up) = (layout.expert_matrix(gate)?, layout.expert_matrix(up)?);
        let (x, ids, out) = (layout.view(*x)?, layout.view(*ids)?, layout.view(*out)?);
        let fits = [gate.0.cols, up.0.cols] == [x.width; 2]
            && gate.0.rows == up.0.rows
            && (gate.0.experts, gate.0.slots) == (up.0.experts, up.0.slots)
            && gate.0.experts > 0
            && out.width == gate.0.rows * ids.width;
        if !fits {
            return Err("operands of different shapes".into());
        }
        let slots = layout.slots(*slots, &gate.0)?;
        Ok(ExpertGated { x, ids, gate, up, slots, activation: *activation, out })
    }
}

/// The factor of an expert's product.
pub fn expert_scale(scale: Option<Vector>, run: &Run<'_>, expert: usize) -> f32 {
    scale.map_or(1.0, |s| s.get(run)[expert])
}

impl Kernel for ExpertGated {
    fn scratch_bytes(&self) -> usize {
        let choices = self.ids.max_rows * self.ids.width;
        Groups::scratch_bytes(self.gate.0.experts, choices) + 2 * carve_bytes::<f32>(self.x.width)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let x = self.x.read::<f32>(run);
        let used = self.ids.width;
        let out = self.out.write::<f32>(thread);
        let member = thread.member();
        let mut scratch = std::mem::take(&mut thread.scratch);
        let groups = Groups::new(&self.ids.read(run), self.gate.0.experts, &mut scratch);
        let gate_row: &mut [f32] = carve(&mut scratch, self.x.width);
        let up_row: &mut [f32] = carve(&mut scratch, self.x.width);
        let rows = self.gate.0.rows;
        let mine = member.share(rows.div_ceil(ROW_TILE));
        for (expert, slot, choices) in groups.held(run, self.slots) {
            let scales = (expert_scale(self.gate.1, run, expert), expert_scale(self.up.1, run, expert));
            for f in mine.start * ROW_TILE..(mine.end * ROW_TILE).min(rows) {
                decode(&self.gate.0, run, slot, f, gate_row);
                decode(&self.up.0, run, slot, f, up_row);
                for choice in choices {
                    let (row, column) = (*choice as usize / used, *choice as usize % used * rows + f);
                    let gate = dot(gate_row, x.row(row)) * scales.0;
                    let up = dot(up_row, x.row(row)) * scales.1;
                    // SAFETY: a choice has one expert, and row `f` of every expert is this thread's.
                    let target = unsafe { out.part(row, column..column + 1) };
                    target[0] = activate(self.activation, gate, up);
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct ExpertDown {
    pub x: Place,
    pub ids: Place,
    pub weights: Place,
    pub down: (Matrix, Option<Vector>),
    pub out: Place,
}

impl ExpertDown {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<ExpertDown, String> {
        let Op::ExpertDown { x, ids, weights, down, out } = op else { return wrong_op() };
        let down = layout.expert_matrix(down)?;
        let (x, ids, weights, out) = (layout.view(*x)?, layout.view(*ids)?, layout.view(*weights)?, layout.view(*out)?);
        let fits =
            x.width == down.0.cols * ids.width && weights.width == ids.width && out.width == down.0.rows && down.0.experts > 0;
        if !fits {
            return Err("operands of different shapes".into());
        }
        layout.slots(None, &down.0)?;
        Ok(ExpertDown { x, ids, weights, down, out })
    }
}

impl Kernel for ExpertDown {
    fn scratch_bytes(&self) -> usize {
        let choices = self.ids.max_rows * self.ids.width;
        Groups::scratch_bytes(self.down.0.experts, choices) + carve_bytes::<f32>(self.down.0.cols) + carve_bytes::<f32>(choices)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let (x, weights) = (self.x.read::<f32>(run), self.weights.read::<f32>(run));
        let (used, cols) = (self.ids.width, self.down.0.cols);
        let out = self.out.write::<f32>(thread);
        let member = thread.member();
        let mut scratch = std::mem::take(&mut thread.scratch);
        let groups = Groups::new(&self.ids.read(run), self.down.0.experts, &mut scratch);
        let down_row: &mut [f32] = carve(&mut scratch, cols);
        let products: &mut [f32] = carve(&mut scratch, x.rows() * used);
        let mine = member.share(self.out.width.div_ceil(ROW_TILE));
        for o in mine.start * ROW_TILE..(mine.end * ROW_TILE).min(self.out.width) {
            for (expert, choices) in groups.in_use() {
                decode(&self.down.0, run, expert, o, down_row);
                let scale = expert_scale(self.down.1, run, expert);
                for choice in choices {
                    let (row, j) = (*choice as usize / used, *choice as usize % used);
                    products[*choice as usize] = dot(down_row, x.part(row, j * cols, cols)) * scale;
                }
            }
            // In the order of the choices, so that the sum does not depend on the grouping.
            for row in 0..x.rows() {
                let products = &products[row * used..(row + 1) * used];
                let sum = products.iter().zip(weights.row(row)).fold(0.0, |sum, (p, w)| sum + p * w);
                // SAFETY: column `o` lies in this thread's share of the tiles.
                let target = unsafe { out.part(row, o..o + 1) };
                target[0] = sum;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct ExpertDownEach {
    pub x: Place,
    pub ids: Place,
    pub down: Matrix,
    pub slots: Slots,
    pub out: Place,
}

impl ExpertDownEach {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<ExpertDownEach, String> {
        let Op::ExpertDownEach { x, ids, down, slots, out } = op else { return wrong_op() };
        let (down, _) = layout.expert_matrix(down)?;
        let (x, ids, out) = (layout.view(*x)?, layout.view(*ids)?, layout.view(*out)?);
        if x.width != down.cols * ids.width || out.width != down.rows * ids.width || down.experts == 0 {
            return Err("operands of different shapes".into());
        }
        let slots = layout.slots(Some(*slots), &down)?;
        Ok(ExpertDownEach { x, ids, down, slots, out })
    }
}

impl Kernel for ExpertDownEach {
    fn scratch_bytes(&self) -> usize {
        let choices = self.ids.max_rows * self.ids.width;
        Groups::scratch_bytes(self.down.experts, choices) + carve_bytes::<f32>(self.down.cols)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let x = self.x.read::<f32>(run);
        let (used, cols, rows) = (self.ids.width, self.down.cols, self.down.rows);
        let out = self.out.write::<f32>(thread);
        let member = thread.member();
        let mut scratch = std::mem::take(&mut thread.scratch);
        let groups = Groups::new(&self.ids.read(run), self.down.experts, &mut scratch);
        let down_row: &mut [f32] = carve(&mut scratch, cols);
        let mine = member.share(rows.div_ceil(ROW_TILE));
        for o in mine.start * ROW_TILE..(mine.end * ROW_TILE).min(rows) {
            for (_, slot, choices) in groups.held(run, self.slots) {
                decode(&self.down, run, slot, o, down_row);
                for choice in choices {
                    let (row, j) = (*choice as usize / used, *choice as usize % used);
                    // SAFETY: a choice has one expert, and row `o` of every expert is this thread's.
                    let target = unsafe { out.part(row, j * rows + o..j * rows + o + 1) };
                    target[0] = dot(down_row, x.part(row, j * cols, cols));
                }
            }
        }
        Ok(())
    }
}

/// Adds as [`ExpertDown`] does: in the order of the choices, or in fast mode of the experts' numbers.
#[derive(Debug)]
pub struct ExpertSum {
    x: Place,
    ids: Place,
    weights: Place,
    scale: Option<Vector>,
    out: Place,
    level: Option<Level>,
}

impl ExpertSum {
    pub fn new(layout: &Layout<'_>, op: &Op) -> Result<ExpertSum, String> {
        let Op::ExpertSum { x, ids, weights, scale, out } = op else { return wrong_op() };
        let scale = scale.map(|s| layout.vector(s)).transpose()?;
        let (x, ids, weights, out) = (layout.view(*x)?, layout.view(*ids)?, layout.view(*weights)?, layout.view(*out)?);
        if x.width != out.width * ids.width || weights.width != ids.width || scale.is_some_and(|s| s.len == 0) {
            return Err("operands of different shapes".into());
        }
        Ok(ExpertSum { x, ids, weights, scale, out, level: layout.level() })
    }
}

impl Kernel for ExpertSum {
    fn scratch_bytes(&self) -> usize {
        carve_bytes::<u32>(self.ids.width)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let (x, ids, weights) = (self.x.read::<f32>(run), self.ids.read::<u32>(run), self.weights.read::<f32>(run));
        let mut out = self.out.write::<f32>(thread);
        let order: &mut [u32] = carve(&mut thread.scratch, self.ids.width);
        let width = self.out.width;
        for piece in out.pieces(SUM_COLUMNS, SUM_COLUMNS) {
            let (row, columns) = (piece.row, piece.data.len());
            let scale = |j: usize| self.scale.map_or(1.0, |s| s.get(run)[(ids.row(row)[j] as usize).min(s.len - 1)]);
            let part = |j: usize| x.part(row, j * width + piece.column, columns);
            piece.data.fill(0.0);
            order.iter_mut().enumerate().for_each(|(j, o)| *o = j as u32);
            let Some(level) = self.level else {
                for j in 0..self.ids.width {
                    let weight = weights.row(row)[j];
                    piece.data.iter_mut().zip(part(j)).for_each(|(sum, p)| *sum += p * scale(j) * weight);
                }
                continue;
            };
            order.sort_unstable_by_key(|j| (ids.row(row)[*j as usize], *j));
            for j in order.iter().map(|j| *j as usize) {
                floats::axpy(level.simd(), weights.row(row)[j] * scale(j), part(j), piece.data);
            }
        }
        Ok(())
    }
}
