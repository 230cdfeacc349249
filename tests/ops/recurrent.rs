//! Convolution and delta rule: state that runs through the sequence.

use strata::program::{Op, Row, StateId, StateKind, View};

use crate::rig::{Bed, Rig, assert_close, rows};

struct Conv {
    x: View,
    out: View,
    history: StateId,
    weight: Vec<f32>,
    taps: usize,
    dilation: usize,
    channels: usize,
}

fn conv(taps: usize, dilation: usize, channels: usize, ring_rows: u32) -> (Conv, Bed) {
    let mut bed = Bed::new(40, 1);
    let (x, out) = (bed.input("x", channels as u32), bed.output("out", channels as u32));
    let history = bed.stage.state("history", StateKind::ConvHistory { ring_rows, channels: channels as u32 }, 3);
    let (weight, decoded) = bed.matrix("w", strata::quant::Format::F32, channels, taps);
    bed.step(Op::CausalConv { x, weight, history, out, dilation: dilation as u32 });
    (Conv { x, out, history, weight: decoded.values, taps, dilation, channels }, bed)
}

impl Conv {
    fn expected(&self, xs: &[f32], t: usize) -> Vec<f64> {
        let value = |c: usize| {
            let tap = |j: usize| {
                let back = (self.taps - 1 - j) * self.dilation;
                let x = t.checked_sub(back).map_or(0.0, |t| f64::from(xs[t * self.channels + c]));
                f64::from(self.weight[c * self.taps + j]) * x
            };
            let sum: f64 = (0..self.taps).map(tap).sum();
            sum / (1.0 + (-sum).exp())
        };
        (0..self.channels).map(value).collect()
    }
}

#[test]
fn convolution_in_windows_equals_the_formula() {
    for (taps, dilation, channels, ring_rows) in [(4, 1, 70, 3), (4, 3, 5, 9), (4, 3, 65, 16), (2, 5, 64, 5), (1, 1, 3, 0)] {
        let (c, mut bed) = conv(taps, dilation, channels, ring_rows);
        let total = 46;
        let xs = bed.noise.floats(total * channels);
        let others = bed.noise.floats(40 * channels);
        let mut rig = bed.finish(1e-6);
        let mut first = 0;
        for len in [1, 1, 2, 5, 30, 1, 6] {
            let mut window = rows(0, first as u32, 3);
            window.truncate(0);
            // Rows of another sequence come before and must not mix.
            let before = if len == 5 { 2 } else { 0 };
            window.extend(rows(2, 0, before as u32));
            window.extend(rows(1, first as u32, len as u32));
            let mut input = others[..before * channels].to_vec();
            input.extend(&xs[first * channels..(first + len) * channels]);
            rig.run(&window, &[], &[(c.x, &input)]);
            let found = rig.get(c.out, before + len);
            for i in 0..len {
                let expected = c.expected(&xs, first + i);
                assert_close("convolution", &found[(before + i) * channels..][..channels], &expected, 2e-6);
            }
            first += len;
        }
        let ring = rig.state(c.history, 1);
        for token in total - ring_rows as usize..total {
            let row = token % ring_rows.max(1) as usize;
            assert_eq!(ring[row * channels..][..channels], xs[token * channels..][..channels]);
        }
    }
}

#[test]
fn a_longer_ring_allows_going_back() {
    let (c, mut bed) = conv(4, 1, 33, 3 + 4);
    let xs = bed.noise.floats(20 * 33);
    let draft = bed.noise.floats(5 * 33);
    let mut rig = bed.finish(1e-6);
    rig.run(&rows(0, 0, 10), &[], &[(c.x, &xs[..10 * 33])]);
    // Five tokens, of which the last four are taken back.
    let wrong = [&xs[10 * 33..11 * 33], &draft[..4 * 33]].concat();
    rig.run(&rows(0, 10, 5), &[], &[(c.x, &wrong)]);
    rig.run(&rows(0, 11, 9), &[], &[(c.x, &xs[11 * 33..])]);
    let found = rig.get(c.out, 9);
    for i in 0..9 {
        assert_close("after going back", &found[i * 33..][..33], &c.expected(&xs, 11 + i), 2e-6);
    }
}

struct Delta {
    q: View,
    k: View,
    v: View,
    decay: View,
    beta: View,
    gate: View,
    out: View,
    state: StateId,
    norm: Vec<f32>,
    shape: Shape,
}

