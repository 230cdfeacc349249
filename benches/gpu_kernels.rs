//! Which kernels a window of a model spends its time in on a card that wgpu reaches, and how fast they read their weights:
//!
//!   cargo bench --bench gpu_kernels -- FILE [ROWS, default 1] [CARD, default vulkan:0] [KERNELS, default those for the card]
//!
//! With `formats` in place of a file: a matrix of each block format times one row and times ROWS.
//!
//! Every launch of the window runs alone, many times in a row, so that starting a submission and waiting for it count for nothing;
//! what the driver does between two launches counts. Weights are zeros: no kernel's time depends on them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use strata::backend::discovery::{CardOptions, NamedCard, survey};
use strata::backend::webgpu::{DX12, KERNEL_SETS, LaunchTime, METAL, Tuning, VULKAN, WebGpuBackend, WebGpuFinder};
use strata::backend::{ArenaSizes, Backend, Finder};
use strata::engine::OpenOptions;
use strata::gguf::ModelFiles;
use strata::model::{Model, Tensors};
use strata::program::{
    Epilogue, InputKind, MatMulPart, MatrixSpec, Op, OutputKind, PartWeights, ProgramBuilder, Row, RunParams, ShapeClass, Stage,
    StageBuilder,
};
use strata::quant::{FORMATS, Format};
use strata::units::TokenId;

const TIMES: u32 = 50;
/// The matrix of the table of formats.
const OUTS: u32 = 1024;
const COLS: u32 = 2048;

/// A card and the kernels to open it with.
struct Bench {
    finder: &'static WebGpuFinder,
    card: NamedCard,
    tuning: Option<Tuning>,
}

impl Bench {
    fn new(id: &str, kernels: Option<&String>) -> Bench {
        let finders = [&VULKAN, &DX12, &METAL];
        let cards = survey(&finders.map(|finder| finder as &dyn Finder)).cards;
        let card = cards.into_iter().find(|card| card.id == id).unwrap_or_else(|| panic!("there is no card {id}"));
        let finder = finders.into_iter().find(|f| f.interface() == card.card.interface).expect("a card of one of the three");
        let named = |name: &String| {
            let names = KERNEL_SETS.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            let found = KERNEL_SETS.iter().find(|(known, _)| known == name);
            found.unwrap_or_else(|| panic!("there are no kernels '{name}', only {names:?}")).1
        };
        Bench { finder, card, tuning: kernels.map(named) }
    }

    fn open(&self) -> WebGpuBackend {
        self.finder.open_tuned(&self.card, &CardOptions::default(), self.tuning).expect("the card opens")
    }

