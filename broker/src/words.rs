//! Numbers and reasons in the words of pages.

use baton_broker_queue::Waiting;
use baton_broker_store::JobRow;
use baton_protocol::{
    JobKind, Outcome,
    api::{Action, Job, JobState},
    proxy::{Estimate, WaitingReason},
};
use std::time::Duration;

/// In whole seconds. A negative time, caused by a clock that was set back, counts as 0.
pub(crate) fn duration(ms: i64) -> String {
    span(ms.max(0).unsigned_abs())
}

/// The same for an unsigned time.
pub(crate) fn span(ms: u64) -> String {
    baton_humanize::whole_seconds(Duration::from_millis(ms))
}

/// In whole minutes if it is at least a minute, so that screen readers do not repeat a sentence every second.
pub(crate) fn rough(ms: i64) -> String {
    match ms {
        ..60_000 => "less than a minute".to_owned(),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        _ => duration(ms),
    }
}

/// With tenths if it is below 10 s.
pub(crate) fn exact(ms: i64) -> String {
    match ms {
        ..10_000 => format!("{:.1} s", ms.max(0) as f64 / 1000.0),
        _ => duration(ms),
    }
}

/// A percentile of sorted times, or a dash if there are none.
pub(crate) fn percentile(sorted: &[u64], of_hundred: usize) -> String {
    let Some(last) = sorted.len().checked_sub(1) else {
        return "–".to_owned();
    };
    let index = (sorted.len() * of_hundred).div_ceil(100).saturating_sub(1);
    span(sorted[index.min(last)])
}

pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).collect()
}

pub(crate) fn action(action: Action) -> &'static str {
    match action {
        Action::Cancel => "cancelled",
        Action::Hold => "held back",
        Action::Release => "released",
        Action::MoveToFront => "moved to the front",
        Action::Drain => "drained",
        Action::Resume => "resumed",
        Action::ChangeCourse => "changed settings",
        Action::Grant => "granted GPU time",
        Action::Revoke => "revoked GPU time",
        Action::Publish => "published",
        Action::Withdraw => "withdrew",
    }
}

/// The query part of a URL.
pub(crate) fn query(pairs: &[(&str, String)]) -> String {
    let pairs = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", coded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Percent-encodes a part of a URL.
pub(crate) fn coded(text: &str) -> String {
    let coded = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    });
    coded.collect()
}

pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    match number {
        0 => format!("no {one}"),
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}

