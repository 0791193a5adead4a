//! The worker's main loop: one task that receives messages from the broker, reports from jobs and timer events, and
//! decides what to send to whom.
//!
//! In: messages from the broker, reports from jobs and notebooks. Out: messages to the broker, jobs for notebooks.
//! A broken connection does not affect the jobs: their events wait in the outboxes until the next connection.
//!
//! **Invariant:** an event is removed from its outbox only when the broker confirms that it is stored, and a job
//! may start only when its `Started` is stored.

mod jobs;
mod leave;
mod notebooks;

use self::{jobs::Assignment, leave::Leave, notebooks::Notebook};
use crate::{
    context::Context,
    gpu, host_memory,
    line::{Line, LineEvent},
    messages, preparation,
    report::Report,
    status::Status,
    stop::Stop,
};
use anyhow::Context as _;
use baton_protocol::{
    Finished, JobEvent, JobId, Machine, NotebookId, Outcome, Refusal, WorkerId,
    worker::{Acknowledged, Device, FromWorker, ToWorker},
};
use baton_transport::LinkError;
use futures_util::future::BoxFuture;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, sleep_until},
};

/// While sessions fail to start, the pause between two trials grows from this to [`LONGEST_TRIAL_PAUSE`].
const TRIAL_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_TRIAL_PAUSE: Duration = Duration::from_secs(60);
const LOAD_INTERVAL: Duration = Duration::from_secs(5);
/// How long cells may continue after their GPU is lost.
const LOST_GPU_GRACE: Duration = Duration::from_secs(10);

/// How long the broker may still list this worker's previous process as connected: it detects a silent worker
/// within 45 s, and then allows it a grace period.
const PREDECESSOR: Duration = Duration::from_secs(60);

pub(crate) struct Agent {
    context: Arc<Context>,
    worker: WorkerId,
    devices: Vec<Device>,
    machine: Machine,
    line: Line,
    assignments: HashMap<JobId, Assignment>,
    notebooks: HashMap<NotebookId, Notebook>,
    tasks: JoinSet<()>,
    /// How many notebook tasks were ever started.
    task_count: u64,
    /// Whether the worker is leaving. If so, it accepts no new jobs.
    leave: Leave,
    /// When the last cell ended, or when the worker started.
    last_used: Instant,
    /// Until then, the worker does not exit for being idle.
    stays_until: Option<Instant>,
    /// Why sessions do not start here; `None` if they do.
    failing: Option<String>,
    /// Completes when a session starts.
    trial: Option<BoxFuture<'static, ()>>,
    /// Since when the broker has refused this worker because another process is connected as it.
    refused_since: Option<Instant>,
    reports: mpsc::UnboundedSender<Report>,
}

enum Event {
    Broker(Result<LineEvent, LinkError>),
    Report(Report),
    LoadDue,
    /// A session waits for a GPU that other sessions hold.
    GpuWanted,
    /// No session can compute any more. Contains the reason.
    GpuLost(String),
    CullDue,
    /// The environments besides the worker's own Python have changed.
    EnvironmentsChanged,
    /// Sessions start here again.
    Recovered,
    LeaveDue,
    /// The worker's time on its machine is almost over.
    LifeEnds,
    IdleExitDue,
    Stop(Stop),
}

