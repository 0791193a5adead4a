//! Messages of workers.

use super::{
    Action, Assignment, Batch, ConnectionId, Dispatch, Job, Observation, Peer, Phase, Worker,
    environments,
    lost_records::{self, HeldAssignment},
    pools,
    transitions::{end_cancelled, remainder_lost, requeue, worker_lost},
    worker_events::{self, Reported},
};
use crate::{
    bounds::{WorkerHello, are_possible, is_possible_load, is_possible_sessions},
    record::Write,
};
use baton_protocol::{
    FencingNumber, JobId, NotebookId, Refusal, WorkerId,
    worker::{FromWorker, ToWorker},
};
use std::collections::{HashMap, HashSet};

pub(super) fn on_connected(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    mut hello: WorkerHello,
    batch: &mut Batch,
) {
    if is_second_process(dispatch, connection, &hello, batch) {
        return;
    }
    if hello.name.is_empty() {
        hello.name = dispatch.peers.name_for(&hello);
    }
    let id = hello.worker;
    register(dispatch, connection, &hello, batch);
    let broker_version = env!("CARGO_PKG_VERSION").to_owned();
    batch.send_worker(
        connection,
        ToWorker::Welcome {
            broker_version,
            name: hello.name,
        },
    );
    pools::send_stay(dispatch, id, batch);
    environments::ask_for_locks(dispatch, connection, id, batch);
    warm_sessions(dispatch, id, hello.sessions, hello.keeping, batch);
    let held = hello.assignments.into_iter();
    let held: Vec<HeldAssignment> = held
        .map(|(job, fencing)| {
            let known = hello.acknowledged.iter().find(|known| known.job == job);
            HeldAssignment::new(job, fencing, known)
        })
        .collect();
    compare_assignments(dispatch, connection, id, &held, batch);
    dispatch.plan_is_stale = true;
}

/// Refuses another process than the one that is registered as this worker.
fn is_second_process(
    dispatch: &Dispatch,
    connection: ConnectionId,
    hello: &WorkerHello,
    batch: &mut Batch,
) -> bool {
    let others = |worker: &&Worker| worker.life.is_some_and(|life| life != hello.life);
    let Some(other) = dispatch.peers.workers.get(&hello.worker).filter(others) else {
        return false;
    };
    let name = other.name.clone();
    batch.log(Observation::SecondWorker {
        worker: name.clone(),
    });
    let refusal = ToWorker::Refused(Refusal::WorkerConnected { name });
    batch.send_worker(connection, refusal);
    batch.close(connection);
    true
}

/// Its newest connection counts.
fn register(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    hello: &WorkerHello,
    batch: &mut Batch,
) {
    let id = hello.worker;
    batch.write(Write::SeeWorker {
        worker: id,
        name: hello.name.clone(),
        devices: hello.offer.devices.clone(),
        slots: hello.slots,
        at_ms: batch.now.unix_ms,
    });
    let still: HashSet<&NotebookId> = hello.sessions.iter().collect();
    let peers = &mut dispatch.peers;
    peers.sessions_end(id, |notebook| !still.contains(notebook), batch);
    let worker = Worker::connected(connection, hello, batch.now);
    if let Some(older) = peers.workers.insert(id, worker)
        && let Some(connection) = older.connection
    {
        let refusal = ToWorker::Refused(Refusal::Replaced { name: older.name });
        batch.send_worker(connection, refusal);
        peers.by_connection.remove(&connection);
        batch.close(connection);
    }
    peers.missed.remove(&id);
    peers.by_connection.insert(connection, Peer::Worker(id));
}

