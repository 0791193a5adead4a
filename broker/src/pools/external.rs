//! Pools whose workers are started by something else, such as an autoscaler that reads the desired number.
//!
//! In: workers that join. Out: a token for each, valid only for this worker, and the number of
//! missing workers. A worker that has joined is treated like any other in placing,
//! estimates and pages.
//!
//! **Invariant:** nothing here starts or ends a worker.

use super::{managed_pool::ManagedPool, managed_worker::ManagedWorker, tokens};
use crate::people::hash_of;
use baton_broker_queue::NotDone;
use baton_broker_store::{PoolWorkerRow, StoreError};
use baton_protocol::api::{JoinPool, Joined};
use std::{sync::Arc, time::Duration};

/// A worker that has joined is already running, so it connects soon.
const CONNECTS_WITHIN: Duration = Duration::from_secs(120);
/// How long a worker may be disconnected before it is considered dead. If it is started again, it
/// gets another token.
const LOST_AFTER: Duration = Duration::from_secs(30 * 60);
/// The same for a worker that is leaving: it may still have to send results over a bad network.
const LEFT_AFTER: Duration = Duration::from_secs(60);

/// Limits the records of workers that join and die.
const MOST_RECORDS: usize = 16;

/// Gives a worker a name and a token.
pub(super) async fn join(
    pool: &mut ManagedPool,
    join: JoinPool,
) -> Result<Result<Joined, NotDone>, StoreError> {
    let called = join.called.filter(|called| is_name(called));
    end_former(pool, called.as_deref()).await?;
    let settings = Arc::clone(&pool.settings);
    if is_full(pool) {
        return Ok(Err(NotDone::PoolFull {
            pool: settings.name.clone(),
            max: settings.scaling.max,
        }));
    }
    let (name, token) = (pool.new_name(), tokens::random());
    let kept = pool.keeps_the_next();
    let row = PoolWorkerRow {
        name: name.clone(),
        pool: settings.name.clone(),
        token_hash: hash_of(&token),
        kept,
        job: called.clone(),
        submitted_ms: pool.asked.join(),
        connected_ms: None,
        ended_ms: None,
    };
    pool.add(row).await?;
    tracing::info!(
        "{} joins pool {} as {name}",
        called.as_deref().unwrap_or("A worker"),
        settings.name,
    );
    Ok(Ok(Joined {
        name,
        token,
        idle_exit_ms: pool.idle_ms().filter(|_| !kept),
        leaves_in_ms: settings
            .walltime
            .map(|walltime| u64::try_from(walltime.as_millis()).unwrap_or(u64::MAX)),
    }))
}

/// Records how many workers are wanted, and how many of them have not joined.
pub(super) fn ask(pool: &mut ManagedPool, wanted: u32) {
    let up = pool.up();
    let wanted = match pool.is_paused() {
        true => wanted.min(up),
        false => wanted,
    };
    pool.wanted = Some(wanted);
    let joining = pool
        .workers
        .iter()
        .filter(|worker| worker.is_pending())
        .count();
    let missing = wanted.saturating_sub(up) as usize;
    pool.asked
        .set(missing.saturating_sub(joining), &pool.settings);
}

/// Records the ends of workers that are gone. Nothing else reports them.
pub(super) async fn check(pool: &mut ManagedPool) -> Result<(), StoreError> {
    let start_limit = pool.settings.start_limit;
    for name in pool.names() {
        if pool.worker(&name).is_some_and(|worker| !worker.connected) {
            pool.see_past(&name).await?;
        }
    }
    let mut gone = Vec::new();
    for worker in pool.workers.iter_mut().filter(|worker| !worker.connected) {
        let came = !worker.is_pending();
        let limit = match (came, worker.draining) {
            (false, _) => start_limit.min(CONNECTS_WITHIN),
            (true, true) => LEFT_AFTER,
            (true, false) => LOST_AFTER,
        };
        if worker.is_late(limit) {
            let called = worker.row.job.as_deref().unwrap_or(&worker.row.name);
            let why = format!("{called} joined but did not connect");
            gone.push((worker.row.name.clone(), (!came).then_some(why)));
        }
    }
    for (name, why) in gone {
        pool.end(&name, why).await?;
    }
    Ok(())
}

/// Names of machines are unique, so if one joins again, it was started anew. If its former worker
/// has never connected, that one is ended. A worker that has connected may reconnect.
async fn end_former(pool: &mut ManagedPool, called: Option<&str>) -> Result<(), StoreError> {
    let Some(called) = called else {
        return Ok(());
    };
    let is_former =
        |worker: &&ManagedWorker| worker.is_pending() && worker.row.job.as_deref() == Some(called);
    let former = pool.workers.iter().filter(is_former);
    let former: Vec<String> = former.map(|worker| worker.row.name.clone()).collect();
    for name in former {
        let why = format!("{called} joined but ended before it connected");
        pool.end(&name, Some(why)).await?;
    }
    Ok(())
}

/// Whether the pool has all of its workers. Those that are gone or leaving do not count, so others may replace them.
fn is_full(pool: &ManagedPool) -> bool {
    let most = pool.settings.scaling.max as usize;
    let is_there = |worker: &&ManagedWorker| {
        let is_here = worker.connected || worker.is_pending();
        is_here && !worker.draining && !worker.failure_counted
    };
    pool.workers.iter().filter(is_there).count() >= most
        || pool.workers.len() >= most.saturating_mul(4).saturating_add(MOST_RECORDS)
}

/// A name as in Kubernetes and batch systems. It is shown on pages and in logs.
fn is_name(called: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=253).contains(&called.len()) && called.chars().all(plain)
}
