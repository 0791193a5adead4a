//! People as the queue of the simulated course sees them: each has one notebook and at most one cell.

use baton_protocol::{JobId, NotebookId};
use baton_scheduling::queue::{Job, Precedence};
use std::sync::Arc;
use uuid::Uuid;

/// After this many seconds, a person's use counts half. The broker's default.
const HALF_LIFE: f64 = 12.0 * 3600.0;

/// A person's recent use of GPUs. Times are in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    ms: f64,
    at: f64,
}

impl Usage {
    /// A cell that has ended now ran for `run`.
    pub(super) fn add(&mut self, run: f64, now: f64) {
        self.ms = self.ms(now) + 1e3 * run;
        self.at = now;
    }

    pub(super) fn ms(&self, now: f64) -> f64 {
        self.ms * (-(now - self.at) / HALF_LIFE).exp2()
    }
}

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
            // Each person has at most one cell in the queue.
            since_run_ms: None,
        },
        held: false,
        paused: false,
        front: None,
        needs: Arc::default(),
        takes_ms: None,
    }
}

pub(super) fn notebook(person: usize) -> NotebookId {
    NotebookId(Uuid::from_u128(person as u128))
}

pub(super) fn person_of(notebook: NotebookId) -> usize {
    notebook.0.as_u128() as usize
}
