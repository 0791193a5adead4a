//! What each person used of the GPU lately.

use std::{collections::BTreeMap, time::Duration};

use crate::UserId;

/// Seconds, halved every half-life. All of them fade alike, so what is stored grows instead, by a common unit.
#[derive(Debug)]
pub(crate) struct Accounts {
    stored: BTreeMap<UserId, f64>,
    unit: f64,
}

/// Below this many seconds an account is as good as empty.
const EMPTY: f64 = 1e-6;

/// A larger unit makes numbers too large.
const LARGEST_UNIT: f64 = 1e30;

impl Default for Accounts {
    fn default() -> Self {
        Self {
            stored: BTreeMap::new(),
            unit: 1.0,
        }
    }
}

impl Accounts {
    pub(crate) fn used(&self, user: UserId) -> f64 {
        let used = self
            .stored
            .get(&user)
            .map_or(0.0, |stored| stored / self.unit);
        if used > EMPTY { used } else { 0.0 }
    }

    pub(crate) fn charge(&mut self, user: UserId, time: Duration) {
        *self.stored.entry(user).or_default() += time.as_secs_f64() * self.unit;
    }

    pub(crate) fn decay(&mut self, elapsed: Duration, half_life: Duration) {
        self.unit *= (elapsed.as_secs_f64() / half_life.as_secs_f64()).exp2();
        if self.unit > LARGEST_UNIT {
            let unit = std::mem::replace(&mut self.unit, 1.0);
            self.stored.retain(|_, stored| {
                *stored /= unit;
                *stored > EMPTY
            });
        }
    }
}
