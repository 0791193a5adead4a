//! What workers say.

use super::{
    Action, ConnectionId, Dispatch, Job, Now, Peer, Phase, Worker, act,
    behind::Held,
    environments::with_short_reasons,
    job::{End, phase_after, remainder_after},
};
use crate::{
    bounds::{are_possible, cut_reason, cut_usage, is_possible_load, is_possible_sessions},
    store::Write,
};
use baton_protocol::{
    FencingNumber, JobEvent, JobId, NotebookId, Outcome, Refusal, RemoteError, State, Usage,
    WorkerId,
    proxy::ToProxy,
    worker::{Acknowledged, FromWorker, ToWorker},
};
use baton_scheduling::queue::Offer;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// A worker's hello, without the version, which is checked.
#[derive(Debug)]
pub(crate) struct WorkerHello {
    pub(crate) worker: WorkerId,
    /// Of its process.
    pub(crate) life: WorkerId,
    pub(crate) name: String,
    pub(crate) offer: Offer,
    pub(crate) slots: u32,
    pub(crate) sessions: Vec<NotebookId>,
    pub(crate) keeping: Vec<NotebookId>,
    pub(crate) assignments: Vec<(JobId, FencingNumber)>,
    pub(crate) acknowledged: Vec<Acknowledged>,
    pub(crate) failing: Option<String>,
}

impl Dispatch {
    /// Both sides compare what they hold: the worker hears what is stored, what is no longer its own, and what it
    /// missed while it was away. While a process has a worker's place, and until its grace is over, no other process
    /// gets it.
    pub(crate) fn on_worker_connected(
        &mut self,
        connection: ConnectionId,
        hello: WorkerHello,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let id = hello.worker;
        let others = |worker: &&Worker| worker.life.is_some_and(|life| life != hello.life);
        if let Some(other) = self.workers.get(&id).filter(others) {
            let name = other.name.clone();
            tracing::warn!("Another worker with the token of {name} is refused");
            let refusal = ToWorker::Refused(Refusal::WorkerConnected { name });
            actions.push(Action::ToWorker(connection, refusal));
            actions.push(Action::Close(connection));
            return;
        }
        actions.push(Action::Write(Write::SeeWorker {
            worker: id,
            name: hello.name.clone(),
            devices: hello.offer.devices.clone(),
            slots: hello.slots,
            at_ms: now.unix_ms,
        }));
        let name = hello.name.clone();
        let mut offer = hello.offer;
        offer.machine.environments = with_short_reasons(offer.machine.environments);
        let worker = Worker {
            life: Some(hello.life),
            name: hello.name,
            offer: Arc::new(offer),
            slots: hello.slots,
            warm: HashSet::new(),
            keeping: HashSet::new(),
            draining: false,
            failing: hello.failing.map(cut_reason),
            memory: None,
            gpus: Vec::new(),
            connection: Some(connection),
            connected_ms: Some(now.unix_ms),
            deadline: None,
            disconnected_since_ms: None,
            stays_until_ms: None,
        };
        let still: HashSet<&NotebookId> = hello.sessions.iter().collect();
        self.sessions_end(id, |notebook| !still.contains(notebook), actions);
        if let Some(older) = self.workers.insert(id, worker)
            && let Some(connection) = older.connection
        {
            let refusal = ToWorker::Refused(Refusal::Replaced { name: older.name });
            actions.push(Action::ToWorker(connection, refusal));
            actions.push(Action::Close(connection));
        }
        self.missed.remove(&id);
        self.peers.insert(connection, Peer::Worker(id));
        let broker_version = env!("CARGO_PKG_VERSION").to_owned();
        actions.push(Action::ToWorker(
            connection,
            ToWorker::Welcome {
                broker_version,
                name,
            },
        ));

        self.say_stay(id, actions);
        self.ask_for_locks(connection, id, actions);
        self.warm_sessions(id, hello.sessions, hello.keeping, now, actions);
        let held: HashMap<JobId, FencingNumber> = hello.assignments.into_iter().collect();
        for (job, fencing) in &held {
            let known = hello.acknowledged.iter().find(|known| known.job == *job);
            let held = Held::new(*job, *fencing, known);
            match self.jobs.get(job) {
                Some(job) if held.is_ahead_of(job, id) => {
                    self.worker_is_ahead(connection, held, now, actions);
                }
                _ => self.held_by_worker(connection, id, *job, *fencing, actions),
            }
        }
        let missed: Vec<JobId> = self
            .jobs
            .values()
            .filter(|job| job.worker == Some(id) && job.is_running())
            .filter(|job| held.get(&job.id) != Some(&job.fencing))
            .map(|job| job.id)
            .collect();
        for job in missed {
            self.missed_by_worker(connection, job, now, actions);
        }
        let is_held = |job: &Job| held.get(&job.id) == Some(&job.fencing);
        for job in self.jobs_where(|job| job.has_remainder_at(id) && !is_held(job)) {
            self.remainder_lost(job, actions);
        }
        self.disordered = true;
    }

