//! What the tests share: fixtures, reference arrays, opened engines and distances between logits.
#![allow(dead_code)] // every test binary uses its own part

pub mod gpu;
pub mod npz;
pub mod pictures;
pub mod reference;
pub mod skip;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata::backend::Backend;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::engine::{Engine, EngineError, OpenOptions, Placement, Want};
use strata::gguf::ModelFiles;
use strata::model::Model;
use strata::program::KvFormat;
use strata::state::Sequence;
use strata::units::TokenId;

/// The trained fixtures of `qwen4exp` and the random one, by the name their reference files have.
pub const TRAINED: [&str; 4] =
    ["tiny-flash-next-Q8_0", "tiny-flash-next-Q4_K_M", "tiny-flash-next-IQ3_XXS", "tiny-flash-next-IQ2_XS"];
pub const RANDOM: &str = "tiny-random-BF16";

pub fn fixture(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(file)
}

/// Path of a model fixture; the built-in model lies under `assets`, and one fixture has two shards.
pub fn model_path(name: &str) -> PathBuf {
    match name {
        "tiny-flash-next-IQ3_XXS" => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/tiny-flash-next-IQ3_XXS.gguf"),
        "tiny-flash-next-IQ2_XS" => fixture("tiny-flash-next-IQ2_XS-00001-of-00002.gguf"),
        _ => fixture(&format!("{name}.gguf")),
    }
}

/// Options under which the reference mode is exact: float32 keys and values.
pub fn options(mode: Mode, context: u32, prompt_rows: u32) -> OpenOptions {
    OpenOptions {
        context,
        prompt_rows,
        max_outputs: prompt_rows.max(1),
        kv: if mode == Mode::Reference { KvFormat::F32 } else { KvFormat::F16 },
        ..OpenOptions::default()
    }
}

pub fn open_with(name: &str, mode: Mode, threads: usize, options: OpenOptions) -> Engine {
    open_path(&model_path(name), mode, threads, options)
}

pub fn open_path(path: &Path, mode: Mode, threads: usize, options: OpenOptions) -> Engine {
    let files = Arc::new(ModelFiles::open(path).expect("the model opens"));
    let model = Arc::new(Model::open(&files).expect("the model is valid"));
    let threads = NonZeroUsize::new(threads).expect("threads");
    let cpu = CpuBackend::new(CpuOptions::new(mode).with_threads(threads)).expect("the backend opens");
    Engine::open(files, model, Box::new(cpu), options, &mut |_| ()).expect("the engine opens")
}

/// An engine on one device of any kind.
pub fn open_on(path: &Path, backend: Box<dyn Backend>, options: OpenOptions) -> Engine {
    let files = Arc::new(ModelFiles::open(path).expect("the model opens"));
    let model = Arc::new(Model::open(&files).expect("the model is valid"));
    Engine::open(files, model, backend, options, &mut |_| ()).expect("the engine opens")
}

/// Devices for the ranges of layers that end before one of `ends`.
pub fn split_on(path: &Path, ends: &[u32], backends: Vec<Box<dyn Backend>>, options: OpenOptions) -> Engine {
    let files = Arc::new(ModelFiles::open(path).expect("the model opens"));
    let model = Arc::new(Model::open(&files).expect("the model is valid"));
    let mut start = 0;
    let place = |(end, backend): (&u32, _)| Placement { layers: std::mem::replace(&mut start, *end)..*end, backend };
    let placements = ends.iter().zip(backends).map(place).collect();
    Engine::open_split(files, model, placements, options, &mut |_| ()).expect("the split opens")
}

pub fn open(name: &str, mode: Mode, context: u32, prompt_rows: u32) -> Engine {
    open_with(name, mode, 2, options(mode, context, prompt_rows))
}

pub fn ids(tokens: &[i32]) -> Vec<TokenId> {
    tokens.iter().map(|t| TokenId(*t as u32)).collect()
}

/// A CPU device for each range of layers that ends before one of `ends`.
pub fn split_path(path: &Path, mode: Mode, ends: &[u32], options: OpenOptions) -> Result<Engine, EngineError> {
    let files = Arc::new(ModelFiles::open(path).expect("the model opens"));
    let model = Arc::new(Model::open(&files).expect("the model is valid"));
    let mut start = 0;
    let placements = ends.iter().map(|end| {
        let threads = NonZeroUsize::new(2).expect("threads");
        let cpu = CpuBackend::new(CpuOptions::new(mode).with_threads(threads)).expect("the backend opens");
        Placement { layers: std::mem::replace(&mut start, *end)..*end, backend: Box::new(cpu) }
    });
    Engine::open_split(Arc::clone(&files), model, placements.collect(), options, &mut |_| ())
}

/// Logits of every token, fed in pieces of `piece` tokens.
pub fn all_logits(engine: &mut Engine, sequence: &mut Sequence, tokens: &[TokenId], piece: usize) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    for chunk in tokens.chunks(piece) {
        engine.feed(sequence, chunk, Want::All, &mut |_, row| rows.push(row.to_vec())).expect("feeding succeeds");
    }
    rows
}

/// Logits of the last token.
pub fn last_logits(engine: &mut Engine, sequence: &mut Sequence, tokens: &[TokenId]) -> Vec<f32> {
    let mut last = Vec::new();
    engine.feed(sequence, tokens, Want::Last, &mut |_, row| last = row.to_vec()).expect("feeding succeeds");
    last
}

/// Index of the largest logit; the lowest of equals.
pub fn argmax(logits: &[f32]) -> usize {
    logits.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (i, x)| if *x > best.1 { (i, *x) } else { best }).0
}

/// `|a - b| / |b|` over all elements.
pub fn relative_l2<'a>(pairs: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> f64 {
    let (mut difference, mut norm) = (0f64, 0f64);
    for (a, b) in pairs {
        assert_eq!(a.len(), b.len());
        for (x, y) in a.iter().zip(b) {
            difference += (f64::from(*x) - f64::from(*y)).powi(2);
            norm += f64::from(*y).powi(2);
        }
    }
    (difference / norm).sqrt()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    logits.iter().map(|x| f64::from(x - max) - sum.ln()).collect()
}

/// Kullback-Leibler divergence of the distribution of `logits` from that of `reference`.
pub fn kl(reference: &[f32], logits: &[f32]) -> f64 {
    let (p, q) = (log_softmax(reference), log_softmax(logits));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}
