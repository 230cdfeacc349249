//! Flags of the tiers of experts, and what a run says of them.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::error::CliError;
use super::report::{percent, short};
use crate::engine::{Engine, GenerationStats};
use crate::experts::{ExpertError, ExpertOptions, Misses, Policy, Profile, Rates, TierStats};
use crate::units::HumanBytes;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MissesArg {
    /// Whoever is done sooner
    Auto,
    /// Always the processor
    Processor,
    /// Always the card, after a copy
    Card,
}

/// What happens with experts that are on no card.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Experts")]
pub struct TierArgs {
    /// Compute every expert by the same arithmetic wherever it lies: the same prompt gives the same tokens whatever the card holds
    #[arg(long)]
    pub reproducible: bool,
    /// Begin with the experts that were used most in earlier runs, and remember this one: a file that is read and written
    #[arg(long, value_name = "FILE")]
    pub expert_profile: Option<PathBuf>,
    /// Who computes experts that the card does not hold
    #[arg(long, value_name = "WHO", value_enum, default_value_t = MissesArg::Auto)]
    pub expert_misses: MissesArg,
    /// Most experts that change places after a token; 0 leaves all where they are
    #[arg(long, value_name = "N", default_value_t = Policy::default().swaps_per_token)]
    pub expert_swaps: u32,
}

impl TierArgs {
    /// # Errors
    /// A profile that cannot be read or written.
    pub fn options(&self) -> Result<ExpertOptions, CliError> {
        let misses = match self.expert_misses {
            MissesArg::Auto => Misses::Auto,
            MissesArg::Processor => Misses::Processor,
            MissesArg::Card => Misses::Card,
        };
        let profile = match &self.expert_profile {
            Some(path) if path.exists() => Some(Profile::load(path).map_err(expert_error)?),
            Some(path) => {
                // Better now than when everything is done.
                let empty = Profile { model: String::new(), tokens: 0, layers: Default::default() };
                empty.save(path).map_err(expert_error)?;
                None
            }
            None => None,
        };
        Ok(ExpertOptions {
            reproducible: self.reproducible,
            misses,
            profile: profile.map(Arc::new),
            profile_file: self.expert_profile.clone(),
            policy: Policy { swaps_per_token: self.expert_swaps, ..Policy::default() },
            ..ExpertOptions::default()
        })
    }
}

/// An error of a trace or a profile that the user named: a file that cannot be read or written is no wrong argument, one that
/// holds something else is.
pub fn expert_error(error: ExpertError) -> CliError {
    match error {
        ExpertError::Io { file, action, source } => CliError::io(action, file, source),
        other => CliError::Usage(other.to_string()),
    }
}

/// What the tiers did for one answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierReport {
    pub card_calls: u64,
    pub ram_calls: u64,
    pub disk_calls: u64,
    pub card_hit_rate: f64,
    /// Bytes of experts a token, by who read or moved them.
    pub card_bytes_per_token: u64,
    pub processor_bytes_per_token: u64,
    pub bus_bytes_per_token: u64,
    pub disk_bytes_per_token: u64,
    pub swaps: u64,
    pub swap_bytes: u64,
    /// Experts whose slots prompts needed, and slots that were filled again.
    pub lent: u64,
    pub refills: u64,
    pub card_seconds: f64,
    pub processor_seconds: f64,
    pub bus_seconds: f64,
    pub disk_seconds: f64,
    pub swap_seconds: f64,
    /// Where most of the time went.
    pub slowest: Option<&'static str>,
    /// Bytes of experts that the processor worked through in a second, in 10^9, and its share of what was measured at the start.
    pub processor_gb_per_second: Option<f64>,
    pub processor_percent_of_measured: Option<f64>,
}

