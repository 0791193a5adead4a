//! What is known of the past: how long cells ran, how long sessions took to start, and when people return.
//!
//! In: submissions, starts and ends as they happen. Out: the [`Outlook`] from which an estimate is made. A cell
//! is expected to take as long as its own last runs; the more of those there are, the more they count.
//! Otherwise the person's runs in the course count, and otherwise the course's. If nothing is known, nothing is
//! predicted. A cell is identified by a key that does not reveal its code.
//!
//! **Invariant:** pure; at most [`MOST_RUNS`] runs are remembered, and people who left are forgotten.

use crate::queue::{
    Account, Precedence,
    outlook::{CourseOutlook, Expected, Outlook, Returning},
    survival::{Seen, Survival},
    times::Times,
};
use baton_protocol::CellKey;
use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    hash::Hash,
};

pub const MOST_RUNS: usize = 20_000;
/// The number of runs to look at; older runs of the same kind say less.
const LOOK_AT: usize = 24;
const LOOK_AT_IN_COURSE: usize = 24;
/// A person who submits nothing for this long after a cell has left.
const ABSENT_MS: i64 = 1_800_000;
/// A course's last pauses between two cells.
const MOST_PAUSES: usize = 300;
const MOST_STARTS: usize = 60;
/// Arrivals of new people in this period predict how many more will come.
const NEWCOMERS_MS: i64 = 600_000;
const MOST_NEWCOMERS: usize = 200;
/// With fewer runs, a course says too little about other cells.
const FEWEST_RUNS: usize = 5;

#[derive(Debug, Clone)]
pub struct Run {
    pub cell: Option<CellKey>,
    pub account: Account,
    pub run_ms: u64,
}

/// A run with the times of its job, loaded from the store.
#[derive(Debug, Clone)]
pub struct PastRun {
    pub run: Run,
    pub submitted_ms: i64,
    pub finished_ms: i64,
}

/// An unfinished job.
#[derive(Debug, Clone, Copy)]
pub struct Open<'job> {
    pub cell: Option<CellKey>,
    pub account: &'job Account,
    pub progress: Progress,
    pub limit_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Waits,
    /// A worker has the job, and its session is not ready yet.
    Starts {
        cold: bool,
        already_ms: u64,
    },
    Runs {
        already_ms: u64,
    },
}

#[derive(Debug, Clone, Default)]
pub struct History {
    runs: VecDeque<Run>,
    of_cell: Recent<CellKey>,
    of_account: Recent<Account>,
    of_course: Recent<String>,
    people: HashMap<Account, Person>,
    courses: HashMap<String, Comings>,
    /// Times from assignment to start: without a session, and with one.
    cold: VecDeque<u64>,
    warm: VecDeque<u64>,
}

#[derive(Debug, Clone)]
struct Recent<Key>(HashMap<Key, VecDeque<u64>>);

#[derive(Debug, Clone, Copy, Default)]
struct Person {
    open: u32,
    /// When the person's last job ended.
    since_ms: i64,
}

/// When the people of a course submit cells.
#[derive(Debug, Clone, Default)]
struct Comings {
    pauses: VecDeque<Seen>,
    /// When new people came.
    newcomers: VecDeque<i64>,
    /// How much more the present differs from the past than usual, as a logarithm. Estimated from
    /// ranges that missed.
    stranger: f64,
}

impl<Key> Default for Recent<Key> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl History {
    /// The history of these runs, ordered by their end.
    #[must_use]
    pub fn of(runs: impl IntoIterator<Item = PastRun>) -> Self {
        let mut history = Self::default();
        for past in runs {
            history.submitted(&past.run.account, past.submitted_ms);
            history.ended(&past.run.account, past.finished_ms);
            history.add(past.run);
        }
        history
    }

    /// Adds a run that ended by itself.
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

