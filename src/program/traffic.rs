//! How many bytes a window must read: the roof that a speed is measured against.

use std::collections::BTreeMap;

use super::decl::{Program, Stage, StateKind, WeightDecl};
use super::op::Op;
use crate::quant::Format;

/// Bytes that one decode row reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowTraffic {
    /// Of weights, by their format.
    pub weights: BTreeMap<Format, u64>,
    pub state_bytes: u64,
}

impl RowTraffic {
    pub fn total_bytes(&self) -> u64 {
        self.weights.values().sum::<u64>() + self.state_bytes
    }
}

/// What one decode row reads of weights and state when the sequence holds `cells` tokens: every dense matrix once, the chosen
/// experts wherever they lie, the attended cells, and recurrent state read and written.
pub fn decode_row_traffic(stage: &Stage, program: &Program, cells: u32) -> RowTraffic {
    let mut traffic = RowTraffic::default();
    for op in program.steps.iter().map(|s| &s.op) {
        let used = match op {
            Op::ExpertGated { ids, .. } | Op::ExpertDown { ids, .. } | Op::ExpertDownEach { ids, .. } => u64::from(ids.width),
            _ => 1,
        };
        let mut add = |weight: &WeightDecl, bytes: u64| *traffic.weights.entry(weight.format).or_default() += bytes * used;
        match op {
            Op::ExpertGated { gate, up, .. } => [gate, up].into_iter().for_each(|m| {
                let weight = stage.weight(m.weight);
                add(weight, weight.row_bytes() * u64::from(m.rows));
            }),
            _ => op.weights().into_iter().for_each(|id| add(stage.weight(id), stage.weight(id).matrix_bytes())),
        }
        traffic.state_bytes += state_bytes(stage, op, cells);
    }
    traffic
}

/// All bytes of [`decode_row_traffic`].
pub fn decode_row_bytes(stage: &Stage, program: &Program, cells: u32) -> u64 {
    decode_row_traffic(stage, program, cells).total_bytes()
}

fn state_bytes(stage: &Stage, op: &Op, cells: u32) -> u64 {
    let Some(kind) = op.state().map(|id| stage.state(id).kind) else { return 0 };
    match (op, kind) {
        (Op::Attention { window, selection, .. }, StateKind::Kv { format, kv_heads, head_dim, .. }) => {
            let chosen = selection.map_or(cells, |(view, ratio)| view.width.saturating_mul(ratio).min(cells));
            let attended = window.map_or(chosen, |w| chosen.min(w));
            let (key, value) = format.cell_bytes(head_dim);
            u64::from(attended) * u64::from(kv_heads) * (key + value)
        }
        (Op::BlockSelect { .. }, StateKind::IndexKeys { dim, ratio, .. }) => u64::from(cells / ratio) * u64::from(dim) * 4,
        (Op::DeltaRule { .. }, StateKind::Delta { versions, .. }) => 2 * kind.bytes_per_slot() / u64::from(versions),
        _ => 0,
    }
}
