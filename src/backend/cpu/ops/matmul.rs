//! Matrix products, reference: every weight row is decoded once and multiplied with all rows of the window in float32.

use super::super::exec::{Kernel, Run, Thread};
use super::super::layout::{Layout, Matrix, Place, Vector};
use super::super::pool::Poisoned;
use super::super::view::{Mat, MatMut, carve, carve_bytes};
use super::math::{dot_rows, gelu_erf, gelu_tanh, sigmoid, silu, softplus};
use crate::program::{Epilogue, GateActivation, MatMulPart, PartWeights, View};

/// Output rows of a matrix that a thread takes at once.
pub const ROW_TILE: usize = 16;

pub fn activate(activation: GateActivation, gate: f32, up: f32) -> f32 {
    match activation {
        GateActivation::Silu => silu(gate) * up,
        GateActivation::GeluTanh => gelu_tanh(gate) * up,
    }
}

/// Decodes a weight row. The layout guarantees the sizes, so it cannot fail.
pub fn decode(m: &Matrix, run: &Run<'_>, expert: usize, row: usize, out: &mut [f32]) {
    let decoded = m.format.decode_row(m.row(run, expert, row), out);
    debug_assert!(decoded.is_ok());
}

/// What happens to a product before it is written, with its operands resolved.
#[derive(Debug, Clone, Copy)]
pub enum Finish {
    Store,
    Silu { scale: f32 },
    Sigmoid { scale: f32, factor: f32 },
    Decay { a: Vector, dt: Vector },
    GeluTanh,
    GeluErf,
    Accumulate,
}

impl Finish {
    fn new(layout: &Layout<'_>, epilogue: Epilogue, width: usize) -> Result<Finish, String> {
        Ok(match epilogue {
            Epilogue::None => Finish::Store,
            Epilogue::Silu { scale } => Finish::Silu { scale },
            Epilogue::Sigmoid { scale, factor } => Finish::Sigmoid { scale, factor },
            Epilogue::GeluTanh => Finish::GeluTanh,
            Epilogue::GeluErf => Finish::GeluErf,
            Epilogue::Accumulate => Finish::Accumulate,
            Epilogue::Decay { a, dt } => {
                let (a, dt) = (layout.vector(a)?, layout.vector(dt)?);
                if a.len != width || dt.len != width {
                    return Err("the decay's vectors have not the width of the output".into());
                }
                Finish::Decay { a, dt }
            }
        })
    }

    /// Finishes the product for column `o`.
    pub fn apply(&self, run: &Run<'_>, o: usize, product: f32, out: &mut f32) {
        *out = match self {
            Finish::Store => product,
            Finish::Silu { scale } => silu(product * scale),
            Finish::Sigmoid { scale, factor } => factor * sigmoid(product * scale),
            Finish::Decay { a, dt } => a.get(run)[o] * softplus(product + dt.get(run)[o]),
            Finish::GeluTanh => gelu_tanh(product),
            Finish::GeluErf => gelu_erf(product),
            Finish::Accumulate => *out + product,
        };
    }
}

/// The second matrix of a gated product.
#[derive(Debug)]
pub struct Up {
    pub matrix: Matrix,
    scale: Option<Vector>,
    pub activation: GateActivation,
}

impl Up {
    pub fn scale(&self, run: &Run<'_>) -> f32 {
        self.scale.map_or(1.0, |s| s.get(run)[0])
    }
}

/// One product of a group, resolved.
#[derive(Debug)]
pub struct Part {
    pub main: Matrix,
    pub up: Option<Up>,
    pub bias: Option<Vector>,
    scale: Option<Vector>,
    pub finish: Finish,
    pub out: Place,
}

