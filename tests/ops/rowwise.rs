//! Ops that work on each row alone.

use strata::program::{Epilogue, GateActivation, Heads, MatMulPart, Op, PartWeights, Rope, RopePairing, Row, View};
use strata::quant::Format;

use crate::rig::{Bed, Decoded, Rig, assert_close, rows};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn rms(x: &[f32], eps: f64) -> f64 {
    (x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64 + eps).sqrt()
}

#[test]
fn repeat_add_and_gather() {
    let mut bed = Bed::new(5, 3);
    let x = bed.input("x", 3);
    let y = bed.input("y", 12);
    let s = bed.input("s", 1);
    let sums = bed.input("sums", 12);
    let many = bed.output("many", 12);
    let picked = bed.program.output_rows("picked", 12);
    bed.program.mark_output(picked, strata::program::OutputKind::Logits);
    bed.step(Op::Repeat { x, out: many });
    bed.step(Op::Add { x: many, y, scale: Some(s) });
    bed.step(Op::Add { x: sums, y: many, scale: None });
    bed.step(Op::GatherOutputs { x: many, out: picked });
    bed.program.mark_output(sums, strata::program::OutputKind::HandOff);
    let (xs, ys, ss, old) = (bed.noise.floats(15), bed.noise.floats(60), bed.noise.floats(5), bed.noise.floats(60));
    let mut rig = bed.finish(1e-6);
    rig.run(&rows(0, 0, 5), &[4, 0], &[(x, &xs), (y, &ys), (s, &ss), (sums, &old)]);
    let expected: Vec<f64> =
        (0..60).map(|i| f64::from(xs[i / 12 * 3 + i % 3]) + f64::from(ss[i / 12]) * f64::from(ys[i])).collect();
    assert_close("many", &rig.get(many, 5), &expected, 1e-6);
    let total: Vec<f64> = expected.iter().zip(&old).map(|(a, b)| a + f64::from(*b)).collect();
    assert_close("sums", &rig.get(sums, 5), &total, 1e-6);
    let wanted = [&expected[48..60], &expected[0..12]].concat();
    assert_close("picked", &rig.get(picked, 2), &wanted, 1e-6);
}

#[test]
fn rms_norm_by_groups_with_a_repeating_weight() {
    for (width, group, weight_len) in [(21, 7, 7), (21, 21, 21), (24, 8, 24), (24, 12, 4), (10, 5, 0), (640, 320, 640)] {
        let mut bed = Bed::new(3, 1);
        let x = bed.input("x", width);
        let out = bed.output("out", width);
        let weight = (weight_len > 0).then(|| bed.random_vector("w", weight_len));
        let id = weight.as_ref().map(|w| w.0);
        bed.step(Op::RmsNorm { x, weight: id, out, group, eps: 1e-3 });
        bed.step(Op::RmsNorm { x, weight: id, out: x, group, eps: 1e-3 });
        bed.program.mark_output(x, strata::program::OutputKind::HandOff);
        let xs = bed.noise.floats(3 * width as usize);
        let mut rig = bed.finish(1e-6);
        rig.run(&rows(0, 0, 3), &[], &[(x, &xs)]);
        let (width, group) = (width as usize, group as usize);
        let expected: Vec<f64> = (0..xs.len())
            .map(|i| {
                let first = i / group * group;
                let w = weight.as_ref().map_or(1.0, |(_, w)| f64::from(w[i % width % w.len()]));
                f64::from(xs[i]) / rms(&xs[first..first + group], 1e-3) * w
            })
            .collect();
        assert_close("out", &rig.get(out, 3), &expected, 1e-6);
        assert_close("in place", &rig.get(x, 3), &expected, 1e-6);
    }
}

