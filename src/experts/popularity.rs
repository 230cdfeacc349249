//! How much each expert of a layer is used: decayed frequency plus recency.

/// Tokens after which a use counts half, in the long and in the short memory.
const HALF_LIVES: [f32; 2] = [512.0, 32.0];
/// Where the growing weight of new uses is brought back to 1.
const RESCALE_AT: f32 = 1e20;

/// Decayed counts of one layer. Equal inputs give equal bits, so a replay decides as the engine did.
#[derive(Debug, Clone, PartialEq)]
pub struct Popularity {
    /// Counts in units of `weight`, for each half-life: old uses shrink because new ones grow.
    counts: [Vec<f32>; 2],
    weight: [f32; 2],
}

impl Popularity {
    pub fn new(experts: u32) -> Popularity {
        let zero = || vec![0.0; experts as usize];
        Popularity { counts: [zero(), zero()], weight: [1.0; 2] }
    }

    /// Starts from counts of earlier sessions, as if their uses had come evenly.
    pub fn from_counts(counts: &[u64], tokens: u64) -> Popularity {
        let mut popularity = Popularity::new(counts.len() as u32);
        if tokens > 0 {
            for (memory, half_life) in popularity.counts.iter_mut().zip(HALF_LIVES) {
                let per_rate = half_life / std::f32::consts::LN_2;
                memory.iter_mut().zip(counts).for_each(|(to, n)| *to = *n as f32 / tokens as f32 * per_rate);
            }
        }
        popularity
    }

    /// A window of `rows` tokens chose `ids`, some of them more than once.
    pub fn observe(&mut self, ids: &[u32], rows: usize) {
        for ((counts, weight), half_life) in self.counts.iter_mut().zip(&mut self.weight).zip(HALF_LIVES) {
            *weight *= (rows as f32 / half_life).exp2();
            if *weight >= RESCALE_AT {
                counts.iter_mut().for_each(|c| *c /= *weight);
                *weight = 1.0;
            }
            for id in ids {
                if let Some(count) = counts.get_mut(*id as usize) {
                    *count += *weight;
                }
            }
        }
    }

    /// Expected uses a token: the mean of the two memories' rates.
    pub fn score(&self, expert: u32) -> f32 {
        let rate = |i: usize| self.counts[i][expert as usize] / self.weight[i] * std::f32::consts::LN_2 / HALF_LIVES[i];
        (rate(0) + rate(1)) / 2.0
    }

    pub fn experts(&self) -> u32 {
        self.counts[0].len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_the_score() {
        let mut p = Popularity::new(4);
        for token in 0..8000 {
            p.observe(if token % 4 == 0 { &[1, 2] } else { &[1] }, 1);
        }
        assert!((p.score(1) - 1.0).abs() < 0.02, "{}", p.score(1));
        assert!((p.score(2) - 0.25).abs() < 0.02, "{}", p.score(2));
        assert_eq!(p.score(0), 0.0);
    }

    #[test]
    fn what_is_used_now_beats_what_was_used_long_ago() {
        let mut p = Popularity::new(2);
        (0..2000).for_each(|_| p.observe(&[0], 1));
        (0..600).for_each(|_| p.observe(&[1], 1));
        assert!(p.score(1) > p.score(0));
        // A long prompt does not overflow anything.
        (0..100).for_each(|_| p.observe(&[0], 100_000));
        assert!(p.score(0).is_finite() && p.score(0) > p.score(1));
    }

    #[test]
    fn a_profile_gives_the_rates_it_was_counted_with() {
        let p = Popularity::from_counts(&[100, 50, 0], 200);
        assert!((p.score(0) - 0.5).abs() < 1e-3 && (p.score(1) - 0.25).abs() < 1e-3 && p.score(2) == 0.0);
        assert_eq!(Popularity::from_counts(&[0, 0], 0), Popularity::new(2));
    }
}
