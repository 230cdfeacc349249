//! What a run cost: one line for people, one object for programs.

use std::time::Duration;

use serde::Serialize;

use super::open::Loaded;
use super::tiers::TierReport;
use crate::engine::{GenerationStats, MemoryUse, process_memory};
use crate::units::HumanBytes;

/// Speed and memory of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub threads: usize,
    pub arithmetic: String,
    pub load_seconds: f64,
    pub prompt_tokens: usize,
    /// Tokens of the prompt that did not have to be read again.
    pub reused_tokens: usize,
    pub prompt_seconds: f64,
    pub prompt_tokens_per_second: Option<f64>,
    pub generated_tokens: usize,
    pub decode_seconds: f64,
    pub decode_tokens_per_second: Option<f64>,
    /// Bytes of weights and state read a second while decoding, in 10^9.
    pub decode_gb_per_second: Option<f64>,
    /// What this machine's memory gives (measured once), in 10^9 bytes a second.
    pub memory_gb_per_second: Option<f64>,
    pub memory: MemoryReport,
    /// What the tiers of experts did; absent where devices hold all experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiers: Option<TierReport>,
}

/// Bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryReport {
    pub weights_bytes: u64,
    pub state_bytes: u64,
    pub work_bytes: u64,
    pub scratch_bytes: u64,
    /// RAM of experts that no device holds, with what computes them.
    pub experts_bytes: u64,
    /// RAM of the vision encoder.
    pub vision_bytes: u64,
    /// The process as the system counts it.
    pub resident_bytes: Option<u64>,
    pub peak_bytes: Option<u64>,
}

impl MemoryReport {
    pub fn now(planned: MemoryUse) -> MemoryReport {
        let process = process_memory();
        MemoryReport {
            weights_bytes: planned.weights_bytes,
            state_bytes: planned.state_bytes,
            work_bytes: planned.work_bytes,
            scratch_bytes: planned.scratch_bytes,
            experts_bytes: planned.experts_bytes,
            vision_bytes: planned.vision_bytes,
            resident_bytes: process.map(|p| p.resident_bytes),
            peak_bytes: process.map(|p| p.peak_bytes),
        }
    }

    /// The system's count, or what was planned where it does not tell.
    fn used_bytes(&self) -> u64 {
        let arenas = self.weights_bytes + self.state_bytes + self.work_bytes + self.scratch_bytes;
        self.resident_bytes.unwrap_or(arenas + self.experts_bytes + self.vision_bytes)
    }
}

impl Report {
    pub fn new(loaded: &Loaded, stats: &GenerationStats) -> Report {
        let seconds = |time: Duration| time.as_secs_f64();
        let engine = &loaded.engine;
        Report {
            threads: loaded.threads,
            arithmetic: arithmetic(loaded),
            load_seconds: seconds(loaded.load_time),
            prompt_tokens: stats.prompt_tokens,
            reused_tokens: stats.reused_tokens,
            prompt_seconds: seconds(stats.prompt_time),
            prompt_tokens_per_second: stats.prompt_rate(),
            generated_tokens: stats.generated_tokens,
            decode_seconds: seconds(stats.decode_time),
            decode_tokens_per_second: stats.decode_rate(),
            decode_gb_per_second: stats.decode_bytes_per_second(engine).map(|b| b / 1e9),
            memory_gb_per_second: loaded.roofs.memory_gbs,
            memory: MemoryReport::now(engine.memory()),
            tiers: TierReport::of(stats, engine),
        }
    }

    /// The line that ends a run.
    pub fn line(&self) -> String {
        let speed = |rate: Option<f64>| rate.map_or("-".to_owned(), |r| format!("{} tok/s", short(r)));
        let reused = if self.reused_tokens > 0 { format!(" ({} kept)", self.reused_tokens) } else { String::new() };
        format!(
            "prompt {} tok{reused}, {} | decode {} tok, {} | {} | memory {}",
            self.prompt_tokens,
            speed(self.prompt_tokens_per_second),
            self.generated_tokens,
            speed(self.decode_tokens_per_second),
            reading(self.decode_gb_per_second, self.memory_gb_per_second),
            HumanBytes(self.memory.used_bytes()),
        )
    }
}

/// `12.3 GB/s read, 40 % of this machine's 31.0`.
fn reading(used: Option<f64>, roof: Option<f64>) -> String {
    match (used, roof) {
        (None, _) => "- GB/s".to_owned(),
        (Some(used), None) => format!("{} GB/s read", short(used)),
        (Some(used), Some(roof)) => {
            format!("{} GB/s read, {:.0} % of the {} measured", short(used), percent(used, roof), short(roof))
        }
    }
}

pub fn percent(used: f64, roof: f64) -> f64 {
    if roof > 0.0 { 100.0 * used / roof } else { 0.0 }
}

/// About three digits.
pub fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

pub fn arithmetic(loaded: &Loaded) -> String {
    loaded.engine.devices().map(|d| format!("{}: {}", d.id, d.detail)).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([short(1234.5), short(45.67), short(0.1234)], ["1234", "45.7", "0.12"]);
        assert_eq!(reading(Some(15.5), Some(31.0)), "15.5 GB/s read, 50 % of the 31.0 measured");
    }
}
