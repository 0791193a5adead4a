//! Does what the pools need, and keeps what is known of them.

use super::{
    PoolLook, PoolSettings, PoolState, PoolsPresent, Request, SeenWorker,
    command::{self, JobState, job_state},
    known::{Known, Life, without_end},
    orders::{self, answer_of, expected, job_id},
    tokens,
};
use crate::{
    engine::{Event, unix_ms},
    leader_election::Leadership,
    store::{PoolRow, PoolWorkerRow, Store, StoreError},
    words,
};
use baton_protocol::api::Pool;
use baton_scheduling::pools;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, MissedTickBehavior},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long sessions may fail to start on a worker of a pool before it is ended.
const FAILING_LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Runner {
    pub(crate) settings: Vec<PoolSettings>,
    pub(crate) store: Store,
    pub(crate) inbox: mpsc::Sender<Event>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) status: watch::Sender<Arc<Vec<Pool>>>,
    pub(crate) requests: mpsc::Receiver<Request>,
    /// Where workers reach this broker, unless a pool says otherwise.
    pub(crate) address: String,
    pub(crate) token_folder: PathBuf,
}

/// Runs until it is dropped.
pub(crate) async fn run(mut runner: Runner) {
    if runner.settings.is_empty() {
        return std::future::pending().await;
    }
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: Option<Vec<Known>> = None;
    loop {
        let request = tokio::select! {
            _ = ticks.tick() => None,
            Some(request) = runner.requests.recv() => Some(request),
        };
        if *runner.leadership.borrow() != Leadership::Leader {
            known = None;
            continue;
        }
        let worked = runner.turn(&mut known, request).await;
        if let Err(error) = worked {
            tracing::error!("The pools pause: {error}");
            known = None;
        }
    }
}

impl Runner {
    async fn turn(
        &mut self,
        known: &mut Option<Vec<Known>>,
        request: Option<Request>,
    ) -> Result<(), StoreError> {
        let mut pools = match known.take() {
            Some(pools) => pools,
            None => self.load().await?,
        };
        if let Some(request) = request {
            self.answer(&mut pools, request).await?;
        }
        if let Some(present) = self.look(&pools).await {
            self.see(&mut pools, &present.workers).await?;
            self.check_jobs(&mut pools).await?;
            self.start(&mut pools, &present).await?;
        }
        self.publish(&pools);
        *known = Some(pools);
        Ok(())
    }

    async fn load(&self) -> Result<Vec<Known>, StoreError> {
        let (rows, workers) = self.store.pools().await?;
        let pools: Vec<Known> = self
            .settings
            .iter()
            .map(|settings| {
                let row = rows.iter().find(|row| row.name == settings.name).cloned();
                let of_pool = workers.iter().filter(|row| row.pool == settings.name);
                let took = |row: &&PoolWorkerRow| {
                    let took = row.connected_ms? - row.submitted_ms;
                    u64::try_from(took).ok()
                };
                Known {
                    row: row.unwrap_or_else(|| PoolRow {
                        name: settings.name.clone(),
                        failures: 0,
                        words: None,
                        offer: None,
                        slots: 1,
                    }),
                    starts_ms: of_pool.clone().filter_map(|row| took(&row)).collect(),
                    lives: of_pool
                        .filter(|row| row.ended_ms.is_none())
                        .cloned()
                        .map(Life::new)
                        .collect(),
                    wanted: 0,
                }
            })
            .collect();
        Ok(pools)
    }

    /// `None` while the engine loads its state.
    async fn look(&self, pools: &[Known]) -> Option<PoolsPresent> {
        let settings = self.settings.iter();
        let states = settings.zip(pools).map(|(settings, pool)| PoolState {
            workers: pool
                .lives
                .iter()
                .map(|life| life.row.name.clone())
                .collect(),
            offer: pool.row.offer.clone().map(Arc::new),
            walltime_ms: u64::try_from(settings.walltime.as_millis()).unwrap_or(u64::MAX),
            target_wait_ms: settings.terms.target_wait_ms,
            can_start: !pool.present(0).is_paused(),
            pending: pool.pending(),
            usual: pool.usual(),
            expected_ms: pool.lives.iter().filter_map(|life| life.expected_ms).min(),
        });
        let look = PoolLook {
            pools: states.collect(),
        };
        let (question, answer) = oneshot::channel();
        self.inbox.send(Event::Pools(look, question)).await.ok()?;
        answer.await.ok()
    }

