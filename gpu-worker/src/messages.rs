//! What a student reads when a cell did not end by itself.
//!
//! In: facts. Out: an error in plain words: what happened, whether the variables are safe, what to do next.
//!
//! **Invariant:** no I/O. No code and no values, except in the lines that a session wrote itself.

mod files;
mod gpu;
mod limit;

use baton_humanize::{SAFE, bytes, with_causes};
use baton_protocol::{Output, RemoteError};
use jupyter_protocol::StreamContent;
use serde_json::json;
use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

pub(crate) use self::files::{
    few, file_not_fetched, file_not_opened, file_too_large, files_left, files_lost, files_missing,
    files_not_collected, files_not_copied, folder_cut, mirror_cut, mirror_lost_before, second_name,
};
pub(crate) use self::gpu::{
    GPU_BYPASSED, gpu_failed_before, gpu_fault, gpu_not_back, kept_the_gpu, no_gpu_in_sessions,
    no_gpu_limit, no_room_on_the_gpu, no_room_on_the_host,
};
pub(crate) use self::limit::{Limit, stopped_in_time, timed_out};

fn error(name: &str, what_happened: &str, hint: &str) -> RemoteError {
    RemoteError::of_baton(name, format!("{what_happened}. {SAFE}"), hint)
}

/// The session ended before all results of its last cell had left it.
pub(crate) fn deferred_lost() -> RemoteError {
    deferred_error("The Python process on the GPU machine ended before all results had arrived")
}

pub(crate) fn deferred_unreadable(problem: &(dyn std::error::Error + 'static)) -> RemoteError {
    let why = with_causes(problem);
    deferred_error(&format!(
        "Some results could not be sent from the GPU machine: {why}"
    ))
}

/// For a job whose notebook kernel has ended.
pub(crate) fn not_salvaged() -> RemoteError {
    error(
        "SessionDied",
        "The Python process on the GPU machine ended before the variables of this cell were saved",
        "run the cell again",
    )
}

/// The notebook adds what that means for its variables.
fn deferred_error(what_happened: &str) -> RemoteError {
    RemoteError::of_baton("SessionDied", what_happened, "run the cell again")
}

/// The session ended while the cell ran. `peak_bytes` is the most memory that was measured; 0 if none was.
pub(crate) fn session_died(
    status: Option<ExitStatus>,
    last_lines: &[String],
    peak_bytes: u64,
) -> RemoteError {
    let how = status.map_or_else(
        || "closed its connections".to_owned(),
        |status| format!("ended ({})", describe(status)),
    );
    let last_words = match last_lines.last() {
        Some(line) => format!("; its last line was: {}", line.trim_end_matches('.')),
        None => String::new(),
    };
    let memory = match peak_bytes {
        0 => String::new(),
        peak_bytes => format!(" with up to {} of memory", bytes(peak_bytes)),
    };
    let hint = match status.and_then(|status| status.signal()) {
        Some(9) => {
            "signal 9 often means that the machine's memory ran out: use less memory, or run the cell again"
        }
        Some(_) => {
            "a library with native code probably crashed: run the cell in smaller steps to find the line"
        }
        None => "the cell may have called os._exit(): remove the call and run the cell again",
    };
    error(
        "SessionDied",
        &format!("The Python process that ran the cell {how}{memory}{last_words}"),
        hint,
    )
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => "for an unknown reason".to_owned(),
    }
}

pub(crate) fn out_of_memory(memory_bytes: u64, limit_bytes: u64) -> RemoteError {
    error(
        "OutOfMemory",
        &format!(
            "The cell was stopped because its processes used {} of memory; the limit is {}",
            bytes(memory_bytes),
            bytes(limit_bytes)
        ),
        "use a smaller part of the data at a time, or delete variables that you no longer need with del",
    )
}

/// `used_bytes`: `None` if the worker cannot look into one of the session's folders.
pub(crate) fn disk_full(used_bytes: Option<u64>, limit_bytes: u64) -> RemoteError {
    let used = used_bytes.map_or_else(
        || "has a folder that the GPU machine cannot measure".to_owned(),
        |used| format!("stored {} on the GPU machine's disk", bytes(used)),
    );
    error(
        "DiskFull",
        &format!(
            "The cell was stopped because its session {used}; the limit is {}",
            bytes(limit_bytes)
        ),
        "store less in files and packages at a time, or read files in parts",
    )
}

pub(crate) fn cancelled() -> RemoteError {
    error(
        "KeyboardInterrupt",
        "The cell was interrupted before its changes could be returned",
        "run the cell again",
    )
}

