//! The task that runs all pools.

use super::{
    Commands, PoolSettings, Provider, Request,
    known::{Known, Life, is_paused},
    lessons::{self, Lessons},
    offers::Lacking,
    orders,
};
use crate::{
    clock::unix_ms,
    engine::{Event, Leadership},
    people::hash_of,
};
use baton_broker_queue::pools::{PoolLook, PoolState, PoolsPresent};
use baton_broker_store::{PoolRow, PoolWorkerRow, Store, StoreError};
use baton_protocol::api::{Pool, PoolTest};
use baton_scheduling::pools::{self, Floor, Terms};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::MissedTickBehavior,
};

pub(crate) struct Runner {
    pub(crate) settings: Vec<PoolSettings>,
    pub(crate) store: Store,
    pub(crate) inbox: mpsc::Sender<Event>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) status: watch::Sender<Arc<Vec<Pool>>>,
    pub(crate) requests: mpsc::Receiver<Request>,
    /// The address at which workers reach this broker, unless a pool has its own.
    pub(crate) address: String,
    pub(crate) token_folder: PathBuf,
    /// After this time, a missing worker no longer counts, even if the batch system has not noticed
    /// that its machine is dead.
    pub(crate) lost_after: Duration,
    /// For how long a worker may fail to start sessions before it is ended.
    pub(crate) failing_limit: Duration,
    pub(crate) lessons: Lessons,
    pub(crate) floors: Vec<Floor>,
}

