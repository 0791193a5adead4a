//! How long cells ran: what an estimate is made of.
//!
//! In: runs that ended by themselves. Out: the [`Spread`] of what a cell is likely to take: that of its own last
//! runs, else of its person's in the course, else of the course's; nothing where nothing is known.
//! A cell is known by a key that says nothing of its code.
//!
//! **Invariant:** pure; at most [`MOST_RUNS`] runs are remembered.

use crate::{Account, Spread};
use baton_protocol::CellKey;
use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

pub const MOST_RUNS: usize = 20_000;
/// Older runs of the same kind say less.
const LOOK_AT: usize = 24;

#[derive(Debug, Clone)]
pub struct Run {
    pub cell: Option<CellKey>,
    pub account: Account,
    pub run_ms: u64,
}

#[derive(Debug, Clone, Default)]
pub struct History {
    runs: VecDeque<Run>,
    of_cell: Recent<CellKey>,
    of_account: Recent<Account>,
    of_course: Recent<String>,
}

#[derive(Debug, Clone)]
struct Recent<Key>(HashMap<Key, VecDeque<u64>>);

impl<Key> Default for Recent<Key> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl History {
    /// The oldest run first.
    #[must_use]
    pub fn of(runs: impl IntoIterator<Item = Run>) -> Self {
        let mut history = Self::default();
        for run in runs {
            history.add(run);
        }
        history
    }

    pub fn add(&mut self, run: Run) {
        if let Some(cell) = run.cell {
            self.of_cell.add(cell, run.run_ms);
        }
        self.of_account.add(run.account.clone(), run.run_ms);
        self.of_course.add(run.account.course.clone(), run.run_ms);
        self.runs.push_back(run);
        if self.runs.len() > MOST_RUNS
            && let Some(oldest) = self.runs.pop_front()
        {
            if let Some(cell) = oldest.cell {
                self.of_cell.drop_oldest(&cell);
            }
            self.of_account.drop_oldest(&oldest.account);
            self.of_course.drop_oldest(&oldest.account.course);
        }
    }

    /// What a cell that has run for a while takes in all.
    #[must_use]
    pub fn spread(
        &self,
        cell: Option<CellKey>,
        account: &Account,
        already_ms: u64,
        limit_ms: Option<u64>,
    ) -> Option<Spread> {
        let of_cell = cell.and_then(|cell| self.of_cell.longer_than(&cell, already_ms));
        let known = of_cell
            .or_else(|| self.of_account.longer_than(account, already_ms))
            .or_else(|| self.of_course.longer_than(&account.course, already_ms));
        let limit = limit_ms.unwrap_or(u64::MAX);
        match known {
            Some(runs) => Some(spread_of(&runs).map(|ms| ms.min(limit))),
            // Longer than any before: only its end is known.
            None if already_ms > 0 => limit_ms.map(|limit| Spread {
                lower: already_ms.min(limit),
                middle: already_ms.midpoint(limit),
                upper: limit,
            }),
            None => None,
        }
    }
}

impl<Key: Hash + Eq> Recent<Key> {
    fn add(&mut self, key: Key, run_ms: u64) {
        self.0.entry(key).or_default().push_back(run_ms);
    }

    fn drop_oldest(&mut self, key: &Key) {
        if let Some(runs) = self.0.get_mut(key) {
            runs.pop_front();
            if runs.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// Sorted; `None` when there are none.
    fn longer_than(&self, key: &Key, already_ms: u64) -> Option<Vec<u64>> {
        let runs = self.0.get(key)?.iter().rev().take(LOOK_AT).copied();
        let mut runs: Vec<u64> = runs.filter(|run_ms| *run_ms >= already_ms).collect();
        runs.sort_unstable();
        (!runs.is_empty()).then_some(runs)
    }
}

fn spread_of(sorted: &[u64]) -> Spread {
    let last = sorted.len() - 1;
    Spread {
        lower: sorted[last / 10],
        middle: sorted[last / 2],
        upper: sorted[last - last / 10],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CELL: CellKey = CellKey([1; 16]);

    fn account(owner: &str, course: &str) -> Account {
        let (owner, course) = (owner.to_owned(), course.to_owned());
        Account { owner, course }
    }

    fn run(cell: Option<CellKey>, owner: &str, course: &str, run_ms: u64) -> Run {
        let account = account(owner, course);
        Run {
            cell,
            account,
            run_ms,
        }
    }

    #[test]
    fn the_nearest_kin_counts() {
        let history = History::of([
            run(Some(CELL), "ada", "ml", 10),
            run(None, "ada", "ml", 20),
            run(None, "bob", "ml", 30),
        ]);
        let middle = |cell, owner, course| {
            let spread = history.spread(cell, &account(owner, course), 0, None);
            spread.map(|spread| spread.middle)
        };
        assert_eq!(middle(Some(CELL), "eve", "x"), Some(10));
        assert_eq!(middle(None, "bob", "ml"), Some(30));
        assert_eq!(middle(Some(CellKey([2; 16])), "eve", "ml"), Some(20));
        assert_eq!(middle(None, "ada", "x"), None);
    }

    #[test]
    fn a_range_leaves_out_the_strange_runs_and_stays_below_the_limit() {
        let history =
            History::of((1..=24).map(|number| run(Some(CELL), "ada", "ml", number * 100)));
        let spread =
            |already, limit| history.spread(Some(CELL), &account("ada", "ml"), already, limit);
        let known = spread(0, None).unwrap();
        assert_eq!((known.lower, known.middle, known.upper), (300, 1200, 2200));
        assert_eq!(spread(0, Some(1000)).unwrap().upper, 1000);
        // A run that goes on is one of the longer ones.
        assert_eq!(spread(2350, None).unwrap().middle, 2400);
        assert_eq!(spread(2500, None), None);
    }

    #[test]
    fn old_runs_are_forgotten() {
        let first = [run(Some(CELL), "ada", "ml", 1)];
        let others = (0..MOST_RUNS).map(|_| run(None, "bob", "ml", 2));
        let history = History::of(first.into_iter().chain(others));
        assert_eq!(history.runs.len(), MOST_RUNS);
        assert!(history.of_cell.0.is_empty() && history.of_account.0.len() == 1);
    }
}
