//! Numbers and reasons as people say them.

use crate::dispatch::Waiting;
use baton_protocol::{
    Outcome,
    api::{Job, JobState},
    proxy::WaitingReason,
};

/// `7 s`, `2 min 10 s`, `3 h 5 min`.
pub(crate) fn duration(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    let (minutes, seconds_left) = (seconds / 60, seconds % 60);
    let (hours, minutes_left) = (minutes / 60, minutes % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min {seconds_left} s"),
        _ => format!("{hours} h {minutes_left} min"),
    }
}

pub(crate) fn gibibytes(bytes: u64) -> String {
    let tenths = bytes / ((1 << 30) / 10);
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    match number {
        0 => format!("no {one}"),
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}

/// Which cell: its notebook, and the number in front of it.
pub(crate) fn title(notebook: &str, execution_count: Option<u32>) -> String {
    match execution_count {
        Some(number) => format!("{notebook} [{number}]"),
        None => notebook.to_owned(),
    }
}

/// With the date and the zone of UTC, for a tooltip.
pub(crate) fn absolute(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(
        |_| String::new(),
        |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

pub(crate) fn outcome(outcome: Option<Outcome>) -> (&'static str, &'static str) {
    match outcome {
        Some(Outcome::Ok) => ("●", "done"),
        Some(Outcome::Error) => ("▲", "raised an error"),
        Some(Outcome::Cancelled) => ("■", "cancelled"),
        Some(Outcome::TimedOut) => ("▲", "stopped by the time limit"),
        Some(Outcome::OutOfMemory) => ("▲", "out of memory"),
        Some(Outcome::Refused) => ("▲", "could not start"),
        Some(Outcome::WorkerLost) => ("▲", "worker lost"),
        None => ("○", "ended"),
    }
}

pub(crate) fn course(name: &str) -> &str {
    match name {
        "" => "–",
        name => name,
    }
}

/// The first rule that keeps a job from running.
pub(crate) fn waiting(waiting: &Waiting) -> String {
    let place = format!("place {} in line", waiting.place);
    match &waiting.reason {
        WaitingReason::InLine => place,
        WaitingReason::BehindDeadline { course } => {
            format!("{place}; {course} has a deadline and goes first")
        }
        WaitingReason::OwnJobRuns { notebook } => {
            format!("another cell of the same person runs ({notebook})")
        }
        WaitingReason::NoWorker => format!("{place}; no worker is connected"),
        WaitingReason::WorkersPaused { why } => match why {
            Some(why) => format!("{place}; the workers are paused: {why}"),
            None => format!("{place}; the workers are paused"),
        },
        WaitingReason::CoursePaused { why } => format!("the course is paused: {why}"),
        WaitingReason::Held { why } => format!("staff hold it back: {why}"),
        WaitingReason::BehindMoved {} => format!("{place}; staff moved another cell to the front"),
    }
}

/// `40 s (25 s to 1 min 30 s)`
pub(crate) fn starts(waiting: Option<&Waiting>, now_ms: i64) -> String {
    let Some(estimate) = waiting.and_then(|waiting| waiting.estimate(now_ms)) else {
        return "–".to_owned();
    };
    let said = |ms: u64| duration(i64::try_from(ms).unwrap_or(i64::MAX));
    format!(
        "{} ({} to {})",
        said(estimate.middle_ms),
        said(estimate.lower_ms),
        said(estimate.upper_ms)
    )
}

/// Why a job is where it is.
pub(crate) fn explanation(job: &Job, now_ms: i64) -> String {
    let worker = job.worker.as_deref().unwrap_or("a worker");
    match (job.state, &job.waiting) {
        (JobState::Queued, Some(waiting)) => format!("It waits: {}", waiting.sentence),
        (JobState::Queued, None) => "It waits to be put into the line".to_owned(),
        (JobState::Assigned, _) => format!("Its state is on the way to {worker}"),
        (JobState::Started, _) => {
            let since = job.started_ms.map_or(0, |started| now_ms - started);
            let most = job.timeout_ms.map_or_else(String::new, |most| {
                let most = i64::try_from(most).unwrap_or(i64::MAX);
                format!(" of at most {}", duration(most))
            });
            format!("It runs on {worker} for {}{most}", duration(since))
        }
        (JobState::Finished, _) => format!("It is over: {}", outcome(job.outcome).1),
    }
}
