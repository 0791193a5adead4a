//! What the tasks of notebooks and jobs report to the agent. One channel keeps their order.

use crate::fitting::fitting;
use baton_protocol::{FencingNumber, JobEvent, JobId, NotebookId, outbox::event_bytes};
use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

pub(crate) enum Report {
    /// A trial session ran no cell. Contains the reason.
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
        /// A job has ended; otherwise something changed between two jobs.
        job_over: bool,
        /// The session can run another cell.
        warm: bool,
        /// The notebook still lacks deferred state.
        defers: bool,
        /// The session holds objects that no other session can hold.
        keeps: bool,
    },
}

/// Where the events of one job are sent.
#[derive(Clone)]
pub(crate) struct EventSink {
    pub(crate) job: JobId,
    pub(crate) fencing: FencingNumber,
    /// Unbounded; a session that could send many events waits while `unsent_bytes` is above its limit.
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    /// Bytes that the broker has not acknowledged yet. The agent subtracts those that it has.
    pub(crate) unsent_bytes: Arc<AtomicUsize>,
    /// The session's memory at the last measurement; the agent reports it to the broker.
    pub(crate) memory_bytes: Arc<AtomicU64>,
}

impl EventSink {
    pub(crate) fn send(&self, event: JobEvent) {
        let event = fitting(event);
        self.unsent_bytes
            .fetch_add(event_bytes(&event), Ordering::Relaxed);
        // If this fails, the agent has ended and needs no events.
        let _ = self.reports.send(Report::Job {
            job: self.job,
            fencing: self.fencing,
            event: Box::new(event),
        });
    }

    /// Whether outputs and questions must wait, because the broker accepts less than the cell sends.
    pub(crate) fn is_full(&self) -> bool {
        const LIMIT_BYTES: usize = 32 << 20;
        self.unsent_bytes.load(Ordering::Relaxed) > LIMIT_BYTES
    }
}

/// An event that is certain to be sent, unless the job is revoked: when this is dropped, at the latest.
pub(crate) struct PromisedEvent {
    events: EventSink,
    revoked: CancellationToken,
    /// What is sent if nothing else was.
    otherwise: Option<JobEvent>,
}

impl PromisedEvent {
    pub(crate) fn new(events: EventSink, revoked: CancellationToken, otherwise: JobEvent) -> Self {
        Self {
            events,
            revoked,
            otherwise: Some(otherwise),
        }
    }

    /// Completes when the job is revoked, so that nobody waits for the event any more. Cancel safe.
    pub(crate) fn revoked(&self) -> WaitForCancellationFutureOwned {
        self.revoked.clone().cancelled_owned()
    }

    /// Keeps the promise. Has no effect if it is kept already.
    pub(crate) fn send(&mut self, event: JobEvent) {
        if self.otherwise.take().is_some() {
            self.send_before(event);
        }
    }

    /// Sends an event that does not keep the promise.
    pub(crate) fn send_before(&self, event: JobEvent) {
        if !self.revoked.is_cancelled() {
            self.events.send(event);
        }
    }
}

impl Drop for PromisedEvent {
    fn drop(&mut self) {
        if let Some(event) = self.otherwise.take() {
            self.send_before(event);
        }
    }
}
