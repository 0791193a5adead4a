//! The distribution of durations, some of which were not observed to their end.
//!
//! In: durations, each with whether it ended or was still going on, or interrupted, when last observed
//! (censored). Out: the share that is longer than any given time (Kaplan and Meier 1958). A censored duration
//! counts for as long as it was observed, so long ones are not left out for being long.

/// An observed duration in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    pub seconds: f64,
    /// Whether it ended then; otherwise it would have gone on.
    pub ended: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Survival {
    /// The times at which some ended, and the share that is longer.
    steps: Vec<(f64, f64)>,
    ended: usize,
    watched_seconds: f64,
    longest: f64,
}

impl Survival {
    #[must_use]
    pub fn of(mut seen: Vec<Seen>) -> Self {
        // At equal times, an end comes before a censored duration, which was still observed then.
        seen.sort_by(|one, other| {
            let by_time = one.seconds.total_cmp(&other.seconds);
            by_time.then(other.ended.cmp(&one.ended))
        });
        let mut steps: Vec<(f64, f64)> = Vec::new();
        let mut longer = 1.0;
        for (before, time) in seen.iter().enumerate() {
            if time.ended {
                longer *= 1.0 - 1.0 / (seen.len() - before) as f64;
                match steps.last_mut() {
                    Some(last) if last.0 == time.seconds => last.1 = longer,
                    _ => steps.push((time.seconds, longer)),
                }
            }
        }
        Self {
            steps,
            ended: seen.iter().filter(|time| time.ended).count(),
            watched_seconds: seen.iter().map(|time| time.seconds).sum(),
            longest: seen.last().map_or(0.0, |time| time.seconds),
        }
    }

    /// How many were observed to their end.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ended
    }

    /// Ends per second of observation: the likeliest rate if durations are exponential. Zero if none ended.
    #[must_use]
    pub fn rate(&self) -> f64 {
        if self.ended == 0 {
            return 0.0;
        }
        self.ended as f64 / self.watched_seconds.max(f64::MIN_POSITIVE)
    }

    /// The share that is longer than this.
    #[must_use]
    pub fn longer_than(&self, seconds: f64) -> f64 {
        let until = self.steps.partition_point(|(time, _)| *time <= seconds);
        until.checked_sub(1).map_or(1.0, |last| self.steps[last].1)
    }

    /// The duration in seconds that this share (0 to 1) does not exceed; `None` if fewer were
    /// observed to their end.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<f64> {
        let enough = self
            .steps
            .partition_point(|(_, longer)| *longer > 1.0 - part + 1e-12);
        self.steps.get(enough).map(|(time, _)| *time)
    }

    /// `count` durations with this distribution. The longest stands for those whose end was not observed.
    #[must_use]
    pub fn sample(&self, count: usize) -> Vec<f64> {
        (0..count)
            .map(|number| (number as f64 + 0.5) / count as f64)
            .map(|part| self.percentile(part).unwrap_or(self.longest))
            .collect()
    }

    /// The mean in seconds; durations that were not observed to their end count as the longest.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let mut sum = 0.0;
        let (mut since, mut longer) = (0.0, 1.0);
        for &(time, next) in &self.steps {
            sum += (time - since) * longer;
            (since, longer) = (time, next);
        }
        sum + (self.longest - since) * longer
    }

    /// The longest in seconds, whether observed to its end or not.
    #[must_use]
    pub fn longest(&self) -> f64 {
        self.longest
    }

    /// The largest difference between this and `longer_than`, from 0 to 1 (Kolmogorov's distance).
    #[must_use]
    pub fn distance(&self, longer_than: impl Fn(f64) -> f64) -> f64 {
        let mut before = 1.0;
        let mut most: f64 = 0.0;
        for &(time, after) in &self.steps {
            let expected = longer_than(time);
            most = most
                .max((before - expected).abs())
                .max((after - expected).abs());
            before = after;
        }
        most
    }

    /// Points of a plot: seconds, and the share that is longer.
    #[must_use]
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let mut curve = vec![(0.0, 1.0)];
        let mut before = 1.0;
        for &(time, after) in &self.steps {
            curve.extend([(time, before), (time, after)]);
            before = after;
        }
        curve
    }
}

#[cfg(test)]
mod tests {
    use super::{Seen, Survival};

    fn survival(times: &[(f64, bool)]) -> Survival {
        let seen = |&(seconds, ended)| Seen { seconds, ended };
        Survival::of(times.iter().map(seen).collect())
    }

    #[test]
    fn without_censoring_it_is_what_was_counted() {
        let all = survival(&[(3.0, true), (1.0, true), (2.0, true), (2.0, true)]);
        assert_eq!(all.longer_than(0.5), 1.0);
        assert_eq!(all.longer_than(1.0), 0.75);
        assert_eq!(all.longer_than(2.0), 0.25);
        assert_eq!(all.percentile(0.5), Some(2.0));
        assert_eq!(all.percentile(0.99), Some(3.0));
        assert!((all.mean() - 2.0).abs() < 1e-12);
        assert!((all.rate() - 0.5).abs() < 1e-12);
    }

    /// The data of Freireich and others 1963, the standard example in textbooks on survival.
    #[test]
    fn it_is_kaplan_and_meiers_estimate() {
        let ended = [6, 6, 6, 7, 10, 13, 16, 22, 23].map(|weeks| (f64::from(weeks), true));
        let lost =
            [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35].map(|weeks| (f64::from(weeks), false));
        let weeks = survival(&[&ended[..], &lost[..]].concat());
        for (time, longer) in [
            (6.0, 0.857),
            (7.0, 0.807),
            (13.0, 0.690),
            (16.0, 0.627),
            (23.0, 0.448),
        ] {
            assert!((weeks.longer_than(time) - longer).abs() < 5e-4, "{time}");
        }
        assert_eq!(weeks.percentile(0.5), Some(23.0));
        assert_eq!(weeks.percentile(0.9), None);
        assert!((weeks.rate() - 9.0 / 359.0).abs() < 1e-12);
    }

    #[test]
    fn a_sample_is_distributed_alike() {
        let times: Vec<_> = (1..=1000)
            .map(|time| (f64::from(time), time % 3 > 0))
            .collect();
        let times = survival(&times);
        let sample = times.sample(2000);
        for time in [10.0, 300.0, 700.0, 990.0] {
            let longer = sample.iter().filter(|one| **one > time).count() as f64 / 2000.0;
            assert!((longer - times.longer_than(time)).abs() < 1e-3, "{time}");
        }
    }

    #[test]
    fn nothing_has_no_distribution() {
        let nothing = survival(&[]);
        assert_eq!(
            (nothing.rate(), nothing.percentile(0.5), nothing.mean()),
            (0.0, None, 0.0)
        );
    }
}
