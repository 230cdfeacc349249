//! Which kernels a window of a model spends its time in on a card that wgpu reaches, and how fast they read their weights:
//!
//!   cargo bench --bench gpu_kernels -- FILE [ROWS, default 1] [CARD, default vulkan:0]
//!
//! Every launch of the window runs alone, many times in a row, so that starting a submission and waiting for it count for nothing;
//! what the driver does between two launches counts. Weights are zeros: no kernel's time depends on them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use strata::backend::discovery::{CardOptions, survey};
use strata::backend::webgpu::{DX12, METAL, VULKAN};
use strata::backend::{ArenaSizes, Backend, Finder};
use strata::engine::OpenOptions;
use strata::gguf::ModelFiles;
use strata::model::{Model, Tensors};
use strata::program::{Row, RunParams};
use strata::units::TokenId;

const TIMES: u32 = 50;

#[derive(Default)]
struct Sum {
    launches: u32,
    time: Duration,
    bytes: u64,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let Some(file) = args.first() else {
        println!("gpu_kernels: give a model: cargo bench --bench gpu_kernels -- FILE [ROWS] [CARD]");
        return;
    };
    let rows: u32 = args.get(1).map_or(1, |rows| rows.parse().expect("rows are a number"));
    let id = args.get(2).map_or("vulkan:0", String::as_str);
    let finders = [&VULKAN, &DX12, &METAL];
    let cards = survey(&finders.map(|finder| finder as &dyn Finder)).cards;
    let card = cards.into_iter().find(|card| card.id == id).unwrap_or_else(|| panic!("there is no card {id}"));
    let finder = finders.into_iter().find(|f| f.interface() == card.card.interface).expect("a card of one of the three");
    let mut backend = finder.open_tuned(&card, &CardOptions::default(), None).expect("the card opens");

    let files = ModelFiles::open(Path::new(file)).expect("the model opens");
    let model = Model::open(&files).expect("the model is valid");
    let options = OpenOptions { context: 1024.max(rows), prompt_rows: rows.max(9), ..OpenOptions::default() };
    let stage_options = options.stage_options(0..model.dims().layers);
    let stage = Arc::new(model.config.stage(&Tensors::new(&files), &stage_options).expect("the model becomes a stage"));
    let scratch_bytes = backend.scratch_bytes(&stage).expect("the card can run it");
    backend.open(ArenaSizes { scratch_bytes, ..ArenaSizes::of(&stage) }).expect("the card has the memory");
    let program = usize::from(rows > options.decode_rows);
    let id = backend.prepare(&stage, program).expect("the kernels compile");
    let window: Vec<Row> = (0..rows).map(|i| Row::text(0, 512.min(options.context - rows) + i, TokenId(0))).collect();
    let times = backend
        .time_kernels(id, &RunParams { rows: &window, outputs: &[rows - 1], earlier: &[] }, TIMES)
        .expect("the kernels run");

    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for launch in times {
        let sum = sums.entry(launch.name).or_default();
        sum.launches += 1;
        sum.time += launch.each;
        sum.bytes += launch.weight_bytes;
    }
    print(rows, sums);
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
