//! The jobs that this worker holds.

use crate::{
    job::{EndGuard, Job},
    link::Link,
    questions::Questions,
    report::{EventSink, Report},
};
use baton_protocol::{
    Answer, FencingNumber, JobEvent, JobId, Submission,
    outbox::Outbox,
    worker::{Acknowledged, FromWorker},
};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// A job that this worker holds, until its last event is acknowledged.
pub(super) struct HeldAssignment {
    fencing: FencingNumber,
    /// The environment in which it runs; `None` is the worker's own Python.
    pub(super) environment: Option<String>,
    outbox: Outbox,
    unsent_bytes: Arc<AtomicUsize>,
    /// Memory of the session; 0 before the first measurement.
    memory_bytes: Arc<AtomicU64>,
    /// Changes once, when the cell may start.
    permission: watch::Sender<()>,
    questions: Questions,
    cancelled: CancellationToken,
    revoked: CancellationToken,
    deferred_wanted: Arc<Notify>,
    orphaned: watch::Sender<bool>,
}

/// The jobs of this worker.
pub(super) struct Jobs {
    assignments: HashMap<JobId, HeldAssignment>,
    reports: mpsc::UnboundedSender<Report>,
    /// Whether the worker is connected to the broker.
    connected: watch::Receiver<bool>,
}

impl Jobs {
    pub(super) fn new(
        reports: mpsc::UnboundedSender<Report>,
        connected: watch::Receiver<bool>,
    ) -> Self {
        Self {
            assignments: HashMap::new(),
            reports,
            connected,
        }
    }

