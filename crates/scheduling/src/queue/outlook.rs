//! What is likely to happen next, judged by the past.

use crate::queue::{Precedence, survival::Survival, times::Times};
use std::sync::Arc;

/// Everything except the order that an estimate needs.
#[derive(Debug, Clone)]
pub struct Outlook {
    /// One for each unfinished job, in the same order.
    pub jobs: Vec<Expected>,
    pub courses: Vec<CourseOutlook>,
    /// People without a job who were active recently.
    pub returning: Vec<Returning>,
    /// Times from assignment to start without a warm session, and with one; `None` if unknown.
    pub cold: Option<Times>,
    pub warm: Option<Times>,
}

#[derive(Debug, Clone)]
pub struct Expected {
    /// Its number in [`Outlook::courses`].
    pub course: usize,
    /// The share of its expected duration that is known from runs of the same cell, from 0 to 1;
    /// the rest is that of its course.
    pub of_its_own: f64,
    /// The time until its session is ready, if a worker has the job.
    pub starting: Option<Times>,
    /// The run time from then on; `None` if unknown.
    pub takes: Option<Times>,
}

#[derive(Debug, Clone)]
pub struct CourseOutlook {
    /// The run time of a person's next cell.
    pub takes: Option<Times>,
    /// Seconds from the end of a cell to the same person's next one; some people never return.
    pub pauses: Survival,
    /// How much all future runs, and all future pauses, may differ from the past: by a common
    /// factor whose logarithm has this standard deviation.
    pub unlike_runs: f64,
    pub unlike_pauses: f64,
    /// How many new people come per millisecond, and for how long.
    pub newcomers: f64,
    pub newcomers_for_ms: u64,
    pub newcomer: Precedence,
}

#[derive(Debug, Clone)]
pub struct Returning {
    pub owner: Arc<str>,
    pub course: usize,
    /// The precedence of the job that this person submits next.
    pub precedence: Precedence,
    /// Time since the person's last job ended.
    pub absent_ms: u64,
}
