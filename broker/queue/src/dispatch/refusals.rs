//! Cells that are refused at once. Nothing about them is stored.

use super::{Action, ConnectionId, Dispatch};
use crate::Unwelcome;
use baton_humanize::SAFE;
use baton_protocol::{
    Finished, JobEvent, JobId, NotebookId, NumberedEvent, Outcome, RemoteError, proxy::ToProxy,
};

/// How many cells of one notebook may be open: waiting, running, or with a result that the notebook
/// does not have yet. A kernel runs its cells one after the other, so this is enough.
const MOST_OF_NOTEBOOK: usize = 100;

impl Dispatch {
    pub(super) fn has_too_many(&self, notebook: NotebookId) -> bool {
        let of_notebook = self.jobs.iter().filter(|job| job.notebook == notebook);
        of_notebook.count() >= MOST_OF_NOTEBOOK
    }

    /// The proxy submits a job that is already closed: it was disconnected for so long that the job
    /// was cancelled.
    pub(super) fn submitted_again(
        &self,
        connection: ConnectionId,
        job: JobId,
        actions: &mut Vec<Action>,
    ) {
        let error = RemoteError {
            name: "NotebookAway".to_owned(),
            value: format!(
                "The cell was stopped, because its notebook was not connected for too long. {SAFE}"
            ),
            traceback: Vec::new(),
            hint: Some(format!("run the cell again, or show a TA job {job}")),
        };
        self.refuse(connection, job, Outcome::WorkerLost, error, actions);
    }

    /// A notebook that submits cells without waiting for them must not fill the broker.
    pub(super) fn one_too_many(
        &self,
        connection: ConnectionId,
        job: JobId,
        actions: &mut Vec<Action>,
    ) {
        let error = RemoteError {
            name: "TooManyCells".to_owned(),
            value: format!(
                "{MOST_OF_NOTEBOOK} cells of this notebook are waiting or running, which is the limit. {SAFE}"
            ),
            traceback: Vec::new(),
            hint: Some("run this cell again when some of them have ended".to_owned()),
        };
        self.refuse(connection, job, Outcome::Refused, error, actions);
    }

    pub(super) fn too_large(
        &self,
        connection: ConnectionId,
        job: JobId,
        why: &Unwelcome,
        actions: &mut Vec<Action>,
    ) {
        let error = RemoteError {
            name: "CellTooLarge".to_owned(),
            value: format!("{why}. {SAFE}"),
            traceback: Vec::new(),
            hint: Some(why.hint().to_owned()),
        };
        self.refuse(connection, job, Outcome::Refused, error, actions);
    }

    /// The proxy has no event of this job, so this one is its first and its last. Nothing is stored.
    fn refuse(
        &self,
        connection: ConnectionId,
        job: JobId,
        outcome: Outcome,
        error: RemoteError,
        actions: &mut Vec<Action>,
    ) {
        let end = NumberedEvent {
            number: 1,
            event: JobEvent::Finished(Finished::without_state(outcome, Some(error))),
        };
        let events = vec![end];
        actions.push(Action::ToProxy(connection, ToProxy::Events { job, events }));
    }
}
