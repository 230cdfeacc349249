//! Experts with rounded activations. The choices of a window are grouped by expert; each expert's matrix is read once.

use super::super::super::exec::{Kernel, Run, Thread};
use super::super::super::kernels::{Tokens, floats, is_float};
use super::super::super::pool::Poisoned;
use super::super::super::view::{carve, carve_bytes};
use super::super::moe::{self, Groups, expert_scale};
use super::matmul::gate;
use super::product::{Activations, Deal, FEW_ROWS, Source, Style, Tools, block_bytes, result_floats, rows_that_fit, tile_rows};
use std::ops::Range;

/// What unpacking a row of weights costs in a large window, in multiples of multiplying it with one token.
const UNPACK_COST: u64 = 16;

#[derive(Debug)]
pub struct ExpertGated {
    pub op: moe::ExpertGated,
    pub style: Style,
}

#[derive(Debug)]
pub struct ExpertDown {
    pub op: moe::ExpertDown,
    pub style: Style,
}

#[derive(Debug)]
pub struct ExpertDownEach {
    pub op: moe::ExpertDownEach,
    pub style: Style,
}

impl ExpertGated {
    fn rounded(&self) -> bool {
        !is_float(self.op.gate.0.format) || !is_float(self.op.up.0.format)
    }
}

/// Working memory for the choices of one expert.
struct Results<'s> {
    main: &'s mut [f32],
    up: &'s mut [f32],
    rows: &'s mut [u32],
}

impl Kernel for ExpertGated {
    fn scratch_bytes(&self) -> usize {
        let op = &self.op;
        let (max_rows, width) = (op.x.max_rows, op.x.width);
        block_bytes(max_rows.min(FEW_ROWS), width)
            + Groups::scratch_bytes(op.gate.0.experts, max_rows * op.ids.width)
            + Tools::scratch_bytes()
            + 2 * carve_bytes::<f32>(result_floats(max_rows))
            + carve_bytes::<u32>(max_rows * op.ids.width)
    }

    fn shared_bytes(&self) -> usize {
        let op = &self.op;
        if self.rounded() && op.x.max_rows > FEW_ROWS { block_bytes(op.x.max_rows, op.x.width) } else { 0 }
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let (op, run) = (&self.op, thread.run);
        let source = Source { x: op.x.read(run), split: 1 };
        let rows = source.len();
        let activations = Activations::new(thread, self.style, source, self.rounded())?;
        let out = op.out.write::<f32>(thread);
        let mut scratch = std::mem::take(&mut thread.scratch);
        let groups = Groups::new(&op.ids.read(run), op.gate.0.experts, &mut scratch);
        let mut tools = Tools::new(&mut scratch);
        let floats = result_floats(op.x.max_rows);
        let results = Results {
            main: carve(&mut scratch, floats),
            up: carve(&mut scratch, floats),
            rows: carve(&mut scratch, rows * op.ids.width),
        };
        let (used, width) = (op.ids.width, op.gate.0.rows);
        let tile = tile_rows(rows);
        let cost = |choices: &[u32]| if rows <= FEW_ROWS { 1 } else { UNPACK_COST + choices.len() as u64 };
        let tiles = width.div_ceil(tile);
        let held = || groups.held(run, op.slots);
        let mut deal = Deal::new(thread, held().map(|(_, _, choices)| tiles as u64 * cost(choices)).sum());
        for (expert, slot, choices) in held() {
            let mine = deal.next(tiles, cost(choices));
            results.rows.iter_mut().zip(choices).for_each(|(row, choice)| *row = *choice / used as u32);
            let end = (mine.end * tile).min(width);
            // Duplicate choices of a row may exceed the rows of the window, so that the step is found from the choices.
            for chunk in choices.chunks(rows.max(1)).zip(results.rows.chunks(rows.max(1))) {
                let step = rows_that_fit(chunk.0.len(), floats);
                for first in (mine.start * tile..end).step_by(step) {
                    let range = first..(first + step).min(end);
                    let count = range.len();
                    let len = chunk.0.len() * count;
                    let list = &chunk.1[..chunk.0.len()];
                    self.products(run, (expert, slot), range.clone(), list, &activations, (results.main, results.up), &mut tools);
                    for (choice, values) in chunk.0.iter().zip(results.main[..len].chunks_exact(count)) {
                        let (row, column) = (*choice as usize / used, *choice as usize % used * width + first);
                        // SAFETY: a choice has one expert, whose tile was dealt to this thread.
                        unsafe { out.part(row, column..column + count) }.copy_from_slice(values);
                    }
                }
            }
        }
        Ok(())
    }
}

impl ExpertGated {
    /// `activation(gate x) * (up x)` of some rows of an expert into the first result.
    #[expect(clippy::too_many_arguments, reason = "the state of one loop")]
    fn products(
        &self,
        run: &Run<'_>,
        (expert, slot): (usize, usize),
        range: Range<usize>,
        list: &[u32],
        activations: &Activations<'_>,
        (main, up): (&mut [f32], &mut [f32]),
        tools: &mut Tools<'_>,
    ) {
        let len = list.len() * range.len();
        for ((matrix, scale), out) in [(&self.op.gate, &mut *main), (&self.op.up, &mut *up)] {
            activations.multiply(run, (matrix, slot), range.clone(), Tokens::List(list), out, tools);
            if scale.is_some() {
                let scale = expert_scale(*scale, run, expert);
                out[..len].iter_mut().for_each(|v| *v *= scale);
            }
        }
        gate(self.style.level, self.op.activation, &mut main[..len], &up[..len]);
    }
}

