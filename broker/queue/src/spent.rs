//! How much GPU time an account has used: a value that decays, and a sum for each period.
//!
//! **Invariant:** pure.

/// The use of one person in one course.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Milliseconds of GPU time, as of `at_ms`. Half of it remains after each half-life.
    pub faded_ms: f64,
    pub at_ms: i64,
    /// The start of the last budget period in which something was charged.
    pub period_start_ms: i64,
    pub period_ms: u64,
}

impl Spent {
    pub fn faded_ms(&self, now_ms: i64, half_life_ms: i64) -> f64 {
        // If the clock was set back, the value must not grow.
        let past = now_ms.saturating_sub(self.at_ms).max(0);
        self.faded_ms * (-(past as f64) / half_life_ms as f64).exp2()
    }

    pub fn in_period_ms(&self, period_start_ms: i64) -> u64 {
        if self.period_start_ms == period_start_ms {
            self.period_ms
        } else {
            0
        }
    }

    pub fn charge(&mut self, run_ms: u64, now_ms: i64, half_life_ms: i64, period_start_ms: i64) {
        self.faded_ms = self.faded_ms(now_ms, half_life_ms) + run_ms as f64;
        self.at_ms = now_ms;
        self.period_ms = self.in_period_ms(period_start_ms).saturating_add(run_ms);
        self.period_start_ms = period_start_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = 3_600_000;

    #[test]
    fn half_of_it_is_left_after_the_half_life() {
        let mut spent = Spent::default();
        spent.charge(8000, 0, 12 * HOUR, 0);
        assert_eq!(spent.faded_ms(12 * HOUR, 12 * HOUR), 4000.0);
        assert_eq!(spent.faded_ms(36 * HOUR, 12 * HOUR), 1000.0);
        assert_eq!(spent.faded_ms(-5, 12 * HOUR), 8000.0);
    }

    #[test]
    fn a_clock_that_was_ahead_is_forgotten_with_the_next_run() {
        let mut spent = Spent::default();
        spent.charge(8000, 24 * HOUR, 12 * HOUR, 0);
        spent.charge(1000, 0, 12 * HOUR, 0);
        assert_eq!((spent.at_ms, spent.faded_ms), (0, 9000.0));
    }

    #[test]
    fn a_period_begins_at_nothing() {
        let mut spent = Spent::default();
        spent.charge(10, 5, HOUR, 1);
        spent.charge(20, 6, HOUR, 1);
        assert_eq!(spent.in_period_ms(1), 30);
        assert_eq!(spent.in_period_ms(2), 0);
        spent.charge(40, 7, HOUR, 2);
        assert_eq!(spent.in_period_ms(2), 40);
    }

    proptest! {
        /// It makes no difference whether a run is charged at once or in parts.
        #[test]
        fn charges_add_up(charges in prop::collection::vec((0..10_000_000_u64, 0..HOUR), 1..30)) {
            let mut spent = Spent::default();
            let mut now = 0;
            let mut expected = 0.0;
            for (run_ms, pause) in charges {
                now += pause;
                expected = expected * (-(pause as f64) / (12 * HOUR) as f64).exp2() + run_ms as f64;
                spent.charge(run_ms, now, 12 * HOUR, 0);
            }
            let found = spent.faded_ms(now, 12 * HOUR);
            prop_assert!((found - expected).abs() <= 1e-6 * expected.max(1.0));
        }
    }
}
