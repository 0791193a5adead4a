//! How long something is likely to take, as equally likely times.

use std::sync::Arc;

/// In milliseconds: nine of ten take longer than `lower`, half of them longer than `middle`, one of
/// ten longer than `upper`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    pub lower: u64,
    pub middle: u64,
    pub upper: u64,
}

/// Equally likely times in milliseconds, the shortest first; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times(Arc<[u64]>);

impl Spread {
    #[must_use]
    pub fn map(self, change: impl Fn(u64) -> u64) -> Self {
        Self {
            lower: change(self.lower),
            middle: change(self.middle),
            upper: change(self.upper),
        }
    }
}

impl Times {
    /// The number of points of a weighted sample.
    const POINTS: usize = 40;

    /// `None` when there are none.
    #[must_use]
    pub fn of(times: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut times: Vec<u64> = times.into_iter().collect();
        times.sort_unstable();
        (!times.is_empty()).then(|| Self(times.into()))
    }

    #[must_use]
    pub fn exactly(ms: u64) -> Self {
        Self([ms].into())
    }

    /// From times with weights, which need not add up to 1. `None` if all weights are zero.
    pub(crate) fn weighted(mut times: Vec<(u64, f64)>) -> Option<Self> {
        times.sort_unstable_by_key(|(ms, _)| *ms);
        let all: f64 = times.iter().map(|(_, weight)| weight).sum();
        let mut times = times.into_iter();
        let (mut ms, mut until) = times.next()?;
        let points = (0..Self::POINTS).map(|point| {
            let wanted = all * (point as f64 + 0.5) / Self::POINTS as f64;
            while until < wanted
                && let Some((next, weight)) = times.next()
            {
                ms = next;
                until += weight;
            }
            ms
        });
        (all > 0.0).then(|| Self(points.collect()))
    }

    #[must_use]
    pub fn map(&self, change: impl Fn(u64) -> u64) -> Self {
        Self(self.0.iter().map(|ms| change(*ms)).collect())
    }

    pub(crate) fn all(&self) -> &[u64] {
        &self.0
    }

    /// The time that this share (0 to 1) does not exceed.
    #[must_use]
    pub fn at(&self, part: f64) -> u64 {
        let last = self.0.len() - 1;
        let place = (part * self.0.len() as f64 - 0.5).clamp(0.0, last as f64);
        let (low, beyond) = (place as usize, place.fract());
        let (from, to) = (self.0[low], self.0[(low + 1).min(last)]);
        from + ((to - from) as f64 * beyond) as u64
    }

    /// The remaining time of those that are longer than `already_ms`. `None` if none is.
    #[must_use]
    pub fn longer_than(&self, already_ms: u64) -> Option<Self> {
        let longer = self.0.iter().filter(|ms| **ms > already_ms);
        Self::of(longer.map(|ms| ms - already_ms))
    }

    #[must_use]
    pub fn middle(&self) -> u64 {
        self.at(0.5)
    }
}
