//! Why a cell returned no result, in words for the student: what happened, whether the variables are safe,
//! what to do next.

use super::autostart::Obstacle;
use baton_chunks::StateError;
use baton_humanize::{SAFE, with_causes};
use baton_mirror::FilesError;
use baton_protocol::{JobId, Outcome, RemoteError};
use baton_transport::{LinkError, TransferError};
use std::error::Error;

/// For a cell that had started.
const CHECK: &str = "check what the cell wrote or sent, then run it again";
const AGAIN: &str = "run the cell again; if it fails again, run `baton doctor` in a terminal";

pub(super) fn no_answer(reason: Option<&str>) -> String {
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    format!("The GPU service does not answer{reason}")
}

pub(super) fn cannot_use(obstacle: &Obstacle) -> String {
    format!(
        "This notebook cannot use the GPU service: {}",
        obstacle.reason
    )
}

/// The end of a call that returns no result.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) outcome: Outcome,
    pub(super) error: RemoteError,
}

impl Failure {
    /// The job lets staff find what happened.
    pub(super) fn new(outcome: Outcome, mut error: RemoteError, job: JobId) -> Self {
        let short = job.short();
        error.hint = Some(match error.hint {
            Some(hint) => format!("{hint} (job {short})"),
            None => format!("if you ask your course staff about this, name job {short}"),
        });
        Self { outcome, error }
    }

    fn service(value: String, hint: &str, job: JobId) -> Self {
        let error = RemoteError::of_baton("GpuServiceError", value, hint);
        Self::new(Outcome::WorkerLost, error, job)
    }

    pub(super) fn no_answer(reason: Option<&str>, job: JobId, started: bool) -> Self {
        let what = no_answer(reason);
        let (had_started, hint) = match started {
            true => (
                ". The cell had started, and its result will not be used",
                CHECK,
            ),
            false => ("", AGAIN),
        };
        Self::service(
            format!("{what}{had_started}. {SAFE}; ordinary cells work"),
            hint,
            job,
        )
    }

    pub(super) fn refused(obstacle: &Obstacle, job: JobId) -> Self {
        Self::service(
            format!("{}. {SAFE}", cannot_use(obstacle)),
            obstacle.hint,
            job,
        )
    }

    pub(super) fn unable(reason: &str, job: JobId) -> Self {
        Self::service(
            format!("{reason}, so this cell did not run. {SAFE}; ordinary cells work"),
            "run the cell again later, and tell your course staff",
            job,
        )
    }

    pub(super) fn job_lost(job: JobId, started: bool) -> Self {
        let (what, hint) = match started {
            true => (
                "This cell had started, and the GPU service no longer has its result",
                CHECK,
            ),
            false => (
                "The GPU service lost this cell, which had not started as far as the notebook knows",
                AGAIN,
            ),
        };
        Self::service(format!("{what}. {SAFE}"), hint, job)
    }

    /// The cell outlives its kernel, so another call can attach it.
    pub(super) fn detached(job: JobId) -> Self {
        Self::service(
            format!(
                "The notebook was disconnected when this cell needed something from it, so the cell's changes no \
                 longer fit. {SAFE}"
            ),
            "%gpu_attach restores what the cell left",
            job,
        )
    }

    /// The shim's answer does not follow on from what the session holds.
    pub(super) fn out_of_step(job: JobId) -> Self {
        Self::service(
            format!("The notebook and its session are out of step. {SAFE}"),
            AGAIN,
            job,
        )
    }

    pub(super) fn transfer(error: &TransferError, job: JobId) -> Self {
        match error {
            TransferError::Link(LinkError::StoreFull { .. })
            | TransferError::State(StateError::Full { .. }) => Self::service(
                format!(
                    "The GPU service has no room for the variables of this cell ({}). {SAFE}",
                    with_causes(error)
                ),
                "delete large variables that the cell does not need, or tell your course staff",
                job,
            ),
            TransferError::State(error @ StateError::MemoryFull) => Self::service(
                format!("{error} of this cell. {SAFE}"),
                "delete large variables that the cell does not need",
                job,
            ),
            _ => Self::service(
                format!(
                    "The variables of this cell could not be sent ({}). {SAFE}",
                    with_causes(error)
                ),
                match error {
                    TransferError::Link(LinkError::UnsafeStore { problem, .. }) => {
                        problem.hint_for_store()
                    }
                    _ => AGAIN,
                },
                job,
            ),
        }
    }

    /// The list of the notebook's files could not be sent.
    pub(super) fn files(error: &FilesError, job: JobId) -> Self {
        Self::service(
            format!(
                "The list of the notebook's files could not be sent ({}). {SAFE}",
                with_causes(error)
            ),
            match error {
                FilesError::Link(LinkError::StoreFull { .. }) => "tell your course staff",
                FilesError::Link(LinkError::UnsafeStore { problem, .. }) => {
                    problem.hint_for_store()
                }
                _ => AGAIN,
            },
            job,
        )
    }

    /// The files that a program wrote cannot be written here.
    pub(super) fn files_lost(error: &FilesError, job: JobId) -> Self {
        let error = RemoteError::of_baton(
            "FilesLost",
            format!(
                "The program ran, but the files that it wrote are lost: they could not be written here ({})",
                with_causes(error)
            ),
            "make room, or change the permissions of the folder, then run it again",
        );
        Self::new(Outcome::Error, error, job)
    }

    /// The job was attached by another kernel, was discarded, or has waited for too long.
    pub(super) fn not_attachable(job: JobId) -> Self {
        Self::service(
            "The job can no longer be attached. Your variables are as they were".to_owned(),
            "%gpu_jobs lists the jobs that can be attached",
            job,
        )
    }

    /// The state of an attached job could not be fetched; the broker still has it.
    pub(super) fn not_attached(error: &TransferError, job: JobId) -> Self {
        Self::service(
            format!(
                "The results of the job could not be fetched ({}). Your variables are as they were",
                with_causes(error)
            ),
            "try again: the job can still be attached",
            job,
        )
    }

    /// The files of an attached job cannot be written here; the broker still has them.
    pub(super) fn files_not_attached(error: &FilesError, job: JobId) -> Self {
        Self::service(
            format!(
                "The files that the job wrote could not be written here ({}). Your variables are as they were",
                with_causes(error)
            ),
            "make room, or change the permissions of the folder, then try again: the job can still be attached",
            job,
        )
    }

    /// The notebook adds what the loss means for its variables.
    pub(super) fn deferred_lost(what_happened: &str) -> RemoteError {
        RemoteError::of_baton("GpuServiceError", what_happened, "run the cell again")
    }

    pub(super) fn result_lost(error: &(dyn Error + 'static), job: JobId) -> Self {
        Self::service(
            format!(
                "The cell ran, but its result could not be fetched ({}). {SAFE}",
                with_causes(error)
            ),
            CHECK,
            job,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_written_here_are_not_the_fault_of_the_worker() {
        let failure = Failure::files_lost(&FilesError::OutOfStep, JobId::random());
        assert_eq!(failure.outcome, Outcome::Error);
    }
}
