//! Products of every format, one thread: GB/s of weights with one row of activations (weights come from memory), and
//! Gop/s with 512 rows (weights are computed with many times). A table at the end sets them against what this machine
//! reads with one thread.
//!
//! `cargo bench --bench dot` runs all; `cargo bench --bench dot -- Q4_K` those that contain `Q4_K`.

use criterion::{Criterion, Throughput};
use std::cell::RefCell;
use std::hint::black_box;
use std::time::{Duration, Instant};
use strata::backend::cpu::kernels::{
    ActBlock, OutView, Scratch, ScratchBlock, Simd, Tokens, Weights, blocks_per_row, floats, is_float, product, quantize_rows,
};
use strata::quant::{FORMATS, Format};

/// More than any cache.
const STREAM_BYTES: usize = 192 << 20;
const K: usize = 2048;
/// Rows of the matrix of a prompt.
const PROMPT_ROWS: usize = 768;
const PROMPT_TOKENS: usize = 512;

/// Seconds of every batch, per run.
type Times = RefCell<Vec<f64>>;

/// The best batch, as for the roof: on a machine that does other things the median says more about those.
fn best(times: &Times) -> f64 {
    times.borrow().iter().copied().reduce(f64::min).unwrap_or(f64::NAN)
}

fn timed(times: &Times, iterations: u64, mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..iterations {
        run();
    }
    let elapsed = start.elapsed();
    times.borrow_mut().push(elapsed.as_secs_f64() / iterations as f64);
    elapsed
}

fn activations(simd: Simd, tokens: usize) -> Vec<ActBlock> {
    let x: Vec<f32> = (0..tokens * K).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut acts = vec![bytemuck::Zeroable::zeroed(); tokens * blocks_per_row(K)];
    quantize_rows(simd, &x, K, K, &mut acts);
    acts
}

fn weights(format: Format, rows: usize) -> Vec<u8> {
    let info = format.info();
    // Bytes below 0x40 make no scale infinite.
    let mut bytes: Vec<u8> = (0..rows * K / info.block_len * info.block_bytes).map(|i| (i * 89 % 251) as u8 & 0x3f).collect();
    if format == Format::MXFP4 {
        // Exponents near that of 1: products of subnormal numbers are slow, and not what a model has.
        bytes.chunks_mut(info.block_bytes).for_each(|block| block[0] |= 0x60);
    }
    bytes
}

struct Result {
    format: Format,
    decode_gb_s: f64,
    prompt_gop_s: f64,
}

fn bench_format(c: &mut Criterion, simd: Simd, format: Format) -> Result {
    let info = format.info();
    let row_bytes = K / info.block_len * info.block_bytes;
    let mut scratch: Vec<ScratchBlock> = vec![bytemuck::Zeroable::zeroed(); Scratch::BLOCKS];
    let mut run = |name: &str, rows: usize, tokens: usize, throughput: Throughput| {
        let bytes = weights(format, rows);
        let w = Weights::new(format, &bytes, rows, K).expect("whole rows");
        let acts = activations(simd, tokens);
        let mut out = vec![0.0f32; rows * tokens];
        let times = Times::default();
        let mut group = c.benchmark_group(name);
        group.throughput(throughput).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
        group.sample_size(15).bench_function(format.name(), |b| {
            b.iter_custom(|iterations| {
                timed(&times, iterations, || {
                    let view = OutView::new(&mut out, tokens, rows, rows);
                    let mut scratch = Scratch::new(&mut scratch);
                    product(simd, black_box(w), 0..rows, &acts, Tokens::Rows(0..tokens), view, &mut scratch);
                })
            });
        });
        group.finish();
        best(&times)
    };
    let rows = STREAM_BYTES / row_bytes;
    let decode = run("decode", rows, 1, Throughput::Bytes((rows * row_bytes) as u64));
    let ops = 2 * PROMPT_ROWS * K * PROMPT_TOKENS;
    let prompt = run("prompt", PROMPT_ROWS, PROMPT_TOKENS, Throughput::Elements(ops as u64));
    Result { format, decode_gb_s: (rows * row_bytes) as f64 / decode / 1e9, prompt_gop_s: ops as f64 / prompt / 1e9 }
}

/// GB/s of one thread that adds up floats, best of several.
fn read_roof(simd: Simd) -> f64 {
    let data = vec![1.0f32; STREAM_BYTES / 4];
    let best = (0..8)
        .map(|_| {
            let start = Instant::now();
            black_box(floats::sum_squares(simd, &data));
            start.elapsed().as_secs_f64()
        })
        .fold(f64::MAX, f64::min);
    STREAM_BYTES as f64 / best / 1e9
}

fn main() {
    let simd = match std::env::args().find_map(|arg| arg.strip_prefix("--level=").map(str::to_owned)).as_deref() {
        Some("scalar") => Simd::Scalar,
        Some("avx2") => Simd::Avx2,
        _ => Simd::detect(),
    };
    let mut c = Criterion::default();
    if let Some(filter) = std::env::args().skip(1).find(|arg| !arg.starts_with('-')) {
        c = c.with_filter(filter);
    }
    let formats = FORMATS.iter().map(|info| info.format).filter(|&format| !is_float(format));
    let results: Vec<Result> = formats.map(|format| bench_format(&mut c, simd, format)).collect();
    let roof = read_roof(simd);
    println!("\n{simd}, one thread; this machine reads {roof:.1} GB/s with one");
    println!("{:8} {:>12} {:>9} {:>14}", "format", "decode GB/s", "of roof", "prompt Gop/s");
    for r in results.iter().filter(|r| r.decode_gb_s.is_finite() || r.prompt_gop_s.is_finite()) {
        let share = 100.0 * r.decode_gb_s / roof;
        println!("{:8} {:12.1} {share:8.0}% {:14.0}", r.format.name(), r.decode_gb_s, r.prompt_gop_s);
    }
}
