//! Whether the clock can be believed when rows are deleted because of their age.
//!
//! A machine may start with a clock that is far ahead, until its time is set over the network. Then all rows look older
//! than their term. But after a vacation they are, and the clock is right. So after a leap, nothing is deleted until
//! the clock has gone on for an hour without another one.
//!
//! **Invariant:** pure.

use std::time::Duration;
use tokio::time::Instant;

/// The shortest leap. Idle nights are shorter.
const LEAP_MS: i64 = 24 * 3600 * 1000;
const DOUBTED_FOR: Duration = Duration::from_secs(3600);
/// How far a clock that is not set again may deviate in this hour.
const STEADY_MS: i64 = 60_000;

pub(super) struct Clock {
    /// The last time that was believed.
    believed_ms: i64,
    doubted: Option<Doubted>,
}

/// What the clock said after a leap, and when.
#[derive(Clone, Copy)]
struct Doubted {
    ms: i64,
    at: Instant,
}

impl Clock {
    /// `newest_ms`: the newest time that the database has from before this process.
    pub(super) fn new(newest_ms: i64) -> Self {
        Self {
            believed_ms: newest_ms,
            doubted: None,
        }
    }

    /// Call it regularly. Returns whether rows may be deleted now.
    pub(super) fn is_believed(&mut self, now_ms: i64, at: Instant) -> bool {
        let leap_ms = now_ms.saturating_sub(self.believed_ms);
        let waited = |doubted: Doubted| {
            let passed = at.saturating_duration_since(doubted.at);
            let passed_ms = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
            let deviation_ms = now_ms.saturating_sub(doubted.ms).saturating_sub(passed_ms);
            (deviation_ms.abs() < STEADY_MS).then_some(passed)
        };
        let waited = self.doubted.and_then(waited);
        if leap_ms < LEAP_MS || waited.is_some_and(|waited| waited >= DOUBTED_FOR) {
            self.believed_ms = now_ms;
            self.doubted = None;
            return true;
        }
        if waited.is_none() {
            tracing::info!(
                "The clock is {} days after the last time that is known; nothing old is deleted for an hour, in case it is wrong",
                leap_ms / LEAP_MS
            );
            self.doubted = Some(Doubted { ms: now_ms, at });
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: i64 = 60_000;
    const DAY_MS: i64 = 24 * 60 * MINUTE_MS;

    /// Looks every minute, and returns after how many minutes the clock was believed.
    fn believed_after(clock: &mut Clock, now_ms: i64, minutes: i64) -> Option<i64> {
        let begin = Instant::now();
        (0..minutes).find(|minute| {
            let at = begin + Duration::from_secs(60 * minute.unsigned_abs());
            clock.is_believed(now_ms + minute * MINUTE_MS, at)
        })
    }

    #[test]
    fn a_clock_without_a_leap_is_believed_at_once() {
        let mut clock = Clock::new(DAY_MS);
        for now_ms in [DAY_MS, 2 * DAY_MS - 1, DAY_MS] {
            assert_eq!(believed_after(&mut clock, now_ms, 1), Some(0));
        }
    }

    #[test]
    fn after_a_vacation_the_clock_is_believed_an_hour_later() {
        let mut clock = Clock::new(0);
        assert_eq!(believed_after(&mut clock, 30 * DAY_MS, 99), Some(60));
        assert_eq!(believed_after(&mut clock, 30 * DAY_MS, 99), Some(0));
    }

    #[test]
    fn a_wrong_clock_that_is_set_right_deletes_nothing() {
        let mut clock = Clock::new(DAY_MS);
        assert_eq!(believed_after(&mut clock, 900 * DAY_MS, 59), None);
        assert_eq!(believed_after(&mut clock, DAY_MS + MINUTE_MS, 1), Some(0));
        // Another leap begins another hour.
        assert_eq!(believed_after(&mut clock, 900 * DAY_MS, 59), None);
        assert_eq!(believed_after(&mut clock, 800 * DAY_MS, 99), Some(60));
    }
}
