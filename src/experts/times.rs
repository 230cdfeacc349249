//! What decoded tokens took at their host steps, as straight lines: so much for each step, so much for each unit of its work. A
//! replay takes them for other numbers of slots.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Steps from which a line can be drawn.
const LEAST_STEPS: f64 = 16.0;

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub step_s: f64,
    pub unit_s: f64,
}

impl Line {
    pub fn seconds(&self, units: f64) -> f64 {
        self.step_s + units * self.unit_s
    }
}

/// Least squares over all steps so far. The line goes through the mean, so that the work as it was takes the time that it took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fit {
    steps: f64,
    units: f64,
    seconds: f64,
    units_squared: f64,
    units_seconds: f64,
}

impl Fit {
    pub fn add(&mut self, units: f64, time: Duration) {
        let seconds = time.as_secs_f64();
        self.steps += 1.0;
        self.units += units;
        self.seconds += seconds;
        self.units_squared += units * units;
        self.units_seconds += units * seconds;
    }

    /// Seconds of all steps.
    pub fn total_s(&self) -> f64 {
        self.seconds
    }

    /// Where the steps do not tell the two terms apart, all of the time is the units'.
    pub fn line(&self) -> Line {
        let spread = self.steps * self.units_squared - self.units * self.units;
        let unit_s = (self.steps * self.units_seconds - self.units * self.seconds) / spread;
        let step_s = (self.seconds - unit_s * self.units) / self.steps;
        if self.steps >= LEAST_STEPS && unit_s.is_finite() && unit_s >= 0.0 && step_s >= 0.0 {
            Line { step_s, unit_s }
        } else if self.units > 0.0 {
            Line { step_s: 0.0, unit_s: self.seconds / self.units }
        } else {
            Line { step_s: self.seconds / self.steps.max(1.0), unit_s: 0.0 }
        }
    }
}

/// Of windows of one token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DecodeFits {
    /// Held experts, by their bytes: while the host stood still for them or, where a card works beside the processor, until it was done.
    pub card: Fit,
    /// Experts that the processor computed, by their bytes; with their inputs and results on the way.
    pub processor: Fit,
    /// Experts that changed places after a window on a stage, by their number.
    pub moves: Fit,
    /// Seconds of all host steps from beginning to end, and tokens.
    pub steps_s: f64,
    pub windows: u64,
}

/// What a trace keeps of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DecodeTimes {
    pub card: Line,
    pub processor: Line,
    pub moves: Line,
}

impl DecodeFits {
    pub fn times(&self) -> DecodeTimes {
        DecodeTimes { card: self.card.line(), processor: self.processor.line(), moves: self.moves.line() }
    }

    /// Seconds of a window of `window_s` that none of this explains.
    pub fn rest_s(&self, window_s: f64) -> f64 {
        let ours = self.steps_s + self.moves.total_s();
        (window_s - ours / self.windows.max(1) as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(points: impl IntoIterator<Item = (f64, f64)>) -> Fit {
        let mut fit = Fit::default();
        points.into_iter().for_each(|(units, seconds)| fit.add(units, Duration::from_secs_f64(seconds)));
        fit
    }

    #[test]
    fn a_line_is_found_and_goes_through_the_mean() {
        let noise = |i: u32| f64::from(i * 7 % 5) * 1e-6;
        let line = fit((0..40).map(|i| (f64::from(i % 9), 2e-3 + 5e-4 * f64::from(i % 9) + noise(i)))).line();
        assert!((line.step_s - 2e-3).abs() < 1e-5 && (line.unit_s - 5e-4).abs() < 1e-6, "{line:?}");
        let f = fit([(1.0, 0.3), (2.0, 0.1), (6.0, 0.9)].into_iter().cycle().take(30));
        assert!((f.line().seconds(3.0) - f.total_s() / 30.0).abs() < 1e-9);
    }

    #[test]
    fn where_the_terms_cannot_be_told_apart_the_time_is_the_units() {
        assert_eq!(fit([(4.0, 0.2); 50]).line(), Line { step_s: 0.0, unit_s: 0.05 });
        assert_eq!(fit([(1.0, 0.1), (3.0, 0.3)]).line().step_s, 0.0, "too few steps");
        assert_eq!(fit([(0.0, 0.25); 4]).line(), Line { step_s: 0.25, unit_s: 0.0 });
        assert_eq!(fit([]).line(), Line::default());
        let falling = fit((0..20).map(|i| (f64::from(i), 1.0 - 0.01 * f64::from(i)))).line();
        assert!(falling.unit_s > 0.0, "more work never takes less time: {falling:?}");
    }

    #[test]
    fn the_rest_of_a_window_is_what_the_steps_leave() {
        let mut fits = DecodeFits { windows: 10, steps_s: 0.03, ..DecodeFits::default() };
        (0..20).for_each(|_| fits.moves.add(1.0, Duration::from_micros(500)));
        assert!((fits.rest_s(0.010) - 0.006).abs() < 1e-9);
        assert_eq!(fits.rest_s(0.001), 0.0);
    }
}
