//! How long ops of the flagship's shapes take. Not a test: `cargo test --release --test ops speed -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use strata::backend::cpu::{CpuBackend, CpuOptions, Mode, Rounding};
use strata::backend::{ArenaSizes, Backend};
use strata::program::{
    Epilogue, ExpertMatrix, GateActivation, KvFormat, MatMulPart, MatrixSpec, Op, OutputKind, PartWeights, ProgramBuilder,
    RouterScore, RunParams, ShapeClass, StageBuilder, StateKind, View, WeightId,
};
use strata::quant::Format;

use crate::rig::{Noise, rows};

const D: u32 = 2560;
const H: u32 = 4 * D;
const CHUNK: u32 = 512;

/// A stage with one program an op, for one window size.
struct Speed {
    stage: StageBuilder,
    names: Vec<(String, u64, u64)>,
    max_rows: u32,
}

impl Speed {
    fn weight(&mut self, name: &str, format: Format, rows: u32, cols: u32) -> WeightId {
        self.stage.weight(MatrixSpec { tensor: name.into(), format, cols, rows })
    }

    /// Adds a program of one op. `bytes` are read each time, `products` are made for each row.
    fn program(
        &mut self,
        name: &str,
        bytes: u64,
        products: u64,
        build: impl FnOnce(&mut StageBuilder, &mut ProgramBuilder) -> Op,
    ) {
        let mut program = ProgramBuilder::new(name, ShapeClass { max_rows: self.max_rows, max_outputs: 1 });
        let op = build(&mut self.stage, &mut program);
        program.step(name, op);
        self.stage.program(program);
        self.names.push((name.into(), bytes, products));
    }
}

fn input(p: &mut ProgramBuilder, name: &str, width: u32) -> View {
    p.input(name, width, strata::program::InputKind::HandOff)
}

fn output(p: &mut ProgramBuilder, name: &str, width: u32) -> View {
    p.output(name, strata::program::Rows::Batch, width, OutputKind::HandOff)
}

fn matmuls(s: &mut Speed) {
    for (name, format, n, k) in [
        ("qkv Q8_0", Format::Q8_0, 10240, D),
        ("qkv Q4_K", Format::Q4_K, 10240, D),
        ("hc down Q8_0", Format::Q8_0, 320, H),
        ("hc up Q8_0", Format::Q8_0, H, 320),
        ("router F32", Format::F32, 512, D),
        ("inject F32", Format::F32, 4, H),
    ] {
        let w = s.weight(name, format, n, k);
        let bytes = format.row_bytes(u64::from(k)).unwrap() * u64::from(n);
        let epilogue = if name.starts_with("hc up") { Epilogue::Sigmoid { scale: 1.0, factor: 1.0 } } else { Epilogue::None };
        s.program(name, bytes, u64::from(n) * u64::from(k), |_, p| {
            let (x, out) = (input(p, "x", k), output(p, "out", n));
            Op::MatMul { x, parts: vec![MatMulPart { weights: PartWeights::One(w), bias: None, scale: None, epilogue, out }] }
        });
    }
}

fn rowwise(s: &mut Speed) {
    let norm = s.weight("norm", Format::F32, 1, H);
    s.program("hc norm", 0, 0, |_, p| {
        let (x, out) = (input(p, "x", H), output(p, "out", H));
        Op::RmsNorm { x, weight: Some(norm), out, group: D, eps: 1e-6 }
    });
    s.program("hc gate", 0, 0, |_, p| {
        let (gates, normed, out) = (input(p, "g", H), input(p, "n", H), output(p, "out", D));
        Op::HcGate { gates, normed, out, streams: 4 }
    });
    s.program("hc combine", 0, 0, |_, p| {
        let (x, weights, y) = (input(p, "x", H), input(p, "w", 4), input(p, "y", D));
        p.mark_output(x, OutputKind::HandOff);
        Op::HcCombine { x, weights, y }
    });
    s.program("router", 0, 0, |_, p| {
        let logits = input(p, "x", 512);
        let (ids, weights) = (p.ids("ids", 10), p.buffer("w", 10));
        Op::Router { logits, score: RouterScore::SoftmaxAll, normalise: true, ids, weights }
    });
}

fn recurrent(s: &mut Speed) {
    let conv = s.weight("conv", Format::F32, 10240, 4);
    let norm = s.weight("delta norm", Format::F32, 1, 128);
    s.program("conv", 0, 0, |stage, p| {
        let history = stage.state("conv", StateKind::ConvHistory { ring_rows: 3, channels: 10240 }, 1);
        Op::CausalConv { x: input(p, "x", 10240), weight: conv, history, out: output(p, "out", 10240), dilation: 1 }
    });
    s.program("delta", 2 * 48 * 128 * 128 * 4, 3 * 48 * 128 * 128, |stage, p| {
        let kind = StateKind::Delta { versions: 1, heads: 48, key_dim: 128, value_dim: 128 };
        Op::DeltaRule {
            q: input(p, "q", 2048).heads(16),
            k: input(p, "k", 2048).heads(16),
            v: input(p, "v", 6144).heads(48),
            decay: input(p, "decay", 48),
            beta: input(p, "beta", 48),
            gate: input(p, "gate", 6144),
            norm,
            eps: 1e-6,
            state: stage.state("delta", kind, 1),
            out: output(p, "out", 6144),
        }
    });
}

