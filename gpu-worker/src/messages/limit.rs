//! Messages about a cell's time limit.

use super::error;
use baton_humanize::{duration, setting};
use baton_protocol::{
    JobKind, RemoteError,
    wording::{option_with, queued_noun},
};
use std::time::Duration;

/// How long a cell may run, and the longest limit that it could have asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limit {
    pub(crate) time: Duration,
    pub(crate) longest: Option<Duration>,
}

/// The limit passed, and there is no state: the session did not react to the interrupt, or had not applied its state.
pub(crate) fn timed_out(kind: JobKind, limit: Limit) -> RemoteError {
    error(
        kind,
        "CellTimeout",
        &stopped_after(kind, limit),
        more_time(kind, limit, "save progress to a file"),
    )
}

/// The limit passed and the cell ended with its state. `interrupt` is the session's own report of the interrupt.
pub(crate) fn stopped_in_time(
    kind: JobKind,
    limit: Limit,
    interrupt: Option<RemoteError>,
) -> RemoteError {
    let (changes, otherwise) = match kind {
        JobKind::Notebook | JobKind::Script => ("", "save progress to a file"),
        JobKind::Cell | JobKind::Background => (
            ". Its changes so far are in your notebook",
            "continue from there in another cell",
        ),
        JobKind::Block | JobKind::Call | JobKind::Map => {
            (". Its changes so far are kept", "continue from there")
        }
    };
    let value = format!("{}{changes}", stopped_after(kind, limit));
    let hint = more_time(kind, limit, otherwise);
    let mut traceback = interrupt.map_or_else(Vec::new, |interrupt| interrupt.traceback);
    traceback.push(format!("CellTimeout: {value}"));
    traceback.push(format!("hint: {hint}"));
    RemoteError {
        name: "CellTimeout".to_owned(),
        value,
        traceback,
        hint: Some(hint),
    }
}

fn stopped_after(kind: JobKind, limit: Limit) -> String {
    format!(
        "Stopped after {}, the limit of this {}",
        duration(limit.time),
        kind.noun()
    )
}

fn more_time(kind: JobKind, limit: Limit, otherwise: &str) -> String {
    let twice = limit.time.saturating_mul(2);
    let most = limit.longest.map_or(twice, |longest| twice.min(longest));
    if most <= limit.time {
        let queued = queued_noun(kind);
        return format!("{otherwise}; no {queued} of this course may run longer");
    }
    let wanted = Duration::from_secs(most.as_secs().max(1));
    let option = option_with("timeout", &setting(wanted), kind);
    format!("{otherwise}, or ask for more with {option}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unbounded(seconds: u64) -> Limit {
        Limit {
            time: Duration::from_secs(seconds),
            longest: None,
        }
    }

    #[test]
    fn limits_are_readable() {
        let check = |seconds, time: &str, wanted: &str| {
            let limit = unbounded(seconds);
            assert_eq!(duration(limit.time), time);
            let hint = more_time(JobKind::Cell, limit, "wait");
            assert_eq!(
                hint,
                format!("wait, or ask for more with %%gpu --timeout {wanted}")
            );
        };
        check(45, "45 s", "90s");
        check(300, "5 min", "10m");
        check(5400, "1 h 30 min", "3h");
        assert_eq!(duration(Duration::from_millis(200)), "200 ms");
        let bounded = |longest| Limit {
            longest: Some(Duration::from_secs(longest)),
            ..unbounded(300)
        };
        assert_eq!(
            more_time(JobKind::Cell, bounded(480), "wait"),
            "wait, or ask for more with %%gpu --timeout 8m"
        );
        assert_eq!(
            more_time(JobKind::Cell, bounded(300), "wait"),
            "wait; no cell of this course may run longer"
        );
        let error = stopped_in_time(JobKind::Cell, unbounded(300), None);
        assert_eq!(
            error.traceback,
            [
                "CellTimeout: Stopped after 5 min, the limit of this cell. Its changes so far are in your notebook",
                "hint: continue from there in another cell, or ask for more with %%gpu --timeout 10m",
            ]
        );
    }
}
