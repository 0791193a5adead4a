//! What people and courses may use, and what they have used.

use super::{Batch, Now};
use crate::{
    Account,
    courses::{self, Allowance, Allowances, Changes, Courses},
    record::Write,
    spent::Spent,
};
use baton_humanize::{duration, setting};
use baton_protocol::{
    BudgetLeft, Cell, JobEvent, JobKind, Period, RemoteError,
    api::CourseChange,
    wording::{option, option_with, with_safety},
};
use baton_scheduling::queue::Precedence;
use std::{collections::HashMap, sync::Arc, time::Duration};

/// The rules of the courses, and what each account has used.
#[derive(Debug, Clone)]
pub(super) struct Accounts {
    /// From the file of courses.
    file: Arc<Courses>,
    /// What staff changed.
    changes: Changes,
    /// The file with the changes applied.
    courses: Arc<Courses>,
    spent: HashMap<Account, Spent>,
}

pub(super) struct Budget {
    pub(super) left: BudgetLeft,
    period_start_ms: i64,
    pub(super) period_end_ms: i64,
    /// For people: `Monday 04:00`.
    reset: String,
    /// When the first allowance in it ends.
    allowed_until_ms: Option<i64>,
}

impl Accounts {
    pub(super) fn new(
        file: Arc<Courses>,
        changes: Changes,
        spent: impl IntoIterator<Item = (Account, Spent)>,
    ) -> Self {
        Self {
            courses: Arc::new(file.with(&changes)),
            file,
            changes,
            spent: spent.into_iter().collect(),
        }
    }

    pub(super) fn courses(&self) -> &Courses {
        &self.courses
    }

    /// The accounts that have ever used GPU time.
    pub(super) fn used(&self) -> impl Iterator<Item = &Account> {
        self.spent.keys()
    }

    pub(super) fn on_file_changed(&mut self, file: Arc<Courses>) {
        self.file = file;
        self.apply_changes();
    }

    pub(super) fn change_worker(
        &mut self,
        name: String,
        paused: Option<String>,
        batch: &mut Batch,
    ) {
        self.changes.workers.insert(name.clone(), paused.clone());
        batch.write(Write::ChangeWorker { name, paused });
        self.apply_changes();
    }

    pub(super) fn change_course(&mut self, name: String, change: CourseChange, batch: &mut Batch) {
        let earlier = self.changes.courses.remove(&name).unwrap_or_default();
        let change = courses::over(earlier, change);
        self.changes.courses.insert(name.clone(), change.clone());
        batch.write(Write::ChangeCourse {
            course: name,
            change: Box::new(change),
        });
        self.apply_changes();
    }

    pub(super) fn allowances(&self) -> &Allowances {
        &self.changes.allowances
    }

    /// `None` revokes the allowance that the account has.
    pub(super) fn set_allowance(
        &mut self,
        account: Account,
        allowance: Option<Allowance>,
        batch: &mut Batch,
    ) {
        let allowances = &mut self.changes.allowances;
        match allowance.clone() {
            Some(allowance) => allowances.grant(account.clone(), allowance, batch.now.unix_ms),
            None => drop(allowances.0.remove(&account)),
        }
        batch.write(Write::Allow {
            account,
            allowance,
            at_ms: batch.now.unix_ms,
        });
    }

    fn apply_changes(&mut self) {
        self.courses = Arc::new(self.file.with(&self.changes));
    }

    /// What decides the position of the account's next job in the order.
    pub(super) fn precedence(&self, account: &Account, now: Now) -> Precedence {
        let course = self.courses.of(&account.course);
        let spent = self.spent.get(account);
        Precedence {
            used_ms: spent.map_or(0.0, |spent| {
                spent.faded_ms(now.unix_ms, self.courses.half_life_ms)
            }),
            weight: course.weight,
            boost: course.boost(now.unix_ms),
            low_priority: false,
            waited_ms: 0,
            // Unknown if the clock has been set back since.
            since_run_ms: spent.and_then(|spent| u64::try_from(now.unix_ms - spent.at_ms).ok()),
        }
    }

    /// Enters the granted time limit into the cell. Fails if the cell asks for more, or for an environment that its
    /// course does not have.
    pub(super) fn grant(&self, account: &Account, cell: &mut Cell) -> Result<(), RemoteError> {
        let course = self.courses.of(&account.course);
        if let Some(name) = &cell.environment
            && !course.all_environments().any(|known| known == name)
        {
            let known: Vec<&str> = course.all_environments().collect();
            return Err(no_environment(&account.course, cell.kind, name, &known));
        }
        let asked_ms = cell.timeout_ms;
        cell.timeout_ms = asked_ms.or(course.time_limit_ms).or(course.longest_ms);
        cell.longest_timeout_ms = course.longest_ms;
        match (asked_ms, course.longest_ms) {
            (Some(asked), Some(longest)) if asked > longest => {
                Err(too_long(&account.course, cell.kind, asked, longest))
            }
            _ => Ok(()),
        }
    }

