//! Router and experts.

use strata::program::{ExpertMatrix, GateActivation, InputKind, NO_SLOT, Op, OutputKind, RouterScore, StateKind, View};
use strata::quant::Format;

use crate::rig::{Bed, Decoded, Rig, assert_close, rows};

#[test]
fn the_router_takes_the_best_and_ties_go_to_the_lower() {
    for normalise in [true, false] {
        let mut bed = Bed::new(6, 1);
        let (experts, used) = (13usize, 4usize);
        let logits = bed.input("logits", experts as u32);
        let (ids, weights) = (bed.id_output("ids", used as u32), bed.output("weights", used as u32));
        bed.step(Op::Router { logits, score: RouterScore::SoftmaxAll, normalise, ids, weights });
        let mut xs: Vec<f32> = bed.noise.floats(6 * experts).iter().map(|v| v * 4.0).collect();
        xs[experts..2 * experts].fill(1.5);
        xs[2 * experts..3 * experts].iter_mut().for_each(|v| *v = v.round());
        xs[3 * experts] = 1e30;
        let mut rig = bed.finish(1e-6);
        rig.run(&rows(0, 0, 6), &[], &[(logits, &xs)]);
        let (found_ids, found) = (rig.get_ids(ids, 6), rig.get(weights, 6));
        for (r, x) in xs.chunks(experts).enumerate() {
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let p: Vec<f64> = x.iter().map(|v| f64::from(v - max).exp()).collect();
            let sum: f64 = p.iter().sum();
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|a, b| x[*b].total_cmp(&x[*a]).then(a.cmp(b)));
            order.truncate(used);
            if r != 3 {
                let expected: Vec<u32> = order.iter().map(|e| *e as u32).collect();
                assert_eq!(found_ids[r * used..][..used], expected, "row {r}");
            }
            let kept: f64 = order.iter().map(|e| p[*e] / sum).sum();
            let divisor = if normalise { kept.max(2f64.powi(-14)) } else { 1.0 };
            let expected: Vec<f64> = order.iter().map(|e| p[*e] / sum / divisor).collect();
            assert_close("weights", &found[r * used..][..used], &expected, 1e-6);
        }
    }
}

#[test]
fn the_router_survives_garbage() {
    let mut bed = Bed::new(3, 1);
    let logits = bed.input("logits", 9);
    let (ids, weights) = (bed.id_output("ids", 3), bed.output("weights", 3));
    bed.step(Op::Router { logits, score: RouterScore::SoftmaxAll, normalise: true, ids, weights });
    let mut xs = vec![f32::NAN; 27];
    xs[9..18].copy_from_slice(&[1.0, f32::NAN, 2.0, 3.0, f32::INFINITY, 0.0, 1.0, 1.0, 1.0]);
    xs[18..27].fill(f32::NEG_INFINITY);
    let mut rig = bed.finish(1e-6);
    rig.run(&rows(0, 0, 3), &[], &[(logits, &xs)]);
    // Whom nonsense chooses is each device's own affair, as long as there is such an expert.
    // The processor's modes agree even on that.
    let all = rig.all_bits(ids, 3);
    for (device, chosen) in &all {
        assert!(chosen.iter().all(|id| *id < 9), "{device}: {chosen:?}");
        let is_processor = device.starts_with("Reference") || device.starts_with("Fast");
        assert!(!is_processor || *chosen == all[0].1, "{device}: {chosen:?}");
    }
}

struct Moe {
    x: View,
    ids: View,
    weights: View,
    hidden: View,
    out: View,
    gate: Vec<Decoded>,
    up: Vec<Decoded>,
    down: Vec<Decoded>,
    experts: usize,
    used: usize,
}

