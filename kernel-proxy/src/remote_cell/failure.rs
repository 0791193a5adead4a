//! Why a job (a cell, block, call or run) returned no result, in words for its owner: what happened, whether the
//! variables are safe, what to do next.

use super::autostart::Obstacle;
use baton_chunks::StateError;
use baton_humanize::{bytes, with_causes};
use baton_mirror::FilesError;
use baton_protocol::{
    Bound, Excess, JobId, JobKind, Outcome, RemoteError,
    wording::{self, check_and_run_again, run_again, with_ordinary_cells, with_safety},
};
use baton_transport::{LinkError, TransferError};
use std::error::Error;

/// The job that a message is about. Staff need its id; its owner needs to read what it runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedJob {
    pub(super) id: JobId,
    pub(super) kind: JobKind,
}

/// Why the broker cannot be used at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Absence {
    NoAnswer { reason: Option<String> },
    Refused(Obstacle),
}

pub(super) fn no_answer(reason: Option<&str>) -> String {
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    format!("The GPU service does not answer{reason}")
}

pub(super) fn cannot_use(obstacle: &Obstacle, kind: JobKind) -> String {
    let what = match kind.is_program() {
        true => "run",
        false => "notebook",
    };
    let reason = &obstacle.reason;
    format!("This {what} cannot use the GPU service: {reason}")
}

/// What its owner does about the obstacle. A run has no kernel that could be restarted.
fn hint(obstacle: &Obstacle, kind: JobKind) -> String {
    match kind.is_program() {
        true => obstacle
            .hint
            .replace("restart the kernel", &run_again(kind)),
        false => obstacle.hint.to_owned(),
    }
}

/// What happens to a job whose notebook the broker refuses.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meanwhile {
    /// It does not need its notebook.
    Continues,
    /// The broker waits a few seconds for its notebook.
    Stops,
    HasEnded,
}

/// Tells the owner of a job about an obstacle that its notebook waits for.
pub(super) fn warn_of(obstacle: &Obstacle, kind: JobKind, meanwhile: Meanwhile) -> String {
    let noun = kind.noun();
    let meanwhile = match meanwhile {
        Meanwhile::Continues => format!("The {noun} continues on the GPU machine, and its result"),
        Meanwhile::Stops => format!(
            "The {noun} is stopped unless that changes within seconds, and what it has changed until then"
        ),
        Meanwhile::HasEnded => format!("The {noun} has ended, and its result"),
    };
    let (what, hint) = (cannot_use(obstacle, kind), hint(obstacle, kind));
    format!("{what}. {meanwhile} is fetched as soon as possible\nhint: {hint}")
}

fn again(kind: JobKind) -> String {
    let again = run_again(kind);
    format!("{again}; if it fails again, run `baton doctor` in a terminal")
}

fn unused(kind: JobKind) -> String {
    let noun = kind.noun();
    format!(". The {noun} had started, and its result will not be used")
}

/// The end of a call that returns no result.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) outcome: Outcome,
    pub(super) error: RemoteError,
}

/// The error with the job's id, which lets staff find what happened.
pub(super) fn naming(job: JobId, mut error: RemoteError) -> RemoteError {
    let short = job.short();
    error.hint = Some(match error.hint {
        Some(hint) => format!("{hint} (job {short})"),
        None => format!("if you ask your course staff about this, name job {short}"),
    });
    error
}

impl Failure {
    pub(super) fn new(outcome: Outcome, error: RemoteError, job: JobId) -> Self {
        let error = naming(job, error);
        Self { outcome, error }
    }

    fn service(value: String, hint: impl Into<String>, job: JobId) -> Self {
        let error = RemoteError::of_baton("GpuServiceError", value, hint);
        Self::new(Outcome::WorkerLost, error, job)
    }

    /// The job does not wait any longer for the broker.
    pub(super) fn absent(absence: &Absence, job: NamedJob, started: bool) -> Self {
        match absence {
            Absence::NoAnswer { reason } => Self::no_answer(reason.as_deref(), job, started),
            Absence::Refused(obstacle) => Self::refused(obstacle, job, started),
        }
    }

    fn no_answer(reason: Option<&str>, job: NamedJob, started: bool) -> Self {
        let NamedJob { id, kind } = job;
        let (mut what, mut hint) = (no_answer(reason), again(kind));
        if started {
            what += &unused(kind);
            hint = check_and_run_again(kind);
        }
        Self::service(with_ordinary_cells(&what, kind), hint, id)
    }

    pub(super) fn refused(obstacle: &Obstacle, job: NamedJob, started: bool) -> Self {
        let NamedJob { id, kind } = job;
        let (mut what, mut hint) = (cannot_use(obstacle, kind), hint(obstacle, kind));
        if started {
            what += &unused(kind);
            hint += &format!("; {}", check_and_run_again(kind));
        }
        Self::service(with_safety(&what, kind), hint, id)
    }

    /// The cell outlives its kernel, which can no longer use the broker.
    pub(super) fn left(obstacle: &Obstacle, NamedJob { id, kind }: NamedJob) -> Self {
        let (noun, what, hint) = (
            kind.noun(),
            cannot_use(obstacle, kind),
            hint(obstacle, kind),
        );
        let hint = format!("{hint}; then %gpu_attach restores what the {noun} left");
        Self::service(with_safety(&what, kind), hint, id)
    }

