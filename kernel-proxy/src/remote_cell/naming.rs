//! How the broker recognizes a notebook and its cells.

use super::{link::Status, status_line::OtherJob};
use crate::config::Audience;
use baton_protocol::{CellKey, ClientJob, JobId, JobKind, proxy::WaitingReason};
use baton_transport::Token;

pub(super) struct Naming {
    /// Shown to people.
    pub(super) notebook: String,
    own_secret: Token,
    /// The last job that the client chose the id of.
    client_job: Option<JobId>,
    of_program: bool,
    /// The last cell was stopped before its end.
    pub(super) was_stopped: bool,
}

impl Naming {
    pub(super) fn new(audience: &Audience) -> Self {
        Self {
            notebook: match audience {
                Audience::Clients(_) => notebook_name(),
                Audience::Program { name, .. } => name.clone(),
            },
            own_secret: Token::new(&uuid::Uuid::new_v4().to_string()),
            client_job: None,
            of_program: matches!(audience, Audience::Program { .. }),
            was_stopped: false,
        }
    }

    /// The job of a cell, with the id that `baton run` chose. A cell that is submitted again is another job.
    pub(super) fn job_of(&mut self, message_id: &str, kind: JobKind) -> ClientJob {
        let Ok(job) = message_id.parse::<ClientJob>() else {
            return ClientJob::random(kind);
        };
        match self.client_job.replace(job.id) {
            Some(last) if last == job.id => ClientJob {
                id: JobId::random(),
                ..job
            },
            _ => job,
        }
    }

    /// Whether this runs a program instead of a notebook's cells.
    pub(super) fn is_program(&self) -> bool {
        self.of_program || self.client_job.is_some()
    }

    /// Which job of the person a job of this kind waits for.
    pub(super) fn other_job(&self, reason: &WaitingReason, kind: JobKind) -> OtherJob {
        match (reason, kind) {
            (_, JobKind::Map | JobKind::Notebook | JobKind::Script) => OtherJob::SameRun,
            (WaitingReason::OwnJobRuns { notebook }, _)
                if self.was_stopped && *notebook == self.notebook =>
            {
                OtherJob::Stopped
            }
            _ => OtherJob::Any,
        }
    }

    /// Identifies a cell across its runs. Without a token it does so only until the kernel ends.
    pub(super) fn cell_key(&self, code: &str, status: &Status) -> CellKey {
        let token = match status {
            Status::Up(broker) => broker.token.as_ref(),
            _ => None,
        };
        let token = token.unwrap_or(&self.own_secret);
        CellKey(token.mark("baton cell", code.trim().as_bytes()))
    }
}

/// Returns the notebook's file name, from the path that Jupyter Server gives the kernel.
fn notebook_name() -> String {
    let path = std::env::var("JPY_SESSION_NAME").unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    match name.is_empty() {
        true => "notebook".to_owned(),
        false => name.to_owned(),
    }
}