    pub(crate) fn on_worker_message(
        &mut self,
        connection: ConnectionId,
        message: FromWorker,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(Peer::Worker(id)) = self.peers.get(&connection).copied() else {
            return;
        };
        match message {
            // Said once already.
            FromWorker::Hello { .. } => {}
            FromWorker::Events {
                job,
                fencing,
                first,
                events,
            } => self.worker_events(
                connection,
                id,
                (job, fencing),
                (first, events),
                now,
                actions,
            ),
            FromWorker::Sessions { warm, keeping }
                if !is_possible_sessions(warm.len().max(keeping.len())) =>
            {
                self.disbelieve(id, "sessions");
            }
            FromWorker::Sessions { warm, keeping } => {
                self.warm_sessions(id, warm, keeping, now, actions);
            }
            FromWorker::Load {
                memory_bytes,
                memory_total_bytes,
                gpus,
                ..
            } if !is_possible_load((memory_bytes, memory_total_bytes), &gpus) => {
                self.disbelieve(id, "load");
            }
            FromWorker::Load {
                memory_bytes,
                memory_total_bytes,
                jobs,
                gpus,
            } => {
                if let Some(worker) = self.workers.get_mut(&id) {
                    worker.memory = Some((memory_bytes, memory_total_bytes));
                    worker.gpus = gpus;
                }
                for (job, bytes) in jobs {
                    let job = self.jobs.get_mut(&job);
                    if let Some(job) = job.filter(|job| job.worker == Some(id) && job.is_running())
                    {
                        job.memory.add(now.unix_ms, bytes);
                    }
                }
            }
            FromWorker::Failing { why } => self.no_session_starts(id, why),
            FromWorker::Recovered {} => self.session_starts(id),
            FromWorker::Environments { environments } if !are_possible(&environments) => {
                self.disbelieve(id, "list of environments");
            }
            FromWorker::Environments { environments } => {
                self.environments_changed(connection, id, environments, actions);
            }
            FromWorker::Lock { environment, lock } => {
                self.lock_received(id, environment, lock, now, actions);
            }
            FromWorker::Drain {} => self.worker_drains(id, now, actions),
        }
    }