    /// Records a submission. Call this for each job, even if it never runs.
    pub fn submitted(&mut self, account: &Account, at_ms: i64) {
        let known = self.people.get(account).copied();
        let course = self.courses.entry(account.course.clone()).or_default();
        match known {
            Some(Person { open: 1.., .. }) => {}
            Some(Person { since_ms, .. }) if at_ms - since_ms <= ABSENT_MS => {
                push(
                    &mut course.pauses,
                    seen(at_ms - since_ms, true),
                    MOST_PAUSES,
                );
            }
            known => {
                if known.is_some() {
                    push(&mut course.pauses, seen(ABSENT_MS, false), MOST_PAUSES);
                }
                push(&mut course.newcomers, at_ms, MOST_NEWCOMERS);
            }
        }
        self.people.entry(account.clone()).or_default().open += 1;
    }

    /// Records the end of a submitted job, however it ended.
    pub fn ended(&mut self, account: &Account, at_ms: i64) {
        if let Some(person) = self.people.get_mut(account) {
            person.open = person.open.saturating_sub(1);
            person.since_ms = at_ms;
        }
        let here = |person: &Person| person.open > 0 || at_ms - person.since_ms <= 2 * ABSENT_MS;
        self.people.retain(|_, person| here(person));
    }

    /// Records how long a session took from the assignment to the start of the cell.
    pub fn started(&mut self, cold: bool, took_ms: u64) {
        let starts = if cold { &mut self.cold } else { &mut self.warm };
        push(starts, took_ms, MOST_STARTS);
    }

    /// Learns from a job that started after `started`. `ranges` are the ranges that were estimated
    /// for it before, oldest first.
    pub fn started_after(&mut self, account: &Account, ranges: &[(u64, u64)], started: u64) {
        let Some((first, later)) = ranges.split_first() else {
            return;
        };
        let missed = |(from, to): &(u64, u64)| f64::from(!(*from..=*to).contains(&started));
        let of_later = later.iter().map(missed).sum::<f64>() / later.len().max(1) as f64;
        let missed = match later.is_empty() {
            true => missed(first),
            false => missed(first).midpoint(of_later),
        };
        let course = self.courses.entry(account.course.clone()).or_default();
        let stranger = course.stranger + LEARNING * (missed - MISSES);
        course.stranger = stranger.clamp(-STRANGEST, STRANGEST);
    }

    /// How much longer a cell is likely to take that has run for `already_ms`.
    #[must_use]
    pub fn takes(
        &self,
        cell: Option<CellKey>,
        account: &Account,
        already_ms: u64,
        limit_ms: Option<u64>,
    ) -> Option<Times> {
        let of_course = self.of_course(&account.course);
        self.takes_like(cell, account, of_course.as_ref(), already_ms, limit_ms)
    }

    /// The share of a job's expected duration that comes from runs of the same cell, from 0 to 1.
    fn of_its_own(&self, job: &Open<'_>) -> f64 {
        let Some(runs) = job.cell.and_then(|cell| self.of_cell.last(&cell, LOOK_AT)) else {
            return 0.0;
        };
        let already_ms = match job.progress {
            Progress::Runs { already_ms } => already_ms,
            Progress::Waits | Progress::Starts { .. } => 0,
        };
        match runs.iter().any(|run| *run > already_ms) {
            true => runs.len() as f64 / (runs.len() as f64 + OTHERS_WITH_OWN),
            false => 0.0,
        }
    }

    /// The run times of a course. `None` if there are too few.
    fn of_course(&self, course: &str) -> Option<Times> {
        let runs = self.of_course.last(course, LOOK_AT_IN_COURSE)?;
        let runs = Some(runs).filter(|runs| runs.len() >= FEWEST_RUNS)?;
        Times::weighted(runs.into_iter().map(|run| (run, 1.0)).collect())
    }

