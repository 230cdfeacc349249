//! A row's result has the same bits whatever window it is fed in: alone, among few rows, or in a prompt. This holds for every
//! kind of arithmetic by itself (modes, roundings, levels of vector instructions).

use strata::program::{
    Epilogue, GateActivation, Heads, KvFormat, MatMulPart, Op, PartWeights, Rope, RopePairing, RouterScore, StateKind, View,
    WeightId,
};
use strata::quant::Format;

use crate::rig::{Bed, rows};

/// Rows that are fed in all.
const TOTAL: usize = 96;

/// How the rows are cut into windows: the last size repeats.
const CUTS: [&[usize]; 4] = [&[1], &[7, 2], &[8, 1, 9], &[33, 3]];

/// An op (or a few) with its inputs for all rows, and its outputs.
struct Case {
    bed: Bed,
    inputs: Vec<(View, Vec<f32>)>,
    outputs: Vec<View>,
}

/// What each kind of arithmetic wrote: its name and the words of all rows of all outputs.
fn fed(case: Case, total: usize, cut: &[usize]) -> Vec<(String, Vec<Vec<u32>>)> {
    let Case { bed, inputs, outputs } = case;
    let mut rig = bed.finish(1.0);
    let mut found: Vec<(String, Vec<Vec<u32>>)> = vec![];
    let mut sizes = cut.iter().chain(std::iter::repeat(&cut[cut.len() - 1]));
    let mut first = 0;
    while first < total {
        let len = sizes.next().map_or(total, |size| *size).min(total - first);
        let part = |(view, values): &'_ (View, Vec<f32>)| {
            let width = view.width as usize;
            (*view, values[first * width..(first + len) * width].to_vec())
        };
        let parts: Vec<(View, Vec<f32>)> = inputs.iter().map(part).collect();
        let parts: Vec<(View, &[f32])> = parts.iter().map(|(view, values)| (*view, values.as_slice())).collect();
        rig.run(&rows(0, first as u32, len as u32), &[], &parts);
        for (i, output) in outputs.iter().enumerate() {
            for (kind, (name, bits)) in rig.all_bits(*output, len).into_iter().enumerate() {
                if found.len() <= kind {
                    found.push((name, vec![vec![]; outputs.len()]));
                }
                found[kind].1[i].extend(bits);
            }
        }
        first += len;
    }
    found
}

/// `make` gives the same case every time.
fn check(what: &str, total: usize, make: impl Fn() -> Case) {
    compare(what, total, make, |_, found, expected| found == expected);
}

fn compare(what: &str, total: usize, make: impl Fn() -> Case, alike: impl Fn(&str, &[Vec<u32>], &[Vec<u32>]) -> bool) {
    let whole = fed(make(), total, &[total]);
    for cut in CUTS {
        for ((name, found), (_, expected)) in fed(make(), total, cut).iter().zip(&whole) {
            assert!(alike(name, found, expected), "{what}, {name}: windows of {cut:?} rows differ from one of {total}");
        }
    }
}

/// Cards take the delta rule of a prompt in chunks, which add in another order than steps do.
fn alike_in_chunks(name: &str, found: &[Vec<u32>], expected: &[Vec<u32>]) -> bool {
    if !["CUDA", "HIP", "WGSL"].iter().any(|card| name.starts_with(card)) {
        return found == expected;
    }
    found.iter().zip(expected).all(|(found, expected)| {
        let of = |words: &[u32]| words.iter().map(|word| f64::from(f32::from_bits(*word))).collect::<Vec<f64>>();
        let (found, expected) = (of(found), of(expected));
        let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        found.len() == expected.len() && found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * largest)
    })
}

fn plain(weight: WeightId, out: View) -> MatMulPart {
    MatMulPart { weights: PartWeights::One(weight), scale: None, bias: None, epilogue: Epilogue::None, out }
}

#[test]
fn products() {
    for format in [Format::Q8_0, Format::Q5_1, Format::BF16, Format::F32] {
        for cols in [320usize, 2304] {
            check(&format!("{} of {cols}", format.name()), TOTAL, || {
                let mut bed = Bed::new(TOTAL as u32, 1);
                let x = bed.input("x", cols as u32);
                let out = bed.output("out", 50);
                let (w, _) = bed.matrix("w", format, 50, cols);
                bed.step(Op::MatMul { x, parts: vec![plain(w, out)] });
                let xs = bed.noise.floats(TOTAL * cols);
                Case { bed, inputs: vec![(x, xs)], outputs: vec![out] }
            });
        }
    }
}

#[test]
fn experts() {
    for format in [Format::Q8_0, Format::Q4_0, Format::F32] {
        check(format.name(), TOTAL, || {
            let (d, f, experts, used) = (320usize, 96usize, 12u32, 3u32);
            let mut bed = Bed::new(TOTAL as u32, 1);
            let (x, logits) = (bed.input("x", d as u32), bed.input("logits", experts));
            let (ids, weights) = (bed.id_output("ids", used), bed.output("weights", used));
            let (hidden, out) = (bed.output("hidden", used * f as u32), bed.output("out", d as u32));
            bed.step(Op::Router { logits, score: RouterScore::SoftmaxAll, normalise: true, ids, weights });
            let parts = bed.experts(&[("gate", format, f, d), ("up", format, f, d), ("down", format, d, f)], experts);
            let [gate, up, down] = [0, 1, 2].map(|i| parts[i].0);
            bed.step(Op::ExpertGated { x, ids, gate, up, activation: GateActivation::Silu, out: hidden, slots: None });
            bed.step(Op::ExpertDown { x: hidden, ids, weights, down, out });
            let inputs = vec![(x, bed.noise.floats(TOTAL * d)), (logits, bed.noise.floats(TOTAL * experts as usize))];
            Case { bed, inputs, outputs: vec![ids, weights, hidden, out] }
        });
    }
}

