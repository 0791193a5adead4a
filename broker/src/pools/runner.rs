//! The task that runs all pools.

use super::{
    PoolSettings, Provider, Request, batch,
    batch_system::BatchSystem,
    external,
    lessons::{self, Lessons},
    managed_pool::ManagedPool,
};
use crate::{
    clock::unix_ms,
    engine::{Event, Leadership},
};
use baton_broker_queue::{
    NotDone,
    pools::{PoolLook, PoolsPresent, SeenWorker},
};
use baton_broker_store::{Store, StoreError};
use baton_protocol::api::{Pool, PoolTest};
use baton_scheduling::pools::{self, Floor, Scaling};
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::MissedTickBehavior,
};

pub(crate) struct Runner {
    pub(crate) settings: Vec<Arc<PoolSettings>>,
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
    let mut managed: Option<Vec<ManagedPool>> = None;
    loop {
        let leads = *runner.leadership.borrow() == Leadership::Leader;
        let request = tokio::select! {
            _ = ticks.tick() => None,
            Some(request) = runner.requests.recv(), if leads => Some(request),
        };
        if !leads {
            managed = None;
            continue;
        }
        let worked = runner.turn(&mut managed, request).await;
        if let Err(error) = worked {
            tracing::error!("Pools are paused: {error}");
            managed = None;
        }
    }
}

impl Runner {
    async fn turn(
        &mut self,
        managed: &mut Option<Vec<ManagedPool>>,
        request: Option<Request>,
    ) -> Result<(), StoreError> {
        let mut pools = match managed.take() {
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
            self.check(&mut pools).await?;
            self.floors = self.floors(&pools, &present).await?;
            self.start(&mut pools, &present).await?;
            self.publish(&pools);
        }
        *managed = Some(pools);
        Ok(())
    }

    async fn load(&self) -> Result<Vec<ManagedPool>, StoreError> {
        let (rows, workers) = self.store.pools().all().await?;
        let settings = self.settings.iter();
        Ok(settings
            .map(|settings| ManagedPool::new(settings, &self.store, &rows, &workers))
            .collect())
    }

    /// `None` for an external pool.
    fn batch_system<'runner>(
        &'runner self,
        settings: &'runner PoolSettings,
    ) -> Option<BatchSystem<'runner>> {
        match &settings.provider {
            Provider::Command(commands) => Some(BatchSystem::new(
                commands,
                &self.address,
                &self.token_folder,
            )),
            Provider::External(_) => None,
        }
    }

    /// Records which workers are connected, and replaces those that fail.
    async fn see(
        &self,
        pools: &mut [ManagedPool],
        seen: &HashMap<String, SeenWorker>,
    ) -> Result<(), StoreError> {
        for (settings, pool) in self.settings.iter().zip(pools) {
            let failed = pool.see(seen, self.lost_after, self.failing_limit).await?;
            for (name, why) in failed {
                match self.batch_system(settings) {
                    Some(system) => batch::cancel(system, pool, &name, why).await?,
                    // The broker cannot end it. It leaves when it is idle, and another worker
                    // replaces it until then.
                    None => pool.fail(why).await?,
                }
            }
        }
        Ok(())
    }

    /// Looks for the workers that are not connected, and records the ends of those that are gone.
    async fn check(&self, pools: &mut [ManagedPool]) -> Result<(), StoreError> {
        for (settings, pool) in self.settings.iter().zip(pools) {
            match self.batch_system(settings) {
                Some(system) => batch::check(system, pool).await?,
                None => external::check(pool).await?,
            }
        }
        Ok(())
    }

    /// Returns `None` while the engine loads its state.
    async fn look(&self, pools: &[ManagedPool]) -> Option<PoolsPresent> {
        let look = PoolLook {
            pools: pools.iter().map(ManagedPool::state).collect(),
            stays: lessons::stays(pools, &self.floors),
        };
        let (question, answer) = oneshot::channel();
        self.inbox.send(Event::Pools(look, question)).await.ok()?;
        answer.await.ok()
    }

    async fn floors(
        &self,
        pools: &[ManagedPool],
        present: &PoolsPresent,
    ) -> Result<Vec<Floor>, StoreError> {
        let (now_ms, coming) = (unix_ms(), &present.coming);
        let scaling: Vec<Scaling> = self.settings.iter().map(|pool| pool.scaling).collect();
        let lessons = self
            .lessons
            .needed(&self.store, &coming.lessons, &scaling, now_ms)
            .await?;
        let kinds = pools.iter();
        let kinds: Vec<_> = kinds
            .map(|pool| (pool.scaling_for_lessons(), pool.kind()))
            .collect();
        Ok(pools::floors(&lessons, &kinds, coming.other_slots, now_ms))
    }

    async fn start(
        &self,
        pools: &mut [ManagedPool],
        present: &PoolsPresent,
    ) -> Result<(), StoreError> {
        let scaling_and_present: Vec<_> = pools
            .iter()
            .zip(&present.running)
            .zip(&self.floors)
            .map(|((pool, running), floor)| {
                let min = pool.settings.scaling.min.max(floor.workers);
                let scaling = Scaling {
                    min,
                    ..pool.settings.scaling
                };
                (scaling, pool.present(*running))
            })
            .collect();
        let demands = pools::demands(&present.waiting, &scaling_and_present);
        let needed = scaling_and_present.iter().zip(&demands);
        for ((settings, pool), ((scaling, present), demand)) in
            self.settings.iter().zip(pools).zip(needed)
        {
            let wanted = pools::wanted(scaling, demand, present);
            match self.batch_system(settings) {
                Some(system) => {
                    pool.wanted = wanted;
                    let count = pools::to_start(scaling, demand, present);
                    batch::start(system, pool, count).await?;
                }
                None => external::ask(pool, wanted),
            }
        }
        Ok(())
    }

    async fn answer(&self, pools: &mut [ManagedPool], request: Request) -> Result<(), StoreError> {
        let mut settings_and_pools = self.settings.iter().zip(pools);
        let mut named = |name: &str| settings_and_pools.find(|(pool, _)| pool.name == name);
        // The callers may be gone.
        match request {
            Request::Resume(name, answer) => {
                let resumed = match named(&name) {
                    Some((_, pool)) => {
                        pool.resume().await?;
                        Some(pool.shown())
                    }
                    None => None,
                };
                drop(answer.send(resumed));
            }
            Request::Test(name, answer) => {
                let test = named(&name).map(|(settings, pool)| match self.batch_system(settings) {
                    Some(system) => system.test(pool),
                    None => PoolTest {
                        pool: name,
                        commands: Vec::new(),
                    },
                });
                drop(answer.send(test));
            }
            Request::Join(name, join, answer) => {
                let joined = match named(&name) {
                    Some((settings, _)) if self.batch_system(settings).is_some() => {
                        Some(Err(NotDone::NotExternal(name)))
                    }
                    Some((_, pool)) => Some(external::join(pool, join).await?),
                    None => None,
                };
                drop(answer.send(joined));
            }
        }
        Ok(())
    }

    fn publish(&self, pools: &[ManagedPool]) {
        let shown: Vec<Pool> = pools.iter().map(ManagedPool::shown).collect();
        self.status.send_if_modified(|managed| {
            let changed = **managed != shown;
            if changed {
                *managed = Arc::new(shown);
            }
            changed
        });
    }
}