    fn takes_like(
        &self,
        cell: Option<CellKey>,
        account: &Account,
        of_course: Option<&Times>,
        already_ms: u64,
        limit_ms: Option<u64>,
    ) -> Option<Times> {
        let limit = limit_ms.unwrap_or(u64::MAX);
        let of_cell = cell.and_then(|cell| self.of_cell.last(&cell, LOOK_AT));
        if of_cell.is_none() && of_course.is_none() {
            return None;
        }
        let of_account = self.of_account.last(account, LOOK_AT);
        let of_course = of_course.map(|times| times.all().to_vec());
        let mut known = Vec::new();
        let mut left = 1.0;
        // A few runs of this very cell count more than many runs of others.
        for (runs, others) in [
            (of_cell, OTHERS_WITH_OWN),
            (of_account, OTHERS_WITH_PERSON),
            (of_course, 0.0),
        ] {
            let Some(runs) = runs else { continue };
            let part = left * runs.len() as f64 / (runs.len() as f64 + others);
            let each = part / (runs.len() * AROUND.len()) as f64;
            known.extend(
                runs.iter()
                    .flat_map(|run| around(*run))
                    .map(|ms| (ms, each)),
            );
            left -= part;
        }
        // The run may take longer than any before; these factors stand for that unknown tail.
        let longest = known.iter().map(|(ms, _)| *ms).max().unwrap_or(0);
        let longer = longest.max(already_ms);
        known.extend([1.15, 1.6, 3.0].map(|factor| (scaled(longer, factor), 0.004)));
        known.retain(|(ms, _)| *ms > already_ms);
        let from_now =
            |(ms, weight): (u64, f64)| (ms.min(limit).saturating_sub(already_ms), weight);
        Times::weighted(known.into_iter().map(from_now).collect())
    }

    /// Everything except the order that an estimate needs: about `open` jobs, and about people who
    /// may submit, each with the precedence of their next job.
    #[must_use]
    pub fn outlook(
        &self,
        open: &[Open<'_>],
        now_ms: i64,
        precedence: impl Fn(&Account) -> Precedence,
    ) -> Outlook {
        let starting =
            |cold: bool| Times::of(if cold { &self.cold } else { &self.warm }.iter().copied());
        let mut courses: Vec<&str> = open.iter().map(|job| &*job.account.course).collect();
        courses.extend(self.people.keys().map(|account| &*account.course));
        courses.sort_unstable();
        courses.dedup();
        let number = |course: &str| courses.binary_search(&course).unwrap_or(0);
        let runs: Vec<Option<Times>> = courses
            .iter()
            .map(|course| self.of_course(course))
            .collect();
        let expected = |job: &Open<'_>| Expected {
            course: number(&job.account.course),
            of_its_own: self.of_its_own(job),
            starting: match job.progress {
                Progress::Starts { cold, already_ms } => {
                    let all = starting(cold);
                    all.map(|all| remaining(&all, already_ms))
                }
                Progress::Waits | Progress::Runs { .. } => None,
            },
            takes: {
                let already_ms = match job.progress {
                    Progress::Runs { already_ms } => already_ms,
                    _ => 0,
                };
                let of_course = runs[number(&job.account.course)].as_ref();
                self.takes_like(job.cell, job.account, of_course, already_ms, job.limit_ms)
            },
        };
        let idle = self.people.iter().filter(|(_, person)| person.open == 0);
        let mut returning: Vec<Returning> = idle
            .filter(|(_, person)| now_ms - person.since_ms <= ABSENT_MS)
            .map(|(account, person)| Returning {
                owner: account.owner.as_str().into(),
                course: number(&account.course),
                precedence: precedence(account),
                absent_ms: (now_ms - person.since_ms).max(0).unsigned_abs(),
            })
            .collect();
        returning.sort_unstable_by(|one, other| {
            (&one.owner, one.course).cmp(&(&other.owner, other.course))
        });
        Outlook {
            jobs: open.iter().map(expected).collect(),
            courses: courses
                .iter()
                .zip(&runs)
                .map(|(course, runs)| self.course(course, runs.clone(), now_ms, &precedence))
                .collect(),
            returning,
            cold: starting(true),
            warm: starting(false),
        }
    }