/// Compares what the worker holds with what the broker has assigned to it.
fn compare_assignments(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    id: WorkerId,
    held: &[HeldAssignment],
    batch: &mut Batch,
) {
    let notebooks = held.iter().filter_map(|held| dispatch.jobs.get(held.job));
    let notebooks: Vec<NotebookId> = notebooks.map(|job| job.notebook).collect();
    if let Some(worker) = dispatch.peers.workers.get_mut(&id) {
        worker.served.extend(notebooks);
    }
    for held in held {
        match dispatch.jobs.get(held.job) {
            Some(job) if held.is_ahead_of(job, id) => {
                lost_records::worker_is_ahead(dispatch, connection, *held, batch);
            }
            _ => held_by_worker(dispatch, connection, id, held.job, held.fencing, batch),
        }
    }
    let held: HashMap<JobId, FencingNumber> =
        held.iter().map(|held| (held.job, held.fencing)).collect();
    let is_held = |job: &Job| held.get(&job.id) == Some(&job.fencing());
    let runs_here = |job: &Job| job.worker() == Some(id) && job.is_running();
    for job in dispatch.jobs.ids(|job| runs_here(job) && !is_held(job)) {
        missed_by_worker(dispatch, connection, job, batch);
    }
    let left_here = |job: &Job| job.has_remainder_at(id);
    for job in dispatch.jobs.ids(|job| left_here(job) && !is_held(job)) {
        remainder_lost(dispatch, job, batch);
    }
}

pub(super) fn on_message(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    message: FromWorker,
    batch: &mut Batch,
) {
    let Some(Peer::Worker(id)) = dispatch.peers.by_connection.get(&connection).copied() else {
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
        } => {
            let reported = Reported {
                job,
                fencing,
                first,
                events,
            };
            worker_events::on_events(dispatch, connection, id, reported, batch);
        }
        FromWorker::Sessions { warm, keeping }
            if !is_possible_sessions(warm.len().max(keeping.len())) =>
        {
            dispatch.peers.disbelieve(id, "sessions", batch);
        }
        FromWorker::Sessions { warm, keeping } => {
            warm_sessions(dispatch, id, warm, keeping, batch);
        }
        FromWorker::Load {
            memory_bytes,
            memory_total_bytes,
            gpus,
            ..
        } if !is_possible_load((memory_bytes, memory_total_bytes), &gpus) => {
            dispatch.peers.disbelieve(id, "load", batch);
        }
        FromWorker::Load {
            memory_bytes,
            memory_total_bytes,
            jobs,
            gpus,
        } => {
            if let Some(worker) = dispatch.peers.workers.get_mut(&id) {
                worker.memory = Some((memory_bytes, memory_total_bytes));
                worker.gpus = gpus;
            }
            memory_of_sessions(dispatch, id, jobs, batch);
        }
        FromWorker::Failing { why } => worker_events::no_session_starts(dispatch, id, why, batch),
        FromWorker::Recovered {} => worker_events::session_starts(dispatch, id),
        FromWorker::Environments { environments } if !are_possible(&environments) => {
            dispatch.peers.disbelieve(id, "list of environments", batch);
        }
        FromWorker::Environments { environments } => {
            environments::changed(dispatch, id, environments, batch);
        }
        FromWorker::Lock { environment, lock } => {
            environments::lock_received(dispatch, id, environment, lock, batch);
        }
        FromWorker::Drain {} => drain(dispatch, id, batch),
    }
}

fn memory_of_sessions(
    dispatch: &mut Dispatch,
    id: WorkerId,
    bytes_of_jobs: Vec<(JobId, u64)>,
    batch: &Batch,
) {
    for (job, bytes) in bytes_of_jobs {
        let job = dispatch.jobs.get_mut(job);
        if let Some(job) = job.filter(|job| job.worker() == Some(id) && job.is_running()) {
            job.memory.add(batch.now.unix_ms, bytes);
        }
    }
}