#[derive(Clone, Copy)]
struct Shape {
    key_heads: usize,
    heads: usize,
    dk: usize,
    dv: usize,
}

fn delta(shape: Shape, versions: u32) -> (Delta, Bed) {
    let Shape { key_heads, heads, dk, dv } = shape;
    let mut bed = Bed::new(80, 1);
    let qkv = bed.input("qkv", (2 * key_heads * dk + heads * dv) as u32);
    let q = qkv.columns(0, (key_heads * dk) as u32);
    let k = qkv.columns(q.width, q.width);
    let v = qkv.columns(2 * q.width, (heads * dv) as u32);
    let [decay, beta] = ["decay", "beta"].map(|name| bed.input(name, heads as u32));
    let gate = bed.input("gate", (heads * dv) as u32);
    let out = bed.output("out", (heads * dv) as u32);
    let kind = StateKind::Delta { versions, heads: heads as u32, key_dim: dk as u32, value_dim: dv as u32 };
    let state = bed.stage.state("delta", kind, 2);
    let (norm, norm_values) = bed.random_vector("norm", dv);
    bed.step(Op::DeltaRule {
        q: q.heads(key_heads as u32),
        k: k.heads(key_heads as u32),
        v: v.heads(heads as u32),
        decay,
        beta,
        gate,
        norm,
        eps: 1e-6,
        state,
        out,
    });
    (Delta { q: qkv, k, v, decay, beta, gate, out, state, norm: norm_values, shape }, bed)
}

/// Inputs of a whole sequence.
struct Sequence {
    qkv: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    gate: Vec<f32>,
}

impl Delta {
    fn sequence(&self, bed: &mut Bed, len: usize) -> Sequence {
        let Shape { heads, dv, .. } = self.shape;
        let qkv = bed.noise.floats(len * self.q.width as usize);
        let decay = bed.noise.floats(len * heads).iter().map(|v| -(v + 1.0).powi(3)).collect();
        let [beta, gate] = [heads, heads * dv].map(|n| bed.noise.floats(len * n).iter().map(|v| v * 0.5 + 0.5).collect());
        Sequence { qkv, decay, beta, gate }
    }

    fn run(&self, rig: &mut Rig, s: &Sequence, window: &[Row]) -> Vec<f32> {
        let (first, len) = (window[0].index as usize, window.len());
        let part = |m: &'_ [f32], width: u32| m[first * width as usize..(first + len) * width as usize].to_vec();
        let (qkv, decay) = (part(&s.qkv, self.q.width), part(&s.decay, self.decay.width));
        let (beta, gate) = (part(&s.beta, self.beta.width), part(&s.gate, self.gate.width));
        rig.run(window, &[], &[(self.q, &qkv), (self.decay, &decay), (self.beta, &beta), (self.gate, &gate)]);
        rig.get(self.out, len)
    }

    /// Outputs of all tokens and the last state `[head][dv][dk]`, by the formula.
    fn expected(&self, s: &Sequence, len: usize) -> (Vec<f64>, Vec<f64>) {
        let Shape { key_heads, heads, dk, dv } = self.shape;
        let width = self.q.width as usize;
        let mut state = vec![0.0f64; heads * dv * dk];
        let mut out = vec![0.0; len * heads * dv];
        for t in 0..len {
            for n in 0..heads {
                let row = &s.qkv[t * width..(t + 1) * width];
                let kh = n % key_heads;
                let unit = |x: &[f32]| -> Vec<f64> {
                    let norm = (x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|v| f64::from(*v) / norm).collect()
                };
                let q = unit(&row[kh * dk..(kh + 1) * dk]);
                let k = unit(&row[self.k.offset as usize + kh * dk..][..dk]);
                let v = &row[self.v.offset as usize + n * dv..][..dv];
                let (g, b) = (f64::from(s.decay[t * heads + n]).exp(), f64::from(s.beta[t * heads + n]));
                let head = &mut state[n * dv * dk..(n + 1) * dv * dk];
                let o: Vec<f64> = (0..dv)
                    .map(|c| {
                        let line = &mut head[c * dk..(c + 1) * dk];
                        line.iter_mut().for_each(|s| *s *= g);
                        let mem: f64 = line.iter().zip(&k).map(|(s, k)| s * k).sum();
                        let d = (f64::from(v[c]) - mem) * b;
                        line.iter_mut().zip(&k).for_each(|(s, k)| *s += k * d);
                        line.iter().zip(&q).map(|(s, q)| s * q).sum::<f64>() / (dk as f64).sqrt()
                    })
                    .collect();
                let rms = (o.iter().map(|v| v * v).sum::<f64>() / dv as f64 + 1e-6).sqrt();
                for (c, o) in o.iter().enumerate() {
                    let i = (t * heads + n) * dv + c;
                    out[i] = o / rms * f64::from(self.norm[c]) * f64::from(s.gate[i]);
                }
            }
        }
        (out, state)
    }
}

