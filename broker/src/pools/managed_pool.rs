//! What the broker knows about one pool and its workers.

use super::{PoolSettings, asked::Asked, managed_worker::ManagedWorker, offers::Lacking};
use crate::{clock::unix_ms, people::hash_of};
use baton_broker_queue::pools::{PoolState, SeenWorker};
use baton_broker_store::{PoolRow, PoolWorkerRow, Store, StoreError};
use baton_protocol::{EnvironmentState, api::Pool, proxy::Estimate};
use baton_scheduling::{
    pools::{self, Kind, Present, Scaling},
    queue::Offer,
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::sync::watch;

/// What the coordinator must know about a pool.
#[derive(Clone)]
pub(super) struct Report {
    /// What the engine must know.
    pub(super) state: PoolState,
    /// Without the jobs that run, which the engine counts.
    pub(super) present: Present,
    pub(super) scaling_for_lessons: Scaling,
    pub(super) kind: Kind,
    /// The workers that may stay for lessons, in the order of their requests.
    pub(super) staying: Vec<String>,
}

/// Where a pool publishes its state.
pub(super) struct Outlets {
    pub(super) reports: watch::Sender<Option<Report>>,
    /// For pages and the API.
    pub(super) status: watch::Sender<Option<Pool>>,
}

/// One pool, with its records in the store.
pub(super) struct ManagedPool {
    pub(super) settings: Arc<PoolSettings>,
    store: Store,
    outlets: Outlets,
    pub(super) row: PoolRow,
    pub(super) workers: Vec<ManagedWorker>,
    /// How long the last starts took.
    starts_ms: Vec<u64>,
    /// `None` until the coordinator has decided it.
    pub(super) wanted: Option<u32>,
    /// Only of external pools.
    pub(super) asked: Asked,
    lacking: Lacking,
    /// Why the batch system did not answer the last time. It was logged then.
    pub(super) unanswered: Option<String>,
}

/// Whether too many starts in a row have failed.
fn is_paused(row: &PoolRow) -> bool {
    row.failures >= pools::MOST_FAILURES
}

impl ManagedPool {
    pub(super) async fn load(
        settings: &Arc<PoolSettings>,
        store: &Store,
        outlets: Outlets,
    ) -> Result<Self, StoreError> {
        let (rows, workers) = store.pools().all().await?;
        let row = rows.into_iter().find(|row| row.name == settings.name);
        let mut row = row.unwrap_or_else(|| PoolRow {
            name: settings.name.clone(),
            failures: 0,
            words: None,
            offer: None,
            settings: String::new(),
            slots: 1,
        });
        let digest = hash_of(&format!("{settings:?}"));
        if row.settings != digest {
            row.offer = None;
            row.settings = digest;
        }
        let workers = workers.iter().filter(|row| row.pool == settings.name);
        let took = |row: &PoolWorkerRow| u64::try_from(row.connected_ms? - row.submitted_ms).ok();
        Ok(Self {
            settings: Arc::clone(settings),
            store: store.clone(),
            outlets,
            row,
            starts_ms: workers.clone().filter_map(took).collect(),
            workers: workers
                .filter(|row| row.ended_ms.is_none())
                .cloned()
                .map(ManagedWorker::new)
                .collect(),
            wanted: None,
            asked: Asked::default(),
            lacking: Lacking::default(),
            unanswered: None,
        })
    }

    /// Publishes the present state.
    pub(super) fn publish(&self) {
        self.outlets.reports.send_replace(Some(self.report()));
        if self.wanted.is_some() {
            self.outlets.status.send_replace(Some(self.shown()));
        }
    }

    /// Records which workers are connected. Returns those that have failed to start sessions for too
    /// long, and why.
    pub(super) async fn see(
        &mut self,
        seen: &HashMap<String, SeenWorker>,
        lost_after: Duration,
        failing_limit: Duration,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let (mut failed, mut works) = (Vec::new(), false);
        for worker in &mut self.workers {
            let seen_worker = seen.get(&worker.row.name);
            works |= worker.see(seen_worker, lost_after);
            let Some(seen_worker) = seen_worker else {
                continue;
            };
            if let Some(took_ms) = worker.comes(seen_worker.connected_ms) {
                self.starts_ms.push(took_ms);
                self.lacking.comes();
                works |= seen_worker.failing.is_none();
            }
            let why = worker.count_failure(failing_limit);
            failed.extend(why.map(|why| (worker.row.name.clone(), why)));
        }
        let newest = self
            .workers
            .iter()
            .max_by_key(|worker| worker.row.connected_ms);
        let newest = newest.and_then(|worker| seen.get(&worker.row.name));
        let learned = newest.is_some_and(|seen_worker| learn_offer(&mut self.row, seen_worker));
        let forgiven = works && forgive_failures(&mut self.row);
        if learned || forgiven {
            self.store.pools().keep(&self.row).await?;
        }
        Ok(failed)
    }

    /// Records whether a worker has connected and left between two rounds.
    pub(super) async fn see_past(&mut self, name: &str) -> Result<(), StoreError> {
        let Some(worker) = self
            .workers
            .iter_mut()
            .find(|worker| worker.row.name == name)
        else {
            return Ok(());
        };
        if worker.is_pending()
            && let Some(at_ms) = self.store.pools().worker_connected_ms(name).await?
        {
            self.starts_ms.extend(worker.comes(at_ms));
        }
        Ok(())
    }

    /// Adds a worker, which must have a name that no worker has had. It is published at once, so that
    /// the engine knows its pool when it connects.
    pub(super) async fn add(&mut self, row: PoolWorkerRow) -> Result<(), StoreError> {
        self.store.pools().keep_worker(&row).await?;
        self.workers.push(ManagedWorker::new(row));
        self.publish();
        Ok(())
    }

    /// Records the job of a worker in the batch system.
    pub(super) async fn set_job(&mut self, name: &str, job: String) -> Result<(), StoreError> {
        if let Some(worker) = self.worker(name) {
            worker.row.job = Some(job);
            let row = worker.row.clone();
            self.store.pools().keep_worker(&row).await?;
        }
        Ok(())
    }

    /// Records the end of a worker: its token becomes invalid. `failed` says why it never connected or
    /// could not work.
    pub(super) async fn end(
        &mut self,
        name: &str,
        failed: Option<String>,
    ) -> Result<(), StoreError> {
        let Some(number) = self
            .workers
            .iter()
            .position(|worker| worker.row.name == name)
        else {
            return Ok(());
        };
        let mut row = self.workers[number].row.clone();
        row.ended_ms = Some(unix_ms());
        self.store.pools().keep_worker(&row).await?;
        self.workers.remove(number);
        match failed {
            Some(why) => self.fail(why).await,
            None => {
                tracing::info!("{name} of pool {} has left", self.settings.name);
                Ok(())
            }
        }
    }

    /// Counts a failure of a worker.
    pub(super) async fn fail(&mut self, why: String) -> Result<(), StoreError> {
        let (was_paused, pool) = (self.is_paused(), &self.settings.name);
        self.row.failures = self.row.failures.saturating_add(1);
        tracing::warn!("A worker of pool {pool} failed: {why}");
        self.row.words = Some(why);
        if self.is_paused() && !was_paused {
            tracing::error!(
                "Pool {pool} is paused after {} failures in a row. `baton pools resume {pool}` starts it again",
                self.row.failures,
            );
        }
        self.store.pools().keep(&self.row).await
    }

    /// Counts a failure of a worker whose job could not be cancelled.
    pub(super) async fn fail_uncancelled(
        &mut self,
        name: &str,
        why: String,
    ) -> Result<(), StoreError> {
        if let Some(worker) = self.worker(name) {
            worker.uncancelled = true;
        }
        self.fail(why).await
    }

    /// Counts a failure of a worker that may have a job, whose id is unknown.
    pub(super) async fn fail_unknown(&mut self, name: &str, why: String) -> Result<(), StoreError> {
        if let Some(worker) = self.worker(name) {
            worker.submission_failed = true;
        }
        self.fail(why).await
    }

    /// Forgets its failures, and what its last worker offered.
    pub(super) async fn resume(&mut self) -> Result<(), StoreError> {
        self.row.failures = 0;
        self.row.words = None;
        self.row.offer = None;
        self.lacking = Lacking::default();
        self.store.pools().keep(&self.row).await
    }

    /// Whether too many starts in a row have failed.
    pub(super) fn is_paused(&self) -> bool {
        is_paused(&self.row)
    }

    pub(super) fn worker(&mut self, name: &str) -> Option<&mut ManagedWorker> {
        self.workers
            .iter_mut()
            .find(|worker| worker.row.name == name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        let names = self.workers.iter().map(|worker| worker.row.name.clone());
        names.collect()
    }

    /// A name that no worker has had.
    pub(super) fn new_name(&self) -> String {
        let number = uuid::Uuid::new_v4().simple().to_string();
        format!("{}-{}", self.settings.name, &number[..8])
    }

    fn pending(&self) -> u32 {
        let joining = self.workers.iter().filter(|worker| worker.is_pending());
        small(joining.count() + self.asked.count())
    }

    fn leaving(&self) -> u32 {
        small(
            self.workers
                .iter()
                .filter(|worker| worker.is_leaving())
                .count(),
        )
    }

    /// How long a worker may be idle before it leaves.
    pub(super) fn idle_ms(&self) -> Option<u64> {
        let usual = self.usual().map(|usual| usual.middle_ms);
        Some(pools::idle_ms(self.settings.idle_ms?, usual))
    }

    /// Whether the next worker stays when it is idle.
    pub(super) fn keeps_the_next(&self) -> bool {
        let kept = self.workers.iter().filter(|worker| worker.row.kept).count();
        kept < self.settings.scaling.min as usize
    }

    pub(super) fn up(&self) -> u32 {
        small(self.workers.iter().filter(|worker| worker.is_up()).count())
    }

    /// Whether the next worker is expected to have the labels and environments of the last one.
    fn offer_is_current(&self) -> bool {
        self.up() > 0 || self.lacking.is_paused()
    }

    /// Records whether jobs wait for a label or an environment that its workers lack. A worker that
    /// still prepares an environment shows nothing.
    pub(super) fn see_lacking(&mut self, lacks: bool) {
        let prepares = self.row.offer.iter().any(|offer| {
            let mut environments = offer.machine.environments.iter();
            environments
                .any(|environment| matches!(environment.state, EnvironmentState::Preparing {}))
        });
        if lacks || !prepares {
            let is_connected = self.workers.iter().any(|worker| worker.connected);
            self.lacking.see(lacks, is_connected);
        }
    }

    pub(super) fn present(&self, running: u32) -> Present {
        Present {
            running,
            up: self.up(),
            pending: self.pending(),
            slots: self.row.slots,
            failures: self.row.failures,
        }
    }

    fn report(&self) -> Report {
        let may_stay = |worker: &&ManagedWorker| worker.is_up() || worker.is_pending();
        let staying = self.workers.iter().filter(may_stay);
        Report {
            state: self.state(),
            present: self.present(0),
            scaling_for_lessons: self.scaling_for_lessons(),
            kind: self.kind(),
            staying: staying.map(|worker| worker.row.name.clone()).collect(),
        }
    }

    /// How many workers lessons may count on.
    fn scaling_for_lessons(&self) -> Scaling {
        match self.is_paused() {
            true => self.settings.scaling.while_paused(self.up()),
            false => self.settings.scaling,
        }
    }

    fn kind(&self) -> Kind {
        Kind {
            slots: self.row.slots,
            start_ms: self.start_ms(),
        }
    }

    /// How long most starts take at most. If none is known, the limit for a start.
    fn start_ms(&self) -> i64 {
        let limit = self.settings.start_limit;
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let start_ms = self.usual().map_or(limit_ms, |usual| usual.upper_ms);
        i64::try_from(start_ms).unwrap_or(i64::MAX)
    }

    /// How long a start takes.
    fn usual(&self) -> Option<Estimate> {
        usual(&self.starts_ms)
    }

    /// What the engine must know of it.
    fn state(&self) -> PoolState {
        let settings = &self.settings;
        PoolState {
            name: settings.name.clone(),
            workers: self.names(),
            offer: self.row.offer.clone().map(Arc::new),
            offer_is_current: self.offer_is_current(),
            declared: Arc::clone(&settings.offers),
            walltime_ms: settings.walltime.map_or(u64::MAX, |walltime| {
                u64::try_from(walltime.as_millis()).unwrap_or(u64::MAX)
            }),
            target_wait_ms: settings.scaling.target_wait_ms,
            ahead_ms: pools::ahead_ms(settings.scaling.max, &self.kind()),
            can_start: settings.scaling.max > 0 && !self.present(0).is_paused(),
            pending: self.pending(),
            slots: self.row.slots,
            usual: self.usual(),
            expected_ms: self
                .workers
                .iter()
                .filter_map(|worker| worker.expected_ms)
                .min(),
        }
    }

    /// What prevents starts now, or else the last failure.
    fn last_failure(&self) -> Option<String> {
        let silence = |why| format!("The batch system does not answer: {why}");
        let asks = self.workers.iter().any(ManagedWorker::needs_check);
        let silence = self.unanswered.as_ref().filter(|_| asks).map(silence);
        let failed = silence.or_else(|| self.row.words.clone());
        failed.or_else(|| self.asked.late())
    }

    pub(super) fn shown(&self) -> Pool {
        Pool {
            pool: self.settings.name.clone(),
            min: self.settings.scaling.min,
            max: self.settings.scaling.max,
            slots: self.row.slots,
            wanted: self.wanted.unwrap_or(0),
            up: self.up(),
            pending: self.pending(),
            leaving: self.leaving(),
            failures: self.row.failures,
            paused: self.is_paused(),
            last_failure: self.last_failure(),
            start: self.usual(),
            workers: self.workers.iter().map(ManagedWorker::shown).collect(),
        }
    }
}

/// Records what a worker offers. Returns whether that is new.
fn learn_offer(row: &mut PoolRow, worker: &SeenWorker) -> bool {
    let offer = without_end(&worker.offer);
    let is_new = row.offer.as_ref() != Some(&offer) || row.slots != worker.slots;
    row.offer = Some(offer);
    row.slots = worker.slots;
    is_new
}

/// A worker has started well. That does not end a pause, which a person does. Returns whether there were failures.
fn forgive_failures(row: &mut PoolRow) -> bool {
    let forgives = row.failures > 0 && !is_paused(row);
    if forgives {
        row.failures = 0;
        row.words = None;
    }
    forgives
}

/// Removes the time at which this worker leaves, which is not a property of the pool.
fn without_end(offer: &Offer) -> Offer {
    let mut offer = offer.clone();
    offer.machine.leaves_at_ms = None;
    offer
}

/// The median, and a range for four of five.
fn usual(starts_ms: &[u64]) -> Option<Estimate> {
    let mut sorted = starts_ms.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().checked_sub(1)?;
    let at = |tenths: usize| sorted[last * tenths / 10];
    Some(Estimate {
        lower_ms: at(1),
        middle_ms: at(5),
        upper_ms: sorted[(last * 9).div_ceil(10)],
    })
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    fn usual(starts_ms: &[u64]) -> Option<(u64, u64, u64)> {
        let usual = super::usual(starts_ms)?;
        Some((usual.lower_ms, usual.middle_ms, usual.upper_ms))
    }

    #[test]
    fn a_start_usually_takes_as_long_as_the_last_ones() {
        assert_eq!(usual(&[]), None);
        assert_eq!(usual(&[40]), Some((40, 40, 40)));
        assert_eq!(usual(&[30, 10, 20]), Some((10, 20, 30)));
        let starts: Vec<u64> = (0..=100).rev().collect();
        assert_eq!(usual(&starts), Some((10, 50, 90)));
    }
}