#[test]
fn hyper_connection_gate_and_combine() {
    let mut bed = Bed::new(4, 1);
    let (streams, d) = (3usize, 301usize);
    let width = (streams * d) as u32;
    let gates = bed.input("gates", width);
    let normed = bed.input("normed", width);
    let weights = bed.input("weights", streams as u32);
    let x = bed.input("x", width);
    let y = bed.output("y", d as u32);
    bed.step(Op::HcGate { gates, normed, out: y, streams: streams as u32 });
    bed.step(Op::HcCombine { x, weights, y });
    bed.program.mark_output(x, strata::program::OutputKind::HandOff);
    let [g, n, old] = [0; 3].map(|_| bed.noise.floats(4 * streams * d));
    let w = bed.noise.floats(4 * streams);
    let mut rig = bed.finish(1e-6);
    rig.run(&rows(0, 0, 4), &[], &[(gates, &g), (normed, &n), (weights, &w), (x, &old)]);
    let at = |v: &[f32], r: usize, s: usize, c: usize| f64::from(v[(r * streams + s) * d + c]);
    let mean = |r: usize, c: usize| (0..streams).map(|s| at(&g, r, s, c) * at(&n, r, s, c)).sum::<f64>() / streams as f64;
    let expected: Vec<f64> = (0..4 * d).map(|i| mean(i / d, i % d)).collect();
    assert_close("y", &rig.get(y, 4), &expected, 1e-6);
    let expected: Vec<f64> = (0..4 * streams * d)
        .map(|i| {
            let (r, s, c) = (i / (streams * d), i / d % streams, i % d);
            at(&old, r, s, c) + f64::from(w[r * streams + s]) * mean(r, c)
        })
        .collect();
    assert_close("x", &rig.get(x, 4), &expected, 1e-6);
}

fn turn(head: &mut [f64], rope: &Rope, position: [u32; 3]) {
    let n = rope.inv_freq.len();
    for i in 0..n {
        let angle = f64::from(position[rope.component[i] as usize]) * rope.inv_freq[i];
        let (sin, cos) = (angle.sin() * f64::from(rope.magnitude), angle.cos() * f64::from(rope.magnitude));
        let (a, b) = match rope.pairing {
            RopePairing::Half => (i, i + n),
            RopePairing::Adjacent => (2 * i, 2 * i + 1),
        };
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
    }
}

#[test]
fn head_norm_and_rope() {
    for pairing in [RopePairing::Half, RopePairing::Adjacent] {
        let mut bed = Bed::new(3, 1);
        let (count, dim, stride) = (3usize, 10usize, 17usize);
        let rope = Rope { pairing, inv_freq: vec![1.0, 0.1, 0.01, 1e-3], component: vec![0, 1, 2, 0], magnitude: 1.25 };
        let x = bed.input("x", (stride * count) as u32);
        bed.program.mark_output(x, strata::program::OutputKind::HandOff);
        let (weight, w) = bed.random_vector("w", dim);
        let id = bed.stage.rope(rope.clone());
        let heads = Heads { buffer: x.buffer, offset: 2, count: 3, dim: dim as u32, stride: stride as u32 };
        bed.step(Op::HeadNormRope { heads, weight: Some(weight), eps: 1e-5, rope: Some(id) });
        let xs = bed.noise.floats(3 * stride * count);
        let mut rig = bed.finish(1e-6);
        let mut window = rows(0, 70_000, 3);
        window[1].position = [70_001, 3, 9];
        rig.run(&window, &[], &[(x, &xs)]);
        let mut expected: Vec<f64> = xs.iter().map(|v| f64::from(*v)).collect();
        for (r, row) in window.iter().enumerate() {
            for h in 0..count {
                let first = r * stride * count + 2 + h * stride;
                let scale = rms(&xs[first..first + dim], 1e-5);
                let head = &mut expected[first..first + dim];
                head.iter_mut().zip(&w).for_each(|(v, w)| *v *= f64::from(*w) / scale);
                turn(head, &rope, row.position);
            }
        }
        assert_close("heads", &rig.get(x, 3), &expected, 1e-6);
    }
}

