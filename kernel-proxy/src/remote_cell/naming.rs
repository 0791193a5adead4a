//! How the broker recognizes a notebook and its cells.

use baton_protocol::{CellKey, ClientJob, JobId, JobKind};
use baton_transport::Token;

use super::link::Status;
use crate::config::Audience;

pub(super) struct Naming {
    /// For people to read.
    pub(super) notebook: String,
    own_secret: Token,
    /// The last job that the client named.
    client_job: Option<JobId>,
    of_program: bool,
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
        }
    }

    /// The job of a cell, as `baton run` named it. A cell that is submitted again is another job.
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

    /// Whether a program runs, and no cells of a notebook.
    pub(super) fn is_program(&self) -> bool {
        self.of_program || self.client_job.is_some()
    }

    /// Without a token, runs of the same cell are recognized only until the kernel ends.
    pub(super) fn cell_key(&self, code: &str, status: &Status) -> CellKey {
        let token = match status {
            Status::Up(transports) => transports.token.as_ref(),
            _ => None,
        };
        let token = token.unwrap_or(&self.own_secret);
        CellKey(token.mark("baton cell", code.trim().as_bytes()))
    }
}

/// Returns the notebook's file name: Jupyter Server gives the kernel its path.
fn notebook_name() -> String {
    let path = std::env::var("JPY_SESSION_NAME").unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    match name.is_empty() {
        true => "notebook".to_owned(),
        false => name.to_owned(),
    }
}
