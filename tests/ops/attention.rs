//! Caches, the indexer and attention.

use strata::program::{Heads, KvFormat, Op, OutputKind, Rope, RopePairing, Row, StateKind, View};
use strata::quant::Format;

use crate::rig::{Bed, assert_close, rows};

/// A naive model of one attention layer.
struct Model {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    window: Option<usize>,
    ratio: usize,
    scale: f64,
}

impl Model {
    /// One head of the query at `index` of keys and values `[token][kv_head][dim]`.
    fn head(&self, q: &[f32], k: &[f32], v: &[f32], index: usize, head: usize, blocks: Option<&[u32]>) -> Vec<f64> {
        let kv_head = head / (self.heads / self.kv_heads);
        let part = |m: &'_ [f32], cell: usize, c: usize| f64::from(m[(cell * self.kv_heads + kv_head) * self.dim + c]);
        let visible = |cell: &usize| {
            let near = self.window.is_none_or(|w| cell + w > index);
            let chosen = blocks.is_none_or(|blocks| {
                *cell >= (index + 1) / self.ratio * self.ratio || blocks.contains(&((cell / self.ratio) as u32))
            });
            near && chosen
        };
        let cells: Vec<usize> = (0..=index).filter(visible).collect();
        let score = |cell: &usize| (0..self.dim).map(|c| f64::from(q[c]) * part(k, *cell, c)).sum::<f64>() * self.scale;
        let scores: Vec<f64> = cells.iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        (0..self.dim).map(|c| cells.iter().zip(&weights).map(|(cell, w)| w / sum * part(v, *cell, c)).sum()).collect()
    }
}

/// Keys or values of heads of `dim` elements as a cache keeps them.
fn round_to(format: Format, values: &[f32], dim: usize) -> Vec<f32> {
    let info = format.info();
    let cell = |head: &[f32]| {
        let mut padded = head.to_vec();
        padded.resize(dim.next_multiple_of(info.block_len), 0.0);
        let mut bytes = vec![0; padded.len() / info.block_len * info.block_bytes];
        format.encode_row(&padded, &mut bytes).unwrap();
        format.decode_row(&bytes, &mut padded).unwrap();
        padded.truncate(dim);
        padded
    };
    values.chunks_exact(dim).flat_map(cell).collect()
}

#[test]
fn dense_and_windowed_attention() {
    for (format, window, heads, kv_heads, dim) in [
        (KvFormat::F32, None, 6, 2, 16),
        (KvFormat::F16, None, 4, 4, 20),
        (KvFormat::F32, Some(5), 3, 1, 7),
        (KvFormat::F16, Some(1), 8, 2, 64),
        (KvFormat::F16, None, 24, 2, 256),
        (KvFormat::Q8_0, None, 4, 2, 64),
        (KvFormat::Q8_0, Some(7), 6, 3, 20),
        (KvFormat::K8V4, None, 8, 2, 128),
        (KvFormat::K8V4, Some(5), 4, 2, 80),
        (KvFormat::Q4_0, None, 4, 1, 96),
    ] {
        let model = Model { heads, kv_heads, dim, window, ratio: 1, scale: 1.3 / (dim as f64).sqrt() };
        let mut bed = Bed::new(40, 1);
        let kv_width = (kv_heads * dim) as u32;
        let qg = bed.input("qg", (2 * heads * dim) as u32);
        let (k, v) = (bed.input("k", kv_width), bed.input("v", kv_width));
        let out = bed.output("out", (heads * dim) as u32);
        let kind = StateKind::Kv { format, cells: 50, kv_heads: kv_heads as u32, head_dim: dim as u32 };
        let cache = bed.stage.state("kv", kind, 2);
        let interleaved =
            |offset| Heads { buffer: qg.buffer, offset, count: heads as u32, dim: dim as u32, stride: 2 * dim as u32 };
        bed.step(Op::KvAppend { k, v, cache });
        bed.step(Op::Attention {
            q: interleaved(0),
            cache,
            out: out.heads(heads as u32),
            scale: model.scale as f32,
            window: window.map(|w| w as u32),
            selection: None,
            gate: Some(interleaved(dim as u32)),
        });
        let total = 43;
        let qs = bed.noise.floats(total * 2 * heads * dim);
        let [ks, vs] = [0; 2].map(|_| bed.noise.floats(total * kv_width as usize));
        let (key_format, value_format) = format.formats();
        let (k_rounded, v_rounded) = (round_to(key_format, &ks, dim), round_to(value_format, &vs, dim));
        let mut rig = bed.finish(2e-5);
        let mut first = 0;
        for len in [1, 3, 1, 37, 1] {
            let slice = |m: &[f32], width: usize| m[first * width..(first + len) * width].to_vec();
            let inputs = [slice(&qs, 2 * heads * dim), slice(&ks, kv_width as usize), slice(&vs, kv_width as usize)];
            let mut window_rows = rows(1, first as u32, len as u32);
            let mut inputs = inputs;
            if len == 3 {
                // Another sequence in the same window must not disturb.
                window_rows.extend(rows(0, 0, 2));
                inputs[0].extend(vec![9.0; 2 * 2 * heads * dim]);
                inputs[1].extend(vec![7.0; 2 * kv_width as usize]);
                inputs[2].extend(vec![8.0; 2 * kv_width as usize]);
            }
            rig.run(&window_rows, &[], &[(qg, &inputs[0]), (k, &inputs[1]), (v, &inputs[2])]);
            let found = rig.get(out, len);
            for i in 0..len {
                let mut expected = vec![];
                for head in 0..heads {
                    let q = &qs[((first + i) * heads + head) * 2 * dim..][..2 * dim];
                    let (q, gate) = q.split_at(dim);
                    let values = model.head(q, &k_rounded, &v_rounded, first + i, head, None);
                    expected.extend(values.iter().zip(gate).map(|(v, g)| v / (1.0 + (-f64::from(*g)).exp())));
                }
                assert_close("attention", &found[i * heads * dim..][..heads * dim], &expected, 3e-6);
            }
            first += len;
        }
    }
}