#[test]
fn ngram_gate() {
    let mut bed = Bed::new(3, 1);
    let (streams, d) = (4usize, 33usize);
    let width = (streams * d) as u32;
    let [x, key] = ["x", "key"].map(|name| bed.input(name, width));
    let value = bed.input("value", d as u32);
    let [gated, normed] = ["gated", "normed"].map(|name| bed.output(name, width));
    let [wk, wq, wc] = ["wk", "wq", "wc"].map(|name| bed.random_vector(name, streams * d));
    bed.step(Op::NgramGate {
        x,
        key,
        value,
        norm_key: wk.0,
        norm_query: wq.0,
        norm_conv: wc.0,
        streams: 4,
        eps: 1e-6,
        gated,
        normed,
    });
    let (xs, mut keys, vs) = (bed.noise.floats(3 * streams * d), bed.noise.floats(3 * streams * d), bed.noise.floats(3 * d));
    keys[..d].fill(0.0);
    let mut rig = bed.finish(1e-6);
    rig.run(&rows(0, 0, 3), &[], &[(x, &xs), (key, &keys), (value, &vs)]);
    let (mut want_gated, mut want_normed) = (vec![], vec![]);
    for part in 0..3 * streams {
        let (r, s) = (part / streams, part % streams);
        let (xs, ks, vs) = (&xs[part * d..][..d], &keys[part * d..][..d], &vs[r * d..][..d]);
        let (rx, rk) = (rms(xs, 1e-6), rms(ks, 1e-6));
        let term = |c: usize| {
            let q = f64::from(xs[c]) / rx * f64::from(wq.1[s * d + c]);
            q * f64::from(ks[c]) / rk * f64::from(wk.1[s * d + c])
        };
        let a = (0..d).map(term).sum::<f64>() / (d as f64).sqrt();
        let gate = if a == 0.0 { 0.5 } else { sigmoid(a.signum() * a.abs().max(1e-6).sqrt()) };
        let g: Vec<f64> = vs.iter().map(|v| gate * f64::from(*v)).collect();
        let scale = (g.iter().map(|v| v * v).sum::<f64>() / d as f64 + 1e-6).sqrt();
        want_normed.extend(g.iter().enumerate().map(|(c, v)| v / scale * f64::from(wc.1[s * d + c])));
        want_gated.extend(g);
    }
    assert_close("gated", &rig.get(gated, 3), &want_gated, 1e-6);
    assert_close("normed", &rig.get(normed, 3), &want_normed, 1e-6);
}

/// Runs windows of several sizes through one product and gives every output row to `expect(row of x, o)`.
fn check_matmul(rig: &mut Rig, x: View, out: View, xs: &[f32], tolerance: f64, expect: impl Fn(&[f32], usize) -> f64) {
    let width = x.width as usize;
    for count in [1, 2, 5, 17, 33] {
        let xs = &xs[..count * width];
        rig.run(&rows(0, 0, count as u32), &[], &[(x, xs)]);
        let expected: Vec<f64> =
            xs.chunks(width).flat_map(|x| (0..out.width as usize).map(|o| expect(x, o)).collect::<Vec<_>>()).collect();
        assert_close(&format!("{count} rows"), &rig.get(out, count), &expected, tolerance);
    }
}

fn one(weight: strata::program::WeightId, out: View) -> MatMulPart {
    MatMulPart { weights: PartWeights::One(weight), bias: None, scale: None, epilogue: Epilogue::None, out }
}

/// Bound of the fast mode: 8-bit activations for quantised weights, float activations else.
fn tolerance(format: Format) -> f64 {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => 1e-5,
        _ => 1.2e-2,
    }
}

#[test]
fn matrix_products_of_every_format_that_can_be_made() {
    let formats = strata::quant::FORMATS.iter().filter(|info| info.encode.is_some());
    for info in formats {
        for (n, k) in [(5, 1), (37, 2)] {
            let cols = info.block_len.max(8) * k;
            let mut bed = Bed::new(33, 1);
            let x = bed.input("x", cols as u32);
            let out = bed.output("out", n as u32);
            let (w, decoded) = bed.matrix("w", info.format, n, cols);
            bed.step(Op::MatMul { x, parts: vec![one(w, out)] });
            let xs = bed.noise.floats(33 * cols);
            let mut rig = bed.finish(tolerance(info.format));
            check_matmul(&mut rig, x, out, &xs, 1e-5, |x, o| decoded.dot(o, x));
        }
    }
}