/// Experts fed with given choices. Gate and up are either two matrices or the halves of one.
fn moe(format: Format, fused: bool, (d, f): (usize, usize), experts: usize, used: usize) -> (Moe, Bed) {
    let mut bed = Bed::new(64, 1);
    let x = bed.input("x", d as u32);
    let logits = bed.input("logits", experts as u32);
    let (ids, weights) = (bed.id_output("ids", used as u32), bed.output("weights", used as u32));
    let (hidden, out) = (bed.output("hidden", (used * f) as u32), bed.output("out", d as u32));
    bed.step(Op::Router { logits, score: RouterScore::SoftmaxAll, normalise: true, ids, weights });
    let parts = if fused {
        bed.experts(&[("gate_up", format, 2 * f, d), ("down", format, d, f)], experts as u32)
    } else {
        bed.experts(&[("gate", format, f, d), ("up", format, f, d), ("down", format, d, f)], experts as u32)
    };
    let halves = |m: &[Decoded], from: usize| -> Vec<Decoded> {
        m.iter().map(|m| Decoded { values: m.values[from * d..(from + f) * d].to_vec(), cols: d }).collect()
    };
    let (gate, up) = if fused {
        let whole = parts[0].0;
        let half = |row_offset| ExpertMatrix { row_offset, rows: f as u32, ..whole };
        ((half(0), halves(&parts[0].1, 0)), (half(f as u32), halves(&parts[0].1, f)))
    } else {
        (parts[0].clone(), parts[1].clone())
    };
    let (mut down, down_values) = parts[parts.len() - 1].clone();
    let scales: Vec<f32> = (0..experts).map(|e| 1.0 + e as f32 / 8.0).collect();
    down.scale = Some(bed.vector("scales", &scales));
    let scaled = |(e, m): (usize, &Decoded)| Decoded { values: m.values.iter().map(|v| v * scales[e]).collect(), cols: m.cols };
    let down_values = down_values.iter().enumerate().map(scaled).collect();
    bed.step(Op::ExpertGated { x, ids, gate: gate.0, up: up.0, activation: GateActivation::Silu, slots: None, out: hidden });
    bed.step(Op::ExpertDown { x: hidden, ids, weights, down, out });
    let moe = Moe { x, ids, weights, hidden, out, gate: gate.1, up: up.1, down: down_values, experts, used };
    (moe, bed)
}

impl Moe {
    fn check(&self, rig: &mut Rig, xs: &[f32], logits: &[f32], count: usize) {
        let (d, f) = (self.x.width as usize, self.hidden.width as usize / self.used);
        let input = View { buffer: strata::program::BufferId(1), offset: 0, width: self.experts as u32 };
        let (xs, logits) = (&xs[..count * d], &logits[..count * self.experts]);
        rig.run(&rows(0, 0, count as u32), &[], &[(self.x, xs), (input, logits)]);
        let (ids, weights) = (rig.get_ids(self.ids, count), rig.get(self.weights, count));
        let (hidden, out) = (rig.get(self.hidden, count), rig.get(self.out, count));
        for (r, x) in xs.chunks(d).enumerate() {
            let mut sums = vec![0.0; d];
            for j in 0..self.used {
                let e = ids[r * self.used + j] as usize;
                let value = |i: usize| {
                    let gate = self.gate[e].dot(i, x);
                    gate / (1.0 + (-gate).exp()) * self.up[e].dot(i, x)
                };
                let expected: Vec<f64> = (0..f).map(value).collect();
                let found = &hidden[(r * self.used + j) * f..][..f];
                assert_close("hidden", found, &expected, 1e-5);
                for (o, sum) in sums.iter_mut().enumerate() {
                    *sum += f64::from(weights[r * self.used + j]) * self.down[e].dot(o, found);
                }
            }
            assert_close("out", &out[r * d..][..d], &sums, 1e-5);
        }
    }
}

