//! The lives of pool workers: requested, connected, missing, ended.

use super::{
    Commands, PoolSettings, Provider, Runner,
    command::{self, JobState, job_state},
    known::{Known, Life, is_paused, without_end},
    orders::{self, answer_of, expected, job_id},
    tokens,
};
use crate::{clock::unix_ms, words};
use baton_broker_queue::pools::SeenWorker;
use baton_broker_store::{PoolWorkerRow, StoreError};
use std::collections::HashMap;
use tokio::time::Instant;

impl Runner {
    /// Records which workers are connected.
    pub(super) async fn see(
        &self,
        pools: &mut [Known],
        seen: &HashMap<String, SeenWorker>,
    ) -> Result<(), StoreError> {
        for (settings, pool) in self.settings.iter().zip(&mut *pools) {
            let mut failed = Vec::new();
            for life in &mut pool.lives {
                let worker = seen.get(&life.row.name);
                life.connected = worker.is_some_and(|worker| worker.is_connected);
                life.lost = life.row.connected_ms.is_some()
                    && !life.connected
                    && life.is_late(self.lost_after);
                let Some(worker) = worker else { continue };
                if life.connected {
                    life.missing_since = None;
                    life.draining = worker.draining;
                }
                if let Some(took_ms) = life.comes(settings, worker.connected_ms) {
                    pool.starts_ms.push(took_ms);
                    pool.lacking.comes();
                }
                let since = life
                    .failing
                    .as_ref()
                    .map_or(Instant::now(), |(since, _)| *since);
                life.failing = worker.failing.clone().map(|why| (since, why));
                let offers = pool.row.offer.as_ref() != Some(&without_end(&worker.offer))
                    || pool.row.slots != worker.slots;
                let recovered =
                    life.failing.is_none() && pool.row.failures > 0 && !is_paused(&pool.row);
                if offers || recovered {
                    pool.row.offer = Some(without_end(&worker.offer));
                    pool.row.slots = worker.slots;
                    if recovered {
                        pool.row.failures = 0;
                        pool.row.words = None;
                    }
                    self.store.pools().keep(&pool.row).await?;
                }
                if let Some((since, why)) = &life.failing
                    && since.elapsed() >= self.failing_limit
                    && life.connected
                    && !life.draining
                    && !life.failure_counted
                {
                    life.failure_counted = true;
                    failed.push((
                        life.row.name.clone(),
                        format!("Sessions cannot start there: {why}"),
                    ));
                }
            }
            for (name, why) in failed {
                match &settings.provider {
                    Provider::Command(commands) => {
                        orders::cancel(settings, commands, pool, &name).await;
                        self.end(settings, pool, &name, Some(why)).await?;
                    }
                    // The broker cannot end it. It leaves when it is idle, and another worker
                    // replaces it until then.
                    Provider::External(_) => self.failed(settings, pool, why).await?,
                }
            }
        }
        Ok(())
    }

