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

    /// If the broker would not accept the events of a job, its later events would not be accepted either. So the job is
    /// given up, and the broker ends it because it is missing in the next hello.
    pub(super) async fn send_events(&mut self, link: &mut Link) {
        let mut refused = Vec::new();
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
                if let Err(error) = link.try_send(&message).await {
                    tracing::error!(job.id = %job, %error, "The events of job {job} cannot be sent");
                    refused.push(*job);
                    break;
                }
            }
        }
        for job in &refused {
            self.give_up(*job);
        }
        if !refused.is_empty() {
            link.broke("a job was given up");
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use axum::{
        Router,
        extract::ws::{Message, WebSocketUpgrade},
        routing::get,
    };
    use baton_protocol::{
        Bound, Cell, JobKind, Manifest, NotebookId, Priority, State, StateVersion, TableId, encode,
        worker::ToWorker,
    };
    use baton_transport::Dial;

    /// A broker that welcomes workers, and reads nothing.
    async fn connected() -> Link {
        let welcome = async |upgrade: WebSocketUpgrade| {
            upgrade.on_upgrade(async |mut socket| {
                let welcome = ToWorker::Welcome {
                    broker_version: String::new(),
                    name: String::new(),
                };
                let welcome = Message::Binary(encode(&welcome).into());
                socket.send(welcome).await.unwrap();
                std::future::pending().await
            })
        };
        let router = Router::new().route("/v1/worker", get(welcome));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let mut link = Link::new(Dial {
            address: address.parse().unwrap(),
            token: None,
            ca_file: None,
        });
        while !link.is_open() {
            link.receive().await.unwrap();
        }
        link
    }

    fn submission() -> Submission {
        Submission {
            job: JobId::random(),
            notebook: NotebookId::random(),
            notebook_name: String::new(),
            cell_key: None,
            priority: Priority::Normal,
            group: None,
            cell: Cell {
                code: String::new(),
                message_id: String::new(),
                execution_count: 1,
                kind: JobKind::Cell,
                silent: false,
                timeout_ms: None,
                longest_timeout_ms: None,
                gpu_memory_bytes: None,
                gpu: None,
                environment: None,
                allow_stdin: false,
                python: String::new(),
                python_version: String::new(),
                folder: String::new(),
                notebook_folder: None,
            },
            state: State::Chunks(Manifest {
                base: StateVersion {
                    table: TableId::random(),
                    messages: 0,
                },
                stream: Vec::new(),
                segments: Vec::new(),
                dropped_segments: Vec::new(),
            }),
        }
    }

    #[tokio::test]
    async fn a_job_with_an_event_that_cannot_be_sent_is_given_up_alone() {
        let mut link = connected().await;
        let (reports, _) = mpsc::unbounded_channel();
        let mut jobs = Jobs::new(reports, link.watch());
        let mut with_event_of = |bytes: usize| {
            let job = jobs.assign(1, 1, None, submission()).unwrap();
            let event = JobEvent::Started {
                worker: "x".repeat(bytes),
            };
            jobs.add_event(job.submission.job, 1, event);
            job
        };
        let too_large = with_event_of(Bound::MESSAGE.bytes);
        let other = with_event_of(1);
        jobs.send_events(&mut link).await;
        assert!(too_large.revoked.is_cancelled());
        // The next hello names the other job only, and what was not stored of it is sent again.
        assert!(!link.is_open());
        assert_eq!(jobs.fencing_numbers(), [(other.submission.job, 1)]);
        assert!(!other.revoked.is_cancelled());
    }
}
