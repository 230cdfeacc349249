//! Products with weights of every block format, all bits of the blocks random: single weights, and wide rows.

use strata::program::{Epilogue, ExpertMatrix, GateActivation, MatMulPart, Op, PartWeights, RouterScore};
use strata::quant::{FORMATS, Format};

use crate::blocks::{Random, random_weights};
use crate::rig::{Bed, Decoded, assert_close, rows};

/// How far 8-bit activations may take a product from the truth.
const TOLERANCE: f64 = 2e-2;

fn block_len(format: Format) -> usize {
    format.info().block_len
}

/// Widths of one block and of several, odd where the format allows it.
fn widths(format: Format) -> Vec<usize> {
    match block_len(format) {
        1 => vec![1, 7, 19, 48, 261],
        len => vec![len, 3 * len, 1280usize.next_multiple_of(len)],
    }
}

fn plain(weight: strata::program::WeightId, out: strata::program::View) -> MatMulPart {
    MatMulPart { weights: PartWeights::One(weight), bias: None, scale: None, epilogue: Epilogue::None, out }
}

fn matrix(bed: &mut Bed, name: &str, format: Format, outs: usize, cols: usize) -> (strata::program::WeightId, Decoded) {
    let bytes = random_weights(format, outs, cols, &mut Random(format as u64 * 77 + cols as u64 + outs as u64));
    bed.matrix_of(name, format, outs, cols, bytes)
}

#[test]
fn products_of_every_format() {
    for info in FORMATS {
        for (max_rows, count) in [(4u32, 3usize), (19, 18)] {
            let outs = 71;
            let mut bed = Bed::new(max_rows, 1);
            let mut cases = vec![];
            for cols in widths(info.format) {
                let x = bed.input(&format!("x{cols}"), cols as u32);
                let out = bed.output(&format!("out{cols}"), outs as u32);
                let (w, decoded) = matrix(&mut bed, &format!("w{cols}"), info.format, outs, cols);
                bed.step(Op::MatMul { x, parts: vec![plain(w, out)] });
                let xs = bed.noise.floats(count * cols);
                cases.push((cols, x, out, decoded, xs));
            }
            let mut rig = bed.finish(TOLERANCE);
            let inputs: Vec<_> = cases.iter().map(|(_, x, _, _, xs)| (*x, xs.as_slice())).collect();
            rig.run(&rows(0, 0, count as u32), &[], &inputs);
            for (cols, _, out, decoded, xs) in &cases {
                let (cols, out) = (*cols, *out);
                let expected: Vec<f64> =
                    xs.chunks(cols).flat_map(|x| (0..outs).map(|o| decoded.dot(o, x)).collect::<Vec<_>>()).collect();
                let what = format!("{} {cols} columns, {count} rows of {max_rows}", info.format);
                assert_close(&what, &rig.get(out, count), &expected, 1e-5);
            }
        }
    }
}

/// Gated products whose two matrices have one format, and two.
#[test]
fn gated_products_of_equal_and_of_different_formats() {
    for (gate_format, up_format) in [(Format::Q4_K, Format::Q4_K), (Format::Q8_0, Format::IQ4_XS), (Format::F32, Format::F32)] {
        for (max_rows, count) in [(8u32, 8usize), (20, 20)] {
            let (cols, outs) = (512usize, 70usize);
            let mut bed = Bed::new(max_rows, 1);
            let x = bed.input("x", cols as u32);
            let out = bed.output("out", outs as u32);
            let (gate, g) = matrix(&mut bed, "gate", gate_format, outs, cols);
            let (up, u) = matrix(&mut bed, "up", up_format, outs, cols);
            let weights = PartWeights::Gated { gate, up, up_scale: None, activation: GateActivation::GeluTanh };
            bed.step(Op::MatMul { x, parts: vec![MatMulPart { weights, ..plain(gate, out) }] });
            let xs: Vec<f32> = bed.noise.floats(count * cols).iter().map(|x| x * 0.1).collect();
            let mut rig = bed.finish(TOLERANCE);
            rig.run(&rows(0, 0, count as u32), &[], &[(x, &xs)]);
            let gelu = |v: f64| 0.5 * v * (1.0 + (0.797_884_560_8 * (v + 0.044715 * v * v * v)).tanh());
            let row = |x: &[f32]| (0..outs).map(|o| gelu(g.dot(o, x)) * u.dot(o, x)).collect::<Vec<_>>();
            let expected: Vec<f64> = xs.chunks(cols).flat_map(row).collect();
            assert_close(&format!("{gate_format} {up_format}"), &rig.get(out, count), &expected, 1e-4);
        }
    }
}

/// Experts of a few formats, in windows of few and of many rows.
#[test]
fn experts_of_several_formats() {
    for (gate_format, up_format, down_format) in [
        (Format::IQ2_XS, Format::IQ2_XS, Format::IQ4_NL),
        (Format::Q4_K, Format::Q5_K, Format::Q6_K),
        (Format::BF16, Format::BF16, Format::MXFP4),
    ] {
        for (max_rows, count) in [(3u32, 2usize), (40, 33)] {
            let (experts, used, cols, inner) = (6usize, 3usize, 256usize, 256usize);
            let mut bed = Bed::new(max_rows, 1);
            let logits = bed.input("logits", experts as u32);
            let x = bed.input("x", cols as u32);
            let (ids, weights) = (bed.id_output("ids", used as u32), bed.output("weights", used as u32));
            let hidden = bed.output("hidden", (used * inner) as u32);
            let out = bed.output("out", cols as u32);
            let parts = [("gate", gate_format, inner, cols), ("up", up_format, inner, cols), ("down", down_format, cols, inner)];
            let made = bed.experts_of(&parts, experts as u32, |format, rows, cols, noise| {
                random_weights(format, rows, cols, &mut Random(noise))
            });
            let matrix = |i: usize| -> ExpertMatrix { made[i].0 };
            let (score, normalise, activation, slots) = (RouterScore::SoftmaxAll, true, GateActivation::Silu, None);
            bed.step(Op::Router { logits, score, normalise, ids, weights });
            bed.step(Op::ExpertGated { x, ids, gate: matrix(0), up: matrix(1), activation, slots, out: hidden });
            bed.step(Op::ExpertDown { x: hidden, ids, weights, down: matrix(2), out });
            let (ls, xs) = (bed.noise.floats(count * experts), bed.noise.floats(count * cols));
            let mut rig = bed.finish(5e-2);
            rig.run(&rows(0, 0, count as u32), &[], &[(logits, &ls), (x, &xs)]);
            let (ids, weights) = (rig.get_ids(ids, count), rig.get(weights, count));
            let mut expected = vec![];
            for row in 0..count {
                let mut sum = vec![0.0; cols];
                for j in 0..used {
                    let e = ids[row * used + j] as usize;
                    let x = &xs[row * cols..][..cols];
                    let silu = |v: f64| v / (1.0 + (-v).exp());
                    let inner: Vec<f32> =
                        (0..inner).map(|f| (silu(made[0].1[e].dot(f, x)) * made[1].1[e].dot(f, x)) as f32).collect();
                    let weight = f64::from(weights[row * used + j]);
                    sum.iter_mut().enumerate().for_each(|(o, s)| *s += weight * made[2].1[e].dot(o, &inner));
                }
                expected.extend(sum);
            }
            assert_close(&format!("{gate_format} {down_format}"), &rig.get(out, count), &expected, 1e-4);
        }
    }
}
