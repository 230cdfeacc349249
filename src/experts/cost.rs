//! Which missed experts the processor computes and which go over the bus: a time model of measured rates, the same for one row
//! and for thousands.

/// What was measured when the model was opened.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Rates {
    /// Bytes of experts that the processor works through in a second, for windows of few rows.
    pub processor_bytes_s: f64,
    /// Seconds of the processor for one more row of an expert, where arithmetic is what takes time.
    pub processor_row_s: f64,
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
        Rates { processor_bytes_s: processor, processor_row_s: 1e-6, bus_bytes_s: bus, overlaps: true }
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

    /// Seconds until all of `missed` (expert, rows) are computed if the first `to_card` go over the bus and the processor takes the others.
    fn missed_s(missed: &[(u32, u32)], to_card: usize, slab_bytes: u64, rates: &Rates) -> f64 {
        let bus_s = if to_card == 0 { 0.0 } else { to_card as f64 * rates.bus_s(slab_bytes) };
        let processor_s: f64 = missed[to_card..].iter().map(|(_, rows)| rates.processor_s(slab_bytes, *rows)).sum();
        rates.together_s(bus_s, processor_s)
    }

    /// What a chunk of so many tokens misses: each chooses `used` of 512 experts, of which the card holds the first 200. Popularity
    /// falls with the number, as it does in models.
    fn chunk(tokens: u32, used: u32) -> Vec<(u32, u32)> {
        let share = |e: u32| f64::from(e + 20).powf(-1.2);
        let sum: f64 = (0..512).map(share).sum();
        let rows = |e: u32| (f64::from(tokens * used) * share(e) / sum).round() as u32;
        (200..512).map(|e| (e, rows(e))).filter(|(_, rows)| *rows > 0).collect()
    }

    /// From one token to the largest chunk the predicted time grows by no more than a token's own, and never falls. Streaming
    /// everything overtakes computing everything once, and the best split is never slower than either.
    #[test]
    fn there_is_no_cliff_at_any_chunk_size() {
        for (bus, processor, row_s) in [(25e9, 50e9, 1e-5), (6.5e9, 40e9, 4e-5), (50e9, 10e9, 1e-6), (12e9, 60e9, 2e-4)] {
            let rates = Rates { processor_row_s: row_s, ..rates(bus, processor) };
            let mut before = 0.0;
            let (mut flips, mut streaming_wins) = (0, false);
            for tokens in 1..=2048 {
                let mut missed = chunk(tokens, 10);
                let to_card = split(&mut missed, SLAB, &rates);
                let seconds = missed_s(&missed, to_card, SLAB, &rates);
                let (computed, streamed) = (missed_s(&missed, 0, SLAB, &rates), missed_s(&missed, missed.len(), SLAB, &rates));
                assert!(seconds <= computed.min(streamed) + 1e-12, "{tokens} tokens: {seconds} of {computed} and {streamed}");
                // A token adds at most the rows and the slabs of its experts, each on the slower way.
                let one_more = 10.0 * rates.bus_s(SLAB).max(rates.processor_s(SLAB, 1)).max(row_s);
                assert!((before - 1e-12..=before + 2.0 * one_more).contains(&seconds), "{tokens} tokens: {before} to {seconds}");
                before = seconds;
                if (streamed < computed) != streaming_wins && !missed.is_empty() {
                    (flips, streaming_wins) = (flips + 1, !streaming_wins);
                }
            }
            assert!(flips <= 1, "{flips} changes of who is faster alone");
        }
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
