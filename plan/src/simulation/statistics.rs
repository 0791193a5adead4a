//! Statistics over many runs.

use hdrhistogram::Histogram;

/// A mean over runs, and how far the true mean may be from it in 99 of 100 cases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub mean: f64,
    /// Half the width of the 99 % confidence interval; infinite for a single run.
    pub margin: f64,
}

impl Estimate {
    pub(crate) fn of(runs: impl Iterator<Item = f64>) -> Self {
        let runs: Vec<_> = runs.collect();
        let count = runs.len() as f64;
        let mean = runs.iter().sum::<f64>() / count;
        let squares: f64 = runs.iter().map(|run| (run - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt();
        Self {
            mean,
            margin: if runs.len() < 2 {
                f64::INFINITY
            } else {
                student(runs.len() - 1) * error
            },
        }
    }

    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (value - self.mean).abs() <= self.margin
    }
}

/// The 99.5 % quantile of Student's t distribution, exact to three digits. For many degrees of
/// freedom it uses the expansion in Abramowitz and Stegun, 26.7.5.
fn student(degrees: usize) -> f64 {
    const FEW: [f64; 8] = [63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355];
    if let Some(quantile) = FEW.get(degrees - 1) {
        return *quantile;
    }
    let (normal, degrees) = (2.575_829_f64, degrees as f64);
    let first = (normal.powi(3) + normal) / 4.0;
    let second = (5.0 * normal.powi(5) + 16.0 * normal.powi(3) + 3.0 * normal) / 96.0;
    let third =
        3.0 * normal.powi(7) + 19.0 * normal.powi(5) + 17.0 * normal.powi(3) - 15.0 * normal;
    normal + first / degrees + second / degrees.powi(2) + third / 384.0 / degrees.powi(3)
}

/// Times of one run, with a precision of a thousandth.
#[derive(Debug)]
pub(crate) struct Spread {
    microseconds: Histogram<u64>,
    sum: f64,
}

/// Eleven days, in microseconds.
const LONGEST: u64 = 1_000_000_000_000;

impl Spread {
    pub(crate) fn new() -> Self {
        Self {
            microseconds: Histogram::new_with_bounds(1, LONGEST, 3)
                .expect("three digits can be kept"),
            sum: 0.0,
        }
    }

    pub(crate) fn add(&mut self, seconds: f64) {
        self.sum += seconds;
        self.microseconds.saturating_record((seconds * 1e6) as u64);
    }

    pub(crate) fn count(&self) -> u64 {
        self.microseconds.len()
    }

    /// The mean in seconds; zero if there are no times.
    pub(crate) fn mean(&self) -> f64 {
        self.sum / (self.count() as f64).max(1.0)
    }

    /// The share that is below a microsecond.
    pub(crate) fn zero(&self) -> f64 {
        self.microseconds.count_at(0) as f64 / (self.count() as f64).max(1.0)
    }

    /// The time in seconds that this share (0 to 1) of all times does not exceed.
    pub(crate) fn percentile(&self, part: f64) -> f64 {
        self.microseconds.value_at_quantile(part) as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::{Estimate, student};

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, quantile) in [(1, 63.657), (9, 3.250), (19, 2.861), (60, 2.660)] {
            assert!((student(degrees) - quantile).abs() < 0.003, "{degrees}");
        }
    }

    #[test]
    fn an_interval_narrows_with_runs_that_agree() {
        let estimate = Estimate::of([1.0, 2.0, 3.0].into_iter());
        assert!((estimate.mean - 2.0).abs() < 1e-12);
        assert!((estimate.margin - 9.925 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert!(Estimate::of([1.0].into_iter()).contains(1e9));
    }
}