impl TierReport {
    pub fn new(stats: &TierStats, rates: &Rates) -> TierReport {
        let per_token = |bytes: u64| bytes / stats.tokens.max(1);
        let seconds = stats.processor_time.as_secs_f64();
        let rate = (seconds > 0.0).then(|| stats.processor_bytes as f64 / seconds);
        TierReport {
            card_calls: stats.card_calls,
            ram_calls: stats.ram_calls,
            disk_calls: stats.disk_calls,
            card_hit_rate: stats.card_hit_rate(),
            card_bytes_per_token: per_token(stats.card_bytes),
            processor_bytes_per_token: per_token(stats.processor_bytes),
            bus_bytes_per_token: per_token(stats.bus_bytes),
            disk_bytes_per_token: per_token(stats.disk_bytes),
            swaps: stats.swaps,
            swap_bytes: stats.swap_bytes,
            lent: stats.lent,
            refills: stats.refills,
            card_seconds: stats.card_time.as_secs_f64(),
            processor_seconds: seconds,
            bus_seconds: stats.bus_time.as_secs_f64(),
            disk_seconds: stats.disk_time.as_secs_f64(),
            swap_seconds: stats.swap_time.as_secs_f64(),
            slowest: stats.slowest().map(|(name, _)| name),
            processor_gb_per_second: rate.map(|r| r / 1e9),
            processor_percent_of_measured: rate.map(|r| percent(r, rates.processor_bytes_s)),
        }
    }

    /// `None` where devices hold all experts.
    pub fn of(stats: &GenerationStats, engine: &Engine) -> Option<TierReport> {
        let experts = engine.pipeline().experts.as_ref()?;
        Some(TierReport::new(&stats.tiers?, &experts.rates()))
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let all = (self.card_calls + self.ram_calls + self.disk_calls).max(1) as f64;
        let share = |calls: u64| format!("{:.0} %", 100.0 * calls as f64 / all);
        let bytes = |n: u64| HumanBytes(n).to_string();
        let mut line = format!(
            "experts: card {} ({} a token, {:.2} s), RAM {} (processor {} a token, {:.2} s",
            share(self.card_calls),
            bytes(self.card_bytes_per_token),
            self.card_seconds,
            share(self.ram_calls),
            bytes(self.processor_bytes_per_token),
            self.processor_seconds,
        );
        if let (Some(rate), Some(percent)) = (self.processor_gb_per_second, self.processor_percent_of_measured) {
            line += &format!(", {} GB/s, {percent:.0} % of measured", short(rate));
        }
        if self.bus_bytes_per_token > 0 {
            line += &format!("; bus {} a token, {:.2} s", bytes(self.bus_bytes_per_token), self.bus_seconds);
        }
        line += &format!("), disk {}", share(self.disk_calls));
        if self.disk_calls > 0 {
            line += &format!(" ({} a token, waited {:.2} s)", bytes(self.disk_bytes_per_token), self.disk_seconds);
        }
        line += &format!(" | {} exchanged ({}, {:.2} s)", self.swaps, bytes(self.swap_bytes), self.swap_seconds);
        if self.lent > 0 {
            line += &format!(" | {} slots lent to prompts, {} filled again", self.lent, self.refills);
        }
        if let Some(slowest) = self.slowest {
            line += &format!(" | most time: {slowest}");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_line_says_where_experts_were_and_what_was_slow() {
        let stats = TierStats {
            tokens: 10,
            card_calls: 60,
            ram_calls: 30,
            disk_calls: 10,
            processor_bytes: 2_000_000_000,
            processor_time: Duration::from_secs(1),
            disk_bytes: 10 << 20,
            disk_time: Duration::from_secs(2),
            ..TierStats::default()
        };
        let rates = Rates { processor_bytes_s: 4e9, processor_row_s: 0.0, bus_bytes_s: 0.0, overlaps: false };
        let report = TierReport::new(&stats, &rates);
        assert_eq!((report.card_hit_rate, report.processor_percent_of_measured), (0.6, Some(50.0)));
        let line = report.line();
        for part in ["card 60 %", "RAM 30 %", "2.00 GB/s, 50 % of measured", "disk 10 % (1.00 MiB a token", "most time: disk"] {
            assert!(line.contains(part), "'{part}' is not in {line}");
        }
    }
}
