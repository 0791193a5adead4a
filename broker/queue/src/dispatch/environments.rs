//! The environments that workers offer and courses require, and the locks from which they are built.
//!
//! In: reports of workers. Out: requests for locks that the broker has not stored yet.
//!
//! People install environments from their locks, so a lock runs code on their machines. One worker must not be
//! able to replace the lock that others use. So a stored lock counts until no other known worker has it ready, and
//! after a restart of the broker also until its workers had time to reconnect.

use super::{Batch, ConnectionId, Dispatch, Job, Observation};
use crate::{
    bounds::{cut_reason, is_possible_lock},
    record::Write,
};
use baton_protocol::{
    Environment, EnvironmentState, Lock, Requirement, WorkerId, worker::ToWorker,
};
use std::sync::Arc;

/// The environment of the worker in which the job runs: the one that its cell chose, or else that of its course,
/// if it has one.
pub(super) fn of_job(dispatch: &Dispatch, job: &Job) -> Option<String> {
    let chosen = job.needs.iter().find_map(|need| match need {
        Requirement::Environment { name } => Some(name.clone()),
        _ => None,
    });
    let course = dispatch.accounts.courses().of(&job.account.course);
    chosen.or_else(|| course.environment.clone())
}

pub(super) fn changed(
    dispatch: &mut Dispatch,
    id: WorkerId,
    environments: Vec<Environment>,
    batch: &mut Batch,
) {
    let Some(worker) = dispatch.peers.workers.get_mut(&id) else {
        return;
    };
    let offer = Arc::make_mut(&mut worker.offer);
    offer.machine.environments = with_short_reasons(environments);
    dispatch.plan_is_stale = true;
    ask_all_for_locks(dispatch, batch);
}

/// Requests the locks that would become the stored ones. Only a lock that some worker could build is offered to
/// notebooks.
pub(super) fn ask_for_locks(
    dispatch: &Dispatch,
    connection: ConnectionId,
    id: WorkerId,
    batch: &mut Batch,
) {
    let Some(worker) = dispatch.peers.workers.get(&id) else {
        return;
    };
    for environment in &worker.offer.machine.environments {
        let stored = dispatch.peers.locks.get(&environment.name);
        if !environment.is_ready()
            || environment.lock.is_none()
            || environment.lock.as_ref() == stored
        {
            continue;
        }
        match use_of_stored(dispatch, id, &environment.name, batch) {
            StoredLock::IsReplaceable => {
                let environment = environment.name.clone();
                batch.send_worker(connection, ToWorker::LockWanted { environment });
            }
            StoredLock::MayReturn => {}
            StoredLock::IsUsedBy(other) => batch.log(Observation::OtherLock {
                worker: worker.name.clone(),
                environment: environment.name.clone(),
                other,
            }),
        }
    }
}

/// Some locks may have become replaceable.
pub(super) fn ask_all_for_locks(dispatch: &Dispatch, batch: &mut Batch) {
    let workers = dispatch.peers.workers.iter();
    let connected: Vec<_> = workers
        .filter_map(|(id, worker)| Some((worker.connection?, *id)))
        .collect();
    for (connection, id) in connected {
        ask_for_locks(dispatch, connection, id, batch);
    }
}

enum StoredLock {
    IsReplaceable,
    /// The broker has just started, so workers that have it may not be connected yet.
    MayReturn,
    /// The name of another worker that has it.
    IsUsedBy(String),
}

/// Whether this worker may replace the stored lock of an environment.
fn use_of_stored(dispatch: &Dispatch, id: WorkerId, name: &str, batch: &Batch) -> StoredLock {
    let Some(stored) = dispatch.peers.locks.get(name) else {
        return StoredLock::IsReplaceable;
    };
    let mut others = dispatch.peers.workers.iter().filter(|(of, _)| **of != id);
    let other = others.find(|(_, worker)| {
        let offered = named(&worker.offer.machine.environments, name);
        offered.is_some_and(|offered| offered.is_ready() && offered.lock.as_ref() == Some(stored))
    });
    match other {
        Some((_, other)) => StoredLock::IsUsedBy(other.name.clone()),
        None if dispatch
            .locks_return_until
            .is_some_and(|until| batch.now.instant < until) =>
        {
            StoredLock::MayReturn
        }
        None => StoredLock::IsReplaceable,
    }
}

/// No session starts in this environment there, until the worker reports it as ready again.
pub(super) fn failed(
    dispatch: &mut Dispatch,
    id: WorkerId,
    name: &str,
    why: String,
    batch: &mut Batch,
) {
    let Some(worker) = dispatch.peers.workers.get_mut(&id) else {
        return;
    };
    let offer = Arc::make_mut(&mut worker.offer);
    for environment in &mut offer.machine.environments {
        if environment.name == name {
            let reason = cut_reason(&why);
            environment.state = EnvironmentState::Failed { reason };
        }
    }
    batch.log(Observation::CannotStartSessions {
        worker: worker.name.clone(),
        environment: Some(name.to_owned()),
        why,
    });
    dispatch.plan_is_stale = true;
}

/// Stores the lock of an environment, unless it would replace one that another worker has.
pub(super) fn lock_received(
    dispatch: &mut Dispatch,
    id: WorkerId,
    name: String,
    lock: Lock,
    batch: &mut Batch,
) {
    let offered = dispatch
        .peers
        .workers
        .get(&id)
        .and_then(|worker| named(&worker.offer.machine.environments, &name));
    let ready = offered.filter(|environment| environment.is_ready());
    let digest = ready.and_then(|environment| environment.lock.clone());
    let digest = digest.filter(|digest| is_possible_lock(&lock, digest));
    let may_keep = |digest: &String| {
        dispatch.peers.locks.get(&name) == Some(digest)
            || matches!(
                use_of_stored(dispatch, id, &name, batch),
                StoredLock::IsReplaceable
            )
    };
    let Some(digest) = digest.filter(may_keep) else {
        return dispatch.peers.disbelieve(id, "lock", batch);
    };
    dispatch.peers.locks.insert(name.clone(), digest.clone());
    batch.write(Write::KeepLock {
        environment: name,
        digest,
        lock,
        at_ms: batch.now.unix_ms,
    });
}

fn named<'all>(environments: &'all [Environment], name: &str) -> Option<&'all Environment> {
    environments
        .iter()
        .find(|environment| environment.name == name)
}

/// What a worker with these environments has instead of a required one.
pub(super) fn instead_of(environments: &[Environment], name: &str) -> String {
    match named(environments, name).map(|offered| &offered.state) {
        Some(EnvironmentState::Preparing {}) => format!("is preparing {name}"),
        Some(EnvironmentState::Failed { reason }) => {
            format!("could not prepare {name}: {reason}")
        }
        Some(EnvironmentState::Ready {}) => format!("with {name}"),
        None if environments.is_empty() => "without environments".to_owned(),
        None => {
            let environments = environments.iter();
            let names: Vec<&str> = environments
                .map(|environment| environment.name.as_str())
                .collect();
            format!("with {}", names.join(", "))
        }
    }
}

pub(super) fn with_short_reasons(mut environments: Vec<Environment>) -> Vec<Environment> {
    for environment in &mut environments {
        if let EnvironmentState::Failed { reason } = &mut environment.state {
            *reason = cut_reason(&*reason);
        }
    }
    environments
}