    pub(super) fn unable(reason: &str, NamedJob { id, kind }: NamedJob) -> Self {
        let what = format!("{reason}, so this {} did not run", kind.noun());
        let hint = format!("{} later, and tell your course staff", run_again(kind));
        Self::service(with_ordinary_cells(&what, kind), hint, id)
    }

    pub(super) fn job_lost(NamedJob { id, kind }: NamedJob, started: bool) -> Self {
        let noun = kind.noun();
        let (what, hint) = match started {
            true => (
                format!("This {noun} had started, and the GPU service no longer has its result"),
                check_and_run_again(kind),
            ),
            false => (
                format!(
                    "The GPU service lost this {noun}, which had not started as far as is known here"
                ),
                again(kind),
            ),
        };
        Self::service(with_safety(&what, kind), hint, id)
    }

    /// The cell outlives its kernel, so another call can attach it.
    pub(super) fn detached(NamedJob { id, kind }: NamedJob) -> Self {
        let noun = kind.noun();
        let what = format!(
            "The notebook was disconnected when this {noun} needed something from it, so the {noun}'s changes no \
             longer fit"
        );
        let hint = format!("%gpu_attach restores what the {noun} left");
        Self::service(with_safety(&what, kind), hint, id)
    }

    /// The shim's answer does not follow on from what the session holds.
    pub(super) fn out_of_step(NamedJob { id, kind }: NamedJob) -> Self {
        let what = "The notebook and its session are out of step";
        Self::service(with_safety(what, kind), again(kind), id)
    }

    pub(super) fn transfer(error: &TransferError, NamedJob { id, kind }: NamedJob) -> Self {
        let noun = kind.noun();
        let (state, first) = match kind.is_program() {
            true => ("this", "This"),
            false => ("the variables of this", "The variables of this"),
        };
        let smaller = format!("delete large variables that the {noun} does not need");
        let causes = with_causes(error);
        let (what, hint) = match error {
            TransferError::Link(LinkError::StoreFull { .. })
            | TransferError::State(StateError::Full { .. }) => (
                format!("The GPU service has no room for {state} {noun} ({causes})"),
                match kind.is_program() {
                    true => "tell your course staff".to_owned(),
                    false => format!("{smaller}, or tell your course staff"),
                },
            ),
            TransferError::State(StateError::MemoryFull) if !kind.is_program() => {
                (format!("{causes} of this {noun}"), smaller)
            }
            TransferError::TooManyObjects => (
                format!("{first} {noun} could not be sent ({causes})"),
                "keep many small arrays in one large array, or delete those that are no longer \
                 needed"
                    .to_owned(),
            ),
            TransferError::Link(LinkError::UnsafeStore { problem, .. }) => (
                format!("{first} {noun} could not be sent ({causes})"),
                problem.hint_for_store().to_owned(),
            ),
            _ => (
                format!("{first} {noun} could not be sent ({causes})"),
                again(kind),
            ),
        };
        Self::service(with_safety(&what, kind), hint, id)
    }

    /// The broker accepts neither the cell nor, if it has started, an answer to its question.
    pub(super) fn too_large(excess: Excess, job: NamedJob, started: bool) -> Self {
        let NamedJob { id, kind } = job;
        let (has, most) = match excess {
            Excess::Bytes(count) => (bytes(count as u64), bytes(Bound::MESSAGE.bytes as u64)),
            Excess::Elements(most) => ("too many elements".to_owned(), format!("{most}")),
        };
        let noun = kind.noun();
        let what = format!(
            "The message of this {noun} has {has}, and the GPU service accepts at most {most}"
        );
        let mut hint = format!(
            "put data into a file in {} and read it from there",
            wording::folder(kind)
        );
        if started {
            hint += &format!("; {}", check_and_run_again(kind));
        }
        Self::service(with_safety(&what, kind), hint, id)
    }

    /// The list of the files in the kernel's folder could not be sent.
    pub(super) fn files(error: &FilesError, NamedJob { id, kind }: NamedJob) -> Self {
        let folder = wording::folder(kind);
        let causes = with_causes(error);
        let what = format!("The list of the files in {folder} could not be sent ({causes})");
        let hint = match error {
            FilesError::Link(LinkError::StoreFull { .. }) => "tell your course staff".to_owned(),
            FilesError::Link(LinkError::UnsafeStore { problem, .. }) => {
                problem.hint_for_store().to_owned()
            }
            _ => again(kind),
        };
        Self::service(with_safety(&what, kind), hint, id)
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
    pub(super) fn deferred_lost(what_happened: &str, kind: JobKind) -> RemoteError {
        RemoteError::of_baton("GpuServiceError", what_happened, run_again(kind))
    }

    pub(super) fn result_lost(
        error: &(dyn Error + 'static),
        NamedJob { id, kind }: NamedJob,
    ) -> Self {
        let (noun, causes) = (kind.noun(), with_causes(error));
        let what = format!("The {noun} ran, but its result could not be fetched ({causes})");
        Self::service(with_safety(&what, kind), check_and_run_again(kind), id)
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

    #[test]
    fn a_run_has_no_kernel_to_restart() {
        let obstacle = Obstacle::new("it is wrong", "correct it, then restart the kernel");
        for (kind, expected) in [
            (JobKind::Cell, "correct it, then restart the kernel"),
            (JobKind::Notebook, "correct it, then start the run again"),
        ] {
            assert_eq!(hint(&obstacle, kind), expected);
        }
    }
}
