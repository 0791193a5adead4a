//! Decides how many workers each pool needs, once a second.
//!
//! In: the last report of each pool, and the engine's answer about waiting cells, workers and
//! lessons. Out: an instruction for each pool. It may be based on an outdated report, so it does not
//! say how many workers to start: the pool computes that from the workers that it has.
//!
//! **Invariant:** it never waits for a pool, except until the pool's records are loaded.

use super::{
    lessons::{self, Lessons},
    managed_pool::Report,
};
use crate::{clock::unix_ms, engine::Event};
use baton_broker_queue::pools::{ComingLessons, PoolLook, PoolsPresent, SeenWorker};
use baton_broker_store::{Store, StoreError};
use baton_scheduling::pools::{self, Demand, Floor, Present, Scaling};
use std::{collections::HashMap, sync::Arc};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::MissedTickBehavior,
};

/// What a pool must know to have enough workers.
#[derive(Clone)]
pub(super) struct Instruction {
    /// Workers that are connected or were a short time ago, by name.
    pub(super) seen: Arc<HashMap<String, SeenWorker>>,
    /// Whether cells wait or lessons come that lack a label or an environment on its last worker.
    pub(super) lacks: bool,
    /// Its minimum includes the workers for lessons.
    pub(super) scaling: Scaling,
    pub(super) demand: Demand,
    /// How many jobs its workers run.
    pub(super) running: u32,
}

/// The coordinator's connection to one pool.
pub(super) struct Link {
    pub(super) scaling: Scaling,
    /// `None` until the records of the pool are loaded.
    pub(super) reports: watch::Receiver<Option<Report>>,
    pub(super) instructions: watch::Sender<Option<Instruction>>,
}

pub(super) struct Coordinator {
    links: Vec<Link>,
    store: Store,
    inbox: mpsc::Sender<Event>,
    lessons: Lessons,
    floors: Vec<Floor>,
}

impl Coordinator {
    pub(super) fn new(
        links: Vec<Link>,
        store: Store,
        inbox: mpsc::Sender<Event>,
        lessons: Lessons,
    ) -> Self {
        Self {
            links,
            store,
            inbox,
            lessons,
            floors: Vec::new(),
        }
    }

    /// Runs until it is dropped. Without pools, there is nothing to do.
    pub(super) async fn run(mut self) {
        if self.links.is_empty() {
            return;
        }
        for link in &mut self.links {
            // Pools live as long as the coordinator.
            drop(link.reports.wait_for(Option::is_some).await);
        }
        let mut ticks = tokio::time::interval(pools::LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.instruct().await {
                tracing::error!("Failed to compute how many workers the pools need: {error}");
            }
        }
    }

    async fn instruct(&mut self) -> Result<(), StoreError> {
        let reports = self.links.iter();
        let reports: Vec<Report> = reports
            .filter_map(|link| link.reports.borrow().clone())
            .collect();
        let Some(seen) = self.look(&reports).await else {
            return Ok(());
        };
        self.floors = self.floors(&reports, &seen.coming).await?;
        let scaling_and_present: Vec<_> = self
            .links
            .iter()
            .zip(&self.floors)
            .zip(reports.iter().zip(&seen.running))
            .map(|((link, floor), (report, running))| {
                let scaling = Scaling {
                    min: link.scaling.min.max(floor.workers),
                    ..link.scaling
                };
                let present = Present {
                    running: *running,
                    ..report.present
                };
                (scaling, present)
            })
            .collect();
        let demands = pools::demands(&seen.waiting, &scaling_and_present);
        let workers = Arc::new(seen.workers);
        let decided = scaling_and_present.iter().zip(demands).zip(&seen.lacking);
        for (link, (((scaling, present), demand), lacks)) in self.links.iter().zip(decided) {
            link.instructions.send_replace(Some(Instruction {
                seen: Arc::clone(&workers),
                lacks: *lacks,
                scaling: *scaling,
                demand,
                running: present.running,
            }));
        }
        Ok(())
    }

    /// Returns `None` while the engine loads its state.
    async fn look(&self, reports: &[Report]) -> Option<PoolsPresent> {
        let look = PoolLook {
            pools: reports.iter().map(|report| report.state.clone()).collect(),
            stays: lessons::stays(reports, &self.floors),
        };
        let (question, answer) = oneshot::channel();
        self.inbox.send(Event::Pools(look, question)).await.ok()?;
        answer.await.ok()
    }

    async fn floors(
        &self,
        reports: &[Report],
        coming: &ComingLessons,
    ) -> Result<Vec<Floor>, StoreError> {
        let now_ms = unix_ms();
        let scaling: Vec<Scaling> = self.links.iter().map(|link| link.scaling).collect();
        let lessons = self
            .lessons
            .needed(&self.store, &coming.lessons, &scaling, now_ms)
            .await?;
        let kinds = reports.iter();
        let kinds: Vec<_> = kinds
            .map(|report| (report.scaling_for_lessons, report.kind))
            .collect();
        Ok(pools::floors(&lessons, &kinds, coming.other_slots, now_ms))
    }
}