#[test]
fn delta_rule_in_windows_equals_the_formula() {
    for shape in [
        Shape { key_heads: 1, heads: 2, dk: 16, dv: 16 },
        Shape { key_heads: 2, heads: 6, dk: 7, dv: 11 },
        Shape { key_heads: 2, heads: 4, dk: 128, dv: 128 },
    ] {
        let (d, mut bed) = delta(shape, 1);
        let s = d.sequence(&mut bed, 78);
        let mut rig = bed.finish(1e-5);
        let mut found = vec![];
        for (first, len) in [(0, 1), (1, 1), (2, 70), (72, 6)] {
            found.extend(d.run(&mut rig, &s, &rows(1, first, len)));
        }
        let (expected, state) = d.expected(&s, 78);
        assert_close("outputs", &found, &expected, 1e-5);
        assert_close("state", &rig.state(d.state, 1), &state, 1e-5);
    }
}

#[test]
fn versions_keep_the_state_after_every_row() {
    let shape = Shape { key_heads: 1, heads: 3, dk: 8, dv: 8 };
    let (d, mut bed) = delta(shape, 4);
    let s = d.sequence(&mut bed, 12);
    let (rest, _) = d.expected(&s, 12);
    let mut rig = bed.finish(1e-5);
    let straight = {
        let (d, bed) = delta(shape, 4);
        let mut rig = bed.finish(1e-5);
        d.run(&mut rig, &s, &rows(0, 0, 5));
        d.run(&mut rig, &s, &rows(0, 5, 7))
    };
    d.run(&mut rig, &s, &rows(0, 0, 5));
    // A window that leaves the state after its rows in versions 1, 2 and 3.
    let mut window = rows(0, 5, 3);
    for (i, row) in window.iter_mut().enumerate() {
        (row.state_read, row.state_write) = (i as u32, i as u32 + 1);
    }
    let tried = d.run(&mut rig, &s, &window);
    assert_close("tried", &tried, &rest[5 * 24..8 * 24], 1e-5);
    // Only its first row is kept: go on from version 1 into version 0.
    let mut window = rows(0, 6, 6);
    window[0].state_read = 1;
    let found = d.run(&mut rig, &s, &window);
    assert_eq!(found, straight[24..], "going back has the bits of never having gone on");
}

#[test]
fn sequences_in_a_window_do_not_mix() {
    let shape = Shape { key_heads: 1, heads: 2, dk: 16, dv: 8 };
    let (d, mut bed) = delta(shape, 1);
    let s = d.sequence(&mut bed, 9);
    let mut rig = bed.finish(1e-5);
    let (expected, _) = d.expected(&s, 4);
    let mut double = Sequence { qkv: vec![], decay: vec![], beta: vec![], gate: vec![] };
    for _ in 0..2 {
        double.qkv.extend(&s.qkv[..4 * d.q.width as usize]);
        double.decay.extend(&s.decay[..4 * 2]);
        double.beta.extend(&s.beta[..4 * 2]);
        double.gate.extend(&s.gate[..4 * 16]);
    }
    let window = [rows(1, 0, 4), rows(0, 0, 4)].concat();
    let found = d.run(&mut rig, &double, &window);
    assert_close("first", &found[..4 * 16], &expected, 1e-5);
    assert_close("second", &found[4 * 16..], &expected, 1e-5);
}

#[test]
fn not_a_number_does_no_more_than_spread() {
    let (d, mut bed) = delta(Shape { key_heads: 1, heads: 2, dk: 16, dv: 8 }, 1);
    let mut s = d.sequence(&mut bed, 70);
    s.qkv[3] = f32::NAN;
    let mut rig = bed.finish(1e-5);
    let found = d.run(&mut rig, &s, &rows(0, 0, 70));
    assert!(found.iter().any(|v| v.is_nan()));
    rig.set_state(d.state, 0, &[0.0; 2 * 16 * 8]);
    s.qkv[3] = 0.0;
    assert!(d.run(&mut rig, &s, &rows(0, 0, 70)).iter().all(|v| v.is_finite()));
}
