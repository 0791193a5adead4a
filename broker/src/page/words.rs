//! Numbers and reasons as people say them.

use crate::dispatch::Waiting;
use baton_protocol::proxy::WaitingReason;

/// `7 s`, `2 min 10 s`, `3 h 5 min`.
pub(super) fn duration(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    let (minutes, seconds_left) = (seconds / 60, seconds % 60);
    let (hours, minutes_left) = (minutes / 60, minutes % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min {seconds_left} s"),
        _ => format!("{hours} h {minutes_left} min"),
    }
}

pub(super) fn gibibytes(bytes: u64) -> String {
    let tenths = bytes / ((1 << 30) / 10);
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    match number {
        0 => format!("no {one}"),
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}

/// With the date and the zone of UTC, for a tooltip.
pub(super) fn absolute(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(
        |_| String::new(),
        |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

pub(super) fn outcome(name: &str) -> (&'static str, &'static str) {
    match name {
        "ok" => ("●", "done"),
        "error" => ("▲", "raised an error"),
        "cancelled" => ("■", "cancelled"),
        "timed_out" => ("▲", "stopped by the time limit"),
        "out_of_memory" => ("▲", "out of memory"),
        "refused" => ("▲", "could not start"),
        "worker_lost" => ("▲", "worker lost"),
        _ => ("○", "ended"),
    }
}

pub(super) fn course(name: &str) -> &str {
    match name {
        "" => "–",
        name => name,
    }
}

/// The first rule that keeps a job from running.
pub(super) fn waiting(waiting: &Waiting) -> String {
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
    }
}

/// `40 s (25 s to 1 min 30 s)`
pub(super) fn starts(waiting: Option<&Waiting>, now_ms: i64) -> String {
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