    /// Notes which workers have come.
    async fn see(
        &self,
        pools: &mut [Known],
        seen: &HashMap<String, SeenWorker>,
    ) -> Result<(), StoreError> {
        for (settings, pool) in self.settings.iter().zip(&mut *pools) {
            let mut failed = Vec::new();
            for life in &mut pool.lives {
                let worker = seen.get(&life.row.name);
                life.connected = worker.is_some();
                let Some(worker) = worker else { continue };
                life.missing_since = None;
                // A job that was requeued starts another process.
                life.draining = worker.draining;
                if life.row.connected_ms.is_none() {
                    let now_ms = unix_ms();
                    life.row.connected_ms = Some(now_ms);
                    self.store.keep_pool_worker(&life.row).await?;
                    let took_ms = (now_ms - life.row.submitted_ms).max(0).unsigned_abs();
                    pool.starts_ms.push(took_ms);
                    tracing::info!(
                        "{} of pool {} has come after {}",
                        life.row.name,
                        settings.name,
                        words::span(took_ms)
                    );
                }
                let since = life
                    .failing
                    .as_ref()
                    .map_or(Instant::now(), |(since, _)| *since);
                life.failing = worker.failing.clone().map(|why| (since, why));
                let offers = pool.row.offer.as_ref() != Some(&without_end(&worker.offer))
                    || pool.row.slots != worker.slots;
                let recovered =
                    life.failing.is_none() && pool.row.failures > 0 && !pool.row.is_paused();
                if offers || recovered {
                    pool.row.offer = Some(without_end(&worker.offer));
                    pool.row.slots = worker.slots;
                    if recovered {
                        pool.row.failures = 0;
                        pool.row.words = None;
                    }
                    self.store.keep_pool(&pool.row).await?;
                }
                if let Some((since, why)) = &life.failing
                    && since.elapsed() >= FAILING_LIMIT
                    && !life.draining
                {
                    failed.push((
                        life.row.name.clone(),
                        format!("Sessions do not start there: {why}"),
                    ));
                }
            }
            for (name, why) in failed {
                orders::cancel(settings, pool, &name).await;
                self.end(settings, pool, &name, Some(why)).await?;
            }
        }
        Ok(())
    }

