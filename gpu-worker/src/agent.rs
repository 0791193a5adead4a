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
mod trial;

use self::{
    jobs::Jobs,
    leave::Leave,
    notebooks::{Notebooks, Sessions},
    trial::{TRIAL_PAUSE, Trial},
};
use crate::{
    context::Context,
    deadline::at,
    gpu, host_memory,
    life_end::LifeEnd,
    link::{Link, LinkEvent},
    preparation,
    report::Report,
    status::Status,
    stop::Stop,
};
use anyhow::Context as _;
use baton_protocol::{
    Finished, JobEvent, JobId, Machine, Outcome, Refusal, WorkerId,
    worker::{Device, FromWorker, ToWorker},
};
use baton_transport::LinkError;
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior},
};

pub(crate) use self::trial::first_trial;

const LOAD_INTERVAL: Duration = Duration::from_secs(5);
/// How long cells may continue after their GPU is lost.
const LOST_GPU_GRACE: Duration = Duration::from_secs(10);

/// How long the broker may still list this worker's previous process as connected: it detects a silent worker
/// within 45 s, and then allows it a grace period.
const PREDECESSOR: Duration = Duration::from_secs(60);

/// What the worker announces to the broker of its machine.
pub(crate) struct Announced {
    pub(crate) devices: Vec<Device>,
    pub(crate) machine: Machine,
}

pub(crate) struct Agent {
    context: Arc<Context>,
    worker: WorkerId,
    /// Empty until the broker has chosen it. The worker keeps that name when it reconnects, also to a restarted broker.
    name: String,
    announced: Announced,
    link: Link,
    jobs: Jobs,
    notebooks: Notebooks,
    /// Whether the worker is leaving. If so, it accepts no new jobs.
    leave: Leave,
    /// When the last cell ended, or when the worker started.
    last_used: Instant,
    /// Until then, the worker does not exit for being idle.
    stays_until: Option<Instant>,
    /// Why sessions do not start here; `None` if they do.
    failing: Option<String>,
    /// Why no session can compute any more; `None` if sessions can.
    lost: Option<String>,
    trial: Trial,
    /// Since when the broker has refused this worker because another process is connected as it.
    refused_since: Option<Instant>,
    reports: mpsc::UnboundedSender<Report>,
}

