//! Log lines about something that strangers can cause as often as they like: one a minute, with a count.
//!
//! **Invariant:** pure; the caller passes the time and writes the line.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Seldom(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    last: Option<Instant>,
    since: u64,
}

impl Seldom {
    /// Counts an occurrence. Returns how many there were since the last line if it is time for the next.
    pub(super) fn count(&self, now: Instant) -> Option<u64> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.since += 1;
        let is_due = |last| now.saturating_duration_since(last) >= EVERY;
        if !counted.last.is_none_or(is_due) {
            return None;
        }
        counted.last = Some(now);
        Some(std::mem::take(&mut counted.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_line_a_minute_with_a_count() {
        let seldom = Seldom::default();
        let start = Instant::now();
        let lines: Vec<(u64, u64)> = (0..1200)
            .filter_map(|tenths| {
                let now = start + Duration::from_millis(tenths * 100);
                Some((tenths, seldom.count(now)?))
            })
            .collect();
        assert_eq!(lines, [(0, 1), (600, 600)]);
    }
}
