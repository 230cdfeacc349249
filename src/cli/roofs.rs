//! The roofs that speeds are measured against.

use crate::launch::Launched;
use crate::plan::{BackendKind, Card, Host, Machine};
use crate::program::{RowTraffic, decode_row_traffic};
use crate::quant::Format;

/// GB/s (10^9) at which a token's bytes are read and worked through, as far as that has been measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Roofs {
    /// Of memory: of each stage that of its card, or RAM where the processor plays it.
    pub memory_gbs: Option<f64>,
    /// Of devices: memory of a card, whose arithmetic hides behind it; where the processor plays it, the processor on weights of their
    /// formats.
    pub device_gbs: Option<f64>,
}

impl Roofs {
    /// `here` is the host that computes, whatever a machine file says of another.
    pub fn of(launched: &Launched, machine: &Machine, here: &Host) -> Roofs {
        let mean = |seconds: &dyn Fn(&Card, RowTraffic) -> Option<f64>| {
            let (mut bytes, mut sum_s) = (0.0, 0.0);
            for (planned, runner) in launched.plan.stages.iter().zip(&launched.engine.pipeline().stages) {
                let traffic = decode_row_traffic(&runner.stage, &runner.stage.programs[0], 0);
                bytes += traffic.total_bytes() as f64;
                sum_s += seconds(&machine.cards[planned.card.0], traffic)?;
            }
            (sum_s > 0.0).then(|| bytes / sum_s / 1e9)
        };
        let seconds = |bytes: u64, gbs: f64| bytes as f64 / (gbs * 1e9);
        let in_ram = |card: &Card| card.shares_host_memory || is_played(card);
        let of_memory = |card: &Card, traffic: RowTraffic| {
            let rate = if in_ram(card) { here.ram_read_gbs } else { card.memory_gbs };
            Some(seconds(traffic.total_bytes(), rate?))
        };
        let of_device = |card: &Card, traffic: RowTraffic| {
            if !is_played(card) {
                return of_memory(card, traffic);
            }
            let rate = |format: &Format| here.format_gbs(*format).or(here.cpu_weights_gbs);
            let weights = traffic.weights.iter().map(|(format, bytes)| Some(seconds(*bytes, rate(format)?)));
            Some(weights.sum::<Option<f64>>()? + seconds(traffic.state_bytes, here.ram_read_gbs?))
        };
        Roofs { memory_gbs: mean(&of_memory), device_gbs: mean(&of_device) }
    }
}

/// Whether the processor does a card's work.
fn is_played(card: &Card) -> bool {
    matches!(card.backend, BackendKind::Cpu | BackendKind::Virtual)
}
