//! The jobs that this worker holds.

use super::Agent;
use crate::{
    job::{EndGuard, Job},
    questions::Questions,
    report::EventSink,
};
use baton_protocol::{FencingNumber, JobId, Submission, outbox::Outbox, worker::FromWorker};
use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// A job that this worker holds, until its last event is acknowledged.
pub(super) struct Assignment {
    pub(super) fencing: FencingNumber,
    /// The environment in which it runs; `None` is the worker's own Python.
    pub(super) environment: Option<String>,
    pub(super) outbox: Outbox,
    pub(super) unsent_bytes: Arc<AtomicUsize>,
    /// Memory of the session; 0 before the first measurement.
    pub(super) memory_bytes: Arc<AtomicU64>,
    /// Changes once, when the cell may start.
    pub(super) permission: watch::Sender<()>,
    pub(super) questions: Questions,
    pub(super) cancelled: CancellationToken,
    pub(super) revoked: CancellationToken,
    pub(super) deferred_wanted: Arc<Notify>,
    pub(super) orphaned: watch::Sender<bool>,
}

impl Assignment {
    /// A notebook kernel has ended, or was only disconnected.
    pub(super) fn has_notebook(&self, has_notebook: bool) {
        self.orphaned.send_replace(!has_notebook);
        self.questions.has_notebook(has_notebook);
    }
}

impl Agent {
    pub(super) fn assign(
        &mut self,
        fencing: FencingNumber,
        account: u64,
        environment: Option<String>,
        submission: Submission,
    ) {
        let (job, notebook) = (submission.job, submission.notebook);
        match self
            .assignments
            .get(&job)
            .map(|assignment| assignment.fencing)
        {
            Some(held) if held >= fencing => return,
            Some(_) => self.give_up(job),
            None => {}
        }
        tracing::info!(%job, %notebook, "Job {job} of notebook {notebook} arrived");
        let (permission, permission_end) = watch::channel(());
        let unsent_bytes = Arc::default();
        let memory_bytes = Arc::default();
        let events = EventSink {
            job,
            fencing,
            reports: self.reports.clone(),
            unsent_bytes: Arc::clone(&unsent_bytes),
            memory_bytes: Arc::clone(&memory_bytes),
        };
        let assignment = Assignment {
            fencing,
            environment: environment.clone(),
            outbox: Outbox::default(),
            unsent_bytes,
            memory_bytes,
            permission,
            questions: Questions::new(events.clone()),
            cancelled: CancellationToken::new(),
            revoked: CancellationToken::new(),
            deferred_wanted: Arc::default(),
            orphaned: watch::Sender::new(false),
        };
        let questions = assignment.questions.clone();
        let assigned = Job {
            account,
            environment,
            end_guard: EndGuard::new(
                events.clone(),
                questions.clone(),
                assignment.revoked.clone(),
            ),
            questions,
            events,
            submission,
            permission: permission_end,
            cancelled: assignment.cancelled.clone(),
            revoked: assignment.revoked.clone(),
            deferred_wanted: assignment.deferred_wanted.clone(),
            orphaned: assignment.orphaned.subscribe(),
            warnings: Vec::new(),
        };
        self.assignments.insert(job, assignment);
        self.enqueue(notebook, assigned);
    }

    /// Stops a job and sends nothing more about it.
    pub(super) fn give_up(&mut self, job: JobId) {
        if let Some(assignment) = self.assignments.remove(&job) {
            tracing::info!(%job, "Job {job} is no longer this worker's");
            assignment.revoked.cancel();
        }
    }

    pub(super) fn acknowledge(&mut self, job: JobId, fencing: FencingNumber, number: u64) {
        let Some(assignment) = self.assignments.get_mut(&job) else {
            return;
        };
        if assignment.fencing != fencing {
            return;
        }
        let could_start = assignment.outbox.start_is_stored();
        let bytes = assignment.outbox.acknowledge(number);
        assignment.unsent_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if assignment.outbox.start_is_stored() && !could_start {
            assignment.permission.send_replace(());
        }
        if assignment.outbox.is_done() {
            self.assignments.remove(&job);
        }
    }

    /// Whether the broker still lacks events of a job, or what was to be salvaged of an orphan.
    pub(super) fn has_something_to_say(&self) -> bool {
        let mut assignments = self.assignments.values();
        assignments.any(
            |Assignment {
                 outbox, orphaned, ..
             }| {
                let is_salvaged = outbox.is_complete() || !*orphaned.borrow();
                !(outbox.is_handed_over() && is_salvaged)
            },
        )
    }

    pub(super) async fn send_events(&mut self) {
        for (job, assignment) in &mut self.assignments {
            while self.line.is_open()
                && let Some((first, events)) = assignment.outbox.next_batch()
            {
                let message = FromWorker::Events {
                    job: *job,
                    fencing: assignment.fencing,
                    first,
                    events,
                };
                self.line.send(&message).await;
            }
        }
    }
}
