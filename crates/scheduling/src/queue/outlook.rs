//! What is likely to happen next, from the past.

use crate::queue::{Precedence, survival::Survival, times::Times};
use std::sync::Arc;

/// What an estimate needs besides the order.
#[derive(Debug, Clone)]
pub struct Outlook {
    /// One for each unfinished job, in the same order.
    pub jobs: Vec<Expected>,
    pub courses: Vec<CourseOutlook>,
    /// People without a job who were here a moment ago.
    pub returning: Vec<Returning>,
    /// From an assignment to the start where no session is warm, and where one is; `None`: not known yet.
    pub cold: Option<Times>,
    pub warm: Option<Times>,
}

#[derive(Debug, Clone)]
pub struct Expected {
    /// Its number in [`Outlook::courses`].
    pub course: usize,
    /// How much of what it takes is known from runs of the same cell, from 0 to 1; the rest is like its course.
    pub of_its_own: f64,
    /// Until its session is ready, of a job that a worker has.
    pub starting: Option<Times>,
    /// From then on; `None` if unknown.
    pub takes: Option<Times>,
}

#[derive(Debug, Clone)]
pub struct CourseOutlook {
    /// The run time of a person's next cell.
    pub takes: Option<Times>,
    /// From the end of a cell to the same person's next one, in seconds; some never come back.
    pub pauses: Survival,
    /// How far all runs, and all pauses, that are to come are from those of the past: by one factor, the logarithm of
    /// which has this standard deviation.
    pub unlike_runs: f64,
    pub unlike_pauses: f64,
    /// How many people who were not here come in a millisecond, and for how long that goes on.
    pub newcomers: f64,
    pub newcomers_for_ms: u64,
    pub newcomer: Precedence,
}

#[derive(Debug, Clone)]
pub struct Returning {
    pub owner: Arc<str>,
    pub course: usize,
    /// Of the job that this person submits next.
    pub precedence: Precedence,
    /// Since the last job ended.
    pub absent_ms: u64,
}
