//! Which missed experts the processor computes and which go over the bus: a time model of measured rates, the same for one row
//! and for thousands.

/// What was measured when the model was opened.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Rates {
    /// Bytes of experts that the processor works through in a second, for windows of few rows.
    pub processor_bytes_s: f64,
    /// Seconds of the processor for one more row of an expert, where arithmetic is what takes time.
    pub processor_row_s: f64,
    /// Bytes of held experts that the card works through in a second, as far as the host has to stand still for it; 0 where that
    /// is not known.
    pub card_bytes_s: f64,
    /// Bytes a second from RAM to the card; 0 where no expert can be copied.
    pub bus_bytes_s: f64,
    /// Whether the card works while the processor does. A card that the processor plays does not.
    pub overlaps: bool,
}

impl Rates {
    /// Seconds for the processor to compute `rows` rows of an expert.
    pub fn processor_s(&self, slab_bytes: u64, rows: u32) -> f64 {
        (slab_bytes as f64 / self.processor_bytes_s.max(1.0)).max(f64::from(rows) * self.processor_row_s)
    }

    /// Seconds for the card to compute held experts.
    pub fn card_s(&self, bytes: u64) -> f64 {
        if self.card_bytes_s > 0.0 { bytes as f64 / self.card_bytes_s } else { 0.0 }
    }

    /// Seconds of both, one beside the other or one after the other.
    pub fn together_s(&self, card_s: f64, processor_s: f64) -> f64 {
        if self.overlaps { card_s.max(processor_s) } else { card_s + processor_s }
    }

    /// Seconds for an expert to come over the bus.
    pub fn bus_s(&self, slab_bytes: u64) -> f64 {
        if self.bus_bytes_s > 0.0 { slab_bytes as f64 / self.bus_bytes_s } else { f64::INFINITY }
    }
}

/// Orders `missed` (expert, rows) so that the first ones, as many as are returned, go over the bus and the others to the processor:
/// the split at which both are done soonest. With rows so few that reading is all that counts, the share of the bus is
/// `bus / (bus + processor)`.
pub fn split(missed: &mut [(u32, u32)], slab_bytes: u64, rates: &Rates) -> usize {
    // What the bus saves most on comes first.
    missed.sort_unstable_by(|(a, a_rows), (b, b_rows)| b_rows.cmp(a_rows).then(a.cmp(b)));
    if !rates.overlaps || rates.bus_bytes_s <= 0.0 {
        return 0;
    }
    let mut processor_s: f64 = missed.iter().map(|(_, rows)| rates.processor_s(slab_bytes, *rows)).sum();
    let (mut bus_s, mut best, mut best_s) = (0.0, 0, processor_s);
    for (i, (_, rows)) in missed.iter().enumerate() {
        processor_s -= rates.processor_s(slab_bytes, *rows);
        bus_s += rates.bus_s(slab_bytes);
        let both_s = f64::max(bus_s, processor_s);
        if both_s < best_s {
            (best, best_s) = (i + 1, both_s);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLAB: u64 = 2_000_000;

    fn rates(bus: f64, processor: f64) -> Rates {
        Rates { processor_bytes_s: processor, processor_row_s: 1e-6, card_bytes_s: 0.0, bus_bytes_s: bus, overlaps: true }
    }

    fn bus_share(rows: u32, count: u32, rates: &Rates) -> f64 {
        let mut missed: Vec<(u32, u32)> = (0..count).map(|e| (e, rows)).collect();
        split(&mut missed, SLAB, rates) as f64 / f64::from(count)
    }

    #[test]
    fn the_share_of_the_bus_is_that_of_its_rate() {
        for (bus, processor) in [(25e9, 50e9), (6.5e9, 40e9), (50e9, 10e9)] {
            let share = bus_share(1, 200, &rates(bus, processor));
            assert!((share - bus / (bus + processor)).abs() < 0.01, "{share}");
        }
    }

    /// More rows make the processor slower and never the bus: its share grows steadily, without a step.
    #[test]
    fn the_share_grows_with_the_rows_and_has_no_cliff() {
        let rates = rates(20e9, 40e9);
        let shares: Vec<f64> = (0..12).map(|i| bus_share(1 << i, 400, &rates)).collect();
        assert!(shares.windows(2).all(|w| w[0] <= w[1]), "{shares:?}");
        let fine: Vec<f64> = (30..400).map(|rows| bus_share(rows, 400, &rates)).collect();
        assert!(fine.windows(2).all(|w| w[1] - w[0] < 0.02), "{fine:?}");
        assert!(shares[11] > 0.9);
    }

    #[test]
    fn the_experts_with_most_rows_go_over_the_bus() {
        let mut missed = vec![(0, 1), (1, 90), (2, 3), (3, 200)];
        let count = split(&mut missed, SLAB, &rates(20e9, 40e9));
        assert!((1..4).contains(&count));
        assert_eq!(missed[0], (3, 200));
    }

    #[test]
    fn where_nothing_overlaps_or_nothing_can_be_copied_the_processor_does_it_all() {
        let mut missed = vec![(0, 1), (1, 900)];
        assert_eq!(split(&mut missed, SLAB, &Rates { overlaps: false, ..rates(1e12, 1.0) }), 0);
        assert_eq!(split(&mut missed, SLAB, &rates(0.0, 1.0)), 0);
        assert_eq!(split(&mut [], SLAB, &rates(1e9, 1e9)), 0);
    }
}