pub(crate) fn shutting_down() -> RemoteError {
    error(
        "WorkerLost",
        "The worker was stopped while the cell ran",
        "run the cell again: another worker takes it",
    )
}

pub(crate) fn time_is_over() -> RemoteError {
    error(
        "WorkerLeft",
        "The cell was stopped because the worker's time on its machine ended",
        "run the cell again: another worker takes it; with %%gpu --timeout, a cell starts only where it has enough time",
    )
}

/// The cell could not be sent to its session, or its answer made no sense.
pub(crate) fn session_failed(what_happened: &str) -> RemoteError {
    error("SessionFailed", what_happened, "run the cell again")
}

/// State could not be transferred between broker and session.
pub(crate) fn state_lost(problem: &(dyn std::error::Error + 'static)) -> RemoteError {
    error(
        "StateLost",
        &format!(
            "The variables of this cell could not be transferred: {}",
            with_causes(problem)
        ),
        "run the cell again",
    )
}

/// A session's message, which is not an output.
pub(crate) fn message_too_large(message_bytes: u64) -> RemoteError {
    error(
        "MessageTooLarge",
        &format!(
            "The Python process that ran the cell was ended because it sent a message of {}",
            bytes(message_bytes)
        ),
        "keep many small arrays in one large array, or delete those that are no longer needed",
    )
}

pub(crate) fn state_too_large(state_bytes: usize) -> RemoteError {
    error(
        "StateTooLarge",
        &format!(
            "The cell changed so many small objects that their list alone takes {}",
            bytes(state_bytes as u64)
        ),
        "keep many small arrays in one large array, or delete those that are no longer needed",
    )
}

/// Shown below the cell, as the cell's own warnings are.
pub(crate) fn warning(line: &str) -> Output {
    let content = StreamContent::stderr(&format!("warning: {line}\n"));
    Output::new("stream", json!(content).to_string())
}

/// What happened, and what to do about it.
pub(crate) fn not_started((what_happened, hint): (String, String)) -> RemoteError {
    error("SessionFailed", &what_happened, &hint)
}

/// Takes the versions of both ends, and the session's interpreter.
pub(crate) fn python_differs(
    (notebook, worker, python): (&str, &str, &str),
    environment: Option<&str>,
) -> RemoteError {
    let hint = match environment {
        Some(name) => format!(
            "run `baton env sync {name}` in a terminal, then select the kernel that it names"
        ),
        None => format!(
            "choose a notebook kernel with Python {worker}, or a worker with Python {notebook}"
        ),
    };
    let of = match environment {
        Some(name) => format!("the environment {name} of its course"),
        None => "the worker".to_owned(),
    };
    let what = format!("The notebook runs Python {notebook}, {of} Python {worker} ({python})");
    error("PythonDiffers", &what, &hint)
}

/// The notebook's session uses another Python.
pub(crate) fn another_environment(environment: Option<&str>) -> String {
    let why = match environment {
        Some(name) => {
            format!("the earlier one had another environment, or an earlier version of {name}")
        }
        None => "the earlier one had an environment, and your course has none any more".to_owned(),
    };
    format!("This cell runs in a new session, because {why}; your variables are safe")
}

pub(crate) fn environment_not_ready(environment: &str, why: &str) -> RemoteError {
    error(
        "SessionFailed",
        &format!("The environment {environment} is not ready: {why}"),
        "run the cell again, or tell the operator of the worker",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_told_with_signal_and_memory() {
        let status = Some(ExitStatus::from_raw(9));
        assert_eq!(
            session_died(status, &["Killed".to_owned()], 3 << 30).value,
            "The Python process that ran the cell ended (signal 9) with up to 3 GiB of memory; \
             its last line was: Killed. Your variables are as they were before the cell"
        );
        assert_eq!(
            session_died(status, &[], 0).value,
            "The Python process that ran the cell ended (signal 9). Your variables are as they were before the cell"
        );
    }

    #[test]
    fn another_python_is_mended_by_the_environment_of_the_course() {
        let message = python_differs(("3.12", "3.13", "/opt/python"), Some("ml101"));
        assert_eq!(
            message.value,
            "The notebook runs Python 3.12, the environment ml101 of its course Python 3.13 (/opt/python). \
             Your variables are as they were before the cell"
        );
        let hint = message.hint.unwrap_or_default();
        assert!(hint.contains("`baton env sync ml101`"), "{hint}");
        let message = python_differs(("3.12", "3.13", "/opt/python"), None);
        assert!(
            message.value.contains("the worker Python 3.13"),
            "{}",
            message.value
        );
    }
}