/// Long contexts fall into several chunks and blocks; the reference is the judge here.
#[test]
fn the_fast_mode_agrees_on_long_contexts() {
    let cases = [
        (KvFormat::F16, None, 24u32),
        (KvFormat::F32, Some(300), 24),
        (KvFormat::Q8_0, None, 40),
        (KvFormat::K8V4, Some(300), 64),
        (KvFormat::Q4_0, None, 32),
    ];
    for (format, window, dim) in cases {
        let (heads, kv_heads, total) = (6u32, 2u32, 1100u32);
        let mut bed = Bed::new(520, 1);
        let q = bed.input("q", heads * dim);
        let (k, v) = (bed.input("k", kv_heads * dim), bed.input("v", kv_heads * dim));
        let out = bed.output("out", heads * dim);
        let kind = StateKind::Kv { format, cells: total, kv_heads, head_dim: dim };
        let cache = bed.stage.state("kv", kind, 1);
        let (q_heads, out_heads) = (q.heads(heads), out.heads(heads));
        bed.step(Op::KvAppend { k, v, cache });
        bed.step(Op::Attention { q: q_heads, cache, out: out_heads, scale: 0.7, window, selection: None, gate: None });
        let qs = bed.noise.floats((520 * heads * dim) as usize);
        let [ks, vs] = [0; 2].map(|_| bed.noise.floats((520 * kv_heads * dim) as usize));
        let mut rig = bed.finish(2e-6);
        let mut first = 0;
        for len in [520, 1, 8, 33, 520, 1, 3] {
            let part = |m: &'_ [f32], width: u32| m[..(len * width) as usize].to_vec();
            let (qs, ks, vs) = (part(&qs, heads * dim), part(&ks, kv_heads * dim), part(&vs, kv_heads * dim));
            rig.run(&rows(0, first, len), &[], &[(q, &qs), (k, &ks), (v, &vs)]);
            assert!(rig.get(out, len as usize).iter().all(|v| v.is_finite()));
            first += len;
        }
    }
}

fn sparse_rope() -> Rope {
    Rope { pairing: RopePairing::Half, inv_freq: vec![1.0, 0.2, 0.05], component: vec![0, 1, 2], magnitude: 1.0 }
}

/// The pooled key of a block by the formula.
fn pooled(raw: &[f32], dim: usize, ratio: usize, block: usize, weight: &[f32], position: [u32; 3]) -> Vec<f64> {
    let mean = |c: usize| (0..ratio).map(|j| f64::from(raw[(block * ratio + j) * dim + c])).sum::<f64>() / ratio as f64;
    let mut key: Vec<f64> = (0..dim).map(mean).collect();
    let scale = (key.iter().map(|v| v * v).sum::<f64>() / dim as f64 + 1e-6).sqrt();
    key.iter_mut().zip(weight).for_each(|(v, w)| *v *= f64::from(*w) / scale);
    let rope = sparse_rope();
    for i in 0..3 {
        let angle = f64::from(position[i]) * rope.inv_freq[i];
        (key[i], key[i + 3]) = (key[i] * angle.cos() - key[i + 3] * angle.sin(), key[i + 3] * angle.cos() + key[i] * angle.sin());
    }
    key
}

