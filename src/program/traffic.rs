//! How many bytes a window must read: the roof that a speed is measured against.

use super::decl::{Program, Stage, StateKind};
use super::op::Op;

/// Bytes that one decode row reads from weights and state when the sequence holds `cells` tokens: every dense matrix once,
/// the chosen experts wherever they lie, the attended cells, and recurrent state read and written.
pub fn decode_row_bytes(stage: &Stage, program: &Program, cells: u32) -> u64 {
    let step = |op: &Op| {
        let used = match op {
            Op::ExpertGated { ids, .. } | Op::ExpertDown { ids, .. } | Op::ExpertDownEach { ids, .. } => u64::from(ids.width),
            _ => 1,
        };
        let weights: u64 = match op {
            Op::ExpertGated { gate, up, .. } => {
                [gate, up].map(|m| stage.weight(m.weight).row_bytes() * u64::from(m.rows)).iter().sum()
            }
            _ => op.weights().iter().map(|id| stage.weight(*id).matrix_bytes()).sum(),
        };
        weights * used + state_bytes(stage, op, cells)
    };
    program.steps.iter().map(|s| step(&s.op)).sum()
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
