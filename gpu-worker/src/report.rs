//! What the tasks of notebooks and jobs say to the agent, over one channel, so that it keeps its order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use baton_protocol::{FencingNumber, JobEvent, JobId, NotebookId};
use tokio::sync::mpsc;

use crate::outbox::event_bytes;

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
        defers: bool,
        /// The session holds what no other can have.
        keeps: bool,
    },
}

/// Where the events of one job go.
#[derive(Clone)]
pub(crate) struct EventSink {
    pub(crate) job: JobId,
    pub(crate) fencing: FencingNumber,
    /// Without a bound of its own; `unsent_bytes` bounds the only events that come in numbers.
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    /// How much the broker has not yet acknowledged. The agent takes off what it hears of.
    pub(crate) unsent_bytes: Arc<AtomicUsize>,
    /// What the session held at the last look; the agent tells the broker.
    pub(crate) memory_bytes: Arc<AtomicU64>,
}

impl EventSink {
    pub(crate) fn send(&self, event: JobEvent) {
        self.unsent_bytes
            .fetch_add(event_bytes(&event), Ordering::Relaxed);
        // Without an agent nobody wants to know.
        let _ = self.reports.send(Report::Job {
            job: self.job,
            fencing: self.fencing,
            event: Box::new(event),
        });
    }

    /// The broker takes less than the cell writes: outputs wait.
    pub(crate) fn is_full(&self) -> bool {
        const LIMIT_BYTES: usize = 32 << 20;
        self.unsent_bytes.load(Ordering::Relaxed) > LIMIT_BYTES
    }
}
