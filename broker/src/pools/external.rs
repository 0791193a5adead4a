//! Pools whose workers are started by something else, such as an autoscaler that reads the desired number.
//!
//! In: workers that join. Out: a token for each, valid only for this worker, and the number of
//! missing workers. A worker that has joined becomes a life like any other, so it is treated alike
//! in placing, estimates and pages.
//!
//! **Invariant:** nothing here starts or ends a worker.

use super::{
    PoolSettings, Provider, Runner,
    known::{Known, Life},
    lives::new_name,
    tokens,
};
use crate::{clock::unix_ms, people::hash_of};
use baton_broker_queue::NotDone;
use baton_broker_store::{PoolWorkerRow, StoreError};
use baton_protocol::api::{JoinPool, Joined};
use std::time::Duration;

/// A worker that has joined is already running, so it connects soon.
const CONNECTS_WITHIN: Duration = Duration::from_secs(120);
/// How long a worker may be disconnected before it is considered dead. If it is started again, it
/// gets another token.
const LOST_AFTER: Duration = Duration::from_secs(30 * 60);
/// The same for a worker that is leaving: it may still have to send results over a bad network.
const LEFT_AFTER: Duration = Duration::from_secs(60);

impl Runner {
    /// Gives a worker a name and a token.
    pub(super) async fn join(
        &self,
        settings: &PoolSettings,
        pool: &mut Known,
        join: JoinPool,
    ) -> Result<Result<Joined, NotDone>, StoreError> {
        let called = join.called.filter(|called| is_name(called));
        self.end_former(settings, pool, called.as_deref()).await?;
        let refusal = match &settings.provider {
            Provider::Command(_) => Some(NotDone::NotExternal(settings.name.clone())),
            Provider::External(_) if pool.is_full(settings) => Some(NotDone::PoolFull {
                pool: settings.name.clone(),
                max: settings.terms.max,
            }),
            Provider::External(_) => None,
        };
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        let token = tokens::random();
        // Among the wanted workers, this counts as the one that was requested first.
        let asked_ms = match pool.asked_ms.is_empty() {
            true => unix_ms(),
            false => pool.asked_ms.remove(0),
        };
        let row = PoolWorkerRow {
            name: new_name(settings),
            pool: settings.name.clone(),
            token_hash: hash_of(&token),
            kept: pool.keeps_the_next(settings),
            job: called,
            submitted_ms: asked_ms,
            connected_ms: None,
            ended_ms: None,
        };
        self.store.pools().keep_worker(&row).await?;
        tracing::info!(
            "{} joins pool {} as {}",
            row.job.as_deref().unwrap_or("A worker"),
            settings.name,
            row.name
        );
        let joined = Joined {
            name: row.name.clone(),
            token,
            idle_exit_ms: pool.idle_ms(settings).filter(|_| !row.kept),
            leaves_in_ms: settings
                .walltime
                .map(|walltime| u64::try_from(walltime.as_millis()).unwrap_or(u64::MAX)),
        };
        pool.lives.push(Life::new(row));
        Ok(Ok(joined))
    }

    /// Names of machines are unique, so if one joins again, it was started anew. If its former
    /// worker has never connected, that one is ended. A worker that has connected may reconnect.
    async fn end_former(
        &self,
        settings: &PoolSettings,
        pool: &mut Known,
        called: Option<&str>,
    ) -> Result<(), StoreError> {
        let Some(called) = called else {
            return Ok(());
        };
        let is_former = |life: &&Life| life.is_pending() && life.row.job.as_deref() == Some(called);
        let former = pool.lives.iter().filter(is_former);
        let former: Vec<String> = former.map(|life| life.row.name.clone()).collect();
        for name in former {
            let why = format!("{called} joined but ended before it connected");
            self.end(settings, pool, &name, Some(why)).await?;
        }
        Ok(())
    }

    /// Ends the lives of workers that are gone. Nothing else reports their end.
    pub(super) async fn check_joined(
        &self,
        settings: &PoolSettings,
        pool: &mut Known,
    ) -> Result<(), StoreError> {
        let mut gone = Vec::new();
        for life in pool.lives.iter_mut().filter(|life| !life.connected) {
            let took_ms = self.came_unseen(settings, life).await?;
            pool.starts_ms.extend(took_ms);
            let came = life.row.connected_ms.is_some();
            let limit = match (came, life.draining) {
                (false, _) => settings.start_limit.min(CONNECTS_WITHIN),
                (true, true) => LEFT_AFTER,
                (true, false) => LOST_AFTER,
            };
            if life.is_late(limit) {
                let called = life.row.job.as_deref().unwrap_or(&life.row.name);
                let why = format!("{called} joined but did not connect");
                gone.push((life.row.name.clone(), (!came).then_some(why)));
            }
        }
        for (name, why) in gone {
            self.end(settings, pool, &name, why).await?;
        }
        Ok(())
    }
}

/// A name as in Kubernetes and batch systems. It is shown on pages and in logs.
fn is_name(called: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=253).contains(&called.len()) && called.chars().all(plain)
}