/// Long enough for several chunks of cells.
#[test]
fn dense_and_windowed_attention() {
    let total = 340;
    for (format, window, heads, kv_heads, dim) in
        [(KvFormat::F16, None, 6u32, 2u32, 40u32), (KvFormat::F32, Some(300), 3, 3, 16), (KvFormat::F16, Some(70), 5, 1, 24)]
    {
        check(&format!("attention, window {window:?}"), total, || {
            let mut bed = Bed::new(total as u32, 1);
            let q = bed.input("q", heads * dim);
            let (k, v) = (bed.input("k", kv_heads * dim), bed.input("v", kv_heads * dim));
            let out = bed.output("out", heads * dim);
            let kind = StateKind::Kv { format, cells: total as u32, kv_heads, head_dim: dim };
            let cache = bed.stage.state("kv", kind, 1);
            let (q_heads, out_heads): (Heads, Heads) = (q.heads(heads), out.heads(heads));
            bed.step(Op::KvAppend { k, v, cache });
            bed.step(Op::Attention { q: q_heads, cache, out: out_heads, scale: 0.7, window, selection: None, gate: None });
            let inputs = [q, k, v].map(|view| (view, bed.noise.floats(total * view.width as usize)));
            Case { bed, inputs: inputs.to_vec(), outputs: vec![out] }
        });
    }
}

#[test]
fn the_indexer_and_attention_to_chosen_blocks() {
    let total = 400;
    let (dim, ratio, budget) = (16u32, 4u32, 70u32);
    check("sparse attention", total, || {
        let mut bed = Bed::new(total as u32, 1);
        let (key, query) = (bed.input("key", dim), bed.input("query", 2 * dim));
        let (q, kv) = (bed.input("q", 4 * dim), bed.input("kv", dim));
        let (picked, out) = (bed.id_output("picked", budget + 1), bed.output("out", 4 * dim));
        let cells = total as u32;
        let keys = bed.stage.state("index", StateKind::IndexKeys { cells, dim, ratio }, 1);
        let kind = StateKind::Kv { format: KvFormat::F16, cells, kv_heads: 1, head_dim: dim };
        let cache = bed.stage.state("kv", kind, 1);
        let (weight, _) = bed.random_vector("w", dim as usize);
        let rope = Rope { pairing: RopePairing::Half, inv_freq: vec![1.0, 0.2], component: vec![0, 0], magnitude: 1.0 };
        let rope = bed.stage.rope(rope);
        bed.step(Op::IndexAppend { key, cache: keys, weight, eps: 1e-6, rope });
        bed.step(Op::BlockSelect { query: query.heads(2), cache: keys, budget_blocks: budget, out: picked });
        bed.step(Op::KvAppend { k: kv, v: kv, cache });
        let selection = Some((picked, ratio));
        let (q_heads, out_heads) = (q.heads(4), out.heads(4));
        bed.step(Op::Attention { q: q_heads, cache, out: out_heads, scale: 0.4, window: None, selection, gate: None });
        let inputs = [key, query, q, kv].map(|view| (view, bed.noise.floats(total * view.width as usize)));
        Case { bed, inputs: inputs.to_vec(), outputs: vec![picked, out] }
    });
}

#[test]
fn convolution_and_delta_rule() {
    let (key_heads, heads, dk, dv) = (2u32, 4u32, 40u32, 24u32);
    let make = || {
        let mut bed = Bed::new(TOTAL as u32, 1);
        let width = 2 * key_heads * dk + heads * dv;
        let raw = bed.input("raw", width);
        let [decay, beta] = ["decay", "beta"].map(|name| bed.input(name, heads));
        let gate = bed.input("gate", heads * dv);
        let (qkv, out) = (bed.output("qkv", width), bed.output("out", heads * dv));
        let history = bed.stage.state("history", StateKind::ConvHistory { ring_rows: 3, channels: width }, 1);
        let kind = StateKind::Delta { versions: 1, heads, key_dim: dk, value_dim: dv };
        let state = bed.stage.state("delta", kind, 1);
        let (weight, _) = bed.matrix("w", Format::F32, width as usize, 4);
        let (norm, _) = bed.random_vector("norm", dv as usize);
        bed.step(Op::CausalConv { x: raw, weight, history, out: qkv, dilation: 1 });
        let q = qkv.columns(0, key_heads * dk);
        let k = qkv.columns(q.width, q.width);
        let v = qkv.columns(2 * q.width, heads * dv);
        let (q, k, v) = (q.heads(key_heads), k.heads(key_heads), v.heads(heads));
        bed.step(Op::DeltaRule { q, k, v, decay, beta, gate, norm, eps: 1e-6, state, out });
        let mut inputs: Vec<_> =
            [raw, decay, beta, gate].map(|view| (view, bed.noise.floats(TOTAL * view.width as usize))).to_vec();
        inputs[1].1.iter_mut().for_each(|decay| *decay = -decay.abs());
        Case { bed, inputs, outputs: vec![qkv, out] }
    };
    compare("recurrent ops", TOTAL, make, alike_in_chunks);
}
