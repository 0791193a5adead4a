//! What the tasks of notebooks and jobs say to the agent, over one channel, so that it keeps its order.

use baton_protocol::{FencingNumber, JobEvent, JobId, NotebookId};

pub(crate) enum Report {
    /// A session that the worker started for itself ran no cell: why.
    TrialFailed(String),
    Job {
        job: JobId,
        fencing: FencingNumber,
        event: Box<JobEvent>,
    },
    Notebook {
        notebook: NotebookId,
        /// A notebook may have several tasks, one after the other.
        task: u64,
        /// A job is over; otherwise the session ended without one.
        job_over: bool,
        /// The session can go on.
        warm: bool,
        /// The notebook still needs it for what its last cell left out.
        owes: bool,
        /// The session holds what no other can have.
        keeps: bool,
    },
}