impl Agent {
    pub(crate) async fn run(
        context: Arc<Context>,
        (devices, machine): (Vec<Device>, Machine),
        failing: Option<String>,
        mut stop: watch::Receiver<Stop>,
    ) -> anyhow::Result<()> {
        let mut reading = context.reading.clone();
        let mut unserved = context.sharing.lost();
        let mut waiting = context.sharing.waiting();
        let (reports, mut reported) = mpsc::unbounded_channel();
        let mut agent = Self {
            line: Line::new(context.config.dial.clone()),
            worker: context.config.id,
            context,
            devices,
            machine,
            assignments: HashMap::new(),
            notebooks: HashMap::new(),
            tasks: JoinSet::new(),
            task_count: 0,
            leave: Leave::default(),
            last_used: Instant::now(),
            stays_until: None,
            failing,
            trial: None,
            refused_since: None,
            reports,
        };
        if agent.failing.is_some() {
            agent.try_sessions(TRIAL_PAUSE);
        }
        let mut offers = agent.context.environments.changes();
        let preparing = preparation::begin(&agent.context);
        let mut load = tokio::time::interval(LOAD_INTERVAL);
        load.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lost = None;
        while !agent.may_leave() {
            let cull = agent.next_cull();
            let drains_at = agent.drains_at();
            let idle_exit = agent.idle_exit_at();
            let event = tokio::select! {
                message = agent.line.receive() => Event::Broker(message),
                Some(report) = reported.recv() => Event::Report(report),
                _ = load.tick() => Event::LoadDue,
                Ok(()) = waiting.changed() => Event::GpuWanted,
                Ok(()) = offers.changed() => Event::EnvironmentsChanged,
                reason = gpu::lost(&mut reading, &mut unserved), if lost.is_none() => Event::GpuLost(reason),
                () = at(cull) => Event::CullDue,
                () = passed(&mut agent.trial) => Event::Recovered,
                () = at(agent.leave.due()) => Event::LeaveDue,
                () = at(idle_exit) => Event::IdleExitDue,
                () = at(drains_at) => Event::LifeEnds,
                stop = asked(&mut stop) => Event::Stop(stop),
            };
            match event {
                Event::Broker(message) => {
                    match message.context("The broker does not accept this worker")? {
                        LineEvent::Opened => agent.line.send_hello(&agent.hello()).await,
                        LineEvent::Message(message) => agent.on_broker(*message).await?,
                    }
                }
                Event::Report(report) => agent.on_report(report).await,
                Event::LoadDue => agent.report_load().await,
                Event::EnvironmentsChanged => {
                    agent.last_used = Instant::now();
                    let environments = agent.context.environments.offered();
                    let offered = FromWorker::Environments { environments };
                    agent.line.send(&offered).await;
                }
                Event::CullDue => agent.cull().await,
                Event::Recovered => {
                    agent.trial = None;
                    if agent.failing.take().is_some() {
                        tracing::info!("Sessions can start here again");
                        agent.line.send(&FromWorker::Recovered {}).await;
                    }
                }
                Event::GpuWanted => agent.make_room().await,
                Event::GpuLost(reason) => {
                    tracing::error!(
                        "The GPU is lost: {reason}. This worker accepts no more cells and exits"
                    );
                    lost = Some(reason);
                    agent.finish_cells(Some(LOST_GPU_GRACE)).await;
                }
                Event::IdleExitDue => agent.leave_idle().await,
                Event::LifeEnds => agent.leave_in_time().await,
                Event::Stop(Stop::No) => {}
                Event::Stop(Stop::WhenCellsEnd) => {
                    agent.leave_when_cells_end().await;
                }
                Event::Stop(Stop::Now) => agent.end_cells().await,
                Event::LeaveDue if agent.leave.is_last() => {
                    tracing::warn!("Some results did not reach the broker and are lost");
                    break;
                }
                Event::LeaveDue => agent.end_cells().await,
            }
            agent.hand_over();
            agent.send_events().await;
            agent.publish_status();
        }
        drop(preparing);
        agent.end().await;
        lost.map_or(Ok(()), |reason| {
            Err(anyhow::anyhow!("The GPU is lost: {reason}"))
        })
    }

    fn hello(&self) -> FromWorker {
        let sessions = self.sessions();
        FromWorker::Hello {
            protocol_version: baton_protocol::PROTOCOL_VERSION,
            worker: self.worker,
            name: self.context.config.name.clone().unwrap_or_default(),
            devices: self.devices.clone(),
            machine: Machine {
                environments: self.context.environments.offered(),
                ..self.machine.clone()
            },
            slots: u32::try_from(self.context.slots).unwrap_or(u32::MAX),
            sessions: sessions.warm,
            keeping: sessions.keeping,
            assignments: self
                .assignments
                .iter()
                .map(|(job, assignment)| (*job, assignment.fencing))
                .collect(),
            acknowledged: self
                .assignments
                .iter()
                .map(|(job, Assignment { outbox, .. })| Acknowledged {
                    job: *job,
                    number: outbox.acknowledged(),
                    started: outbox.start_is_stored(),
                })
                .filter(|known| known.number > 0)
                .collect(),
            failing: self.failing.clone(),
        }
    }

