//! People as the queue of the simulated course sees them: each has one notebook and at most one cell.

use std::sync::Arc;

use baton_protocol::{JobId, NotebookId};
use baton_scheduling::queue::{Job, Precedence};
use uuid::Uuid;

/// A person's waiting cell as the queue sees it.
pub(super) fn job(person: usize, owner: Arc<str>) -> Job {
    Job {
        job: JobId(Uuid::from_u128(person as u128)),
        notebook: notebook(person),
        owner,
        worker: None,
        precedence: Precedence {
            used_ms: 0.0,
            weight: 1.0,
            boost: 1.0,
            low_priority: false,
            waited_ms: 0,
        },
        held: false,
        paused: false,
        front: None,
        needs: Arc::default(),
    }
}

pub(super) fn notebook(person: usize) -> NotebookId {
    NotebookId(Uuid::from_u128(person as u128))
}