    fn course(
        &self,
        course: &str,
        takes: Option<Times>,
        now_ms: i64,
        precedence: &impl Fn(&Account) -> Precedence,
    ) -> CourseOutlook {
        let nobody = Account {
            owner: String::new(),
            course: course.to_owned(),
        };
        let comings = self.courses.get(course);
        let mut pauses: Vec<Seen> =
            comings.map_or_else(Vec::new, |comings| comings.pauses.iter().copied().collect());
        let of_course = self
            .people
            .iter()
            .filter(|(account, _)| account.course == course);
        let idle = of_course.filter(|(_, person)| person.open == 0);
        pauses
            .extend(idle.map(|(_, person)| seen((now_ms - person.since_ms).min(ABSENT_MS), false)));
        let newcomers = comings.map_or_else(Vec::new, |comings| {
            let since = |at: &i64| now_ms - at;
            let ages = comings.newcomers.iter().map(since);
            ages.filter(|age| *age <= NEWCOMERS_MS).collect()
        });
        let watched_ms = newcomers
            .iter()
            .max()
            .copied()
            .unwrap_or(0)
            .max(60_000)
            .unsigned_abs();
        let runs = self.of_course.len(course).min(LOOK_AT_IN_COURSE);
        let stranger = comings.map_or(0.0, |comings| comings.stranger);
        let pauses = Survival::of(pauses);
        CourseOutlook {
            takes,
            unlike_runs: unlike(UNLIKE_RUNS, runs) * stranger.exp(),
            unlike_pauses: unlike(UNLIKE_PAUSES, pauses.ended()),
            pauses,
            // The first of them marks the start of the period, so it does not count.
            newcomers: newcomers.len().saturating_sub(1) as f64 / watched_ms as f64,
            newcomers_for_ms: watched_ms,
            newcomer: precedence(&nobody),
        }
    }
}

/// Factors around each past run, because no run takes exactly as long as the last.
const AROUND: [f64; 3] = [0.85, 1.0, 1.2];

/// The standard deviation of the logarithm of one run, or of one pause.
const UNLIKE_RUNS: f64 = 1.3;
const UNLIKE_PAUSES: f64 = 0.9;
/// The class moves on to other exercises, whose cells may all be longer or shorter.
const OTHER_EXERCISES: f64 = 0.15;

/// This many runs of others count as much as one run of the same cell, or of the same person.
const OTHERS_WITH_OWN: f64 = 0.3;
const OTHERS_WITH_PERSON: f64 = 4.0;

/// The share of ranges that should miss, and how fast ranges widen or narrow when more or fewer do.
const MISSES: f64 = 0.2;
const LEARNING: f64 = 0.05;
const STRANGEST: f64 = 1.2;

/// How far a future mean is from the mean of `count` past values, as the standard deviation of its logarithm.
fn unlike(one: f64, count: usize) -> f64 {
    let of_mean = one / (count.max(1) as f64).sqrt();
    of_mean.hypot(OTHER_EXERCISES)
}

fn around(ms: u64) -> [u64; 3] {
    AROUND.map(|factor| scaled(ms, factor))
}

fn scaled(ms: u64, factor: f64) -> u64 {
    (ms as f64 * factor) as u64 + u64::from(factor > 1.0)
}

/// The remaining time of something that has taken `already_ms`.
fn remaining(all: &Times, already_ms: u64) -> Times {
    all.longer_than(already_ms)
        .unwrap_or_else(|| Times::exactly((already_ms / 2).max(500)))
}

fn seen(ms: i64, ended: bool) -> Seen {
    Seen {
        seconds: ms.max(0) as f64 / 1000.0,
        ended,
    }
}

fn push<Value>(values: &mut VecDeque<Value>, value: Value, most: usize) {
    values.push_back(value);
    if values.len() > most {
        values.pop_front();
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

    fn len<Name: Hash + Eq + ?Sized>(&self, key: &Name) -> usize
    where
        Key: Borrow<Name>,
    {
        self.0.get(key).map_or(0, VecDeque::len)
    }

    fn last<Name: Hash + Eq + ?Sized>(&self, key: &Name, most: usize) -> Option<Vec<u64>>
    where
        Key: Borrow<Name>,
    {
        let runs = self.0.get(key)?;
        Some(runs.iter().rev().take(most).copied().collect())
    }
}
