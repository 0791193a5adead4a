//! The share of time that cells of the lowest level get even while cells of other levels wait.

use crate::arbiter::{Settings, sessions::Sessions};
use std::time::Duration;

/// Coarser than the rounding of seconds in an `f64`.
const PRECISION: Duration = Duration::from_micros(1);

#[derive(Debug, Default)]
pub(crate) struct GuaranteedShare {
    /// Seconds of it that the lowest level has not had.
    debt: f64,
    /// The debt reached a whole slice, and is not paid off yet.
    is_overdue: bool,
}

impl GuaranteedShare {
    pub(crate) fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// This much time has passed.
    pub(crate) fn charge(&mut self, elapsed: Duration, sessions: &Sessions, settings: &Settings) {
        if lowest_computes(sessions, settings) {
            self.debt = (self.debt - elapsed.as_secs_f64()).max(0.0);
        } else if lowest_waits(sessions, settings) {
            self.debt += elapsed.as_secs_f64() * settings.guaranteed_share;
        } else {
            self.debt = 0.0;
        }
        let slice = settings.guaranteed_slice.as_secs_f64();
        self.is_overdue = self.debt >= slice || (self.is_overdue && self.debt > 0.0);
    }

    /// How long until it is overdue, if nothing happens before.
    pub(crate) fn overdue_in(&self, sessions: &Sessions, settings: &Settings) -> Option<Duration> {
        let left = settings.guaranteed_slice.as_secs_f64() - self.debt;
        let share = settings.guaranteed_share;
        let grows =
            share > 0.0 && lowest_waits(sessions, settings) && !lowest_computes(sessions, settings);
        (grows && !self.is_overdue)
            .then(|| Duration::from_secs_f64(left.max(0.0) / share) + PRECISION)
    }
}

fn lowest_computes(sessions: &Sessions, settings: &Settings) -> bool {
    let mut computing = sessions.computing();
    computing.any(|(_, session)| settings.level(session.attained) == settings.lowest())
}

fn lowest_waits(sessions: &Sessions, settings: &Settings) -> bool {
    sessions.any_waits_in(settings.lowest())
}
