//! Matrix products with rounded activations.

use std::ops::Range;

use super::super::super::exec::{Kernel, Run, Thread};
use super::super::super::kernels::{Tokens, floats, is_float};
use super::super::super::layout::{Layout, Place};
use super::super::super::pool::Poisoned;
use super::super::super::vector::Level;
use super::super::super::view::{MatMut, carve, carve_bytes};
use super::super::matmul::{Finish, Part};
use super::product::{Activations, Deal, FEW_ROWS, Source, Style, Tools, block_bytes, result_floats, rows_that_fit, tile_rows};
use crate::program::{GateActivation, MatMulPart, View};

#[derive(Debug)]
pub struct MatMul {
    x: Place,
    parts: Vec<Part>,
    style: Style,
    /// Whether any weights want rounded activations.
    rounded: bool,
}

impl MatMul {
    pub fn new(layout: &Layout<'_>, x: View, parts: &[MatMulPart], style: Style) -> Result<MatMul, String> {
        let parts: Vec<Part> = parts.iter().map(|part| Part::new(layout, x, part)).collect::<Result<_, _>>()?;
        let x = layout.view(x)?;
        if parts.iter().any(|part| part.out.max_rows > x.max_rows) {
            return Err("an output has more rows than the input".into());
        }
        let matrices = parts.iter().flat_map(|p| [Some(&p.main), p.up.as_ref().map(|up| &up.matrix)]).flatten();
        let rounded = matrices.into_iter().any(|m| !is_float(m.format));
        Ok(MatMul { x, parts, style, rounded })
    }
}

/// Bytes of weights behind one output.
fn row_cost(part: &Part) -> u64 {
    (part.main.row_bytes + part.up.as_ref().map_or(0, |up| up.matrix.row_bytes)) as u64
}

/// Results of a tile before they are finished: `gate` and, for gated products, `up`.
struct Results<'s> {
    main: &'s mut [f32],
    up: &'s mut [f32],
}

impl Kernel for MatMul {
    fn scratch_bytes(&self) -> usize {
        let few = self.x.max_rows.min(FEW_ROWS);
        block_bytes(few, self.x.width) + Tools::scratch_bytes() + 2 * carve_bytes::<f32>(result_floats(self.x.max_rows))
    }

    fn shared_bytes(&self) -> usize {
        if self.rounded && self.x.max_rows > FEW_ROWS { block_bytes(self.x.max_rows, self.x.width) } else { 0 }
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let source = Source { x: self.x.read(run), split: 1 };
        let rows = source.len();
        let activations = Activations::new(thread, self.style, source, self.rounded)?;
        let tile = tile_rows(rows);
        let tiles = |part: &Part| part.out.width.div_ceil(tile);
        let mut deal = Deal::new(thread, self.parts.iter().map(|p| tiles(p) as u64 * row_cost(p)).sum());
        let mut scratch = std::mem::take(&mut thread.scratch);
        let mut tools = Tools::new(&mut scratch);
        let floats = result_floats(self.x.max_rows);
        let mut results = Results { main: carve(&mut scratch, floats), up: carve(&mut scratch, floats) };
        let step = rows_that_fit(rows, floats);
        for part in &self.parts {
            let out = part.out.write::<f32>(thread);
            let mine = deal.next(tiles(part), row_cost(part));
            let end = (mine.end * tile).min(part.out.width);
            for first in (mine.start * tile..end).step_by(step) {
                let columns = first..(first + step).min(end);
                part_of(part, run, columns, rows, &activations, &mut results, &mut tools, self.style.level, &out);
            }
        }
        Ok(())
    }
}

#[expect(clippy::too_many_arguments, reason = "the state of one loop")]
fn part_of(
    part: &Part,
    run: &Run<'_>,
    columns: Range<usize>,
    rows: usize,
    activations: &Activations<'_>,
    results: &mut Results<'_>,
    tools: &mut Tools<'_>,
    level: Level,
    out: &MatMut<'_, f32>,
) {
    let count = columns.len();
    activations.multiply(run, (&part.main, 0), columns.clone(), Tokens::Rows(0..rows), results.main, tools);
    scale_by(level, part.scale(run), &mut results.main[..rows * count]);
    if let Some(up) = &part.up {
        activations.multiply(run, (&up.matrix, 0), columns.clone(), Tokens::Rows(0..rows), results.up, tools);
        scale_by(level, up.scale(run), &mut results.up[..rows * count]);
        gate(level, up.activation, &mut results.main[..rows * count], &results.up[..rows * count]);
    }
    for (row, result) in results.main[..rows * count].chunks_exact_mut(count.max(1)).enumerate() {
        // SAFETY: these columns lie in tiles that were dealt to this thread.
        let target = unsafe { out.part(row, columns.clone()) };
        finish(part, run, columns.start, result, target, level);
    }
}

fn scale_by(level: Level, scale: f32, x: &mut [f32]) {
    if scale != 1.0 {
        floats::scale(level.simd(), x, scale);
    }
}

/// `gate = activation(gate) * up`
pub fn gate(level: Level, activation: GateActivation, gate: &mut [f32], up: &[f32]) {
    match activation {
        GateActivation::Silu => floats::silu_mul(level.simd(), gate, up),
        GateActivation::GeluTanh => floats::gelu_mul(level.simd(), gate, up),
    }
}

/// Bias and epilogue of neighbouring columns of one row, from column `first`.
fn finish(part: &Part, run: &Run<'_>, first: usize, result: &mut [f32], out: &mut [f32], level: Level) {
    if let Some(bias) = part.bias {
        let bias = &bias.get(run)[first..first + result.len()];
        result.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
    }
    match part.finish {
        Finish::Store => out.copy_from_slice(result),
        Finish::Silu { scale } => {
            scale_by(level, scale, result);
            floats::silu(level.simd(), result);
            out.copy_from_slice(result);
        }
        Finish::Sigmoid { scale, factor } => {
            scale_by(level, scale, result);
            floats::sigmoid(level.simd(), result);
            scale_by(level, factor, result);
            out.copy_from_slice(result);
        }
        Finish::GeluTanh => {
            floats::gelu(level.simd(), result);
            out.copy_from_slice(result);
        }
        Finish::Accumulate => out.iter_mut().zip(result).for_each(|(out, v)| *out += *v),
        Finish::GeluErf | Finish::Decay { .. } => {
            for (i, (out, v)) in out.iter_mut().zip(result).enumerate() {
                part.finish.apply(run, first + i, *v, out);
            }
        }
    }
}