/// Runs until it is dropped.
pub(crate) async fn run(mut runner: Runner) {
    if runner.settings.is_empty() {
        return std::future::pending().await;
    }
    let mut ticks = tokio::time::interval(pools::LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: Option<Vec<Known>> = None;
    loop {
        let leads = *runner.leadership.borrow() == Leadership::Leader;
        let request = tokio::select! {
            _ = ticks.tick() => None,
            Some(request) = runner.requests.recv(), if leads => Some(request),
        };
        if !leads {
            known = None;
            continue;
        }
        let worked = runner.turn(&mut known, request).await;
        if let Err(error) = worked {
            tracing::error!("Pools are paused: {error}");
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
            for (pool, lacks) in pools.iter_mut().zip(&present.lacking) {
                pool.see_lacking(*lacks);
            }
            self.see(&mut pools, &present.workers).await?;
            self.check_jobs(&mut pools).await?;
            self.floors = self.floors(&pools, &present).await?;
            self.start(&mut pools, &present).await?;
            self.publish(&pools);
        }
        *known = Some(pools);
        Ok(())
    }

    async fn load(&self) -> Result<Vec<Known>, StoreError> {
        let (rows, workers) = self.store.pools().all().await?;
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
                let digest = hash_of(&format!("{settings:?}"));
                let mut row = row.unwrap_or_else(|| PoolRow {
                    name: settings.name.clone(),
                    failures: 0,
                    words: None,
                    offer: None,
                    settings: String::new(),
                    slots: 1,
                });
                if row.settings != digest {
                    row.offer = None;
                    row.settings = digest;
                }
                Known {
                    row,
                    starts_ms: of_pool.clone().filter_map(|row| took(&row)).collect(),
                    lives: of_pool
                        .filter(|row| row.ended_ms.is_none())
                        .cloned()
                        .map(Life::new)
                        .collect(),
                    wanted: 0,
                    asked_ms: Vec::new(),
                    late: None,
                    lacking: Lacking::default(),
                }
            })
            .collect();
        Ok(pools)
    }

    /// Returns `None` while the engine loads its state.
    async fn look(&self, pools: &[Known]) -> Option<PoolsPresent> {
        let settings = self.settings.iter();
        let states = settings.zip(pools).map(|(settings, pool)| PoolState {
            name: settings.name.clone(),
            workers: pool
                .lives
                .iter()
                .map(|life| life.row.name.clone())
                .collect(),
            offer: pool.row.offer.clone().map(Arc::new),
            offer_is_current: pool.offer_is_current(),
            declared: Arc::clone(&settings.offers),
            walltime_ms: settings.walltime.map_or(u64::MAX, |walltime| {
                u64::try_from(walltime.as_millis()).unwrap_or(u64::MAX)
            }),
            target_wait_ms: settings.terms.target_wait_ms,
            ahead_ms: pools::ahead_ms(settings.terms.max, &pool.kind(settings)),
            can_start: !pool.present(0).is_paused(),
            pending: pool.pending(),
            slots: pool.row.slots,
            usual: pool.usual(),
            expected_ms: pool.lives.iter().filter_map(|life| life.expected_ms).min(),
        });
        let look = PoolLook {
            pools: states.collect(),
            stays: lessons::stays(pools, &self.floors),
        };
        let (question, answer) = oneshot::channel();
        self.inbox.send(Event::Pools(look, question)).await.ok()?;
        answer.await.ok()
    }

    async fn floors(
        &self,
        pools: &[Known],
        present: &PoolsPresent,
    ) -> Result<Vec<Floor>, StoreError> {
        let (now_ms, coming) = (unix_ms(), &present.coming);
        let terms: Vec<Terms> = self.settings.iter().map(|pool| pool.terms).collect();
        let lessons = self
            .lessons
            .needed(&self.store, &coming.lessons, &terms, now_ms)
            .await?;
        let kinds = self.settings.iter().zip(pools);
        let kinds: Vec<_> = kinds
            .map(|(settings, pool)| (pool.terms_for_lessons(settings), pool.kind(settings)))
            .collect();
        Ok(pools::floors(&lessons, &kinds, coming.other_slots, now_ms))
    }

    async fn start(&self, pools: &mut [Known], present: &PoolsPresent) -> Result<(), StoreError> {
        let terms_and_present: Vec<_> = self
            .settings
            .iter()
            .zip(&*pools)
            .zip(&present.running)
            .zip(&self.floors)
            .map(|(((settings, pool), running), floor)| {
                let min = settings.terms.min.max(floor.workers);
                let terms = Terms {
                    min,
                    ..settings.terms
                };
                (terms, pool.present(*running))
            })
            .collect();
        let demands = pools::demands(&present.waiting, &terms_and_present);
        for (number, (terms, present)) in terms_and_present.iter().enumerate() {
            let (settings, pool) = (&self.settings[number], &mut pools[number]);
            let wanted = pools::wanted(terms, &demands[number], present);
            let Provider::Command(commands) = &settings.provider else {
                pool.ask(settings, wanted);
                continue;
            };
            pool.wanted = wanted;
            for _ in 0..pools::to_start(terms, &demands[number], present) {
                self.submit(settings, commands, pool).await?;
                if is_paused(&pool.row) {
                    break;
                }
            }
        }
        Ok(())
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
                        pool.forget_offer();
                        self.store.pools().keep(&pool.row).await?;
                        Some(pool.shown(&self.settings[number]))
                    }
                    None => None,
                };
                // The caller may be gone.
                drop(answer.send(resumed));
            }
            Request::Test(name, answer) => {
                let test = number(&name);
                let test = test.map(|number| {
                    let (settings, pool) = (&self.settings[number], &pools[number]);
                    match &settings.provider {
                        Provider::Command(commands) => orders::test(
                            &self.address,
                            self.folder(commands),
                            (settings, commands),
                            pool,
                        ),
                        Provider::External(_) => PoolTest {
                            pool: name,
                            commands: Vec::new(),
                        },
                    }
                });
                drop(answer.send(test));
            }
            Request::Join(name, join, answer) => {
                let joined = match number(&name) {
                    Some(number) => {
                        let (settings, pool) = (&self.settings[number], &mut pools[number]);
                        Some(self.join(settings, pool, join).await?)
                    }
                    None => None,
                };
                drop(answer.send(joined));
            }
        }
        Ok(())
    }

    pub(super) fn folder<'runner>(&'runner self, commands: &'runner Commands) -> &'runner Path {
        commands.token_folder.as_ref().unwrap_or(&self.token_folder)
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
