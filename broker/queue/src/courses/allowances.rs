//! Allowances: GPU time that staff grant for a while, beyond the budget of a course.
//!
//! **Invariant:** pure.

use super::Wrong;
use crate::Account;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Bounds the memory for the names that the staff of one course invent.
const MOST_IN_COURSE: usize = 5000;

/// GPU time that is added to the budget of each period until the allowance ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    pub extra_ms: u64,
    pub until_ms: i64,
    /// Who granted it; `None` for the broker's own token.
    pub by: Option<String>,
}

/// What one account may use beyond its budget at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extra {
    pub ms: u64,
    /// When the first part of it ends; `None` if there is nothing.
    pub until_ms: Option<i64>,
}

/// Each account has at most one allowance. An empty owner stands for everyone in the course.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Allowances(pub BTreeMap<Account, Allowance>);

impl Allowances {
    /// The allowances of a course that have not ended, by person; that of everyone comes first.
    pub fn of_course(&self, course: &str, now_ms: i64) -> impl Iterator<Item = (&str, &Allowance)> {
        let all = self.0.iter();
        all.filter(move |(account, allowance)| {
            account.course == course && allowance.until_ms > now_ms
        })
        .map(|(account, allowance)| (account.owner.as_str(), allowance))
    }

    pub fn has(&self, account: &Account, now_ms: i64) -> bool {
        self.of(account, now_ms).is_some()
    }

    fn of(&self, account: &Account, now_ms: i64) -> Option<&Allowance> {
        let found = self.0.get(account);
        found.filter(|allowance| allowance.until_ms > now_ms)
    }

    pub fn extra(&self, account: &Account, now_ms: i64) -> Extra {
        let everyone = everyone(&account.course);
        let keys = [Some(account), (*account != everyone).then_some(&everyone)];
        let counting = keys
            .into_iter()
            .flatten()
            .filter_map(|key| self.of(key, now_ms));
        counting.fold(Extra::default(), |sum, allowance| Extra {
            ms: sum.ms.saturating_add(allowance.extra_ms),
            until_ms: sum.until_ms.into_iter().chain([allowance.until_ms]).min(),
        })
    }

    /// Grants an allowance, which replaces an earlier one of the same account. Forgets those that have ended.
    pub fn grant(&mut self, account: Account, allowance: Allowance, now_ms: i64) {
        self.0.retain(|_, earlier| earlier.until_ms > now_ms);
        self.0.insert(account, allowance);
    }

    /// The most that one person would have beyond the budget if this account got `extra_ms`.
    pub(super) fn most_with(&self, account: &Account, extra_ms: u64, now_ms: i64) -> u64 {
        let others = match account.owner.is_empty() {
            true => self
                .of_course(&account.course, now_ms)
                .filter(|(owner, _)| !owner.is_empty())
                .map(|(_, allowance)| allowance.extra_ms)
                .max(),
            false => self
                .of(&everyone(&account.course), now_ms)
                .map(|allowance| allowance.extra_ms),
        };
        extra_ms.saturating_add(others.unwrap_or(0))
    }

    /// Checks an allowance, whoever grants it.
    pub fn check(
        &self,
        account: &Account,
        allowance: &Allowance,
        now_ms: i64,
    ) -> Result<(), Wrong> {
        if allowance.extra_ms == 0 {
            return Err(Wrong::new("gpu_time_ms", "must be above 0"));
        }
        if allowance.until_ms <= now_ms || Timestamp::from_millisecond(allowance.until_ms).is_err()
        {
            return Err(Wrong::new("until_ms", "must be a time in the future"));
        }
        let known = self.of_course(&account.course, now_ms).count();
        if known >= MOST_IN_COURSE && !self.0.contains_key(account) {
            let says = format!(
                "must be left out: the course already has allowances for {MOST_IN_COURSE} people, so grant one to everyone"
            );
            return Err(Wrong::new("person", says));
        }
        Ok(())
    }
}

pub fn everyone(course: &str) -> Account {
    Account {
        owner: String::new(),
        course: course.to_owned(),
    }
}