/// The worker accepts no more jobs. Jobs that have not started there run elsewhere.
fn drain(dispatch: &mut Dispatch, id: WorkerId, batch: &mut Batch) {
    if let Some(worker) = dispatch.peers.workers.get_mut(&id) {
        worker.draining = true;
    }
    dispatch.plan_is_stale = true;
    let busy: HashSet<NotebookId> = dispatch
        .jobs
        .iter()
        .filter(|job| job.worker() == Some(id) && job.phase() == Phase::Started)
        .map(|job| job.notebook)
        .collect();
    dispatch
        .peers
        .sessions_end(id, |notebook| !busy.contains(notebook), batch);
    let waits_here = |job: &Job| job.worker() == Some(id) && job.phase() == Phase::Assigned;
    for job in dispatch.jobs.ids(waits_here) {
        match dispatch.jobs.get(job) {
            Some(held) if held.is_cancel_wanted() => end_cancelled(dispatch, job, batch),
            _ => requeue(dispatch, job, batch),
        }
    }
}

/// The worker reconnected with an assignment.
fn held_by_worker(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    worker: WorkerId,
    id: JobId,
    fencing: FencingNumber,
    batch: &mut Batch,
) {
    let job = dispatch.jobs.get_mut(id);
    let Some(job) = job.filter(|job| job.is_assigned_to(worker, fencing)) else {
        batch.send_worker(connection, ToWorker::Revoke { job: id, fencing });
        return;
    };
    batch.send_worker(
        connection,
        ToWorker::Acknowledge {
            job: id,
            fencing,
            number: job.acknowledged(),
        },
    );
    if job.deferred_wanted {
        batch.send_worker(connection, ToWorker::DeferredWanted { job: id });
    }
    if job.is_orphan() {
        batch.send_worker(connection, ToWorker::Salvage { job: id });
    } else if job.kind.outlives_kernel() {
        batch.send_worker(connection, ToWorker::Adopted { job: id });
    }
    if !job.is_running() {
        return;
    }
    if job.is_cancel_wanted() {
        batch.send_worker(connection, ToWorker::Cancel { job: id });
    }
}

/// The worker reconnected without an assignment that it was given.
fn missed_by_worker(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    id: JobId,
    batch: &mut Batch,
) {
    let Some(job) = dispatch.jobs.get(id) else {
        return;
    };
    match job.phase() {
        // It may have run to its end, and the record of that may be lost. So it waits for its proxy.
        Phase::Assigned if job.unclaimed.is_some() => requeue(dispatch, id, batch),
        // The message was lost with the old connection.
        Phase::Assigned if !job.is_cancel_wanted() && job.acknowledged() == 0 => {
            let assignment = Assignment {
                job: id,
                fencing: job.fencing(),
                timeout_ms: job.timeout_ms(),
                owner: job.account.owner.clone(),
                environment: environments::of_job(dispatch, job),
                submission: None,
            };
            batch.push(Action::Assign(connection, assignment));
        }
        Phase::Assigned if job.is_cancel_wanted() => {
            end_cancelled(dispatch, id, batch);
        }
        Phase::Assigned => requeue(dispatch, id, batch),
        _ => worker_lost(dispatch, id, batch),
    }
}

/// A notebook without a connected proxy gets a grace, because its proxy may be about to connect.
fn warm_sessions(
    dispatch: &mut Dispatch,
    id: WorkerId,
    warm: Vec<NotebookId>,
    keeping: Vec<NotebookId>,
    batch: &mut Batch,
) {
    for notebook in &warm {
        let deadline = batch.now.instant + dispatch.graces.silent_proxy;
        dispatch.peers.expect_proxy(*notebook, deadline);
    }
    let warm: HashSet<NotebookId> = warm.into_iter().collect();
    dispatch
        .peers
        .sessions_end(id, |notebook| !warm.contains(notebook), batch);
    if let Some(worker) = dispatch.peers.workers.get_mut(&id) {
        let held = |notebook: &NotebookId| warm.contains(notebook);
        worker.keeping = keeping.into_iter().filter(held).collect();
        worker.warm = warm;
        dispatch.plan_is_stale = true;
    }
}
