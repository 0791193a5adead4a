//! How much GPU time each person has used recently.

use crate::arbiter::UserId;
use std::{collections::BTreeMap, time::Duration};

/// Seconds of GPU time, halved with every half-life. Instead of reducing all stored values, `unit` grows: seconds
/// are multiplied by it when they are stored, and divided by it when they are read.
#[derive(Debug)]
pub(crate) struct Accounts {
    of: BTreeMap<UserId, Account>,
    stored: Vec<f64>,
    unit: f64,
}

/// The index of one person's account, because every decision reads accounts and should not search for them.
pub(crate) type Account = usize;

/// Below this many seconds, an account counts as empty.
const EMPTY: f64 = 1e-6;

/// Above this unit the stored values would become too large, so they are converted.
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
    /// Returns the account of `user`, which all sessions of that person share.
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