    /// Asks the batch systems about jobs whose workers are not connected.
    pub(super) async fn check_jobs(&self, pools: &mut [Known]) -> Result<(), StoreError> {
        for (settings, pool) in self.settings.iter().zip(&mut *pools) {
            let Provider::Command(commands) = &settings.provider else {
                self.check_joined(settings, pool).await?;
                continue;
            };
            let names: Vec<String> = pool
                .lives
                .iter()
                .map(|life| life.row.name.clone())
                .collect();
            for name in names {
                let Some(life) = pool.lives.iter_mut().find(|life| life.row.name == name) else {
                    continue;
                };
                let due = life.checked.is_none_or(|at| at.elapsed() >= commands.check);
                if life.connected || !due {
                    continue;
                }
                life.checked = Some(Instant::now());
                let Some(job) = life.row.job.clone() else {
                    // The broker ended while it submitted this job.
                    if let Some(job) = orders::found(commands, &name).await {
                        life.row.job = Some(job);
                        self.store.pools().keep_worker(&life.row).await?;
                    } else if life.is_late(settings.start_limit) {
                        self.end(settings, pool, &name, None).await?;
                    }
                    continue;
                };
                let values = [("id", job.as_str()), ("name", name.as_str())];
                let said =
                    command::run(&commands.status.arguments(&values, &[]), &commands.terms).await;
                let state = job_state(&said);
                if state == JobState::Unknown {
                    tracing::warn!(
                        "The state of job {job} of pool {} is unknown: {}",
                        settings.name,
                        answer_of(&said)
                    );
                    // It probably will not answer about other jobs either.
                    break;
                }
                life.state = state;
                // If the worker connected before its job ended, that has been recorded by now.
                let took_ms = self.came_unseen(settings, life).await?;
                pool.starts_ms.extend(took_ms);
                let never_came = life.row.connected_ms.is_none();
                match state {
                    JobState::Gone => {
                        let failed = life.failing.as_ref().map(|(_, why)| why.clone());
                        let failed = match never_came {
                            true => Some(format!(
                                "Job {job} ended before its worker had connected ({})",
                                answer_of(&said)
                            )),
                            false => failed,
                        };
                        self.end(settings, pool, &name, failed).await?;
                    }
                    JobState::Pending => {
                        life.missing_since = None;
                        // A requeued job starts a new process.
                        life.draining = false;
                        life.expected_ms = expected(commands, &values).await;
                    }
                    _ => {
                        life.expected_ms = None;
                        if life.is_late(settings.start_limit) && never_came {
                            let limit = words::span(
                                u64::try_from(settings.start_limit.as_millis()).unwrap_or(u64::MAX),
                            );
                            let why = format!(
                                "Job {job} ran for {limit}, and its worker did not connect"
                            );
                            orders::cancel(settings, commands, pool, &name).await;
                            self.end(settings, pool, &name, Some(why)).await?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A worker may connect and leave between two rounds. Returns how long its start took, if this
    /// is the first time.
    pub(super) async fn came_unseen(
        &self,
        settings: &PoolSettings,
        life: &mut Life,
    ) -> Result<Option<u64>, StoreError> {
        if life.row.connected_ms.is_some() {
            return Ok(None);
        }
        let at_ms = self
            .store
            .pools()
            .worker_connected_ms(&life.row.name)
            .await?;
        Ok(at_ms.and_then(|at_ms| life.comes(settings, at_ms)))
    }

    pub(super) async fn submit(
        &self,
        settings: &PoolSettings,
        commands: &Commands,
        pool: &mut Known,
    ) -> Result<(), StoreError> {
        let name = new_name(settings);
        let (token_file, token_hash) = match tokens::create(self.folder(commands), &name) {
            Ok(created) => created,
            Err(error) => {
                let folder = self.folder(commands).display();
                let why = format!("Failed to write a token into {folder}: {error}");
                return self.failed(settings, pool, why).await;
            }
        };
        let row = PoolWorkerRow {
            name: name.clone(),
            pool: settings.name.clone(),
            token_hash,
            kept: pool.keeps_the_next(settings),
            job: None,
            submitted_ms: unix_ms(),
            connected_ms: None,
            ended_ms: None,
        };
        self.store.pools().keep_worker(&row).await?;
        pool.lives.push(Life::new(row));
        let arguments = orders::submit_arguments(
            &self.address,
            (settings, commands),
            pool,
            &name,
            &token_file,
        );
        let said = command::run(&arguments, &commands.terms).await;
        let job = match &said {
            Ok(said) if said.succeeded => job_id(&said.output),
            _ => None,
        };
        match job {
            Some(job) => {
                tracing::info!("Requested {name} of pool {}: job {job}", settings.name);
                if let Some(life) = pool.lives.iter_mut().find(|life| life.row.name == name) {
                    life.row.job = Some(job);
                    self.store.pools().keep_worker(&life.row).await?;
                }
                Ok(())
            }
            None => {
                let why = match &said {
                    Ok(said) if said.succeeded => "The submit command printed no job id".to_owned(),
                    said => answer_of(said),
                };
                self.end(settings, pool, &name, Some(why)).await
            }
        }
    }

    /// Ends a life: its token becomes invalid. `failed` says why the worker never connected or
    /// could not work.
    pub(super) async fn end(
        &self,
        settings: &PoolSettings,
        pool: &mut Known,
        name: &str,
        failed: Option<String>,
    ) -> Result<(), StoreError> {
        let Some(number) = pool.lives.iter().position(|life| life.row.name == name) else {
            return Ok(());
        };
        let mut row = pool.lives[number].row.clone();
        row.ended_ms = Some(unix_ms());
        self.store.pools().keep_worker(&row).await?;
        pool.lives.remove(number);
        if let Provider::Command(commands) = &settings.provider {
            tokens::remove(self.folder(commands), name);
        }
        match failed {
            Some(why) => self.failed(settings, pool, why).await,
            None => {
                tracing::info!("{name} of pool {} has left", settings.name);
                Ok(())
            }
        }
    }

    async fn failed(
        &self,
        settings: &PoolSettings,
        pool: &mut Known,
        why: String,
    ) -> Result<(), StoreError> {
        let was_paused = is_paused(&pool.row);
        pool.row.failures = pool.row.failures.saturating_add(1);
        tracing::warn!("A worker of pool {} failed: {why}", settings.name);
        pool.row.words = Some(why);
        if is_paused(&pool.row) && !was_paused {
            tracing::error!(
                "Pool {} is paused after {} failures in a row. `baton pools resume {}` starts it again",
                settings.name,
                pool.row.failures,
                settings.name
            );
        }
        self.store.pools().keep(&pool.row).await
    }
}

/// A name that no worker has had.
pub(super) fn new_name(settings: &PoolSettings) -> String {
    let number = uuid::Uuid::new_v4().simple().to_string();
    format!("{}-{}", settings.name, &number[..8])
}