    /// Returns `None` if the course has no budget.
    pub(super) fn budget(&self, account: &Account, now: Now) -> Option<Budget> {
        let budget = self.courses.of(&account.course).budget.as_ref()?;
        let period = budget.reset.period(now.unix_ms);
        let spent = self.spent.get(account).copied().unwrap_or_default();
        let used_ms = spent.in_period_ms(period.start_ms);
        let extra = self.changes.allowances.extra(account, now.unix_ms);
        let of_ms = budget.of_ms.saturating_add(extra.ms);
        Some(Budget {
            left: BudgetLeft {
                left_ms: of_ms.saturating_sub(used_ms),
                of_ms,
                granted_ms: extra.ms,
                period: if period.is_week {
                    Period::Week
                } else {
                    Period::Day
                },
            },
            period_start_ms: period.start_ms,
            period_end_ms: period.end_ms,
            reset: period.end,
            allowed_until_ms: extra.until_ms,
        })
    }

    /// Returns why the account's jobs are refused, if its budget is used up.
    pub(super) fn refusal(
        &self,
        account: &Account,
        kind: JobKind,
        now: Now,
    ) -> Option<RemoteError> {
        let budget = self.budget(account, now)?;
        (budget.left.left_ms == 0).then(|| used_up(&account.course, kind, &budget, &self.courses))
    }

    /// Charges a run, whatever its outcome. Returns the event that reports the rest of the budget.
    pub(super) fn charge(
        &mut self,
        account: &Account,
        run_ms: u64,
        batch: &mut Batch,
    ) -> Option<JobEvent> {
        let before = self.budget(account, batch.now);
        if run_ms > 0 {
            let period_start_ms = before.as_ref().map_or(0, |budget| budget.period_start_ms);
            let spent = self.spent.entry(account.clone()).or_default();
            spent.charge(
                run_ms,
                batch.now.unix_ms,
                self.courses.half_life_ms,
                period_start_ms,
            );
            batch.write(Write::Charge {
                account: account.clone(),
                spent: *spent,
                run_ms,
                at_ms: batch.now.unix_ms,
            });
        }
        before?;
        let left = self.budget(account, batch.now)?.left;
        Some(JobEvent::Charged(left))
    }
}

fn no_environment(course: &str, kind: JobKind, name: &str, known: &[&str]) -> RemoteError {
    let (has, hint) = match known {
        [] => (
            "has none".to_owned(),
            format!("leave {} out", option("env", kind)),
        ),
        [one, ..] => (
            format!("has {}", known.join(", ")),
            format!("use {}", option_with("env", one, kind)),
        ),
    };
    let (noun, course) = (kind.noun(), called(course));
    let what = format!("This {noun} asks for the environment {name}, but {course} {has}");
    RemoteError::of_baton("EnvironmentRefused", with_safety(&what, kind), hint)
}

fn too_long(course: &str, kind: JobKind, asked_ms: u64, longest_ms: u64) -> RemoteError {
    let longest = Duration::from_millis(longest_ms);
    let what = format!(
        "This {} asks for {}, but {} allows at most {}",
        kind.noun(),
        duration(Duration::from_millis(asked_ms)),
        called(course),
        duration(longest),
    );
    let less = option_with("timeout", &setting(longest), kind);
    let hint = format!("use {less}, and save progress in a loop");
    RemoteError::of_baton("TimeLimitRefused", with_safety(&what, kind), hint)
}

fn used_up(course: &str, kind: JobKind, budget: &Budget, courses: &Courses) -> RemoteError {
    let period = budget.left.period.words();
    let granted = budget
        .allowed_until_ms
        .map_or_else(String::new, |until_ms| {
            let (granted, until) = (
                duration(Duration::from_millis(budget.left.granted_ms)),
                courses.moment(until_ms),
            );
            format!(", with {granted} granted until {until}")
        });
    let of = duration(Duration::from_millis(budget.left.of_ms));
    let what = format!(
        "Your GPU time in {} is used up: {of} of {of} {period}{granted}. It is renewed on {}",
        called(course),
        budget.reset,
    );
    let meanwhile = match kind {
        JobKind::Cell | JobKind::Background => "ordinary cells work until then; ",
        _ => "",
    };
    let ask = "ask your course staff if you need more (they use `baton grant`)";
    RemoteError::of_baton(
        "BudgetUsedUp",
        with_safety(&what, kind),
        format!("{meanwhile}{ask}"),
    )
}

fn called(course: &str) -> &str {
    match course {
        "" => "this service",
        course => course,
    }
}