#[test]
fn experts_equal_the_formula_for_small_and_large_windows() {
    for (format, fused, tolerance) in [(Format::F32, false, 1e-5), (Format::Q8_0, true, 2e-2), (Format::Q4_0, false, 2e-2)] {
        for (experts, used) in [(8, 2), (16, 5), (3, 3)] {
            let (moe, mut bed) = moe(format, fused, (64, 96), experts, used);
            let (xs, logits) = (bed.noise.floats(64 * 64), bed.noise.floats(64 * experts));
            let mut rig = bed.finish(tolerance);
            for count in [1, 3, 8, 9, 64] {
                moe.check(&mut rig, &xs, &logits, count);
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let (moe, mut bed) = moe(Format::F32, false, (64, 32), 8, 3);
    let (xs, logits) = (bed.noise.floats(64 * 64), bed.noise.floats(64 * 8));
    let mut rig = bed.finish(1e-5);
    moe.check(&mut rig, &xs, &logits, 64);
    let together = rig.get(moe.out, 64);
    moe.check(&mut rig, &xs, &logits, 2);
    assert_eq!(rig.get(moe.out, 2), together[..2 * 64]);
    let _ = (InputKind::HandOff, OutputKind::HandOff);
}

/// Experts found by a table, beside the same experts all held.
struct Tiers {
    x: View,
    logits: View,
    ids: View,
    each: View,
    sum: View,
    out: View,
    table: strata::program::StateId,
}

const D: usize = 64;
const F: usize = 96;

fn tiers(format: Format, (experts, used): (u32, u32), slots: u32, slot_of: &[u32]) -> (Tiers, Bed) {
    let mut bed = Bed::new(64, 1);
    let (x, logits) = (bed.input("x", D as u32), bed.input("logits", experts));
    let each = bed.input("each", used * D as u32);
    let (ids, weights) = (bed.id_output("ids", used), bed.output("weights", used));
    let (hidden, hidden_too) = (bed.output("hidden", used * F as u32), bed.output("hidden too", used * F as u32));
    let (sum, out) = (bed.output("sum", D as u32), bed.output("out", D as u32));
    let parts = bed.experts(&[("gate", format, F, D), ("up", format, F, D), ("down", format, D, F)], experts);
    let [gate, up, mut down] = [parts[0].0, parts[1].0, parts[2].0];
    let scales: Vec<f32> = (0..experts).map(|e| 1.0 + e as f32 / 8.0).collect();
    down.scale = Some(bed.vector("scales", &scales));
    let found = bed.experts_in_slots(&[gate, up, down], slots, slot_of);
    let table = bed.stage.state("slots", StateKind::ExpertSlots { layer: 0, experts }, 1);
    let activation = GateActivation::Silu;
    bed.step(Op::Router { logits, score: RouterScore::SoftmaxAll, normalise: true, ids, weights });
    bed.step(Op::ExpertGated { x, ids, gate, up, activation, slots: None, out: hidden });
    bed.step(Op::ExpertDown { x: hidden, ids, weights, down, out });
    let (gate, up) = (found[0], found[1]);
    bed.step(Op::ExpertGated { x, ids, gate, up, activation, slots: Some(table), out: hidden_too });
    bed.step(Op::ExpertDownEach { x: hidden_too, ids, down: found[2], slots: table, out: each });
    bed.step(Op::ExpertSum { x: each, ids, weights, scale: down.scale, out: sum });
    (Tiers { x, logits, ids, each, sum, out, table }, bed)
}

#[test]
fn experts_found_by_a_table_give_the_bits_of_experts_in_order() {
    for format in [Format::F32, Format::Q8_0, Format::Q4_0] {
        let slot_of = [3, 6, 0, 7, 1, 5, 2, 4];
        let (t, mut bed) = tiers(format, (8, 3), 8, &slot_of);
        let (xs, logits) = (bed.noise.floats(64 * D), bed.noise.floats(64 * 8));
        let mut rig = bed.finish(2e-2);
        rig.set_slots(t.table, &slot_of);
        for count in [1, 3, 8, 9, 64] {
            rig.run(&rows(0, 0, count as u32), &[], &[(t.x, &xs[..count * D]), (t.logits, &logits[..count * 8])]);
            assert!(rig.same_bits(t.sum, t.out, count as u32), "{format} {count} rows");
        }
    }
}

/// Several runs with other tables write the columns that one run with a full table writes, and nothing else.
#[test]
fn choices_without_a_slot_are_left_alone() {
    let full = [3, 6, 0, 7, 1, 5, 2, 4];
    let (t, mut bed) = tiers(Format::Q8_0, (8, 3), 8, &full);
    let (xs, logits) = (bed.noise.floats(20 * D), bed.noise.floats(20 * 8));
    let mut rig = bed.finish(2e-2);
    for count in [2, 20] {
        let part =
            |held: &dyn Fn(usize) -> bool| -> Vec<u32> { (0..8).map(|e| if held(e) { full[e] } else { NO_SLOT }).collect() };
        let sentinel = vec![7.5f32; count * t.each.width as usize];
        let inputs = [(t.x, &xs[..count * D]), (t.logits, &logits[..count * 8]), (t.each, &sentinel[..])];
        rig.set_slots(t.table, &part(&|e| e % 2 == 0));
        rig.run(&rows(0, 0, count as u32), &[], &inputs);
        let (ids, each) = (rig.get_ids(t.ids, count), rig.get(t.each, count));
        for (id, columns) in ids.iter().zip(each.chunks(D)) {
            assert_eq!(columns.iter().all(|v| *v == 7.5), id % 2 == 1, "expert {id}");
        }
        rig.set_slots(t.table, &part(&|e| e % 2 == 1));
        rig.run(&rows(0, 0, count as u32), &[], &inputs[..2]);
        assert!(rig.same_bits(t.sum, t.out, count as u32), "{count} rows");
        rig.set_slots(t.table, &[NO_SLOT; 8]);
        rig.run(&rows(0, 0, count as u32), &[], &inputs);
        assert_eq!(rig.get(t.each, count), sentinel);
    }
}
