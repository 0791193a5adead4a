//! Pools whose workers are jobs of a batch system.
//!
//! In: the number of workers to start, and the states of jobs. Out: jobs, each with a token for its
//! worker, and the records of workers that have ended.

use super::{batch_system::BatchSystem, command::JobState, managed_pool::ManagedPool, tokens};
use crate::{clock::unix_ms, words};
use baton_broker_store::{PoolWorkerRow, StoreError};
use tokio::time::Instant;

/// Requests so many more workers, until too many requests have failed.
pub(super) async fn start(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    count: u32,
) -> Result<(), StoreError> {
    for _ in 0..count {
        submit(system, pool).await?;
        if pool.is_paused() {
            break;
        }
    }
    Ok(())
}

/// Asks about the jobs whose workers are not connected.
pub(super) async fn check(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
) -> Result<(), StoreError> {
    for name in pool.names() {
        let Some(worker) = pool
            .worker(&name)
            .filter(|worker| worker.is_due(system.check_every()))
        else {
            continue;
        };
        worker.checked = Some(Instant::now());
        let Some(job) = worker.row.job.clone() else {
            find_job(system, pool, &name).await?;
            continue;
        };
        let (state, answer) = system.state(&job, &name).await;
        if state == JobState::Unknown {
            tracing::warn!(
                "The state of job {job} of pool {} is unknown: {answer}",
                pool.settings.name
            );
            // It probably will not answer about other jobs either.
            break;
        }
        // If the worker connected before its job ended, that has been recorded by now.
        pool.see_past(&name).await?;
        follow(system, pool, (&name, &job), (state, answer)).await?;
    }
    Ok(())
}

/// Cancels the job of a worker that could not work, and records its end. If the job cannot be cancelled, [`check`] tries
/// it again.
pub(super) async fn cancel(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    name: &str,
    why: String,
) -> Result<(), StoreError> {
    let job = pool.worker(name).and_then(|worker| worker.row.job.clone());
    if let Some(job) = job
        && let Err(answer) = system.cancel(&job, name).await
    {
        tracing::warn!(
            "Failed to cancel job {job} of pool {}: {answer}",
            pool.settings.name
        );
        return pool.fail_uncancelled(name, why).await;
    }
    end(system, pool, name, Some(why)).await
}

async fn submit(system: BatchSystem<'_>, pool: &mut ManagedPool) -> Result<(), StoreError> {
    let name = pool.new_name();
    let (token_file, token_hash) = match tokens::create(system.token_folder, &name) {
        Ok(created) => created,
        Err(error) => {
            let folder = system.token_folder.display();
            let why = format!("Failed to write a token into {folder}: {error}");
            return pool.fail(why).await;
        }
    };
    let row = PoolWorkerRow {
        name: name.clone(),
        pool: pool.settings.name.clone(),
        token_hash,
        kept: pool.keeps_the_next(),
        job: None,
        submitted_ms: unix_ms(),
        connected_ms: None,
        ended_ms: None,
    };
    pool.add(row).await?;
    match system.submit(pool, &name, &token_file).await {
        Ok(job) => {
            tracing::info!("Requested {name} of pool {}: job {job}", pool.settings.name);
            pool.set_job(&name, job).await
        }
        Err(why) => end(system, pool, &name, Some(why)).await,
    }
}

/// The broker ended while it submitted this worker's job.
async fn find_job(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    name: &str,
) -> Result<(), StoreError> {
    let start_limit = pool.settings.start_limit;
    if let Some(job) = system.find(name).await {
        pool.set_job(name, job).await
    } else if pool
        .worker(name)
        .is_some_and(|worker| worker.is_late(start_limit))
    {
        end(system, pool, name, None).await
    } else {
        Ok(())
    }
}

/// Records the state of a job and acts on it.
async fn follow(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    (name, job): (&str, &str),
    (state, answer): (JobState, String),
) -> Result<(), StoreError> {
    let start_limit = pool.settings.start_limit;
    let Some(worker) = pool.worker(name) else {
        return Ok(());
    };
    worker.state = state;
    if worker.uncancelled {
        return match state == JobState::Gone || system.cancel(job, name).await.is_ok() {
            true => end(system, pool, name, None).await,
            false => Ok(()),
        };
    }
    match state {
        JobState::Gone => {
            let failed = match worker.is_pending() {
                true => Some(format!(
                    "Job {job} ended before its worker had connected ({answer})"
                )),
                false => worker.failing(),
            };
            end(system, pool, name, failed).await
        }
        JobState::Pending => {
            worker.missing_since = None;
            // A requeued job starts a new process.
            worker.draining = false;
            worker.expected_ms = system.expected(job, name).await;
            Ok(())
        }
        JobState::Failed => {
            let why = format!("Job {job} cannot start ({answer})");
            cancel(system, pool, name, why).await
        }
        JobState::Running | JobState::Unknown => {
            worker.expected_ms = None;
            if !(worker.is_late(start_limit) && worker.is_pending()) {
                return Ok(());
            }
            let limit = u64::try_from(start_limit.as_millis()).unwrap_or(u64::MAX);
            let limit = words::span(limit);
            let why = format!("Job {job} ran for {limit}, and its worker did not connect");
            cancel(system, pool, name, why).await
        }
    }
}

/// Records the end of a worker, and deletes the file with its token.
async fn end(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    name: &str,
    failed: Option<String>,
) -> Result<(), StoreError> {
    pool.end(name, failed).await?;
    tokens::remove(system.token_folder, name);
    Ok(())
}
