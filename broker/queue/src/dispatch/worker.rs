//! Messages of workers.

use super::{
    Action, ConnectionId, Dispatch, Job, Now, Observation, Peer, Phase, Worker, behind::Held,
    environments::with_short_reasons,
};
use crate::{
    bounds::{WorkerHello, are_possible, cut_reason, is_possible_load, is_possible_sessions},
    record::Write,
};
use baton_protocol::{
    FencingNumber, JobId, NotebookId, Refusal, WorkerId,
    worker::{FromWorker, ToWorker},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

impl Dispatch {
    /// Both sides compare what they hold. The worker learns which events are stored, which
    /// assignments it has lost, and what it missed while it was disconnected. While one process is
    /// registered as a worker, and until its grace is over, no other process can register as it.
    pub fn on_worker_connected(
        &mut self,
        connection: ConnectionId,
        hello: WorkerHello,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let id = hello.worker;
        let others = |worker: &&Worker| worker.life.is_some_and(|life| life != hello.life);
        if let Some(other) = self.peers.workers.get(&id).filter(others) {
            let name = other.name.clone();
            actions.push(Action::Log(Observation::SecondWorker {
                worker: name.clone(),
            }));
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
        self.peers
            .sessions_end(id, |notebook| !still.contains(notebook), actions);
        if let Some(older) = self.peers.workers.insert(id, worker)
            && let Some(connection) = older.connection
        {
            let refusal = ToWorker::Refused(Refusal::Replaced { name: older.name });
            actions.push(Action::ToWorker(connection, refusal));
            actions.push(Action::Close(connection));
        }
        self.peers.missed.remove(&id);
        self.peers
            .by_connection
            .insert(connection, Peer::Worker(id));
        let broker_version = env!("CARGO_PKG_VERSION").to_owned();
        actions.push(Action::ToWorker(
            connection,
            ToWorker::Welcome {
                broker_version,
                name,
            },
        ));

        self.send_stay(id, actions);
        self.peers.ask_for_locks(connection, id, actions);
        self.warm_sessions(id, hello.sessions, hello.keeping, now, actions);
        let held: HashMap<JobId, FencingNumber> = hello.assignments.into_iter().collect();
        for (job, fencing) in &held {
            let known = hello.acknowledged.iter().find(|known| known.job == *job);
            let held = Held::new(*job, *fencing, known);
            match self.jobs.get(*job) {
                Some(job) if held.is_ahead_of(job, id) => {
                    self.worker_is_ahead(connection, held, now, actions);
                }
                _ => self.held_by_worker(connection, id, *job, *fencing, actions),
            }
        }
        let missed: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|job| job.worker() == Some(id) && job.is_running())
            .filter(|job| held.get(&job.id) != Some(&job.fencing()))
            .map(|job| job.id)
            .collect();
        for job in missed {
            self.missed_by_worker(connection, job, now, actions);
        }
        let is_held = |job: &Job| held.get(&job.id) == Some(&job.fencing());
        for job in self
            .jobs
            .ids(|job| job.has_remainder_at(id) && !is_held(job))
        {
            self.remainder_lost(job, actions);
        }
        self.disordered = true;
    }

    pub fn on_worker_message(
        &mut self,
        connection: ConnectionId,
        message: FromWorker,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(Peer::Worker(id)) = self.peers.by_connection.get(&connection).copied() else {
            return;
        };
        match message {
            // A repeated hello changes nothing.
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
                self.peers.disbelieve(id, "sessions", actions);
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
                self.peers.disbelieve(id, "load", actions);
            }
            FromWorker::Load {
                memory_bytes,
                memory_total_bytes,
                jobs,
                gpus,
            } => {
                if let Some(worker) = self.peers.workers.get_mut(&id) {
                    worker.memory = Some((memory_bytes, memory_total_bytes));
                    worker.gpus = gpus;
                }
                for (job, bytes) in jobs {
                    let job = self.jobs.get_mut(job);
                    if let Some(job) =
                        job.filter(|job| job.worker() == Some(id) && job.is_running())
                    {
                        job.memory.add(now.unix_ms, bytes);
                    }
                }
            }
            FromWorker::Failing { why } => self.no_session_starts(id, why, actions),
            FromWorker::Recovered {} => self.session_starts(id),
            FromWorker::Environments { environments } if !are_possible(&environments) => {
                self.peers.disbelieve(id, "list of environments", actions);
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

    /// The worker accepts no more jobs. Jobs that have not started there run elsewhere.
    fn worker_drains(&mut self, id: WorkerId, now: Now, actions: &mut Vec<Action>) {
        if let Some(worker) = self.peers.workers.get_mut(&id) {
            worker.draining = true;
        }
        self.disordered = true;
        let busy: HashSet<NotebookId> = self
            .jobs
            .iter()
            .filter(|job| job.worker() == Some(id) && job.phase() == Phase::Started)
            .map(|job| job.notebook)
            .collect();
        self.peers
            .sessions_end(id, |notebook| !busy.contains(notebook), actions);
        for job in self
            .jobs
            .ids(|job| job.worker() == Some(id) && job.phase() == Phase::Assigned)
        {
            match self.jobs.get(job) {
                Some(held) if held.cancel_wanted => self.finish_cancelled(job, now, actions),
                _ => self.requeue(job, actions),
            }
        }
    }

    /// The worker reconnected with an assignment.
    fn held_by_worker(
        &mut self,
        connection: ConnectionId,
        worker: WorkerId,
        id: JobId,
        fencing: FencingNumber,
        actions: &mut Vec<Action>,
    ) {
        let job = self.jobs.get_mut(id);
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
                number: job.acknowledged(),
            },
        ));
        if job.deferred_wanted {
            actions.push(Action::ToWorker(
                connection,
                ToWorker::DeferredWanted { job: id },
            ));
        }
        if job.orphaned.is_some() {
            actions.push(Action::ToWorker(connection, ToWorker::Salvage { job: id }));
        } else if job.kind.outlives_kernel() {
            actions.push(Action::ToWorker(connection, ToWorker::Adopted { job: id }));
        }
        if !job.is_running() {
            return;
        }
        if job.cancel_wanted {
            actions.push(Action::ToWorker(connection, ToWorker::Cancel { job: id }));
        }
    }

    /// The worker reconnected without an assignment that it was given.
    fn missed_by_worker(
        &mut self,
        connection: ConnectionId,
        id: JobId,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        match job.phase() {
            // It may have run to its end, and the record of that may be lost. So it waits for its proxy.
            Phase::Assigned if job.unclaimed.is_some() => self.requeue(id, actions),
            // The message was lost with the old connection.
            Phase::Assigned if !job.cancel_wanted && job.acknowledged() == 0 => {
                actions.push(Action::Assign {
                    connection,
                    job: id,
                    fencing: job.fencing(),
                    timeout_ms: job.timeout_ms(),
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

    /// A notebook without a connected proxy gets a grace, because its proxy may be about to connect.
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
            self.peers.expect_proxy(*notebook, deadline);
        }
        let warm: HashSet<NotebookId> = warm.into_iter().collect();
        self.peers
            .sessions_end(id, |notebook| !warm.contains(notebook), actions);
        if let Some(worker) = self.peers.workers.get_mut(&id) {
            let held = |notebook: &NotebookId| warm.contains(notebook);
            worker.keeping = keeping.into_iter().filter(held).collect();
            worker.warm = warm;
            self.disordered = true;
        }
    }
}