    /// Asks the batch systems for the jobs whose workers are not connected.
    async fn check_jobs(&self, pools: &mut [Known]) -> Result<(), StoreError> {
        for (settings, pool) in self.settings.iter().zip(&mut *pools) {
            let names: Vec<String> = pool
                .lives
                .iter()
                .map(|life| life.row.name.clone())
                .collect();
            for name in names {
                let Some(life) = pool.lives.iter_mut().find(|life| life.row.name == name) else {
                    continue;
                };
                let due = life.checked.is_none_or(|at| at.elapsed() >= settings.check);
                if life.connected || !due {
                    continue;
                }
                life.checked = Some(Instant::now());
                let never_came = life.row.connected_ms.is_none();
                let Some(job) = life.row.job.clone() else {
                    // The broker ended while it asked for this worker: nobody knows whether its job exists.
                    if life.is_late(settings.start_limit) {
                        self.end(settings, pool, &name, None).await?;
                    }
                    continue;
                };
                let values = [("id", job.as_str()), ("name", name.as_str())];
                let said = command::run(
                    &settings.status.arguments(&values, &[]),
                    settings.command_limit,
                )
                .await;
                let state = job_state(&said);
                if state == JobState::Unknown {
                    tracing::warn!(
                        "The state of job {job} of pool {} is unknown: {}",
                        settings.name,
                        answer_of(&said)
                    );
                    // It is likely to answer for no other job, either.
                    break;
                }
                life.state = state;
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
                        life.expected_ms = expected(settings, &values).await;
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
                            orders::cancel(settings, pool, &name).await;
                            self.end(settings, pool, &name, Some(why)).await?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn start(&self, pools: &mut [Known], present: &PoolsPresent) -> Result<(), StoreError> {
        let terms_and_present: Vec<_> = self
            .settings
            .iter()
            .zip(&*pools)
            .zip(&present.running)
            .map(|((settings, pool), running)| (settings.terms, pool.present(*running)))
            .collect();
        let demands = pools::demands(&present.waiting, &terms_and_present);
        for (number, (terms, present)) in terms_and_present.iter().enumerate() {
            let (settings, pool) = (&self.settings[number], &mut pools[number]);
            pool.wanted = pools::wanted(terms, &demands[number], present);
            for _ in 0..pools::to_start(terms, &demands[number], present) {
                self.submit(settings, pool).await?;
                if pool.row.is_paused() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn submit(&self, settings: &PoolSettings, pool: &mut Known) -> Result<(), StoreError> {
        let number = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("{}-{}", settings.name, &number[..8]);
        let (token_file, token_hash) = match tokens::create(self.folder(settings), &name) {
            Ok(created) => created,
            Err(error) => {
                let folder = self.folder(settings).display();
                let why = format!("Failed to write a token into {folder}: {error}");
                return self.failed(settings, pool, why).await;
            }
        };
        let kept = pool.lives.iter().filter(|life| life.row.kept).count();
        let row = PoolWorkerRow {
            name: name.clone(),
            pool: settings.name.clone(),
            token_hash,
            kept: kept < settings.terms.min as usize,
            job: None,
            submitted_ms: unix_ms(),
            connected_ms: None,
            ended_ms: None,
        };
        self.store.keep_pool_worker(&row).await?;
        pool.lives.push(Life::new(row));
        let arguments = orders::submit_arguments(&self.address, settings, pool, &name, &token_file);
        let said = command::run(&arguments, settings.command_limit).await;
        let job = match &said {
            Ok(said) if said.succeeded => job_id(&said.output),
            _ => None,
        };
        match job {
            Some(job) => {
                tracing::info!("Asked for {name} of pool {}: job {job}", settings.name);
                if let Some(life) = pool.lives.iter_mut().find(|life| life.row.name == name) {
                    life.row.job = Some(job);
                    self.store.keep_pool_worker(&life.row).await?;
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

    /// Its token opens nothing any more. `failed`: why it never came, or came and could not work.
    async fn end(
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
        self.store.keep_pool_worker(&row).await?;
        pool.lives.remove(number);
        tokens::remove(self.folder(settings), name);
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
        let was_paused = pool.row.is_paused();
        pool.row.failures = pool.row.failures.saturating_add(1);
        tracing::warn!("A worker of pool {} failed: {why}", settings.name);
        pool.row.words = Some(why);
        if pool.row.is_paused() && !was_paused {
            tracing::error!(
                "Pool {} is paused after {} failures in a row. `baton pools resume {}` starts it again",
                settings.name,
                pool.row.failures,
                settings.name
            );
        }
        self.store.keep_pool(&pool.row).await
    }

    async fn answer(&self, pools: &mut [Known], request: Request) -> Result<(), StoreError> {
        let number = |name: &str| self.settings.iter().position(|pool| pool.name == name);
        match request {
            Request::Resume(name, answer) => {
                let resumed = match number(&name) {
                    Some(number) => {
                        let pool = &mut pools[number];
                        pool.row.failures = 0;
                        pool.row.words = None;
                        self.store.keep_pool(&pool.row).await?;
                        Some(pool.shown(&self.settings[number]))
                    }
                    None => None,
                };
                // Who asked may be gone.
                drop(answer.send(resumed));
            }
            Request::Test(name, answer) => {
                let test = number(&name);
                let test = test.map(|number| {
                    orders::test(
                        &self.address,
                        self.folder(&self.settings[number]),
                        &self.settings[number],
                        &pools[number],
                    )
                });
                drop(answer.send(test));
            }
        }
        Ok(())
    }

    fn folder<'runner>(&'runner self, settings: &'runner PoolSettings) -> &'runner Path {
        settings.token_folder.as_ref().unwrap_or(&self.token_folder)
    }

    fn publish(&self, pools: &[Known]) {
        let pools = self.settings.iter().zip(pools);
        let shown: Vec<Pool> = pools.map(|(settings, pool)| pool.shown(settings)).collect();
        self.status.send_if_modified(|known| {
            let changed = **known != shown;
            if changed {
                *known = Arc::new(shown);
            }
            changed
        });
    }
}
