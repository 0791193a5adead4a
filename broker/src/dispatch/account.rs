//! What a job may use, what its run is charged, and what is refused.

use super::{Action, Dispatch, Now, Phase};
use crate::{courses::Course, people::Account, store::Write};
use baton_protocol::{BudgetLeft, Cell, JobEvent, JobId, Outcome, Period, RemoteError, Usage};
use baton_scheduling::queue::Run;

pub(super) const SAFE: &str = "Your variables are as they were before the cell";

pub(super) struct Budget {
    pub(super) left: BudgetLeft,
    period_start_ms: i64,
    /// For people: `Monday 04:00`.
    reset: String,
}

impl Dispatch {
    /// Puts what is granted into the cell. An error when it asks for more than that.
    pub(super) fn grant(&self, account: &Account, cell: &mut Cell) -> Result<(), RemoteError> {
        let course = self.courses.of(&account.course);
        let asked_ms = cell.timeout_ms;
        cell.timeout_ms = asked_ms.or(course.time_limit_ms);
        cell.longest_timeout_ms = course.longest_ms;
        match (asked_ms, course.longest_ms) {
            (Some(asked), Some(longest)) if asked > longest => {
                Err(too_long(&account.course, asked, longest))
            }
            _ => Ok(()),
        }
    }

    /// `None` where the course has no budget.
    pub(super) fn budget(&self, account: &Account, now: Now) -> Option<Budget> {
        let budget = self.courses.of(&account.course).budget.as_ref()?;
        let period = budget.reset.period(now.unix_ms);
        let spent = self.spent.get(account).copied().unwrap_or_default();
        let used_ms = spent.in_period_ms(period.start_ms);
        Some(Budget {
            left: BudgetLeft {
                left_ms: budget.of_ms.saturating_sub(used_ms),
                of_ms: budget.of_ms,
                period: if period.is_week {
                    Period::Week
                } else {
                    Period::Day
                },
            },
            period_start_ms: period.start_ms,
            reset: period.end,
        })
    }

    /// Waiting for days is of no use to anybody.
    pub(super) fn refuse_without_budget(&mut self, now: Now, actions: &mut Vec<Action>) {
        let has_budget = |course: &Course| course.budget.is_some();
        let queued = self.jobs_where(|job| job.phase == Phase::Queued);
        for id in queued {
            let Some(job) = self.jobs.get(&id) else {
                continue;
            };
            if !has_budget(self.courses.of(&job.account.course)) {
                continue;
            }
            if let Some(budget) = self.budget(&job.account, now)
                && budget.left.left_ms == 0
            {
                let error = used_up(&job.account.course, &budget);
                self.finish(id, Outcome::Refused, Some(error), now, actions);
            }
        }
    }

    /// What a run has used goes on its account, however it ended. The event tells what is left of a budget.
    pub(super) fn charge(
        &mut self,
        id: JobId,
        run_ms: u64,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Option<JobEvent> {
        let account = self.jobs.get(&id)?.account.clone();
        let before = self.budget(&account, now);
        if run_ms > 0 {
            let period_start_ms = before.as_ref().map_or(0, |budget| budget.period_start_ms);
            let spent = self.spent.entry(account.clone()).or_default();
            spent.charge(
                run_ms,
                now.unix_ms,
                self.courses.half_life_ms,
                period_start_ms,
            );
            actions.push(Action::Write(Write::Charge {
                account: account.clone(),
                spent: *spent,
                run_ms,
                at_ms: now.unix_ms,
            }));
        }
        before?;
        let left = self.budget(&account, now)?.left;
        Some(JobEvent::Charged(left))
    }

    /// How long a job ran whose worker does not say.
    pub(super) fn ran(&self, id: JobId, now: Now) -> Usage {
        let started_ms = self.jobs.get(&id).and_then(|job| job.started_ms);
        let worker = self.jobs.get(&id).and_then(|job| job.worker);
        let absent_ms = worker.and_then(|worker| self.workers.get(&worker)?.disconnected_since_ms);
        let until_ms = absent_ms.unwrap_or(now.unix_ms);
        let run_ms = started_ms.map_or(0, |started| until_ms.saturating_sub(started));
        Usage {
            run_ms: u64::try_from(run_ms).unwrap_or(0),
            ..Usage::default()
        }
    }

    /// Later estimates learn from runs that ended by themselves, and from when people come and go.
    pub(super) fn remember(&mut self, id: JobId, outcome: Outcome, usage: Usage, now: Now) {
        let by_itself = matches!(outcome, Outcome::Ok | Outcome::Error | Outcome::TimedOut);
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        self.history.ended(&job.account, now.unix_ms);
        if by_itself {
            self.history.add(Run {
                cell: job.cell_key,
                account: job.account.clone(),
                run_ms: usage.run_ms,
            });
        }
    }
}

fn too_long(course: &str, asked_ms: u64, longest_ms: u64) -> RemoteError {
    RemoteError {
        name: "TimeLimitRefused".to_owned(),
        value: format!(
            "This cell asks for {}, but {} lets a cell run for at most {}. {SAFE}",
            said(asked_ms),
            called(course),
            said(longest_ms),
        ),
        traceback: Vec::new(),
        hint: Some(format!(
            "write %%gpu --timeout {}, and save progress in a loop",
            written(longest_ms)
        )),
    }
}

fn used_up(course: &str, budget: &Budget) -> RemoteError {
    let period = match budget.left.period {
        Period::Day => "today",
        Period::Week => "this week",
    };
    RemoteError {
        name: "BudgetUsedUp".to_owned(),
        value: format!(
            "Your GPU time in {} is used up: {} of {} {period}. It is renewed on {}. {SAFE}",
            called(course),
            said(budget.left.of_ms),
            said(budget.left.of_ms),
            budget.reset,
        ),
        traceback: Vec::new(),
        hint: Some("ordinary cells work; ask your course staff for more".to_owned()),
    }
}

fn called(course: &str) -> &str {
    match course {
        "" => "this service",
        course => course,
    }
}

/// `1 h 30 min`, for sentences.
fn said(ms: u64) -> String {
    parts(ms, [" h", " min", " s"]).join(" ")
}

/// `1h30m`, for the line of a cell.
fn written(ms: u64) -> String {
    parts(ms, ["h", "m", "s"]).concat()
}

fn parts(ms: u64, units: [&str; 3]) -> Vec<String> {
    let seconds = ms / 1000;
    let numbers = [seconds / 3600, seconds / 60 % 60, seconds % 60];
    let parts = numbers.into_iter().zip(units);
    let said: Vec<String> = parts
        .filter(|(number, _)| *number > 0)
        .map(|(number, unit)| format!("{number}{unit}"))
        .collect();
    match said.is_empty() {
        true => vec![format!("0{}", units[2])],
        false => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_said_and_written() {
        for (ms, sentence, line) in [
            (5_400_000, "1 h 30 min", "1h30m"),
            (90_000, "1 min 30 s", "1m30s"),
            (400, "0 s", "0s"),
        ] {
            assert_eq!((said(ms).as_str(), written(ms).as_str()), (sentence, line));
        }
    }
}
