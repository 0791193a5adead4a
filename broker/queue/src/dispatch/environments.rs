//! The environments that workers offer and courses require, and the locks from which they are built.
//!
//! In: reports of workers. Out: requests for locks that the broker has not stored yet.

use super::{Batch, ConnectionId, Dispatch, Job, Observation};
use crate::{
    bounds::{cut_reason, is_possible_lock},
    record::Write,
};
use baton_protocol::{Environment, EnvironmentState, Lock, Requirement, WorkerId};
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
    connection: ConnectionId,
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
    dispatch.peers.ask_for_locks(connection, id, batch);
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

/// Stores the lock of an environment. The last lock that any worker has sent counts.
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
    let Some(digest) = digest.filter(|digest| is_possible_lock(&lock, digest)) else {
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