impl ExpertDown {
    fn rounded(&self) -> bool {
        !is_float(self.op.down.0.format)
    }
}

impl Kernel for ExpertDown {
    fn scratch_bytes(&self) -> usize {
        let op = &self.op;
        let (max_rows, used) = (op.x.max_rows, op.ids.width);
        block_bytes(max_rows.min(FEW_ROWS) * used, op.down.0.cols)
            + Groups::scratch_bytes(op.down.0.experts, max_rows * used)
            + Tools::scratch_bytes()
            + carve_bytes::<f32>(result_floats(max_rows))
    }

    fn shared_bytes(&self) -> usize {
        let op = &self.op;
        let rows = op.x.max_rows * op.ids.width;
        if self.rounded() && op.x.max_rows > FEW_ROWS { block_bytes(rows, op.down.0.cols) } else { 0 }
    }

    /// Each thread owns columns of the result and adds the experts in ascending order.
    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let (op, run) = (&self.op, thread.run);
        let used = op.ids.width;
        let source = Source { x: op.x.read(run), split: used };
        let rows = source.x.rows();
        let activations = Activations::new(thread, self.style, source, self.rounded())?;
        let weights = op.weights.read::<f32>(run);
        let out = op.out.write::<f32>(thread);
        let member = thread.member();
        let mut scratch = std::mem::take(&mut thread.scratch);
        let groups = Groups::new(&op.ids.read(run), op.down.0.experts, &mut scratch);
        let mut tools = Tools::new(&mut scratch);
        let floats = result_floats(op.x.max_rows);
        let results: &mut [f32] = carve(&mut scratch, floats);
        let tile = tile_rows(rows);
        let mine = member.share(op.out.width.div_ceil(tile));
        let mine = mine.start * tile..(mine.end * tile).min(op.out.width);
        for row in 0..rows {
            // SAFETY: these columns are this thread's.
            unsafe { out.part(row, mine.clone()) }.fill(0.0);
        }
        for (expert, choices) in groups.in_use() {
            let scale = expert_scale(op.down.1, run, expert);
            for choices in choices.chunks(rows.max(1)) {
                let step = rows_that_fit(choices.len(), floats);
                for first in mine.clone().step_by(step) {
                    let range = first..(first + step).min(mine.end);
                    let count = range.len();
                    activations.multiply(run, (&op.down.0, expert), range.clone(), Tokens::List(choices), results, &mut tools);
                    for (choice, values) in choices.iter().zip(results.chunks_exact(count)) {
                        let (row, j) = (*choice as usize / used, *choice as usize % used);
                        // SAFETY: these columns are this thread's.
                        let out = unsafe { out.part(row, range.clone()) };
                        floats::axpy(self.style.level.simd(), weights.row(row)[j] * scale, values, out);
                    }
                }
            }
        }
        Ok(())
    }
}

impl ExpertDownEach {
    fn rounded(&self) -> bool {
        !is_float(self.op.down.format)
    }
}

impl Kernel for ExpertDownEach {
    fn scratch_bytes(&self) -> usize {
        let op = &self.op;
        let (max_rows, used) = (op.x.max_rows, op.ids.width);
        block_bytes(max_rows.min(FEW_ROWS) * used, op.down.cols)
            + Groups::scratch_bytes(op.down.experts, max_rows * used)
            + Tools::scratch_bytes()
            + carve_bytes::<f32>(result_floats(max_rows))
    }

    fn shared_bytes(&self) -> usize {
        let op = &self.op;
        let rows = op.x.max_rows * op.ids.width;
        if self.rounded() && op.x.max_rows > FEW_ROWS { block_bytes(rows, op.down.cols) } else { 0 }
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let (op, run) = (&self.op, thread.run);
        let (used, width) = (op.ids.width, op.down.rows);
        let source = Source { x: op.x.read(run), split: used };
        let rows = source.x.rows();
        let activations = Activations::new(thread, self.style, source, self.rounded())?;
        let out = op.out.write::<f32>(thread);
        let mut scratch = std::mem::take(&mut thread.scratch);
        let groups = Groups::new(&op.ids.read(run), op.down.experts, &mut scratch);
        let mut tools = Tools::new(&mut scratch);
        let floats = result_floats(op.x.max_rows);
        let results: &mut [f32] = carve(&mut scratch, floats);
        let tile = tile_rows(rows);
        let cost = |choices: &[u32]| if rows <= FEW_ROWS { 1 } else { UNPACK_COST + choices.len() as u64 };
        let tiles = width.div_ceil(tile);
        let held = || groups.held(run, op.slots);
        let mut deal = Deal::new(thread, held().map(|(_, _, choices)| tiles as u64 * cost(choices)).sum());
        for (_, slot, choices) in held() {
            let mine = deal.next(tiles, cost(choices));
            let end = (mine.end * tile).min(width);
            for choices in choices.chunks(rows.max(1)) {
                let step = rows_that_fit(choices.len(), floats);
                for first in (mine.start * tile..end).step_by(step) {
                    let range = first..(first + step).min(end);
                    let count = range.len();
                    activations.multiply(run, (&op.down, slot), range, Tokens::List(choices), results, &mut tools);
                    for (choice, values) in choices.iter().zip(results.chunks_exact(count)) {
                        let (row, column) = (*choice as usize / used, *choice as usize % used * width + first);
                        // SAFETY: a choice has one expert, whose tile was dealt to this thread.
                        unsafe { out.part(row, column..column + count) }.copy_from_slice(values);
                    }
                }
            }
        }
        Ok(())
    }
}
