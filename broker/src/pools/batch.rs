//! Pools whose workers are jobs of a batch system.
//!
//! In: the number of workers to start, and the states of jobs. Out: jobs, each with a token for its
//! worker, and the records of workers that have ended.

use super::{
    batch_system::{BatchSystem, Lookup, NotSubmitted},
    command::JobState,
    managed_pool::ManagedPool,
};
use crate::{clock::unix_ms, words};
use baton_broker_store::{PoolWorkerRow, StoreError};
use std::time::Duration;
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

/// A worker whose job is to be checked. Without a job, the broker did not read the id of the job.
pub(super) struct Due {
    name: String,
    job: Option<String>,
}

/// What the batch system says about the job of a worker.
pub(super) struct Answer {
    name: String,
    found: Found,
}

enum Found {
    /// The batch system does not answer. Why.
    Unknown(String),
    ByName(Lookup),
    ById {
        job: String,
        state: JobState,
        words: String,
        /// When a waiting job is expected to start.
        expected_ms: Option<i64>,
    },
}

/// The worker that has not been checked for the longest time. From now on it counts as checked.
pub(super) fn next_due(system: BatchSystem<'_>, pool: &mut ManagedPool) -> Option<Due> {
    let due = pool.workers.iter_mut();
    let due = due.filter(|worker| worker.is_due(system.check_every()));
    let worker = due.min_by_key(|worker| worker.checked)?;
    worker.checked = Some(Instant::now());
    Some(Due {
        name: worker.row.name.clone(),
        job: worker.row.job.clone(),
    })
}

/// Asks about the job of a worker. This changes nothing, so it may run beside other commands, and
/// may be dropped.
pub(super) async fn ask(system: BatchSystem<'_>, due: Due) -> Answer {
    let Due { name, job } = due;
    let found = match job {
        Some(job) => ask_by_id(system, &name, job).await,
        None => match system.find(&name).await {
            Ok(lookup) => Found::ByName(lookup),
            Err(error) => Found::Unknown(error.to_string()),
        },
    };
    Answer { name, found }
}

async fn ask_by_id(system: BatchSystem<'_>, name: &str, job: String) -> Found {
    let (state, words) = system.state(&job, name).await;
    let expected_ms = match state {
        JobState::Unknown => return Found::Unknown(words),
        JobState::Pending => system.expected(&job, name).await,
        JobState::Running | JobState::Failed | JobState::Gone => None,
    };
    Found::ById {
        job,
        state,
        words,
        expected_ms,
    }
}

/// Acts on an answer, unless the worker has ended or connected in the meantime. Returns whether the
/// batch system answers, so that it can be asked about the next worker at once.
pub(super) async fn learn(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    answer: Answer,
) -> Result<bool, StoreError> {
    let Answer { name, found } = answer;
    let needs_check = pool
        .worker(&name)
        .is_some_and(|worker| worker.needs_check());
    if !matches!(found, Found::Unknown(_)) && pool.unanswered.take().is_some() {
        tracing::info!(
            "The batch system of pool {} answers again",
            pool.settings.name
        );
    }
    match found {
        Found::Unknown(why) => {
            let start_limit = pool.settings.start_limit;
            if pool.unanswered.is_none() {
                tracing::warn!(
                    "The state of the job of {name} of pool {} is unknown: {why}; \
                     no more is logged until the batch system answers",
                    pool.settings.name
                );
            }
            pool.unanswered = Some(why.clone());
            let is_late = pool
                .worker(&name)
                .is_some_and(|worker| needs_check && worker.is_late_without_answer(start_limit));
            if is_late {
                let limit = words::span(millis(start_limit));
                let why = format!("The state of its job was unknown for {limit}: {why}");
                give_up_silent(system, pool, &name, why).await?;
            }
            return Ok(false);
        }
        _ if !needs_check => {}
        Found::ByName(lookup) => set_or_end(system, pool, &name, lookup).await?,
        Found::ById {
            job,
            state,
            words,
            expected_ms,
        } => {
            // If the worker connected before its job ended, that has been recorded by now.
            pool.see_past(&name).await?;
            if let Some(worker) = pool.worker(&name) {
                worker.learn(state);
                worker.expected_ms = expected_ms;
            }
            follow(system, pool, (&name, &job), (state, words)).await?;
        }
    }
    Ok(true)
}

/// Cancels the job of a worker that could not work, and records its end. If the job cannot be
/// cancelled, [`learn`] tries it again.
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

/// Ends a worker whose job has an unknown state, if the job can be cancelled. Otherwise the batch
/// system is down, which says nothing about the worker: it stays, and this is tried again later.
async fn give_up_silent(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    name: &str,
    why: String,
) -> Result<(), StoreError> {
    let Some(worker) = pool.worker(name) else {
        return Ok(());
    };
    worker.missing_since = None;
    let job = worker.row.job.clone().unwrap_or_default();
    match system.cancel(&job, name).await {
        Ok(()) => end(system, pool, name, Some(why)).await,
        Err(_) => Ok(()),
    }
}

async fn submit(system: BatchSystem<'_>, pool: &mut ManagedPool) -> Result<(), StoreError> {
    let name = pool.new_name();
    let (token_file, token_hash) = match system.create_token(&name).await {
        Ok(created) => created,
        Err(why) => return pool.fail(why).await,
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
        Err(NotSubmitted::Refused(why)) => end(system, pool, &name, Some(why)).await,
        Err(NotSubmitted::Unknown(why)) => pool.fail_unknown(&name, why).await,
    }
}

/// Records the job that was found for a worker. A worker without one ends after a while, because the
/// batch system may still learn of the job.
async fn set_or_end(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    name: &str,
    lookup: Lookup,
) -> Result<(), StoreError> {
    let start_limit = pool.settings.start_limit;
    let Some(worker) = pool.worker(name) else {
        return Ok(());
    };
    match lookup {
        Lookup::Job(job) => {
            worker.missing_since = None;
            pool.set_job(name, job).await
        }
        Lookup::NoJob | Lookup::Failed if worker.is_late(start_limit) => {
            end(system, pool, name, None).await
        }
        Lookup::NoJob | Lookup::Failed => Ok(()),
    }
}

/// Acts on the state of a job.
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
    if worker.uncancelled {
        return match state == JobState::Gone || system.cancel(job, name).await.is_ok() {
            true => end(system, pool, name, None).await,
            false => Ok(()),
        };
    }
    match state {
        JobState::Gone => {
            let failed = match worker.is_pending() {
                // That has been counted.
                true if worker.submission_failed => None,
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
            Ok(())
        }
        JobState::Failed => {
            let why = format!("Job {job} cannot start ({answer})");
            cancel(system, pool, name, why).await
        }
        JobState::Running | JobState::Unknown => {
            if !(worker.is_late(start_limit) && worker.is_pending()) {
                return Ok(());
            }
            let limit = words::span(millis(start_limit));
            let why = format!("Job {job} ran for {limit}, and its worker did not connect");
            cancel(system, pool, name, why).await
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Records the end of a worker, and deletes the file with its token.
async fn end(
    system: BatchSystem<'_>,
    pool: &mut ManagedPool,
    name: &str,
    failed: Option<String>,
) -> Result<(), StoreError> {
    pool.end(name, failed).await?;
    system.remove_token(name).await;
    Ok(())
}
