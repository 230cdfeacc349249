//! What the tiers did: hits, bytes and time by tier.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Counts since the model was opened. The difference of two is what happened between.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TierStats {
    /// Tokens that were computed.
    pub tokens: u64,
    /// Choices of experts by where the expert was found.
    pub card_calls: u64,
    pub ram_calls: u64,
    pub disk_calls: u64,
    /// Bytes of experts that each tier read or moved; an expert counts once a window and layer.
    pub card_bytes: u64,
    pub processor_bytes: u64,
    pub bus_bytes: u64,
    pub disk_bytes: u64,
    /// Experts that changed places between windows, and the bytes that were copied for it.
    pub swaps: u64,
    pub swap_bytes: u64,
    /// Experts that left because prompts needed their slots, and slots that were filled again afterwards.
    pub lent: u64,
    pub refills: u64,
    /// Time of the processor on missed experts, of copies to the card in a window, of waiting for the disk, of exchanges.
    pub processor_time: Duration,
    pub bus_time: Duration,
    pub disk_time: Duration,
    pub swap_time: Duration,
    /// Time that the host stood still for held experts on the card.
    pub card_time: Duration,
}

impl TierStats {
    /// Applies an operation to each count and each time.
    fn combine(self, other: TierStats, count: fn(u64, u64) -> u64, time: fn(Duration, Duration) -> Duration) -> TierStats {
        TierStats {
            tokens: count(self.tokens, other.tokens),
            card_calls: count(self.card_calls, other.card_calls),
            ram_calls: count(self.ram_calls, other.ram_calls),
            disk_calls: count(self.disk_calls, other.disk_calls),
            card_bytes: count(self.card_bytes, other.card_bytes),
            processor_bytes: count(self.processor_bytes, other.processor_bytes),
            bus_bytes: count(self.bus_bytes, other.bus_bytes),
            disk_bytes: count(self.disk_bytes, other.disk_bytes),
            swaps: count(self.swaps, other.swaps),
            swap_bytes: count(self.swap_bytes, other.swap_bytes),
            lent: count(self.lent, other.lent),
            refills: count(self.refills, other.refills),
            processor_time: time(self.processor_time, other.processor_time),
            bus_time: time(self.bus_time, other.bus_time),
            disk_time: time(self.disk_time, other.disk_time),
            swap_time: time(self.swap_time, other.swap_time),
            card_time: time(self.card_time, other.card_time),
        }
    }
}

impl Sub for TierStats {
    type Output = TierStats;

    fn sub(self, before: TierStats) -> TierStats {
        self.combine(before, u64::saturating_sub, Duration::saturating_sub)
    }
}

impl Add for TierStats {
    type Output = TierStats;

    fn add(self, more: TierStats) -> TierStats {
        self.combine(more, u64::saturating_add, Duration::saturating_add)
    }
}

impl TierStats {
    pub fn calls(&self) -> u64 {
        self.card_calls + self.ram_calls + self.disk_calls
    }

    /// Share of the choices that were held on a card; 1 where there were none.
    pub fn card_hit_rate(&self) -> f64 {
        if self.calls() == 0 { 1.0 } else { self.card_calls as f64 / self.calls() as f64 }
    }

    /// The tier that windows waited for longest, with its time.
    pub fn slowest(&self) -> Option<(&'static str, Duration)> {
        let tiers = [
            ("disk", self.disk_time),
            ("processor", self.processor_time),
            ("bus", self.bus_time),
            ("card", self.card_time),
            ("exchanges", self.swap_time),
        ];
        tiers.into_iter().filter(|(_, time)| !time.is_zero()).max_by_key(|(_, time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_the_slow_tier_follow_the_counts() {
        let mut s = TierStats::default();
        assert_eq!((s.card_hit_rate(), s.slowest()), (1.0, None));
        (s.card_calls, s.ram_calls, s.disk_calls) = (6, 3, 1);
        assert_eq!(s.card_hit_rate(), 0.6);
        s.disk_time = Duration::from_millis(3);
        s.processor_time = Duration::from_millis(2);
        assert_eq!(s.slowest(), Some(("disk", Duration::from_millis(3))));
        assert_eq!((s - s).calls(), 0);
        assert_eq!((s + s).calls(), 20);
    }
}
