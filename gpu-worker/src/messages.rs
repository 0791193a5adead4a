//! What the owner of a job reads when a cell, or what else it runs, did not end by itself.
//!
//! In: facts, and the kind of the job. Out: an error in plain words: what happened, whether the variables are safe, what
//! to do next.
//!
//! **Invariant:** no I/O. No code and no values, except in the lines that a session wrote itself.

mod files;
mod gpu;
mod limit;

use crate::questions::Neglect;
use baton_humanize::{bytes, duration, safe, with_causes};
use baton_protocol::{
    JobKind, Output, RemoteError,
    wording::{option, run_again, with_safety},
};
use jupyter_protocol::StreamContent;
use serde_json::json;
use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

pub(crate) use self::files::{
    few, file_not_fetched, file_not_opened, file_too_large, files_left, files_lost, files_missing,
    files_not_collected, files_not_copied, folder_cut, mirror_cut, mirror_lost_before, not_removed,
    place_taken, second_name,
};
pub(crate) use self::gpu::{
    GPU_BYPASSED, gpu_failed_before, gpu_fault, gpu_not_back, kept_the_gpu, no_gpu_in_sessions,
    no_gpu_limit, no_room_on_the_gpu, no_room_on_the_host,
};
pub(crate) use self::limit::{Limit, stopped_in_time, timed_out};

fn error(kind: JobKind, name: &str, what_happened: &str, hint: impl Into<String>) -> RemoteError {
    RemoteError::of_baton(name, with_safety(what_happened, kind), hint)
}

/// The session ended before all results of its last cell had left it.
pub(crate) fn deferred_lost(kind: JobKind) -> RemoteError {
    let what = "The Python process on the GPU machine ended before all results had arrived";
    deferred_error(kind, what)
}

pub(crate) fn deferred_unreadable(
    kind: JobKind,
    problem: &(dyn std::error::Error + 'static),
) -> RemoteError {
    let why = with_causes(problem);
    let what = format!("Some results could not be sent from the GPU machine: {why}");
    deferred_error(kind, &what)
}

/// For a job whose notebook kernel has ended.
pub(crate) fn not_salvaged(kind: JobKind) -> RemoteError {
    let noun = kind.noun();
    let what = format!(
        "The Python process on the GPU machine ended before the variables of this {noun} were saved"
    );
    error(kind, "SessionDied", &what, run_again(kind))
}

/// The notebook adds what that means for its variables.
fn deferred_error(kind: JobKind, what_happened: &str) -> RemoteError {
    RemoteError::of_baton("SessionDied", what_happened, run_again(kind))
}

/// The session ended before the cell started, and with it results of earlier cells that had not arrived.
pub(crate) fn died_with_earlier_results(kind: JobKind, status: Option<ExitStatus>) -> RemoteError {
    let how = ending(status);
    let what = format!(
        "The Python process on the GPU machine {how} before all results of an earlier {} had arrived",
        kind.noun()
    );
    earlier_results_lost(kind, &what)
}

/// The session was ended before the cell started, because it did not hand over the results of earlier cells.
pub(crate) fn kept_earlier_results(kind: JobKind) -> RemoteError {
    let what = format!(
        "The Python process on the GPU machine did not hand over all results of an earlier {}",
        kind.noun()
    );
    earlier_results_lost(kind, &what)
}

/// The notebook returns to its variables from before the earlier cell.
fn earlier_results_lost(kind: JobKind, what_happened: &str) -> RemoteError {
    let noun = kind.noun();
    let value = format!(
        "{what_happened}, so this {noun} did not start. {} whose results are lost",
        safe(noun)
    );
    let hint = format!("run that {noun} again, then this one");
    RemoteError::of_baton("SessionDied", value, hint)
}

/// The session ended while the cell ran. `peak_bytes` is the most memory that was measured; 0 if none was.
pub(crate) fn session_died(
    kind: JobKind,
    status: Option<ExitStatus>,
    last_lines: &[String],
    peak_bytes: u64,
) -> RemoteError {
    let how = ending(status);
    let last_words = match last_lines.last() {
        Some(line) => format!("; its last line was: {}", line.trim_end_matches('.')),
        None => String::new(),
    };
    let memory = match peak_bytes {
        0 => String::new(),
        peak_bytes => format!(" with up to {} of memory", bytes(peak_bytes)),
    };
    let (noun, again) = (kind.noun(), run_again(kind));
    let hint = match status.and_then(|status| status.signal()) {
        Some(9) => format!(
            "signal 9 often means that the machine's memory ran out: use less memory, or {again}"
        ),
        Some(_) if kind.is_program() => {
            "a library with native code probably crashed: call faulthandler.enable() first to find the line"
                .to_owned()
        }
        Some(_) => format!(
            "a library with native code probably crashed: run the {noun} in smaller steps to find the line"
        ),
        None => format!("the {noun} may have called os._exit(): remove the call and {again}"),
    };
    let what = format!("The Python process that ran the {noun} {how}{memory}{last_words}");
    error(kind, "SessionDied", &what, hint)
}

fn ending(status: Option<ExitStatus>) -> String {
    status.map_or_else(
        || "closed its connections".to_owned(),
        |status| format!("ended ({})", describe(status)),
    )
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => "for an unknown reason".to_owned(),
    }
}