struct Sparse {
    key: View,
    query: View,
    picked: View,
    q: View,
    kv: View,
    out: View,
    cache: strata::program::StateId,
    weight: Vec<f32>,
}

const DIM: usize = 10;
const RATIO: usize = 4;
const BUDGET: usize = 3;
const HEADS: usize = 2;

/// Index append, block selection, and attention over the selection.
fn sparse_bed(bed: &mut Bed) -> Sparse {
    let key = bed.input("key", DIM as u32);
    let query = bed.input("query", (HEADS * DIM) as u32);
    let picked = bed.id_output("picked", BUDGET as u32 + 1);
    let (q, kv) = (bed.input("q", 16), bed.input("kv", 8));
    let out = bed.output("out", 16);
    let cache = bed.stage.state("index", StateKind::IndexKeys { cells: 64, dim: DIM as u32, ratio: RATIO as u32 }, 2);
    let kv_kind = StateKind::Kv { format: KvFormat::F32, cells: 64, kv_heads: 1, head_dim: 8 };
    let kv_cache = bed.stage.state("kv", kv_kind, 2);
    let (weight, values) = bed.random_vector("w", DIM);
    let rope = bed.stage.rope(sparse_rope());
    bed.step(Op::IndexAppend { key, cache, weight, eps: 1e-6, rope });
    bed.step(Op::BlockSelect { query: query.heads(HEADS as u32), cache, budget_blocks: BUDGET as u32, out: picked });
    bed.step(Op::KvAppend { k: kv, v: kv, cache: kv_cache });
    bed.step(Op::Attention {
        q: q.heads(2),
        cache: kv_cache,
        out: out.heads(2),
        scale: 0.4,
        window: None,
        selection: Some((picked, RATIO as u32)),
        gate: None,
    });
    Sparse { key, query, picked, q, kv, out, cache, weight: values }
}

/// Positions of a sequence with an image after token 5.
fn position(index: usize) -> [u32; 3] {
    let p = index as u32;
    if index < 6 { [p; 3] } else { [p, p / 2 + 1, p + 3] }
}

#[test]
fn indexer_selection_and_sparse_attention() {
    let mut bed = Bed::new(30, 1);
    let s = sparse_bed(&mut bed);
    let total = 47;
    let (keys, queries) = (bed.noise.floats(total * DIM), bed.noise.floats(total * HEADS * DIM));
    let (qs, kvs) = (bed.noise.floats(total * 16), bed.noise.floats(total * 8));
    let mut rig = bed.finish(1e-5);
    // Windows begin at block borders, so that the position of a block's first token is known exactly.
    let mut first = 0;
    for len in [4usize, 12, 24, 7] {
        let mut window = rows(1, first as u32, len as u32);
        window.iter_mut().for_each(|row| row.position = position(row.index as usize));
        let range = |width: usize| first * width..(first + len) * width;
        rig.run(
            &window,
            &[],
            &[(s.key, &keys[range(DIM)]), (s.query, &queries[range(HEADS * DIM)]), (s.q, &qs[range(16)]), (s.kv, &kvs[range(8)])],
        );
        let state = rig.state(s.cache, 1);
        let done = first + len;
        assert_eq!(state[..done * DIM], keys[..done * DIM]);
        let picked = rig.get_ids(s.picked, len);
        let found = rig.get(s.out, len);
        for block in 0..done / RATIO {
            let expected = pooled(&keys, DIM, RATIO, block, &s.weight, position(block * RATIO));
            assert_close("pooled key", &state[(64 + block) * DIM..][..DIM], &expected, 1e-6);
        }
        for i in 0..len {
            let index = first + i;
            let complete = (index + 1) / RATIO;
            let score = |block: &u32| -> f64 {
                let key = &state[(64 + *block as usize) * DIM..][..DIM];
                let head = |h: usize| &queries[(index * HEADS + h) * DIM..][..DIM];
                let dot = |h: usize| head(h).iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                (0..HEADS).map(|h| dot(h).max(0.0)).sum()
            };
            let mut blocks: Vec<u32> = (0..complete as u32).collect();
            blocks.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
            blocks.truncate(BUDGET);
            blocks.sort_unstable();
            let row = &picked[i * (BUDGET + 1)..][..BUDGET + 1];
            assert_eq!(row[0] as usize, blocks.len(), "token {index}");
            assert_eq!(row[1..=blocks.len()], blocks, "token {index}");
            let model = Model { heads: 2, kv_heads: 1, dim: 8, window: None, ratio: RATIO, scale: f64::from(0.4f32) };
            let head = |h: usize| model.head(&qs[(index * 2 + h) * 8..][..8], &kvs, &kvs, index, h, Some(&blocks));
            let expected: Vec<f64> = (0..2).flat_map(head).collect();
            assert_close("sparse attention", &found[i * 16..][..16], &expected, 2e-6);
        }
        first += len;
    }
}