    /// Times of the launches of a window of a stage's program.
    fn times(&self, stage: &Arc<Stage>, program: usize, window: &[Row]) -> Vec<LaunchTime> {
        let mut backend = self.open();
        let scratch_bytes = backend.scratch_bytes(stage).expect("the card can run it");
        backend.open(ArenaSizes { scratch_bytes, ..ArenaSizes::of(stage) }).expect("the card has the memory");
        let id = backend.prepare(stage, program).expect("the kernels compile");
        let params = RunParams { rows: window, outputs: &[window.len() as u32 - 1], earlier: &[] };
        // The first round is the driver's compiler.
        backend.time_kernels(id, &params, 1).expect("the kernels run");
        backend.time_kernels(id, &params, TIMES).expect("the kernels run")
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let Some(file) = args.first() else {
        println!("gpu_kernels: give a model: cargo bench --bench gpu_kernels -- FILE|formats [ROWS] [CARD] [KERNELS]");
        return;
    };
    let rows: u32 = args.get(1).map_or(1, |rows| rows.parse().expect("rows are a number"));
    let bench = Bench::new(args.get(2).map_or("vulkan:0", String::as_str), args.get(3));
    if file == "formats" { formats(&bench, rows) } else { model(&bench, Path::new(file), rows) }
}

fn model(bench: &Bench, file: &Path, rows: u32) {
    let files = ModelFiles::open(file).expect("the model opens");
    let model = Model::open(&files).expect("the model is valid");
    let options = OpenOptions { context: 1024.max(rows), prompt_rows: rows.max(9), ..OpenOptions::default() };
    let stage_options = options.stage_options(0..model.dims().layers);
    let stage = Arc::new(model.config.stage(&Tensors::new(&files), &stage_options).expect("the model becomes a stage"));
    let window: Vec<Row> = (0..rows).map(|i| Row::text(0, 512.min(options.context - rows) + i, TokenId(0))).collect();
    let times = bench.times(&stage, usize::from(rows > options.decode_rows), &window);

    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for launch in times {
        let sum = sums.entry(launch.name).or_default();
        sum.launches += 1;
        sum.time += launch.each;
        sum.bytes += launch.weight_bytes;
    }
    print(rows, sums);
}

#[derive(Default)]
struct Sum {
    launches: u32,
    time: Duration,
    bytes: u64,
}

fn print(rows: u32, sums: BTreeMap<String, Sum>) {
    let total: Duration = sums.values().map(|sum| sum.time).sum();
    let launches: u32 = sums.values().map(|sum| sum.launches).sum();
    println!("{rows} row(s): {launches} launches, {:.2} ms", total.as_secs_f64() * 1e3);
    println!("| kernel | launches | us each | of all | GB/s |");
    println!("|---|---:|---:|---:|---:|");
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.time));
    for (name, sum) in sums {
        let seconds = sum.time.as_secs_f64();
        let speed = if sum.bytes > 0 { format!("{:.2}", sum.bytes as f64 / seconds / 1e9) } else { "-".into() };
        let (each, share) = (seconds * 1e6 / f64::from(sum.launches), seconds / total.as_secs_f64() * 100.0);
        println!("| {name} | {} | {each:.0} | {share:.0} % | {speed} |", sum.launches);
    }
}

/// One product with a matrix of a format.
fn product(format: Format, rows: u32) -> Arc<Stage> {
    let mut stage = StageBuilder::new("product");
    let mut program = ProgramBuilder::new("window", ShapeClass { max_rows: rows, max_outputs: 1 });
    let x = program.input("x", COLS, InputKind::HandOff);
    let out = program.buffer("out", OUTS);
    program.mark_output(out, OutputKind::HandOff);
    let weight = stage.weight(MatrixSpec { tensor: "w".into(), format, cols: COLS, rows: OUTS });
    let weights = PartWeights::One(weight);
    let part = MatMulPart { weights, bias: None, scale: None, epilogue: Epilogue::None, out };
    program.step("product", Op::MatMul { x, parts: vec![part] });
    stage.program(program);
    Arc::new(stage.finish())
}

fn formats(bench: &Bench, rows: u32) {
    println!("| format | GB/s of weights, one row | 10^9 products/s, one row | 10^9 products/s, {rows} rows |");
    println!("|---|---:|---:|---:|");
    let window: Vec<Row> = (0..rows).map(|i| Row::text(0, i, TokenId(0))).collect();
    for info in FORMATS {
        // What a window needs beside its products, as rounding its inputs, counts with them.
        let run = |rows: u32| {
            let times = bench.times(&product(info.format, rows), 0, &window[..rows as usize]);
            let bytes: u64 = times.iter().map(|launch| launch.weight_bytes).sum();
            (times.iter().map(|launch| launch.each).sum::<Duration>().as_secs_f64(), bytes)
        };
        let speed = |rows: u32, seconds: f64| f64::from(OUTS) * f64::from(COLS) * f64::from(rows) / seconds / 1e9;
        let ((one, bytes), (many, _)) = (run(1), run(rows));
        let (one_speed, many_speed) = (speed(1, one), speed(rows, many));
        println!("| {} | {:.2} | {one_speed:.1} | {many_speed:.1} |", info.format, bytes as f64 / one / 1e9);
    }
}