/// The title of a job: a notebook with the number of its cell, or a whole program.
pub(crate) fn title(kind: JobKind, name: &str, execution_count: Option<u32>) -> String {
    let cell = match (kind, execution_count) {
        (JobKind::Notebook, _) => return format!("{name} (all cells)"),
        (JobKind::Script, _) => return format!("{name} (script)"),
        (JobKind::Map, _) => return format!("{name} (gpu.map)"),
        (_, Some(number)) => format!("{name} [{number}]"),
        (_, None) => name.to_owned(),
    };
    match kind {
        JobKind::Background => format!("{cell} (background)"),
        JobKind::Block => format!("{cell} (with gpu)"),
        JobKind::Call => format!("{cell} (@gpu)"),
        JobKind::Cell | JobKind::Notebook | JobKind::Script | JobKind::Map => cell,
    }
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

/// Who or what stopped a job and why, unless it ended otherwise in the meantime.
pub(crate) fn stopped(row: &JobRow) -> Option<String> {
    let reason = row.stopped.as_ref()?;
    let applies = matches!(row.outcome, None | Some(Outcome::Cancelled));
    applies.then(|| reason.sentence(row.kind))
}

pub(crate) fn course(name: &str) -> &str {
    match name {
        "" => "–",
        name => name,
    }
}

/// The first rule that keeps a job from running, with its queue position if that matters.
pub(crate) fn waiting(waiting: &Waiting) -> String {
    let mut place = baton_protocol::in_line(waiting.position, waiting.last_position);
    if let Some(moved_back) = waiting.moved_back {
        place = format!("{place} ({})", decapitalised(&moved_back.to_string()));
    }
    match &waiting.reason {
        WaitingReason::JobsAhead => place,
        WaitingReason::OwnJobRuns { .. }
        | WaitingReason::CoursePaused { .. }
        | WaitingReason::NoWorkerFits { .. }
        | WaitingReason::Held { .. } => why(waiting),
        _ => format!("{place}; {}", why(waiting)),
    }
}

fn decapitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

pub(crate) fn reason(waiting: Option<&Waiting>) -> String {
    waiting.map_or_else(
        || "it is being added to the queue".to_owned(),
        self::waiting,
    )
}

/// The rule without the position.
pub(crate) fn why(waiting: &Waiting) -> String {
    match &waiting.reason {
        WaitingReason::JobsAhead => "in line".to_owned(),
        WaitingReason::BehindDeadline { course } => {
            format!("{course} has a deadline and runs first")
        }
        WaitingReason::OwnJobRuns { notebook } => {
            format!("another cell of the same person runs ({notebook})")
        }
        WaitingReason::NoWorker => "no worker is connected".to_owned(),
        WaitingReason::WorkersPaused { why } => match why {
            Some(why) => format!("the workers are drained: {why}"),
            None => "the workers are drained".to_owned(),
        },
        WaitingReason::WorkersFail { worker, why } => {
            format!("sessions cannot start on {worker}: {why}")
        }
        WaitingReason::CoursePaused { why } => format!("the course is paused: {why}"),
        WaitingReason::Held { why } => format!("staff hold it back: {why}"),
        WaitingReason::BehindMoved {} => "staff moved another cell to the front".to_owned(),
        WaitingReason::FittingWorkersBusy { requirement } => {
            format!("it needs a worker {requirement}, and all of them are busy")
        }
        WaitingReason::MachineStarting {
            usual,
            expected_in_ms,
        } => {
            let usually = usual.map(|usual| format!(", usually {}", range(&usual)));
            let expected = expected_in_ms.map(|ms| {
                let time = span(ms);
                format!("; the batch system expects it to begin within {time}")
            });
            let parts = [
                Some("a machine is being started".to_owned()),
                usually,
                expected,
            ];
            parts.into_iter().flatten().collect()
        }
        WaitingReason::NoWorkerFits {
            requirement,
            connected,
        } => format!(
            "it needs a worker {requirement}; available: {}",
            connected.join(", ")
        ),
        WaitingReason::OwnSession { worker } => {
            format!("its session on {worker} holds objects that cannot move, and {worker} is busy")
        }
    }
}

/// `40 s (25 s to 1 min 30 s)`
pub(crate) fn starts(waiting: Option<&Waiting>, now_ms: i64) -> String {
    let Some(estimate) = waiting.and_then(|waiting| waiting.estimate(now_ms)) else {
        return "–".to_owned();
    };
    if estimate.upper_ms < 1000 {
        return "any moment".to_owned();
    }
    range(&estimate)
}

/// `40 s (25 s to 1 min 30 s)`
pub(crate) fn range(estimate: &Estimate) -> String {
    let (lower, upper) = (span(estimate.lower_ms), span(estimate.upper_ms));
    let middle = span(estimate.middle_ms);
    match lower == upper {
        true => middle,
        false => format!("{middle} ({lower} to {upper})"),
    }
}

/// Why a job has its queue position.
pub(crate) fn explanation(job: &Job, now_ms: i64) -> String {
    let worker = job.worker.as_deref().unwrap_or("a worker");
    match (job.state, &job.waiting) {
        (JobState::Queued, Some(waiting)) => format!("It waits: {}", waiting.sentence),
        (JobState::Queued, None) => "It waits to be added to the queue".to_owned(),
        (JobState::Assigned, _) => format!("Its state is being sent to {worker}"),
        (JobState::Started, _) => {
            let since = job.started_ms.map_or(0, |started| now_ms - started);
            let most = job
                .timeout_ms
                .map_or_else(String::new, |most| format!(" of at most {}", span(most)));
            format!(
                "It has been running on {worker} for {}{most}",
                duration(since)
            )
        }
        (JobState::Finished, _) => {
            let stopped = job.stopped.as_ref();
            let stopped = stopped.map_or_else(String::new, |stopped| format!(". {stopped}"));
            format!("It has ended: {}{stopped}", outcome(job.outcome).1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_job_has_its_title() {
        let titles = JobKind::ALL.map(|kind| title(kind, "lab.ipynb", Some(4)));
        let expected = [
            "lab.ipynb [4]",
            "lab.ipynb [4] (background)",
            "lab.ipynb [4] (with gpu)",
            "lab.ipynb [4] (@gpu)",
            "lab.ipynb (all cells)",
            "lab.ipynb (script)",
            "lab.ipynb (gpu.map)",
        ];
        assert_eq!(titles, expected);
    }
}
