//! Which matrix kernels a card is given: those that it can run are tried on a small product, and the fastest of those that give the
//! plain kernel's answers is taken. No table of cards could say it: it depends on the driver's compiler.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::backend::WebGpuBackend;
use super::kept::{self, Kept};
use super::tuning::{Tile, Tuning};
use crate::backend::{ArenaSizes, Backend, BackendError, PreparedId};
use crate::program::{
    ArenaKind, Epilogue, InputKind, MatMulPart, MatrixSpec, Op, OutputKind, PartWeights, ProgramBuilder, Row, RunParams,
    ShapeClass, Slice, Stage, StageBuilder, View,
};
use crate::quant::Format;
use crate::units::TokenId;

/// Edge of the matrix, and rows of the window.
const EDGE: u32 = 1024;
const ROWS: u32 = 128;
/// Runs in a row, and how many times over; the shortest counts.
const TIMES: u32 = 4;
const ROUNDS: usize = 3;
/// Largest relative distance from the plain kernel's answers: what rounding activations to two bytes may cost.
const MOST_DISTANCE: f64 = 1e-4;
/// Others than the plain kernel must be faster by this factor.
const GAIN: f64 = 1.05;

/// What came of a kind of tile.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    pub tile: Tile,
    /// Time of a product and relative distance of its results from the plain kernel's, or why there are none.
    pub outcome: Result<(Duration, f64), String>,
}

impl Tried {
    /// The time, if the answers are right.
    fn time(&self) -> Option<Duration> {
        self.outcome.as_ref().ok().filter(|(_, distance)| *distance <= MOST_DISTANCE).map(|(time, _)| *time)
    }
}

/// The fastest tile with right answers; the plain one unless another is clearly faster.
pub fn fastest(tried: &[Tried]) -> Tile {
    let plain = tried.iter().find(|t| t.tile == Tile::Float).and_then(Tried::time);
    let pays = |time: &Duration| plain.is_some_and(|plain| time.as_secs_f64() * GAIN < plain.as_secs_f64());
    let others = tried.iter().filter(|t| t.tile != Tile::Float);
    let timed = others.filter_map(|t| Some((t.time().filter(pays)?, t.tile)));
    timed.min_by_key(|(time, _)| *time).map_or(Tile::Float, |(_, tile)| tile)
}

/// The product that is tried.
struct Product {
    stage: Arc<Stage>,
    weights: Slice,
    codes: Vec<u8>,
    x: View,
    inputs: Vec<f32>,
    out: View,
    window: Vec<Row>,
}

/// Numbers without a pattern, from 0 to 2^32.
fn noise(len: usize) -> impl Iterator<Item = u32> {
    let step = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some(*state ^ (*state >> 15))
    };
    std::iter::repeat_n((), len).scan(1u32, move |state, ()| step(state))
}

impl Product {
    fn new() -> Product {
        let mut stage = StageBuilder::new("trial");
        let mut program = ProgramBuilder::new("prompt", ShapeClass { max_rows: ROWS, max_outputs: 1 });
        let x = program.input("x", EDGE, InputKind::HandOff);
        let out = program.buffer("out", EDGE);
        program.mark_output(out, OutputKind::HandOff);
        let weight = stage.weight(MatrixSpec { tensor: "trial".into(), format: Format::Q8_0, cols: EDGE, rows: EDGE });
        let weights = PartWeights::One(weight);
        let part = MatMulPart { weights, bias: None, scale: None, epilogue: Epilogue::None, out };
        program.step("product", Op::MatMul { x, parts: vec![part] });
        stage.program(program);
        let stage = Arc::new(stage.finish());
        let weights = stage.weight(weight).slice(0);
        let mut codes: Vec<u8> = noise(weights.len_bytes as usize).map(|n| (n >> 24) as u8).collect();
        let scale = half::f16::from_f32(1.0 / 128.0).to_le_bytes();
        codes.chunks_mut(Format::Q8_0.info().block_bytes).for_each(|block| block[..2].copy_from_slice(&scale));
        let inputs = noise((EDGE * ROWS) as usize).map(|n| n as f32 / (1u64 << 31) as f32 - 1.0).collect();
        let window = (0..ROWS).map(|i| Row::text(0, i, TokenId(0))).collect();
        Product { stage, weights, codes, x, inputs, out, window }
    }