fn attention(s: &mut Speed) {
    for (name, heads, kv_heads, dim, cells) in [("attention 24x256", 24, 2, 256, 2048), ("attention 9x64", 9, 3, 64, 2048)] {
        let bytes = u64::from(2 * kv_heads * dim * 2 * cells);
        s.program(name, bytes, u64::from(2 * heads * dim * cells), |stage, p| {
            let kind = StateKind::Kv { format: KvFormat::F16, cells, kv_heads, head_dim: dim };
            Op::Attention {
                q: input(p, "q", heads * dim).heads(heads),
                cache: stage.state(name, kind, 1),
                out: output(p, "out", heads * dim).heads(heads),
                scale: 0.1,
                window: None,
                selection: None,
                gate: None,
            }
        });
    }
}

fn experts(s: &mut Speed) {
    let spec = |name: &str, format, rows, cols| MatrixSpec { tensor: name.into(), format, cols, rows };
    let parts = vec![spec("g", Format::Q4_K, 640, D), spec("u", Format::Q4_K, 640, D), spec("d", Format::Q4_0, D, 640)];
    let ids = s.stage.expert_slabs(parts, 64);
    let matrix = |i: usize, rows| ExpertMatrix { weight: ids[i], row_offset: 0, rows, scale: None };
    let bytes = |format: Format, rows: u64, cols| format.row_bytes(cols).unwrap() * rows * 10;
    let (gate, up, down) = (matrix(0, 640), matrix(1, 640), matrix(2, D));
    s.program("expert gated", 2 * bytes(Format::Q4_K, 640, 2560), 10 * 2 * 640 * 2560, |_, p| {
        let (x, ids, out) = (input(p, "x", D), p.ids("ids", 10), output(p, "out", 6400));
        Op::ExpertGated { x, ids, gate, up, activation: GateActivation::Silu, out }
    });
    s.program("expert down", bytes(Format::Q4_0, 2560, 640), 10 * 640 * 2560, |_, p| {
        let (x, ids, weights) = (input(p, "x", 6400), p.ids("ids", 10), input(p, "w", 10));
        Op::ExpertDown { x, ids, weights, down, out: output(p, "out", D) }
    });
}

#[test]
#[ignore = "prints timings"]
fn speed() {
    let windows = [(1, 2000), (8, 2000), (CHUNK, 0), (CHUNK, 1536)];
    let all = windows.into_iter().flat_map(|window| [(window, Rounding::Once), (window, Rounding::Twice)]);
    for ((max_rows, index), rounding) in all {
        let mut s = Speed { stage: StageBuilder::new("speed"), names: vec![], max_rows };
        matmuls(&mut s);
        rowwise(&mut s);
        recurrent(&mut s);
        attention(&mut s);
        experts(&mut s);
        let stage = Arc::new(s.stage.finish());
        let mut backend = CpuBackend::new(CpuOptions { rounding, ..CpuOptions::new(Mode::Fast) }).unwrap();
        backend.open(ArenaSizes::of(&stage)).unwrap();
        let mut noise = Noise::new(1);
        for w in stage.weights.iter().filter(|w| w.format != Format::F32) {
            let row: Vec<f32> = noise.floats(w.cols as usize);
            let mut bytes = vec![0; w.row_bytes() as usize];
            w.format.encode_row(&row, &mut bytes).unwrap();
            for expert in 0..w.experts {
                let to = backend.host_bytes_mut(w.slice(expert)).unwrap();
                to.chunks_exact_mut(bytes.len()).for_each(|row| row.copy_from_slice(&bytes));
            }
        }
        println!("{max_rows} rows at {index}, rounding {rounding:?}; {}", backend.facts().detail);
        for (i, (name, bytes, products)) in s.names.iter().enumerate() {
            let id = backend.prepare(&stage, i).unwrap();
            for (b, buffer) in stage.programs[i].buffers.iter().enumerate() {
                let id = strata::program::BufferId(b as u32);
                let slice = stage.programs[i].buffer_slice(id, max_rows);
                let to = backend.host_bytes_mut(slice).unwrap();
                for chunk in to.chunks_exact_mut(4) {
                    let word = if buffer.name == "ids" { (noise.next() % 64) as u32 } else { noise.float().to_bits() };
                    chunk.copy_from_slice(&word.to_le_bytes());
                }
            }
            let window = rows(0, index, max_rows);
            let mut times = vec![];
            let begin = Instant::now();
            while times.len() < 5 || (begin.elapsed().as_millis() < 300 && times.len() < 500) {
                let start = Instant::now();
                let ticket = backend.run(id, &RunParams { rows: &window, outputs: &[] }).unwrap();
                backend.wait(ticket).unwrap();
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            let (best, median) = (times[0], times[times.len() / 2]);
            let gops = 2e-9 * (*products as f64) * f64::from(max_rows) / best;
            println!(
                "  {name:<18} {:>9.1} us (median {:>9.1})  {:>6.1} GB/s  {gops:>7.1} Gop/s",
                best * 1e6,
                median * 1e6,
                *bytes as f64 / best * 1e-9
            );
        }
    }
}