pub(crate) fn out_of_memory(kind: JobKind, memory_bytes: u64, limit_bytes: u64) -> RemoteError {
    let smaller = "use a smaller part of the data at a time";
    error(
        kind,
        "OutOfMemory",
        &format!(
            "The {} was stopped because its processes used {} of memory; the limit is {}",
            kind.noun(),
            bytes(memory_bytes),
            bytes(limit_bytes)
        ),
        match kind.is_program() {
            true => smaller.to_owned(),
            false => format!("{smaller}, or delete variables that you no longer need with del"),
        },
    )
}

/// `used_bytes`: `None` if the worker cannot look into one of the session's folders.
pub(crate) fn disk_full(kind: JobKind, used_bytes: Option<u64>, limit_bytes: u64) -> RemoteError {
    let used = used_bytes.map_or_else(
        || "has a folder that the GPU machine cannot measure".to_owned(),
        |used| format!("stored {} on the GPU machine's disk", bytes(used)),
    );
    error(
        kind,
        "DiskFull",
        &format!(
            "The {} was stopped because its session {used}; the limit is {}",
            kind.noun(),
            bytes(limit_bytes)
        ),
        "store less in files and packages at a time, or read files in parts",
    )
}

pub(crate) fn cancelled(kind: JobKind) -> RemoteError {
    let noun = kind.noun();
    let what = format!("The {noun} was interrupted before its changes could be returned");
    error(kind, "KeyboardInterrupt", &what, run_again(kind))
}

/// The job has not started.
pub(crate) fn neglected(kind: JobKind, neglect: Neglect) -> RemoteError {
    let (noun, again) = (kind.noun(), run_again(kind));
    match neglect {
        Neglect::Silent(patience) => {
            let what = format!(
                "The {noun} did not start: the GPU machine asked for its variables or files and received nothing for {}",
                duration(patience)
            );
            let hint = match kind.is_program() {
                true => again,
                false => {
                    format!("{again}; if this happens again, save your work and restart the kernel")
                }
            };
            error(kind, RemoteError::NOTEBOOK_SILENT, &what, hint)
        }
        Neglect::Slow(limit) => {
            let what = format!(
                "The {noun} did not start: its variables and files took longer than {}",
                duration(limit)
            );
            let hint = format!("send less, and {again}");
            error(kind, "NotebookSlow", &what, hint)
        }
    }
}

pub(crate) fn shutting_down(kind: JobKind) -> RemoteError {
    let what = format!("The worker was stopped while the {} ran", kind.noun());
    let hint = format!("{}: another worker takes it", run_again(kind));
    error(kind, "WorkerLost", &what, hint)
}

pub(crate) fn time_is_over(kind: JobKind) -> RemoteError {
    let (noun, again, timeout) = (kind.noun(), run_again(kind), option("timeout", kind));
    let what = format!("The {noun} was stopped because the worker's time on its machine ended");
    let hint = format!(
        "{again}: another worker takes it; with {timeout}, a {noun} starts only where it has enough time"
    );
    error(kind, "WorkerLeft", &what, hint)
}

/// Its job's task failed, and with it the session.
pub(crate) fn worker_failed(kind: JobKind) -> RemoteError {
    let what = format!("The worker failed while it ran the {}", kind.noun());
    session_failed(kind, &what)
}

pub(crate) fn not_sent(kind: JobKind) -> RemoteError {
    let what = format!("The {} could not be sent to its session", kind.noun());
    session_failed(kind, &what)
}

/// The session's answer made no sense.
pub(crate) fn session_failed(kind: JobKind, what_happened: &str) -> RemoteError {
    error(kind, "SessionFailed", what_happened, run_again(kind))
}