    fn params(&self) -> RunParams<'_> {
        RunParams { rows: &self.window, outputs: &[0], earlier: &[] }
    }

    fn slice(&self, view: View) -> Slice {
        self.stage.programs[0].buffer_slice(view.buffer, ROWS)
    }

    /// The results, and the time that they take.
    fn run(&self, mut backend: WebGpuBackend) -> Result<(Vec<f32>, Duration), BackendError> {
        let scratch_bytes = backend.scratch_bytes(&self.stage)?;
        backend.open(ArenaSizes { scratch_bytes, ..ArenaSizes::of(&self.stage) })?;
        backend.upload(self.weights, &self.codes)?;
        backend.upload(self.slice(self.x), bytemuck::cast_slice(&self.inputs))?;
        let id = backend.prepare(&self.stage, 0)?;
        let ticket = backend.run(id, 0, &self.params())?;
        backend.wait(ticket)?;
        let mut results = vec![0f32; (EDGE * ROWS) as usize];
        debug_assert_eq!(self.slice(self.out).arena, ArenaKind::Work);
        backend.download(self.slice(self.out), bytemuck::cast_slice_mut(&mut results))?;
        Ok((results, self.time(&mut backend, id)?))
    }

    fn time(&self, backend: &mut WebGpuBackend, id: PreparedId) -> Result<Duration, BackendError> {
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let launches = backend.time_kernels(id, &self.params(), TIMES)?;
            best = best.min(launches.iter().map(|launch| launch.each).sum());
        }
        Ok(best)
    }
}

/// `|a - b| / |b|`
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let sum = |squares: &mut dyn Iterator<Item = f64>| squares.map(|v| v * v).sum::<f64>();
    let difference = sum(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let distance = (difference / sum(&mut b.iter().map(|b| f64::from(*b)))).sqrt();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

/// Tries tiles, the plain one among them, on devices that `open` opens.
///
/// # Errors
/// The plain kernel does not run.
pub fn try_tiles(
    base: Tuning,
    tiles: impl Iterator<Item = Tile>,
    open: impl Fn(Tuning) -> Result<WebGpuBackend, BackendError>,
) -> Result<Vec<Tried>, BackendError> {
    let product = Product::new();
    let run = |tile| open(base.with_tile(tile)).and_then(|backend| product.run(backend));
    let (right, time) = run(Tile::Float)?;
    let mut tried = vec![Tried { tile: Tile::Float, outcome: Ok((time, 0.0)) }];
    for tile in tiles.filter(|tile| *tile != Tile::Float) {
        let outcome = run(tile).map(|(results, time)| (time, distance(&results, &right))).map_err(|e| e.to_string());
        tried.push(Tried { tile, outcome });
    }
    Ok(tried)
}

/// What was chosen for a card at an earlier start; nothing where the file is absent, damaged, or names a tile that the card lacks.
pub fn remembered(folder: &Path, info: &wgpu::AdapterInfo, has: impl Fn(Tile) -> bool) -> Option<Tile> {
    let bytes = kept::read(&kept::file_of(folder, Kept::Tiles, info)).ok().flatten()?;
    Tile::ALL.into_iter().find(|tile| tile.name().as_bytes() == bytes && has(*tile))
}

/// # Errors
/// The file cannot be written.
pub fn remember(folder: &Path, info: &wgpu::AdapterInfo, tile: Tile) -> std::io::Result<()> {
    kept::write(&kept::file_of(folder, Kept::Tiles, info), tile.name().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(tile: Tile, ms: u64, distance: f64) -> Tried {
        Tried { tile, outcome: Ok((Duration::from_millis(ms), distance)) }
    }

    #[test]
    fn the_fastest_with_right_answers_is_taken() {
        let plain = tried(Tile::Float, 100, 0.0);
        let refused = Tried { tile: Tile::CooperativeHalf, outcome: Err("the driver refuses".into()) };
        let choice = |others: &[Tried]| fastest(&[std::slice::from_ref(&plain), others].concat());
        assert_eq!(choice(&[]), Tile::Float);
        assert_eq!(choice(&[tried(Tile::Half, 60, 1e-7), tried(Tile::Bytes, 50, 2e-5), refused]), Tile::Bytes);
        assert_eq!(choice(&[tried(Tile::Half, 60, 1e-7), tried(Tile::Bytes, 50, 2e-3)]), Tile::Half, "wrong answers");
        assert_eq!(choice(&[tried(Tile::Half, 60, f64::INFINITY)]), Tile::Float, "no answers");
        assert_eq!(choice(&[tried(Tile::Half, 97, 0.0)]), Tile::Float, "no clear gain");
    }

    #[test]
    fn distances_are_relative_and_never_nan() {
        assert_eq!(distance(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert!((distance(&[3.0, 4.5], &[3.0, 4.0]) - 0.1).abs() < 1e-9);
        assert_eq!(distance(&[f32::NAN, 0.0], &[1.0, 0.0]), f64::INFINITY);
        assert_eq!(distance(&[0.0], &[0.0]), f64::INFINITY, "a product of zeros shows nothing");
    }
}
