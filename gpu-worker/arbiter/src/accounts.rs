//! What each person used of the GPU lately.

use std::{collections::BTreeMap, time::Duration};

use crate::UserId;

/// Seconds, halved every half-life.
#[derive(Debug, Default)]
pub(crate) struct Accounts(BTreeMap<UserId, f64>);

/// Below this many seconds an account is as good as empty.
const EMPTY: f64 = 1e-6;

impl Accounts {
    pub(crate) fn used(&self, user: UserId) -> f64 {
        self.0.get(&user).copied().unwrap_or(0.0)
    }

    pub(crate) fn charge(&mut self, user: UserId, time: Duration) {
        *self.0.entry(user).or_default() += time.as_secs_f64();
    }

    pub(crate) fn decay(&mut self, elapsed: Duration, half_life: Duration) {
        let factor = (-elapsed.as_secs_f64() / half_life.as_secs_f64()).exp2();
        self.0.retain(|_, used| {
            *used *= factor;
            *used > EMPTY
        });
    }
}