impl Part {
    pub fn new(layout: &Layout<'_>, x: View, part: &MatMulPart) -> Result<Part, String> {
        let main = layout.matrix(part.main_weight())?;
        let up = match part.weights {
            PartWeights::One(_) => None,
            PartWeights::Gated { up, up_scale, activation, .. } => {
                let scale = up_scale.map(|s| layout.vector(s)).transpose()?;
                Some(Up { matrix: layout.matrix(up)?, scale, activation })
            }
        };
        let out = layout.view(part.out)?;
        for m in [Some(&main), up.as_ref().map(|up| &up.matrix)].into_iter().flatten() {
            if m.cols != x.width as usize || m.rows != out.width {
                return Err(format!("a matrix of {}x{} between {} and {} columns", m.rows, m.cols, x.width, out.width));
            }
        }
        let bias = part.bias.map(|b| layout.vector(b)).transpose()?;
        let scale = part.scale.map(|s| layout.vector(s)).transpose()?;
        let up_scale = up.as_ref().and_then(|up| up.scale);
        if bias.is_some_and(|b| b.len != out.width) || [scale, up_scale].into_iter().flatten().any(|s| s.len != 1) {
            return Err("bias or scale of another length".into());
        }
        if up.is_some() && bias.is_some() {
            return Err("a gated product with a bias".into());
        }
        Ok(Part { main, up, bias, scale, finish: Finish::new(layout, part.epilogue, out.width)?, out })
    }

    /// The factor of the (first) product.
    pub fn scale(&self, run: &Run<'_>) -> f32 {
        self.scale.map_or(1.0, |s| s.get(run)[0])
    }

    /// Bias and epilogue for column `o`.
    pub fn finish(&self, run: &Run<'_>, o: usize, product: f32, out: &mut f32) {
        let biased = self.bias.map_or(product, |b| product + b.get(run)[o]);
        self.finish.apply(run, o, biased, out);
    }

    pub fn tiles(&self) -> usize {
        self.out.width.div_ceil(ROW_TILE)
    }
}

#[derive(Debug)]
pub struct MatMul {
    x: Place,
    parts: Vec<Part>,
}

impl MatMul {
    pub fn new(layout: &Layout<'_>, x: View, parts: &[MatMulPart]) -> Result<MatMul, String> {
        let parts: Vec<Part> = parts.iter().map(|part| Part::new(layout, x, part)).collect::<Result<_, _>>()?;
        let x = layout.view(x)?;
        if parts.iter().any(|part| part.out.max_rows > x.max_rows) {
            return Err("an output has more rows than the input".into());
        }
        Ok(MatMul { x, parts })
    }
}

impl Kernel for MatMul {
    fn scratch_bytes(&self) -> usize {
        2 * carve_bytes::<f32>(self.x.width) + 2 * carve_bytes::<f32>(self.x.max_rows)
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned> {
        let run = thread.run;
        let x = self.x.read::<f32>(run);
        let mut scratch = std::mem::take(&mut thread.scratch);
        let weights: &mut [f32] = carve(&mut scratch, self.x.width);
        let products: &mut [f32] = carve(&mut scratch, x.rows());
        let ups: &mut [f32] = carve(&mut scratch, x.rows());
        // Tiles of all parts in a row; each tile of output columns belongs to one thread.
        let mine = thread.member().share(self.parts.iter().map(Part::tiles).sum());
        let mut before = 0;
        for part in &self.parts {
            let tiles = part.tiles();
            let out = part.out.write::<f32>(thread);
            let from = mine.start.clamp(before, before + tiles) - before;
            let to = mine.end.clamp(before, before + tiles) - before;
            for o in from * ROW_TILE..(to * ROW_TILE).min(part.out.width) {
                products_of_row(part, run, o, &x, weights, products, ups);
                store_column(part, run, o, products, &out);
            }
            before += tiles;
        }
        Ok(())
    }
}

fn products_of_row(
    part: &Part,
    run: &Run<'_>,
    o: usize,
    x: &Mat<'_, f32>,
    weights: &mut [f32],
    products: &mut [f32],
    ups: &mut [f32],
) {
    decode(&part.main, run, 0, o, weights);
    dot_rows(weights, x, products);
    let scale = part.scale(run);
    products.iter_mut().for_each(|product| *product *= scale);
    if let Some(up) = &part.up {
        decode(&up.matrix, run, 0, o, weights);
        dot_rows(weights, x, ups);
        let scale = up.scale(run);
        products.iter_mut().zip(ups).for_each(|(gate, product)| *gate = activate(up.activation, *gate, *product * scale));
    }
}

fn store_column(part: &Part, run: &Run<'_>, o: usize, products: &[f32], out: &MatMut<'_, f32>) {
    for (row, product) in products.iter().enumerate() {
        // SAFETY: column `o` lies in a tile of this thread's share.
        let target = unsafe { out.part(row, o..o + 1) };
        part.finish(run, o, *product, &mut target[0]);
    }
}