/// State could not be transferred between broker and session.
pub(crate) fn state_lost(
    kind: JobKind,
    problem: &(dyn std::error::Error + 'static),
) -> RemoteError {
    let what = match kind.is_program() {
        true => "This run",
        false => &format!("The variables of this {}", kind.noun()),
    };
    let what = format!("{what} could not be transferred: {}", with_causes(problem));
    error(kind, "StateLost", &what, run_again(kind))
}

/// A session's message, which is not an output.
pub(crate) fn message_too_large(kind: JobKind, message_bytes: u64) -> RemoteError {
    error(
        kind,
        "MessageTooLarge",
        &format!(
            "The Python process that ran the {} was ended because it sent a message of {}",
            kind.noun(),
            bytes(message_bytes)
        ),
        "keep many small arrays in one large array, or delete those that are no longer needed",
    )
}

pub(crate) fn state_too_large(kind: JobKind) -> RemoteError {
    error(
        kind,
        "StateTooLarge",
        &format!(
            "The {} changed so many small objects that their list alone is too large to be returned",
            kind.noun()
        ),
        "keep many small arrays in one large array, or delete those that are no longer needed",
    )
}

/// Shown below the cell, as the cell's own warnings are.
pub(crate) fn warning(line: &str) -> Output {
    let content = StreamContent::stderr(&format!("warning: {line}\n"));
    Output::new("stream", json!(content).to_string())
}

/// What happened, and what to do about it. Another worker may run the job, so nothing is said about its variables.
pub(crate) fn no_session_starts((what_happened, hint): (String, String)) -> RemoteError {
    RemoteError::of_baton("SessionFailed", what_happened, hint)
}

/// The same for a job that no other worker gets.
pub(crate) fn not_started(kind: JobKind, (what_happened, hint): (String, String)) -> RemoteError {
    error(kind, "SessionFailed", &what_happened, hint)
}

/// Takes the versions of both ends, and the session's interpreter.
pub(crate) fn python_differs(
    kind: JobKind,
    (notebook, worker, python): (&str, &str, &str),
    environment: Option<&str>,
) -> RemoteError {
    let (who, choice) = match kind.is_program() {
        true => ("The run uses", "start the run"),
        false => ("The notebook runs", "choose a notebook kernel"),
    };
    let hint = match environment {
        Some(name) if kind.is_program() => {
            format!(
                "run `baton env sync {name}` in a terminal, then {}",
                run_again(kind)
            )
        }
        Some(name) => format!(
            "run `baton env sync {name}` in a terminal, then select the kernel that it names"
        ),
        None => format!("{choice} with Python {worker}, or a worker with Python {notebook}"),
    };
    let of = match environment {
        Some(name) => format!("the environment {name} of its course"),
        None => "the worker".to_owned(),
    };
    let what = format!("{who} Python {notebook}, {of} Python {worker} ({python})");
    error(kind, "PythonDiffers", &what, hint)
}

/// The notebook's session uses another Python.
pub(crate) fn another_environment(kind: JobKind, environment: Option<&str>) -> String {
    let why = match environment {
        Some(name) => {
            format!("the earlier one had another environment, or an earlier version of {name}")
        }
        None => "the earlier one had an environment, and your course has none any more".to_owned(),
    };
    let noun = kind.noun();
    format!("This {noun} runs in a new session, because {why}; your variables are safe")
}

pub(crate) fn environment_not_ready(kind: JobKind, environment: &str, why: &str) -> RemoteError {
    let what = format!("The environment {environment} is not ready: {why}");
    let hint = format!("{}, or tell the operator of the worker", run_again(kind));
    no_session_starts((what, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_told_with_signal_and_memory() {
        let status = Some(ExitStatus::from_raw(9));
        assert_eq!(
            session_died(JobKind::Cell, status, &["Killed".to_owned()], 3 << 30).value,
            "The Python process that ran the cell ended (signal 9) with up to 3 GiB of memory; \
             its last line was: Killed. Your variables are as they were before the cell"
        );
        assert_eq!(
            session_died(JobKind::Cell, status, &[], 0).value,
            "The Python process that ran the cell ended (signal 9). Your variables are as they were before the cell"
        );
    }

    #[test]
    fn a_run_reads_of_no_cells_and_no_variables() {
        let problem = std::io::Error::other("no room");
        for kind in [JobKind::Notebook, JobKind::Script] {
            let limit = Limit {
                time: std::time::Duration::from_secs(300),
                ..Limit::default()
            };
            let errors = [
                session_died(kind, Some(ExitStatus::from_raw(9)), &[], 0),
                session_died(kind, Some(ExitStatus::from_raw(11)), &[], 0),
                session_died(kind, None, &[], 0),
                out_of_memory(kind, 2, 1),
                disk_full(kind, Some(2), 1),
                cancelled(kind),
                shutting_down(kind),
                time_is_over(kind),
                worker_failed(kind),
                not_sent(kind),
                state_lost(kind, &problem),
                message_too_large(kind, 1),
                files_lost(kind, &problem),
                files_not_collected(kind, &problem),
                kept_the_gpu(kind),
                no_room_on_the_gpu(kind),
                no_room_on_the_host(kind),
                timed_out(kind, limit),
                environment_not_ready(kind, "two", "no room"),
            ];
            for RemoteError { value, hint, .. } in errors {
                let said = format!("{value}; {}", hint.unwrap_or_default());
                assert!(
                    !said.contains("cell") && !said.contains("ariables"),
                    "{said}"
                );
            }
        }
    }

    #[test]
    fn another_python_is_mended_by_the_environment_of_the_course() {
        let message = python_differs(
            JobKind::Cell,
            ("3.12", "3.13", "/opt/python"),
            Some("ml101"),
        );
        assert_eq!(
            message.value,
            "The notebook runs Python 3.12, the environment ml101 of its course Python 3.13 (/opt/python). \
             Your variables are as they were before the cell"
        );
        let hint = message.hint.unwrap_or_default();
        assert!(hint.contains("`baton env sync ml101`"), "{hint}");
        let message = python_differs(JobKind::Cell, ("3.12", "3.13", "/opt/python"), None);
        assert!(
            message.value.contains("the worker Python 3.13"),
            "{}",
            message.value
        );
    }
}
