//! Cells that are refused at once. Nothing about them is stored.

use super::{Batch, ConnectionId, jobs::Jobs};
use crate::Unwelcome;
use baton_protocol::{
    Finished, JobEvent, JobId, JobKind, NotebookId, NumberedEvent, Outcome, RemoteError,
    proxy::ToProxy,
    wording::{run_again, with_safety},
};

/// How many cells of one notebook may be open: waiting, running, or with a result that the notebook
/// does not have yet. A kernel runs its cells one after the other, so this is enough.
const MOST_OF_NOTEBOOK: usize = 100;

pub(super) fn has_too_many(jobs: &Jobs, notebook: NotebookId) -> bool {
    let of_notebook = jobs.iter().filter(|job| job.notebook == notebook);
    of_notebook.count() >= MOST_OF_NOTEBOOK
}

/// The proxy submits a job that is already closed: it was disconnected for so long that the job
/// was cancelled.
pub(super) fn submitted_again(
    connection: ConnectionId,
    job: JobId,
    kind: JobKind,
    batch: &mut Batch,
) {
    let noun = kind.noun();
    let what = format!("This {noun} was stopped, because it was not connected for too long");
    let error = RemoteError::of_baton("NotebookAway", with_safety(&what, kind), run_again(kind));
    refuse(connection, job, Outcome::WorkerLost, error, batch);
}

/// A notebook that submits cells without waiting for them must not fill the broker.
pub(super) fn one_too_many(connection: ConnectionId, job: JobId, kind: JobKind, batch: &mut Batch) {
    let what = format!(
        "{MOST_OF_NOTEBOOK} cells of this notebook are waiting or running, which is the limit"
    );
    let error = RemoteError::of_baton(
        "TooManyCells",
        with_safety(&what, kind),
        format!("{} when some of them have ended", run_again(kind)),
    );
    refuse(connection, job, Outcome::Refused, error, batch);
}

pub(super) fn too_large(
    connection: ConnectionId,
    job: JobId,
    kind: JobKind,
    why: &Unwelcome,
    batch: &mut Batch,
) {
    let what = with_safety(&why.sentence(kind), kind);
    let error = RemoteError::of_baton("CellTooLarge", what, why.hint(kind));
    refuse(connection, job, Outcome::Refused, error, batch);
}

/// The proxy has no event of this job, so this one is its first and its last. Nothing is stored.
fn refuse(
    connection: ConnectionId,
    job: JobId,
    outcome: Outcome,
    error: RemoteError,
    batch: &mut Batch,
) {
    let end = NumberedEvent {
        number: 1,
        event: JobEvent::Finished(Finished::without_state(outcome, Some(error))),
    };
    let events = vec![end];
    batch.send_proxy(connection, ToProxy::Events { job, events });
}

/// Reports a job that does not exist.
pub(super) fn unknown_job(connection: ConnectionId, job: JobId, batch: &mut Batch) {
    batch.send_proxy(connection, ToProxy::UnknownJob { job });
}
