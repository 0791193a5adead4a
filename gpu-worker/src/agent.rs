//! The worker's desk: one loop that hears the broker, the jobs and the clock, and decides who is told what.
//!
//! In: messages of the broker, reports of jobs and notebooks. Out: messages to the broker, orders to notebooks.
//! A broken connection changes nothing for the jobs: their events wait in the outboxes until the next one.
//!
//! **Invariant:** an event leaves its outbox only when the broker says that it is stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use baton_link::LinkError;
use baton_protocol::worker::{Device, FromWorker, ToWorker};
use baton_protocol::{
    FencingNumber, JobEvent, JobId, NotebookId, Parcel, State, Submission, WorkerId,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::device;
use crate::gpu;
use crate::job::{EventSink, LastWord, Names, Order};
use crate::line::{Line, LineEvent};
use crate::mirror::Questions;
use crate::notebook::{Reporter, serve_notebook};
use crate::outbox::Outbox;
use crate::report::Report;

const LOAD_INTERVAL: Duration = Duration::from_secs(5);
/// How long running cells may go on when the worker is asked to leave.
const DRAIN_GRACE: Duration = Duration::from_secs(10);
/// How long the broker may take to store the last events.
const LAST_WORD: Duration = Duration::from_secs(3);
/// How long what cells left in their sessions may take to reach the notebooks.
const HANDOVER_GRACE: Duration = Duration::from_secs(60);

pub(crate) struct Agent {
    context: Arc<Context>,
    worker: WorkerId,
    devices: Vec<Device>,
    line: Line,
    assignments: HashMap<JobId, Assignment>,
    notebooks: HashMap<NotebookId, Notebook>,
    tasks: JoinSet<()>,
    /// How many notebook tasks were ever started.
    task_count: u64,
    /// Nothing new is taken.
    draining: bool,
    reports: mpsc::UnboundedSender<Report>,
}

/// A job that this worker holds, until its last event is acknowledged.
struct Assignment {
    fencing: FencingNumber,
    outbox: Outbox,
    unsent_bytes: Arc<AtomicUsize>,
    /// Of the session; 0 before the first look.
    memory_bytes: Arc<AtomicU64>,
    started: bool,
    states: mpsc::Sender<State>,
    inputs: mpsc::Sender<(u64, Option<String>)>,
    files: mpsc::UnboundedSender<(u64, Parcel)>,
    names: watch::Sender<Option<Names>>,
    cancelled: CancellationToken,
    revoked: CancellationToken,
}

struct Notebook {
    task: u64,
    orders: mpsc::UnboundedSender<Order>,
    /// Orders that are not over yet.
    jobs: usize,
    warm: bool,
    /// Its session still has what the notebook lacks.
    owes: bool,
    last_used: Instant,
}

impl Notebook {
    fn is_idle(&self) -> bool {
        self.jobs == 0 && !self.owes
    }
}

enum Event {
    Broker(Result<LineEvent, LinkError>),
    Report(Report),
    LoadDue,
    /// A session waits for a GPU that others have.
    GpuWanted,
    /// No session can compute any more: why.
    GpuLost(String),
    CullDue,
    LeaveDue,
    Shutdown,
}

impl Agent {
    pub(crate) async fn run(
        context: Arc<Context>,
        devices: Vec<Device>,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let mut reading = context.reading.clone();
        let mut waiting = context.sharing.waiting();
        let (reports, mut reported) = mpsc::unbounded_channel();
        let mut agent = Self {
            line: Line::new(context.config.dial.clone()),
            context,
            worker: WorkerId::random(),
            devices,
            assignments: HashMap::new(),
            notebooks: HashMap::new(),
            tasks: JoinSet::new(),
            task_count: 0,
            draining: false,
            reports,
        };
        let mut load = tokio::time::interval(LOAD_INTERVAL);
        load.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(shutdown);
        // When a worker that was asked to leave stops what still runs.
        let mut leave: Option<Instant> = None;
        let mut lost = None;
        while leave.is_none() || !agent.assignments.is_empty() {
            let cull = agent.next_cull();
            let event = tokio::select! {
                message = agent.line.receive() => Event::Broker(message),
                Some(report) = reported.recv() => Event::Report(report),
                _ = load.tick() => Event::LoadDue,
                Ok(()) = waiting.changed() => Event::GpuWanted,
                reason = gpu::lost(&mut reading), if lost.is_none() => Event::GpuLost(reason),
                () = at(cull) => Event::CullDue,
                () = at(leave) => Event::LeaveDue,
                () = &mut shutdown, if leave.is_none() => Event::Shutdown,
            };
            match event {
                Event::Broker(message) => {
                    match message.context("The broker does not take this worker")? {
                        LineEvent::Opened => agent.line.send_hello(&agent.hello()).await,
                        LineEvent::Message(message) => agent.on_broker(*message).await?,
                    }
                }
                Event::Report(report) => agent.on_report(report).await,
                Event::LoadDue => agent.say_load().await,
                Event::CullDue => agent.cull().await,
                Event::GpuWanted => agent.make_room().await,
                Event::GpuLost(reason) => {
                    tracing::error!(
                        "The GPU is lost: {reason}. This worker takes no more cells and ends"
                    );
                    lost = Some(reason);
                    agent.drain().await;
                    leave.get_or_insert(Instant::now() + DRAIN_GRACE);
                }
                Event::Shutdown => {
                    agent.drain().await;
                    leave = Some(Instant::now() + DRAIN_GRACE);
                }
                Event::LeaveDue if agent.context.stopping.is_cancelled() => break,
                Event::LeaveDue => {
                    agent.context.stopping.cancel();
                    let owes = agent.notebooks.values().any(|entry| entry.owes);
                    let grace = if owes { HANDOVER_GRACE } else { LAST_WORD };
                    leave = Some(Instant::now() + grace);
                }
            }
            agent.send_events().await;
        }
        agent.leave().await;
        lost.map_or(Ok(()), |reason| {
            Err(anyhow::anyhow!("The GPU is lost: {reason}"))
        })
    }

    fn hello(&self) -> FromWorker {
        FromWorker::Hello {
            protocol_version: baton_protocol::PROTOCOL_VERSION,
            worker: self.worker,
            name: self.context.name.clone(),
            devices: self.devices.clone(),
            slots: self.context.config.slots,
            sessions: self.warm(),
            assignments: self
                .assignments
                .iter()
                .map(|(job, assignment)| (*job, assignment.fencing))
                .collect(),
        }
    }

    async fn on_broker(&mut self, message: ToWorker) -> anyhow::Result<()> {
        match message {
            ToWorker::Welcome { broker_version } => {
                tracing::info!(
                    "Connected to broker {broker_version} as {}",
                    self.context.name
                );
                for assignment in self.assignments.values_mut() {
                    assignment.outbox.rewind();
                }
                self.context.connections.send_modify(|count| *count += 1);
                if self.draining {
                    self.line.send(&FromWorker::Drain {}).await;
                }
            }
            ToWorker::Refused(refusal) => {
                return Err(anyhow::Error::new(refusal).context("The broker refuses this worker"));
            }
            ToWorker::Assign {
                fencing,
                submission,
            } => self.assign(fencing, submission),
            ToWorker::State { job, state } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    // A second answer to one question is of no use.
                    let _ = assignment.states.try_send(state);
                }
            }
            ToWorker::Cancel { job } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    assignment.cancelled.cancel();
                }
            }
            ToWorker::Input {
                job,
                question,
                value,
            } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    let _ = assignment.inputs.try_send((question, value));
                }
            }
            ToWorker::Files {
                job,
                question,
                answer,
            } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    // A job that is over asks nothing.
                    let _ = assignment.files.send((question, answer));
                }
            }
            ToWorker::Names { job, number, state } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    assignment.names.send_replace(Some(Names { number, state }));
                }
            }
            ToWorker::Acknowledge {
                job,
                fencing,
                number,
            } => self.acknowledge(job, fencing, number),
            ToWorker::Revoke { job, fencing } => {
                let held = self
                    .assignments
                    .get(&job)
                    .map(|assignment| assignment.fencing);
                if held.is_some_and(|held| held <= fencing) {
                    self.give_up(job);
                }
            }
            ToWorker::EndSession { notebook } => {
                // Its task ends when the jobs that it has are over.
                self.notebooks.remove(&notebook);
            }
        }
        Ok(())
    }

    fn assign(&mut self, fencing: FencingNumber, submission: Submission) {
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
        let (states, states_end) = mpsc::channel(1);
        let (inputs, inputs_end) = mpsc::channel(1);
        // As many as the job has asked questions.
        let (files, files_end) = mpsc::unbounded_channel();
        let (names, names_end) = watch::channel(None);
        let assignment = Assignment {
            fencing,
            outbox: Outbox::default(),
            unsent_bytes: Arc::default(),
            memory_bytes: Arc::default(),
            started: false,
            states,
            inputs,
            files,
            names,
            cancelled: CancellationToken::new(),
            revoked: CancellationToken::new(),
        };
        let events = EventSink {
            job,
            fencing,
            reports: self.reports.clone(),
            unsent_bytes: assignment.unsent_bytes.clone(),
            memory_bytes: assignment.memory_bytes.clone(),
        };
        let order = Order {
            last_word: LastWord::new(events.clone(), assignment.revoked.clone()),
            questions: Some(Questions::new(
                events.clone(),
                files_end,
                self.context.connections.subscribe(),
                self.context.lane.clone().of_notebook(notebook),
            )),
            events,
            submission,
            states: states_end,
            inputs: inputs_end,
            names: names_end,
            cancelled: assignment.cancelled.clone(),
            revoked: assignment.revoked.clone(),
            warnings: Vec::new(),
        };
        self.assignments.insert(job, assignment);
        self.order(notebook, order);
    }

    fn order(&mut self, notebook: NotebookId, order: Order) {
        // A task that panicked took its session with it; the notebook gets another one.
        self.notebooks
            .retain(|of, entry| *of != notebook || !entry.orders.is_closed());
        let entry = self.notebooks.entry(notebook).or_insert_with(|| {
            self.task_count += 1;
            let (orders, orders_end) = mpsc::unbounded_channel();
            let reporter = Reporter {
                notebook,
                task: self.task_count,
                reports: self.reports.clone(),
            };
            let context = Arc::new(self.context.of_notebook(notebook));
            self.tasks
                .spawn(serve_notebook(context, orders_end, reporter));
            Notebook {
                task: self.task_count,
                orders,
                jobs: 0,
                warm: false,
                owes: false,
                last_used: Instant::now(),
            }
        });
        entry.jobs += 1;
        // An order that is not taken says so itself.
        let _ = entry.orders.send(order);
    }

    /// Says nothing more about a job, and stops it.
    fn give_up(&mut self, job: JobId) {
        if let Some(assignment) = self.assignments.remove(&job) {
            tracing::info!(%job, "Job {job} is no longer this worker's");
            assignment.revoked.cancel();
        }
    }

    fn acknowledge(&mut self, job: JobId, fencing: FencingNumber, number: u64) {
        let Some(assignment) = self.assignments.get_mut(&job) else {
            return;
        };
        if assignment.fencing != fencing {
            return;
        }
        let bytes = assignment.outbox.acknowledge(number);
        assignment.unsent_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if assignment.outbox.is_done() {
            self.assignments.remove(&job);
        }
    }

    async fn on_report(&mut self, report: Report) {
        match report {
            Report::Job {
                job,
                fencing,
                event,
            } => {
                let assignment = self.assignments.get_mut(&job);
                if let Some(assignment) = assignment.filter(|held| held.fencing == fencing) {
                    assignment.started |= matches!(*event, JobEvent::Started { .. });
                    assignment.outbox.push(*event);
                }
            }
            Report::Notebook {
                notebook,
                task,
                job_over,
                warm,
                owes,
            } => {
                let before = self.warm();
                let entry = self.notebooks.get_mut(&notebook);
                if let Some(entry) = entry.filter(|entry| entry.task == task) {
                    entry.last_used = Instant::now();
                    entry.warm = warm;
                    entry.owes = owes;
                    entry.jobs -= usize::from(job_over);
                }
                self.say_sessions(&before).await;
                self.make_room().await;
            }
        }
    }

    /// Notebooks with a session that can go on.
    fn warm(&self) -> Vec<NotebookId> {
        let warm = self.notebooks.iter().filter(|(_, entry)| entry.warm);
        let mut warm: Vec<NotebookId> = warm.map(|(notebook, _)| *notebook).collect();
        warm.sort_unstable();
        warm
    }

    /// When the next notebook has been idle for long enough.
    fn next_cull(&self) -> Option<Instant> {
        let idle = self.notebooks.values().filter(|entry| entry.is_idle());
        let last_used = idle.map(|entry| entry.last_used).min()?;
        last_used.checked_add(self.context.config.session_idle)
    }

    /// Ends the session that was idle for longest, where another waits for its GPU.
    async fn make_room(&mut self) {
        if *self.context.sharing.waiting().borrow() == 0 {
            return;
        }
        let before = self.warm();
        let idle = self
            .notebooks
            .iter()
            .filter(|(_, entry)| entry.warm && entry.is_idle());
        let longest = idle.min_by_key(|(_, entry)| entry.last_used);
        if let Some(notebook) = longest.map(|(notebook, _)| *notebook) {
            tracing::info!(%notebook, "The session of notebook {notebook} ends: another waits for its GPU");
            self.notebooks.remove(&notebook);
        }
        self.say_sessions(&before).await;
    }

    async fn cull(&mut self) {
        let before = self.warm();
        let (now, idle) = (Instant::now(), self.context.config.session_idle);
        self.notebooks.retain(|notebook, entry| {
            let keep = !entry.is_idle() || now.duration_since(entry.last_used) < idle;
            if !keep && entry.warm {
                tracing::info!(%notebook, "The session of notebook {notebook} ends: it was idle for long");
            }
            keep
        });
        self.say_sessions(&before).await;
    }

    async fn say_sessions(&mut self, before: &[NotebookId]) {
        let warm = self.warm();
        if warm != before {
            self.line.send(&FromWorker::Sessions { warm }).await;
        }
    }

    async fn say_load(&mut self) {
        let memory = device::memory();
        let jobs = self.assignments.iter().map(|(job, assignment)| {
            let bytes = assignment.memory_bytes.load(Ordering::Relaxed);
            (*job, bytes)
        });
        let load = FromWorker::Load {
            memory_bytes: memory.used_bytes,
            memory_total_bytes: memory.total_bytes,
            jobs: jobs.filter(|(_, bytes)| *bytes > 0).collect(),
            gpus: self.context.reading.borrow().gpus.clone(),
        };
        self.line.send(&load).await;
    }

    async fn send_events(&mut self) {
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

    /// Takes nothing more; what has not started goes back to the queue.
    async fn drain(&mut self) {
        tracing::info!("Leaving: running cells have {} s", DRAIN_GRACE.as_secs());
        self.draining = true;
        self.line.send(&FromWorker::Drain {}).await;
        let waiting = self
            .assignments
            .iter()
            .filter(|(_, assignment)| !assignment.started && !assignment.outbox.is_complete());
        let waiting: Vec<JobId> = waiting.map(|(job, _)| *job).collect();
        for job in waiting {
            self.give_up(job);
        }
    }

    /// Ends all sessions.
    async fn leave(mut self) {
        for assignment in self.assignments.values() {
            assignment.revoked.cancel();
        }
        self.line.close().await;
        self.notebooks.clear();
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