enum Event {
    Broker(Result<LinkEvent, LinkError>),
    Report(Report),
    LoadDue,
    /// A session waits for a GPU that other sessions hold.
    GpuWanted,
    /// No session can compute any more. Contains the reason.
    GpuLost(String),
    /// The task of a notebook has ended.
    TaskEnded,
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
        announced: Announced,
        failing: Option<String>,
        mut stop: watch::Receiver<Stop>,
    ) -> anyhow::Result<()> {
        let mut reading = context.reading.clone();
        let mut unserved = context.sharing.lost();
        let mut waiting = context.sharing.waiting();
        let mut offers = context.environments.changes();
        // Bounded by the jobs: a session whose events the broker does not store in time has to wait (`EventSink::is_full`).
        let (reports, mut reported) = mpsc::unbounded_channel();
        let mut agent = Self::new(context, announced, failing, reports);
        let preparing = preparation::begin(&agent.context);
        let mut load = tokio::time::interval(LOAD_INTERVAL);
        load.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !agent.may_leave() {
            let cull = agent.notebooks.next_cull();
            let drains_at = agent.drains_at();
            let idle_exit = agent.idle_exit_at();
            let event = tokio::select! {
                message = agent.link.receive() => Event::Broker(message),
                Some(report) = reported.recv() => Event::Report(report),
                _ = load.tick() => Event::LoadDue,
                Ok(()) = waiting.changed() => Event::GpuWanted,
                Ok(()) = offers.changed() => Event::EnvironmentsChanged,
                reason = gpu::lost(&mut reading, &mut unserved), if agent.lost.is_none() => Event::GpuLost(reason),
                () = agent.notebooks.task_ended() => Event::TaskEnded,
                () = at(cull) => Event::CullDue,
                () = agent.trial.passed() => Event::Recovered,
                () = at(agent.leave.due()) => Event::LeaveDue,
                () = at(idle_exit) => Event::IdleExitDue,
                () = at(drains_at) => Event::LifeEnds,
                stop = asked(&mut stop) => Event::Stop(stop),
            };
            if matches!(event, Event::LeaveDue) && agent.leave.is_last() {
                tracing::warn!("Some results did not reach the broker and are lost");
                break;
            }
            agent.on_event(event).await?;
            agent.hand_over();
            agent.jobs.send_events(&mut agent.link).await;
            agent.publish_status();
        }
        drop(preparing);
        let lost = agent.lost.take();
        agent.end().await;
        lost.map_or(Ok(()), |reason| {
            Err(anyhow::anyhow!("The GPU is lost: {reason}"))
        })
    }

    fn new(
        context: Arc<Context>,
        announced: Announced,
        failing: Option<String>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Self {
        let link = Link::new(context.config.dial.clone());
        let mut agent = Self {
            worker: context.config.id,
            name: context.config.name.clone().unwrap_or_default(),
            jobs: Jobs::new(reports.clone(), link.watch()),
            link,
            notebooks: Notebooks::new(Arc::clone(&context), reports.clone()),
            context,
            announced,
            leave: Leave::default(),
            last_used: Instant::now(),
            stays_until: None,
            failing,
            lost: None,
            trial: Trial::default(),
            refused_since: None,
            reports,
        };
        if agent.failing.is_some() {
            agent.try_sessions(TRIAL_PAUSE);
        }
        agent
    }

    async fn on_event(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Broker(message) => {
                match message.context("The broker does not accept this worker")? {
                    LinkEvent::Opened => self.link.send_hello(&self.hello()).await,
                    LinkEvent::Message(message) => self.on_broker(*message).await?,
                }
            }
            Event::Report(report) => self.on_report(report).await,
            Event::LoadDue => self.report_load().await,
            Event::EnvironmentsChanged => self.report_environments().await,
            Event::TaskEnded => self.forget_panicked().await,
            Event::CullDue => self.cull().await,
            Event::Recovered => self.recover().await,
            Event::GpuWanted => self.make_room().await,
            Event::GpuLost(reason) => self.lose_gpu(reason).await,
            Event::IdleExitDue => self.leave_idle().await,
            Event::LifeEnds => self.leave_in_time().await,
            Event::Stop(Stop::No) => {}
            Event::Stop(Stop::WhenCellsEnd) => self.leave_when_cells_end().await,
            Event::Stop(Stop::Now) | Event::LeaveDue => self.end_cells().await,
        }
        Ok(())
    }

    fn hello(&self) -> FromWorker {
        let sessions = self.notebooks.sessions();
        FromWorker::Hello {
            protocol_version: baton_protocol::PROTOCOL_VERSION,
            worker: self.worker,
            name: self.name.clone(),
            devices: self.announced.devices.clone(),
            machine: Machine {
                environments: self.context.environments.offered(),
                ..self.announced.machine.clone()
            },
            slots: u32::try_from(self.context.slots).unwrap_or(u32::MAX),
            sessions: sessions.warm,
            keeping: sessions.keeping,
            assignments: self.jobs.fencing_numbers(),
            acknowledged: self.jobs.acknowledged(),
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
                self.name = name;
                self.on_welcome().await;
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
                let job = self.jobs.assign(fencing, account, environment, submission);
                if let Some(job) = job {
                    self.notebooks.enqueue(job);
                }
            }
            // The broker sent this before it received `Drain`. On `Drain` it assigns the job to another worker.
            ToWorker::Assign { .. } => {}
            ToWorker::Answer {
                job,
                question,
                answer,
            } => self.jobs.answer(job, question, answer),
            ToWorker::Cancel { job } => self.jobs.cancel(job),
            ToWorker::DeferredWanted { job } => self.jobs.want_deferred(job),
            ToWorker::Salvage { job } => self.jobs.set_connected(job, false),
            ToWorker::Adopted { job } => self.jobs.set_connected(job, true),
            ToWorker::Acknowledge {
                job,
                fencing,
                number,
            } => self.jobs.acknowledge(job, fencing, number),
            ToWorker::Revoke { job, fencing } => self.jobs.revoke(job, fencing),
            ToWorker::LockWanted { environment } => self.send_lock(environment).await,
            ToWorker::StayUntil { at_ms } => self.stay_until(at_ms.and_then(at_time)),
            ToWorker::EndSession { notebook } => self.notebooks.end_session(notebook),
        }
        Ok(())
    }

    async fn on_welcome(&mut self) {
        self.refused_since = None;
        self.jobs.repeat();
        if self.leave.has_begun() {
            self.report_drained().await;
        }
    }

    async fn send_lock(&mut self, environment: String) {
        if let Some(lock) = self.context.environments.lock(&environment) {
            let lock = FromWorker::Lock { environment, lock };
            self.link.send(&lock).await;
        }
    }

    fn stay_until(&mut self, until: Option<Instant>) {
        self.stays_until = until;
        if until.is_some() {
            self.context.zygotes.expect_people();
        }
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
                self.judge_sessions(job, &event);
                self.jobs.add_event(job, fencing, *event);
            }
            Report::TrialFailed(why) => {
                if self.failing.as_ref() != Some(&why) {
                    self.failing = Some(why.clone());
                    self.link.send(&FromWorker::Failing { why }).await;
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
                let before = self.notebooks.sessions();
                if let Some(entry) = self.notebooks.of_task(notebook, task) {
                    entry.last_used = Instant::now();
                    entry.warm = warm;
                    entry.defers = defers;
                    entry.keeps = keeps;
                    entry.unfinished -= usize::from(job_over);
                    self.last_used = Instant::now();
                }
                self.notebooks.limit_sessions_of(notebook);
                self.report_sessions(&before).await;
                self.make_room().await;
            }
        }
    }

    /// Doubts what starts no session, or does not serve it.
    fn judge_sessions(&mut self, job: JobId, event: &JobEvent) {
        let environment = self.jobs.get(job);
        let environment = environment.and_then(|held| held.environment.clone());
        match (event, environment) {
            (JobEvent::NotStarted { .. }, Some(environment)) => {
                self.context.environments.doubt(&environment);
            }
            (JobEvent::NotStarted { error }, None) => {
                self.failing = Some(error.value.clone());
                self.try_sessions(TRIAL_PAUSE);
            }
            // The session died or the worker failed to serve it. A trial shows whether the worker is at fault.
            (
                JobEvent::Finished(Finished {
                    outcome: Outcome::WorkerLost,
                    ..
                }),
                None,
            ) => self.try_sessions(Duration::ZERO),
            _ => {}
        }
    }

    fn try_sessions(&mut self, pause: Duration) {
        let (context, reports) = (Arc::clone(&self.context), self.reports.clone());
        self.trial.begin(context, reports, pause);
    }

    async fn recover(&mut self) {
        if self.failing.take().is_some() {
            tracing::info!("Sessions can start here again");
            self.link.send(&FromWorker::Recovered {}).await;
        }
    }

    async fn lose_gpu(&mut self, reason: String) {
        tracing::error!("The GPU is lost: {reason}. This worker accepts no more cells and exits");
        self.lost = Some(reason);
        self.finish_cells(Some(LOST_GPU_GRACE)).await;
    }

    async fn forget_panicked(&mut self) {
        let before = self.notebooks.sessions();
        self.notebooks.forget_panicked();
        self.report_sessions(&before).await;
    }

    /// Ends sessions that were idle for too long.
    async fn cull(&mut self) {
        let before = self.notebooks.sessions();
        self.notebooks.cull();
        self.report_sessions(&before).await;
    }

    /// Ends a session if another one waits for its GPU.
    async fn make_room(&mut self) {
        let before = self.notebooks.sessions();
        self.notebooks.make_room();
        self.report_sessions(&before).await;
    }

    async fn report_sessions(&mut self, before: &Sessions) {
        let now = self.notebooks.sessions();
        if now != *before {
            let Sessions { warm, keeping } = now;
            let sessions = FromWorker::Sessions { warm, keeping };
            self.link.send(&sessions).await;
        }
    }

    async fn report_environments(&mut self) {
        self.last_used = Instant::now();
        let environments = self.context.environments.offered();
        let offered = FromWorker::Environments { environments };
        self.link.send(&offered).await;
    }

    async fn report_load(&mut self) {
        let memory = host_memory::memory();
        let load = FromWorker::Load {
            memory_bytes: memory.used_bytes,
            memory_total_bytes: memory.total_bytes,
            jobs: self.jobs.memory_bytes(),
            gpus: self.context.reading.borrow().gpus.clone(),
        };
        self.link.send(&load).await;
        let zygotes = &self.context.zygotes;
        zygotes.make_room(host_memory::available_bytes());
    }

    fn publish_status(&self) {
        let new = Status {
            connected: self.link.is_open(),
            cells: self.jobs.unfinished(),
            leaving: self.leave.has_begun(),
            trying: false,
        };
        self.context.config.status.send_if_modified(|status| {
            let changed = *status != new;
            *status = new;
            changed
        });
    }

    /// Accepts nothing new, and lets running cells end, each at its own time limit at the latest.
    async fn finish_cells(&mut self, grace: Option<Duration>) {
        if self.leave.has_begun() {
            return;
        }
        self.leave = Leave::finishing(grace, self.context.end.as_ref());
        self.jobs.give_up_waiting();
        self.report_drained().await;
    }

    /// When the worker must begin to leave because its time on the machine ends.
    fn drains_at(&self) -> Option<Instant> {
        let end = self.context.end.as_ref()?;
        (!self.leave.has_begun()).then(|| end.drains_at())
    }

    /// When the worker exits for being idle. It stays while it prepares an environment, while deferred state has not
    /// been sent, and while a session holds objects that no other session can hold.
    fn idle_exit_at(&self) -> Option<Instant> {
        let idle = self.context.config.idle_exit?;
        let is_needed = self.leave.has_begun()
            || !self.jobs.is_empty()
            || self.context.environments.are_being_prepared()
            || self.notebooks.need_this_worker();
        let idle_since = (!is_needed).then(|| self.last_used.checked_add(idle))??;
        Some(
            self.stays_until
                .map_or(idle_since, |stays| stays.max(idle_since)),
        )
    }

    async fn leave_idle(&mut self) {
        tracing::info!("No cell arrived for a while, so this worker leaves");
        self.finish_cells(Some(Duration::ZERO)).await;
    }

    /// If a batch system announces the end of the worker's time, running cells have the time that is left. Otherwise
    /// the machine may be taken away soon.
    async fn leave_when_cells_end(&mut self) {
        match &self.context.end {
            Some(end) if end.is_ending() => self.leave_in_time().await,
            _ => self.finish_cells(self.context.config.stop_grace).await,
        }
    }

    async fn leave_in_time(&mut self) {
        let grace = self.context.end.as_ref().map(LifeEnd::grace);
        tracing::info!("This worker's time on its machine ends");
        self.finish_cells(grace).await;
    }

    /// Sends pending events first, because on `Drain` the broker gives all jobs that have not started to other
    /// workers.
    async fn report_drained(&mut self) {
        self.jobs.send_events(&mut self.link).await;
        self.link.send(&FromWorker::Drain {}).await;
    }

    /// Ends the running cells.
    async fn end_cells(&mut self) {
        self.finish_cells(Some(Duration::ZERO)).await;
        tracing::info!("Leaving: stopping the running cells");
        self.context.stopping.cancel();
        self.leave = Leave::handing_over(self.notebooks.defer());
    }

    /// Once the last cell has ended, its results have the usual time (`patience`) to reach the broker.
    fn hand_over(&mut self) {
        if matches!(self.leave, Leave::Finishing(_)) && self.jobs.unfinished() == 0 {
            let until = Instant::now() + self.context.config.patience;
            self.leave = Leave::HandingOver(until);
        }
    }

    fn may_leave(&self) -> bool {
        self.leave.is_last() && !self.jobs.have_unsent()
    }

    /// Ends all sessions.
    async fn end(self) {
        self.jobs.end();
        self.link.close().await;
        self.notebooks.end().await;
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

/// `at_ms` is in milliseconds since 1970, by this machine's clock.
fn at_time(at_ms: i64) -> Option<Instant> {
    let at = UNIX_EPOCH + Duration::from_millis(u64::try_from(at_ms).ok()?);
    let left = at.duration_since(SystemTime::now()).unwrap_or_default();
    Instant::now().checked_add(left)
}