    /// It takes nothing more. What has not started there runs elsewhere.
    fn worker_drains(&mut self, id: WorkerId, now: Now, actions: &mut Vec<Action>) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.draining = true;
        }
        self.disordered = true;
        let busy: HashSet<NotebookId> = self
            .jobs
            .values()
            .filter(|job| job.worker == Some(id) && job.phase == Phase::Started)
            .map(|job| job.notebook)
            .collect();
        self.sessions_end(id, |notebook| !busy.contains(notebook), actions);
        for job in self.jobs_where(|job| job.worker == Some(id) && job.phase == Phase::Assigned) {
            match self.jobs.get(&job) {
                Some(held) if held.cancel_wanted => self.finish_cancelled(job, now, actions),
                _ => self.requeue(job, actions),
            }
        }
    }

    pub(super) fn disbelieve(&self, worker: WorkerId, what: &str) {
        let name = self.workers.get(&worker).map(|worker| &*worker.name);
        let name = name.unwrap_or_default();
        tracing::warn!(
            worker.name = name,
            "Ignoring an impossible {what} from worker {name}"
        );
    }

    /// What its worker says of a run, as far as it is possible.
    fn believed(&self, id: JobId, usage: Usage, now: Now) -> Usage {
        let Some(job) = self.jobs.get(&id) else {
            return usage;
        };
        let wall_ms = job.started_ms.map_or(0, |started| now.unix_ms - started);
        let worker = job.worker.and_then(|worker| self.workers.get(&worker));
        let devices = worker.map_or(1, |worker| worker.offer.devices.len());
        let cut = cut_usage(usage, u64::try_from(wall_ms).unwrap_or(0), devices);
        if cut.is_some() {
            let name = worker.map(|worker| &*worker.name).unwrap_or_default();
            tracing::warn!(job.id = %id, worker.name = name, "Worker {name} reports {} ms of GPU time for a cell that ran for {wall_ms} ms; the cell is charged for its run time", usage.run_ms);
        }
        cut.unwrap_or(usage)
    }

    /// The worker came back with an assignment.
    fn held_by_worker(
        &mut self,
        connection: ConnectionId,
        worker: WorkerId,
        id: JobId,
        fencing: FencingNumber,
        actions: &mut Vec<Action>,
    ) {
        let job = self.jobs.get_mut(&id);
        let Some(job) = job.filter(|job| job.is_assigned_to(worker, fencing)) else {
            actions.push(Action::ToWorker(
                connection,
                ToWorker::Revoke { job: id, fencing },
            ));
            return;
        };
        actions.push(Action::ToWorker(
            connection,
            ToWorker::Acknowledge {
                job: id,
                fencing,
                number: job.acknowledged,
            },
        ));
        if job.phase == Phase::Assigned && job.state_fencing == fencing {
            actions.push(Action::SendState {
                connection,
                job: id,
            });
        }
        if std::mem::take(&mut job.deferred_wanted) {
            actions.push(Action::ToWorker(
                connection,
                ToWorker::DeferredWanted { job: id },
            ));
        }
        if job.orphaned.is_some() {
            actions.push(Action::ToWorker(connection, ToWorker::Salvage { job: id }));
        }
        if !job.is_running() {
            return;
        }
        if let Some((question, value)) = job.waiting_input.take() {
            actions.push(Action::ToWorker(
                connection,
                ToWorker::Input {
                    job: id,
                    question,
                    value,
                },
            ));
        }
        for (question, answer) in std::mem::take(&mut job.waiting_files) {
            actions.push(Action::ToWorker(
                connection,
                ToWorker::Files {
                    job: id,
                    question,
                    answer,
                },
            ));
        }
        if let Some((number, state)) = job.names.clone() {
            actions.push(Action::ToWorker(
                connection,
                ToWorker::Names {
                    job: id,
                    number,
                    state,
                },
            ));
        }
        if job.cancel_wanted {
            actions.push(Action::ToWorker(connection, ToWorker::Cancel { job: id }));
        }
    }

    /// The worker came back without an assignment that it was given.
    fn missed_by_worker(
        &mut self,
        connection: ConnectionId,
        id: JobId,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        match job.phase {
            // It may have run to its end, and that be lost.
            Phase::Assigned if job.unclaimed.is_some() => self.requeue(id, actions),
            // The message was lost with the old connection.
            Phase::Assigned if !job.cancel_wanted && job.acknowledged == 0 => {
                actions.push(Action::Assign {
                    connection,
                    job: id,
                    fencing: job.fencing,
                    timeout_ms: job.timeout_ms,
                    owner: job.account.owner.clone(),
                    environment: self.environment_of(job),
                    submission: None,
                });
            }
            Phase::Assigned if job.cancel_wanted => {
                self.finish_cancelled(id, now, actions);
            }
            Phase::Assigned => self.requeue(id, actions),
            _ => self.worker_lost(id, now, actions),
        }
    }

    /// Events that were stored before are skipped; a gap means that the two sides no longer understand each other.
    fn worker_events(
        &mut self,
        connection: ConnectionId,
        worker: WorkerId,
        (id, fencing): (JobId, FencingNumber),
        (first, events): (u64, Vec<JobEvent>),
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let job = self.jobs.get(&id);
        let Some(job) = job.filter(|job| job.is_assigned_to(worker, fencing)) else {
            actions.push(Action::ToWorker(
                connection,
                ToWorker::Revoke { job: id, fencing },
            ));
            return;
        };
        if first == 0 || first > job.acknowledged + 1 {
            tracing::warn!(job.id = %id, "Worker {worker} sent event {first} of job {id} after event {}", job.acknowledged);
            actions.push(Action::Close(connection));
            return;
        }
        let stored = usize::try_from(job.acknowledged + 1 - first).unwrap_or(usize::MAX);
        let acknowledged = job.acknowledged.max(first + events.len() as u64 - 1);
        let new: Vec<JobEvent> = events.into_iter().skip(stored).collect();
        if !new.is_empty() {
            self.new_events(id, new, acknowledged, now, actions);
        }
        actions.push(Action::ToWorker(
            connection,
            ToWorker::Acknowledge {
                job: id,
                fencing,
                number: acknowledged,
            },
        ));
    }

    fn new_events(
        &mut self,
        id: JobId,
        events: Vec<JobEvent>,
        acknowledged: u64,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let mut accepted = Vec::with_capacity(events.len());
        let (mut end, mut salvaged) = (None, false);
        let (mut not_started, mut started_on) = (None, None);
        for mut event in events {
            let Some(job) = self.jobs.get_mut(&id) else {
                return;
            };
            let Some(phase) = phase_after(job, &event) else {
                tracing::warn!(job.id = %id, "An event of job {id} came while it was {}", job.phase.name());
                continue;
            };
            if let JobEvent::NotStarted { error } = event {
                not_started = Some(error);
                continue;
            }
            if job.phase == Phase::Assigned && phase == Phase::Started {
                job.started_ms = Some(now.unix_ms);
                if let Some((assigned_ms, cold)) = job.assigned {
                    let took_ms = now.unix_ms.saturating_sub(assigned_ms);
                    self.history
                        .started(cold, u64::try_from(took_ms).unwrap_or(0));
                }
                let ranges = std::mem::take(&mut job.shown_ranges);
                let now_ms = u64::try_from(now.unix_ms).unwrap_or(0);
                self.history.started_after(&job.account, &ranges, now_ms);
                started_on = job.worker;
                if let Some(notebook) = self.notebooks.get_mut(&job.notebook) {
                    notebook.ran_on = job.worker;
                }
                actions.push(Action::Write(Write::Start {
                    job: id,
                    fencing: job.fencing,
                    at_ms: now.unix_ms,
                }));
            }
            let ran = job.phase == Phase::Started;
            job.phase = phase;
            if phase == Phase::Finished {
                job.remainder = remainder_after(&event);
            }
            if let Some(words) = &job.stopped {
                act::set_stopped_message(&mut event, words, ran);
            }
            salvaged |= matches!(event, JobEvent::Salvaged { .. });
            match &mut event {
                JobEvent::Started { worker } => *worker = self.name_of_worker(id),
                JobEvent::Finished { usage, .. } => *usage = self.believed(id, *usage, now),
                _ => {}
            }
            if let JobEvent::Finished {
                outcome,
                usage,
                error,
                state,
                ..
            } = &event
            {
                end = Some(End {
                    outcome: *outcome,
                    usage: *usage,
                    error: error.clone(),
                    returned_bytes: state.as_ref().map(State::bytes),
                });
                let run_ms = match usage.run_ms {
                    // A session that died cannot say. A cell that was refused did not run, though it had its start.
                    0 if *outcome != Outcome::Refused => self.ran(id, now).run_ms,
                    run_ms => run_ms,
                };
                let charged_ms = match usage.gpu {
                    // Where sessions take turns, a program leaves the GPU to others between them.
                    Some(gpu) if self.jobs[&id].kind.is_program() => gpu.held_ms.min(run_ms),
                    _ => run_ms,
                };
                accepted.extend(self.charge(id, charged_ms, now, actions));
            }
            accepted.push(event);
        }
        self.append(id, accepted, Some(acknowledged), actions);
        if let Some(end) = end {
            self.finished(id, end, now, actions);
        }
        if salvaged {
            self.end_orphaned_session(id, actions);
        }
        if let Some(worker) = started_on {
            self.session_starts(worker);
        }
        if let Some(error) = not_started {
            self.not_started(id, error, now, actions);
        }
    }

    /// Its worker cannot start a session: another one may, or this one later.
    fn not_started(&mut self, id: JobId, error: RemoteError, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let cancelled = job.cancel_wanted;
        let environment = self.environment_of(job);
        match (job.worker, environment) {
            (Some(worker), Some(environment)) => {
                self.environment_failed(worker, &environment, error.value);
            }
            (Some(worker), None) => self.no_session_starts(worker, error.value),
            (None, _) => {}
        }
        if cancelled {
            self.finish_cancelled(id, now, actions);
        } else {
            self.requeue(id, actions);
        }
    }

    fn no_session_starts(&mut self, worker: WorkerId, why: String) {
        if let Some(worker) = self.workers.get_mut(&worker) {
            tracing::warn!(worker = worker.name, why, "A worker cannot start sessions");
            worker.failing = Some(cut_reason(why));
            self.disordered = true;
        }
    }

    fn session_starts(&mut self, worker: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.failing = None;
            self.disordered = true;
        }
    }

    /// A notebook that nobody knows gets a grace: its proxy may be on its way.
    fn warm_sessions(
        &mut self,
        id: WorkerId,
        warm: Vec<NotebookId>,
        keeping: Vec<NotebookId>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        for notebook in &warm {
            let deadline = now.instant + self.graces.silent_proxy;
            self.expect_proxy(*notebook, deadline);
        }
        let warm: HashSet<NotebookId> = warm.into_iter().collect();
        self.sessions_end(id, |notebook| !warm.contains(notebook), actions);
        if let Some(worker) = self.workers.get_mut(&id) {
            let held = |notebook: &NotebookId| warm.contains(notebook);
            worker.keeping = keeping.into_iter().filter(held).collect();
            worker.warm = warm;
            self.disordered = true;
        }
    }

    /// Tells the notebooks whose sessions there held what no other can have. A session that its notebook has left for
    /// another worker is nobody's loss.
    pub(super) fn sessions_end(
        &mut self,
        id: WorkerId,
        ends: impl Fn(&NotebookId) -> bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let ended: Vec<NotebookId> = worker.keeping.extract_if(ends).collect();
        for notebook in ended {
            let notebook = self.notebooks.get(&notebook);
            let here = notebook.filter(|notebook| notebook.ran_on.is_none_or(|on| on == id));
            if let Some(connection) = here.and_then(|notebook| notebook.connection) {
                let worker = worker.name.clone();
                let ended = ToProxy::SessionEnded { worker };
                actions.push(Action::ToProxy(connection, ended));
            }
        }
    }
}