    /// Returns the job for its notebook's task, unless this worker has the same or a later assignment of it.
    pub(super) fn assign(
        &mut self,
        fencing: FencingNumber,
        account: u64,
        environment: Option<String>,
        submission: Submission,
    ) -> Option<Job> {
        let (job, notebook) = (submission.job, submission.notebook);
        match self.get(job).map(|assignment| assignment.fencing) {
            Some(held) if held >= fencing => return None,
            Some(_) => self.give_up(job),
            None => {}
        }
        tracing::info!(job.id = %job, %notebook, "Job {job} of notebook {notebook} arrived");
        let (permission, permission_receiver) = watch::channel(());
        let unsent_bytes = Arc::default();
        let memory_bytes = Arc::default();
        let events = EventSink {
            job,
            fencing,
            reports: self.reports.clone(),
            unsent_bytes: Arc::clone(&unsent_bytes),
            memory_bytes: Arc::clone(&memory_bytes),
        };
        let assignment = HeldAssignment {
            fencing,
            environment: environment.clone(),
            outbox: Outbox::default(),
            unsent_bytes,
            memory_bytes,
            permission,
            questions: Questions::new(events.clone(), self.connected.clone()),
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
                submission.cell.kind,
                events.clone(),
                questions.clone(),
                assignment.revoked.clone(),
            ),
            questions,
            events,
            submission,
            permission: permission_receiver,
            cancelled: assignment.cancelled.clone(),
            revoked: assignment.revoked.clone(),
            deferred_wanted: assignment.deferred_wanted.clone(),
            orphaned: assignment.orphaned.subscribe(),
            warnings: Vec::new(),
        };
        self.assignments.insert(job, assignment);
        Some(assigned)
    }

    pub(super) fn get(&self, job: JobId) -> Option<&HeldAssignment> {
        self.assignments.get(&job)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.assignments.is_empty()
    }

    pub(super) fn answer(&self, job: JobId, question: u64, answer: Answer) {
        if let Some(assignment) = self.get(job) {
            assignment.questions.answer(question, answer);
        }
    }

    pub(super) fn cancel(&self, job: JobId) {
        if let Some(assignment) = self.get(job) {
            assignment.cancelled.cancel();
        }
    }

    pub(super) fn want_deferred(&self, job: JobId) {
        if let Some(assignment) = self.get(job) {
            assignment.deferred_wanted.notify_one();
        }
    }

    /// Whether the job's notebook kernel is connected. If it is not, questions get no answer.
    pub(super) fn set_connected(&self, job: JobId, is_connected: bool) {
        if let Some(assignment) = self.get(job) {
            if is_connected {
                tracing::info!(job.id = %job, "The notebook of job {job} is connected");
            }
            assignment.orphaned.send_replace(!is_connected);
            assignment.questions.has_notebook(is_connected);
        }
    }

    /// How many have not ended.
    pub(super) fn unfinished(&self) -> usize {
        let assignments = self.assignments.values();
        assignments.filter(|held| !held.outbox.has_end()).count()
    }

    pub(super) fn fencing_numbers(&self) -> Vec<(JobId, FencingNumber)> {
        let assignments = self.assignments.iter();
        assignments
            .map(|(job, assignment)| (*job, assignment.fencing))
            .collect()
    }

    /// Up to which event the broker has acknowledged each job.
    pub(super) fn acknowledged(&self) -> Vec<Acknowledged> {
        self.assignments
            .iter()
            .map(|(job, HeldAssignment { outbox, .. })| Acknowledged {
                job: *job,
                number: outbox.acknowledged(),
                started: outbox.start_is_stored(),
            })
            .filter(|known| known.number > 0)
            .collect()
    }

    /// The memory of the sessions of those that have been measured.
    pub(super) fn memory_bytes(&self) -> Vec<(JobId, u64)> {
        let jobs = self.assignments.iter().map(|(job, assignment)| {
            let bytes = assignment.memory_bytes.load(Ordering::Relaxed);
            (*job, bytes)
        });
        jobs.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// The connection is a new one, so what the broker has not acknowledged is sent again.
    pub(super) fn repeat(&mut self) {
        for assignment in self.assignments.values_mut() {
            assignment.outbox.rewind();
            assignment.questions.ask_again();
        }
    }

    pub(super) fn add_event(&mut self, job: JobId, fencing: FencingNumber, event: JobEvent) {
        let assignment = self.assignments.get_mut(&job);
        if let Some(assignment) = assignment.filter(|held| held.fencing == fencing) {
            assignment.outbox.push(event);
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

    /// The broker has revoked this assignment and all earlier ones of the job.
    pub(super) fn revoke(&mut self, job: JobId, fencing: FencingNumber) {
        if self.get(job).is_some_and(|held| held.fencing <= fencing) {
            self.give_up(job);
        }
    }

    /// Gives up those that have not started.
    pub(super) fn give_up_waiting(&mut self) {
        let waiting = self.assignments.iter().filter(|(_, assignment)| {
            !assignment.outbox.has_start() && !assignment.outbox.is_complete()
        });
        let waiting: Vec<JobId> = waiting.map(|(job, _)| *job).collect();
        for job in waiting {
            self.give_up(job);
        }
    }

    /// Stops a job and sends nothing more about it.
    fn give_up(&mut self, job: JobId) {
        if let Some(assignment) = self.assignments.remove(&job) {
            tracing::info!(job.id = %job, "Job {job} is no longer this worker's");
            assignment.revoked.cancel();
        }
    }

    pub(super) async fn send_events(&mut self, link: &mut Link) {
        for (job, assignment) in &mut self.assignments {
            while link.is_open()
                && let Some((first, events)) = assignment.outbox.next_batch()
            {
                let message = FromWorker::Events {
                    job: *job,
                    fencing: assignment.fencing,
                    first,
                    events,
                };
                link.send(&message).await;
            }
        }
    }

    /// Whether the broker still lacks events of a job, or what was to be salvaged of an orphan.
    pub(super) fn have_unsent(&self) -> bool {
        let mut assignments = self.assignments.values();
        assignments.any(
            |HeldAssignment {
                 outbox, orphaned, ..
             }| {
                let is_salvaged = outbox.is_complete() || !*orphaned.borrow();
                !(outbox.is_handed_over() && is_salvaged)
            },
        )
    }

    /// Stops all of them.
    pub(super) fn end(&self) {
        for assignment in self.assignments.values() {
            assignment.revoked.cancel();
        }
    }
}