#[test]
fn products_of_a_group_with_epilogues() {
    let mut bed = Bed::new(33, 1);
    let (cols, n) = (96usize, 21usize);
    let x = bed.input("x", cols as u32);
    let whole = bed.output("whole", 6 * n as u32);
    let held = bed.input("held", n as u32);
    bed.program.mark_output(held, strata::program::OutputKind::HandOff);
    let out = |i: usize| whole.columns((i * n) as u32, n as u32);
    let matrices: Vec<_> = (0..8).map(|i| bed.matrix(&format!("w{i}"), Format::F32, n, cols)).collect();
    let (bias, b) = bed.random_vector("bias", n);
    let (a, a_values) = bed.random_vector("a", n);
    let (dt, dt_values) = bed.random_vector("dt", n);
    let scale = bed.vector("scale", &[0.7]);
    let gated =
        |i: usize, activation| PartWeights::Gated { gate: matrices[i].0, up: matrices[i + 1].0, up_scale: None, activation };
    let up_scale = Some(bed.vector("up scale", &[1.5]));
    let activation = GateActivation::Silu;
    let scaled = PartWeights::Gated { gate: matrices[4].0, up: matrices[5].0, up_scale, activation };
    let parts = vec![
        MatMulPart { bias: Some(bias), scale: Some(scale), ..one(matrices[0].0, out(0)) },
        MatMulPart { epilogue: Epilogue::Silu { scale: 0.25 }, ..one(matrices[1].0, out(1)) },
        MatMulPart { epilogue: Epilogue::Sigmoid { scale: 0.25, factor: 2.0 }, ..one(matrices[2].0, out(2)) },
        MatMulPart { epilogue: Epilogue::Decay { a, dt }, ..one(matrices[3].0, out(3)) },
        MatMulPart { weights: scaled, scale: Some(scale), ..one(matrices[4].0, out(4)) },
        MatMulPart { weights: gated(5, GateActivation::GeluTanh), ..one(matrices[5].0, out(5)) },
        MatMulPart { epilogue: Epilogue::Accumulate, ..one(matrices[7].0, held) },
    ];
    bed.step(Op::MatMul { x, parts });
    let (xs, old) = (bed.noise.floats(3 * cols), bed.noise.floats(3 * n));
    let mut rig = bed.finish(1e-5);
    rig.run(&rows(0, 0, 3), &[], &[(x, &xs), (held, &old)]);
    let w = |i: usize| -> &Decoded { &matrices[i].1 };
    let gelu = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    for (r, x) in xs.chunks(cols).enumerate() {
        let expected: Vec<f64> = (0..6 * n)
            .map(|i| {
                let (part, o) = (i / n, i % n);
                let p = w(part).dot(o, x);
                match part {
                    0 => p * 0.7f32 as f64 + f64::from(b[o]),
                    1 => p * 0.25 * sigmoid(p * 0.25),
                    2 => 2.0 * sigmoid(p * 0.25),
                    3 => f64::from(a_values[o]) * (p + f64::from(dt_values[o])).exp().ln_1p(),
                    4 => p * 0.7f32 as f64 * sigmoid(p * 0.7f32 as f64) * 1.5 * w(5).dot(o, x),
                    _ => gelu(p) * w(6).dot(o, x),
                }
            })
            .collect();
        assert_close("parts", &rig.get(whole, 3)[r * 6 * n..][..6 * n], &expected, 1e-5);
        let expected: Vec<f64> = (0..n).map(|o| w(7).dot(o, x) + f64::from(old[r * n + o])).collect();
        assert_close("accumulated", &rig.get(held, 3)[r * n..][..n], &expected, 1e-5);
    }
}

#[test]
fn rows_of_outputs_alone_are_multiplied() {
    let mut bed = Bed::new(9, 4);
    let x = bed.input("x", 64);
    let few = bed.program.output_rows("few", 64);
    let logits = bed.program.output("logits", strata::program::Rows::Outputs, 19, strata::program::OutputKind::Logits);
    let (w, decoded) = bed.matrix("w", Format::Q8_0, 19, 64);
    bed.step(Op::GatherOutputs { x, out: few });
    bed.step(Op::MatMul { x: few, parts: vec![one(w, logits)] });
    let xs = bed.noise.floats(9 * 64);
    let mut rig = bed.finish(tolerance(Format::Q8_0));
    let window: Vec<Row> = rows(0, 0, 9);
    rig.run(&window, &[8, 3, 3], &[(x, &xs)]);
    let expected: Vec<f64> =
        [8, 3, 3].iter().flat_map(|r| (0..19).map(move |o| (r, o))).map(|(r, o)| decoded.dot(o, &xs[r * 64..][..64])).collect();
    assert_close("logits", &rig.get(logits, 3), &expected, 1e-5);
    rig.run(&window, &[], &[(x, &xs)]);
}
