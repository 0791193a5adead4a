//! What each person used of the GPU lately.

use std::{collections::BTreeMap, time::Duration};

use crate::arbiter::UserId;

/// Seconds, halved every half-life. All of them fade alike, so what is stored grows instead, by a common unit.
#[derive(Debug)]
pub(crate) struct Accounts {
    of: BTreeMap<UserId, Account>,
    stored: Vec<f64>,
    unit: f64,
}

/// One person's, by its number: what is looked at with every decision is not searched for.
pub(crate) type Account = usize;

/// Below this many seconds an account is as good as empty.
const EMPTY: f64 = 1e-6;

/// A larger unit makes numbers too large.
const LARGEST_UNIT: f64 = 1e30;

impl Default for Accounts {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            stored: Vec::new(),
            unit: 1.0,
        }
    }
}

impl Accounts {
    /// The same one for all sessions of a person.
    pub(crate) fn open(&mut self, user: UserId) -> Account {
        let number = *self.of.entry(user).or_insert(self.stored.len());
        if number == self.stored.len() {
            self.stored.push(0.0);
        }
        number
    }

    pub(crate) fn used(&self, account: Account) -> f64 {
        let used = self.stored[account] / self.unit;
        if used > EMPTY { used } else { 0.0 }
    }

    pub(crate) fn charge(&mut self, account: Account, time: Duration) {
        self.stored[account] += time.as_secs_f64() * self.unit;
    }

    pub(crate) fn decay(&mut self, elapsed: Duration, half_life: Duration) {
        self.unit *= (elapsed.as_secs_f64() / half_life.as_secs_f64()).exp2();
        if self.unit > LARGEST_UNIT {
            let unit = std::mem::replace(&mut self.unit, 1.0);
            for stored in &mut self.stored {
                let used = *stored / unit;
                *stored = if used > EMPTY { used } else { 0.0 };
            }
        }
    }
}