    async fn on_broker(&mut self, message: ToWorker) -> anyhow::Result<()> {
        match message {
            ToWorker::Welcome {
                broker_version,
                name,
            } => {
                tracing::info!("Connected to broker {broker_version} as {name}");
                self.refused_since = None;
                for assignment in self.assignments.values_mut() {
                    assignment.outbox.rewind();
                    assignment.questions.ask_again();
                }
                if self.leave.has_begun() {
                    self.report_drained().await;
                }
            }
            ToWorker::Refused(refusal @ Refusal::WorkerConnected { .. })
                if self.may_be_its_predecessor() =>
            {
                tracing::warn!("The broker does not accept this worker yet: {refusal}");
            }
            ToWorker::Refused(refusal) => {
                return Err(anyhow::Error::new(refusal).context("The broker refuses this worker"));
            }
            ToWorker::Assign {
                fencing,
                account,
                environment,
                submission,
            } if !self.leave.has_begun() => {
                self.assign(fencing, account, environment, submission);
            }
            // The broker sent this before it received `Drain`. On `Drain` it assigns the job to another worker.
            ToWorker::Assign { .. } => {}
            ToWorker::Answer {
                job,
                question,
                answer,
            } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    assignment.questions.answer(question, answer);
                }
            }
            ToWorker::Cancel { job } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    assignment.cancelled.cancel();
                }
            }
            ToWorker::DeferredWanted { job } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    assignment.deferred_wanted.notify_one();
                }
            }
            ToWorker::Salvage { job } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    assignment.has_notebook(false);
                }
            }
            ToWorker::Adopted { job } => {
                if let Some(assignment) = self.assignments.get(&job) {
                    tracing::info!(%job, "The notebook of job {job} is connected");
                    assignment.has_notebook(true);
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
            ToWorker::LockWanted { environment } => {
                if let Some(lock) = self.context.environments.lock(&environment) {
                    let lock = FromWorker::Lock { environment, lock };
                    self.line.send(&lock).await;
                }
            }
            ToWorker::StayUntil { at_ms } => {
                self.stays_until = at_ms.and_then(at_time);
                if self.stays_until.is_some() {
                    self.context.zygotes.expect_people();
                }
            }
            ToWorker::EndSession { notebook } => {
                // The notebook's task ends when its current jobs have ended.
                self.notebooks.remove(&notebook);
            }
        }
        Ok(())
    }

    /// Whether the broker may not have noticed yet that this worker's previous process has ended.
    fn may_be_its_predecessor(&mut self) -> bool {
        let since = self.refused_since.get_or_insert_with(Instant::now);
        since.elapsed() < PREDECESSOR
    }

    async fn on_report(&mut self, report: Report) {
        match report {
            Report::Job {
                job,
                fencing,
                event,
            } => {
                let environment = self.assignments.get(&job);
                let environment = environment.and_then(|held| held.environment.clone());
                match (&*event, environment) {
                    (JobEvent::NotStarted { .. }, Some(environment)) => {
                        self.context.environments.doubt(&environment);
                    }
                    (JobEvent::NotStarted { error }, None) => {
                        self.failing = Some(error.value.clone());
                        self.try_sessions(TRIAL_PAUSE);
                    }
                    // The session died or the worker failed to serve it. A trial shows whether the worker is at
                    // fault.
                    (
                        JobEvent::Finished(Finished {
                            outcome: Outcome::WorkerLost,
                            ..
                        }),
                        None,
                    ) => self.try_sessions(Duration::ZERO),
                    _ => {}
                }
                let assignment = self.assignments.get_mut(&job);
                if let Some(assignment) = assignment.filter(|held| held.fencing == fencing) {
                    assignment.outbox.push(*event);
                }
            }
            Report::TrialFailed(why) => {
                if self.failing.as_ref() != Some(&why) {
                    self.failing = Some(why.clone());
                    self.line.send(&FromWorker::Failing { why }).await;
                }
            }
            Report::Notebook {
                notebook,
                task,
                job_over,
                warm,
                defers,
                keeps,
            } => {
                let before = self.sessions();
                let entry = self.notebooks.get_mut(&notebook);
                if let Some(entry) = entry.filter(|entry| entry.task == task) {
                    entry.last_used = Instant::now();
                    entry.warm = warm;
                    entry.defers = defers;
                    entry.keeps = keeps;
                    entry.unfinished -= usize::from(job_over);
                    self.last_used = Instant::now();
                }
                self.report_sessions(&before).await;
                self.make_room().await;
            }
        }
    }

    fn try_sessions(&mut self, pause: Duration) {
        let (context, reports) = (Arc::clone(&self.context), self.reports.clone());
        self.trial
            .get_or_insert_with(|| Box::pin(until_a_session_starts(context, reports, pause)));
    }

    async fn report_load(&mut self) {
        let memory = host_memory::memory();
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
        let zygotes = &self.context.zygotes;
        zygotes.make_room(host_memory::available_bytes());
    }

    fn publish_status(&self) {
        let assignments = self.assignments.values();
        let new = Status {
            connected: self.line.is_open(),
            cells: assignments.filter(|held| !held.outbox.has_end()).count(),
            leaving: self.leave.has_begun(),
            trying: false,
        };
        self.context.config.status.send_if_modified(|status| {
            let changed = *status != new;
            *status = new;
            changed
        });
    }

    /// Ends all sessions.
    async fn end(mut self) {
        for assignment in self.assignments.values() {
            assignment.revoked.cancel();
        }
        self.line.close().await;
        self.notebooks.clear();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The next request to stop.
async fn asked(stop: &mut watch::Receiver<Stop>) -> Stop {
    match stop.changed().await {
        Ok(()) => *stop.borrow_and_update(),
        // The sender is gone, so no request can follow.
        Err(_) => std::future::pending().await,
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

async fn passed(trial: &mut Option<BoxFuture<'static, ()>>) {
    match trial {
        Some(trial) => trial.await,
        None => std::future::pending().await,
    }
}

/// Tries whether sessions start here and run a cell, before a job arrives that would fail.
/// Returns `Some(None)` if they do, `Some(reason)` if not, and `None` if the worker was asked to stop meanwhile.
pub(crate) async fn first_trial(
    context: &Arc<Context>,
    stop: &mut watch::Receiver<Stop>,
) -> Option<Option<String>> {
    context
        .config
        .status
        .send_modify(|status| status.trying = true);
    let asked = async { while asked(stop).await == Stop::No {} };
    tokio::select! {
        why = why_no_session_starts(context) => Some(why),
        () = asked => None,
    }
}

async fn until_a_session_starts(
    context: Arc<Context>,
    reports: mpsc::UnboundedSender<Report>,
    mut pause: Duration,
) {
    loop {
        tokio::time::sleep(pause).await;
        match why_no_session_starts(&context).await {
            None => return,
            // If the receiver is gone, the agent is ending.
            Some(why) => drop(reports.send(Report::TrialFailed(why))),
        }
        pause = (2 * pause).clamp(TRIAL_PAUSE, LONGEST_TRIAL_PAUSE);
    }
}

async fn why_no_session_starts(context: &Context) -> Option<String> {
    let error = context.try_a_session().await.err()?;
    let why = messages::not_started(error.explained()).value;
    tracing::error!("Sessions cannot start here, so this worker accepts no cells: {why}");
    Some(why)
}

/// `at_ms` is in milliseconds since 1970, by this machine's clock.
fn at_time(at_ms: i64) -> Option<Instant> {
    let at = UNIX_EPOCH + Duration::from_millis(u64::try_from(at_ms).ok()?);
    let left = at.duration_since(SystemTime::now()).unwrap_or_default();
    Instant::now().checked_add(left)
}