#[test]
fn text_windows_may_cut_blocks_anywhere() {
    let make = || {
        let mut bed = Bed::new(30, 1);
        let s = sparse_bed(&mut bed);
        (s, bed)
    };
    let (s, mut bed) = make();
    let total = 30;
    let (keys, other) = (bed.noise.floats(total * DIM), bed.noise.floats(total * HEADS * DIM));
    let (qs, kvs) = (bed.noise.floats(total * 16), bed.noise.floats(total * 8));
    let mut whole = bed.finish(1e-5);
    let mut cut = make().1.finish(1e-5);
    let go = |rig: &mut crate::rig::Rig, first: usize, len: usize| {
        let range = |width: usize| first * width..(first + len) * width;
        let inputs: [(View, &[f32]); 4] =
            [(s.key, &keys[range(DIM)]), (s.query, &other[range(HEADS * DIM)]), (s.q, &qs[range(16)]), (s.kv, &kvs[range(8)])];
        let window: Vec<Row> = rows(0, first as u32, len as u32);
        rig.run(&window, &[], &inputs);
        rig.get(s.out, len)
    };
    let expected = go(&mut whole, 0, total);
    let mut found = vec![];
    for (first, len) in [(0, 3), (3, 1), (4, 1), (5, 9), (14, 13), (27, 3)] {
        found.extend(go(&mut cut, first, len));
    }
    assert_eq!(found, expected);
    assert_eq!(whole.state(s.cache, 0), cut.state(s.cache, 0));
}

#[test]
fn equal_scores_go_to_lower_blocks_and_a_small_budget_is_kept() {
    let mut bed = Bed::new(30, 1);
    let s = sparse_bed(&mut bed);
    let mut rig = bed.finish(1e-5);
    let keys = vec![1.0; 28 * DIM];
    let zeros = vec![0.0; 28 * HEADS * DIM];
    rig.run(&rows(0, 0, 28), &[], &[(s.key, &keys), (s.query, &zeros), (s.q, &zeros[..28 * 16]), (s.kv, &keys[..28 * 8])]);
    let picked = rig.get_ids(s.picked, 28);
    assert_eq!(picked[27 * 4..], [3, 0, 1, 2]);
    assert_eq!(picked[..4], [0, 0, 0, 0]);
    assert_eq!(picked[7 * 4..8 * 4], [2, 0, 1, 0]);
}

#[test]
fn nothing_is_normed_where_no_weight_is_given() {
    let mut bed = Bed::new(2, 1);
    let x = bed.input("x", 6);
    bed.program.mark_output(x, OutputKind::HandOff);
    let rope = bed.stage.rope(Rope { pairing: RopePairing::Half, inv_freq: vec![1.0], component: vec![0], magnitude: 1.0 });
    bed.step(Op::HeadNormRope { heads: x.heads(2), weight: None, eps: 1e-6, rope: Some(rope) });
    let xs: Vec<f32> = (1..=12).map(|v| v as f32).collect();
    let mut rig = bed.finish(1e-6);
    rig.run(&rows(0, 0, 2), &[], &[(x, &xs)]);
    let (sin, cos) = 1f64.sin_cos();
    let second = |a: f64| [a * cos - (a + 1.0) * sin, (a + 1.0) * cos + a * sin, a + 2.0];
    let expected: Vec<f64> = (1..=6).map(f64::from).chain(second(7.0)).chain(second(10.0)).collect();
    assert_close("x", &rig.get(x, 2), &expected, 1e-6);
}
