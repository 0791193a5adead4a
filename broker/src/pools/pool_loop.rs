//! The loop of one pool. It owns the pool's state, and nothing else runs the pool's commands.
//!
//! In: the coordinator's instructions, requests of people and workers, and answers of the batch
//! system. Out: reports for the coordinator, and the pool as pages show it.
//!
//! Commands that change something (`submit`, `cancel`) run one after the other, and the loop waits
//! for each. Besides, at most one question about a job is open. A batch system that does not answer
//! it delays no start.
//!
//! **Invariant:** if the loop is dropped, its commands are killed. A job whose id was not read is
//! found again by the name of its worker.

use super::{
    PoolSettings, Provider, Request, batch,
    batch_system::BatchSystem,
    coordinator::Instruction,
    external,
    managed_pool::{ManagedPool, Outlets, Report},
};
use baton_broker_queue::NotDone;
use baton_broker_store::{Store, StoreError};
use baton_protocol::api::{Pool, PoolTest};
use baton_scheduling::pools;
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};

/// What remains of a pool while this broker is a follower.
pub(crate) struct Seat {
    pub(crate) settings: Arc<PoolSettings>,
    pub(crate) status: watch::Sender<Option<Pool>>,
    pub(crate) requests: mpsc::Receiver<Request>,
}

/// What all pools use.
pub(crate) struct Common {
    pub(crate) store: Store,
    /// The address at which workers reach this broker, unless a pool has its own.
    pub(crate) address: String,
    pub(crate) token_folder: PathBuf,
    /// After this time, a missing worker no longer counts, even if the batch system has not noticed
    /// that its machine is dead.
    pub(crate) lost_after: Duration,
    /// For how long a worker may fail to start sessions before it is ended.
    pub(crate) failing_limit: Duration,
}

/// Runs until it is dropped. After an error of the store, the pool is loaded again.
pub(super) async fn run(
    seat: &mut Seat,
    common: &Common,
    reports: watch::Sender<Option<Report>>,
    mut instructions: watch::Receiver<Option<Instruction>>,
) {
    loop {
        let Err(error) = serve(seat, common, &reports, &mut instructions).await;
        tracing::error!("Pool {} is paused: {error}", seat.settings.name);
        tokio::time::sleep(pools::LOOK_EVERY).await;
    }
}

async fn serve(
    seat: &mut Seat,
    common: &Common,
    reports: &watch::Sender<Option<Report>>,
    instructions: &mut watch::Receiver<Option<Instruction>>,
) -> Result<Infallible, StoreError> {
    let outlets = Outlets {
        reports: reports.clone(),
        status: seat.status.clone(),
    };
    let mut pool = ManagedPool::load(&seat.settings, &common.store, outlets).await?;
    let system = batch_system(&seat.settings, common);
    // At most one.
    let mut questions = FuturesUnordered::new();
    loop {
        pool.publish();
        let may_ask = tokio::select! {
            Ok(()) = instructions.changed() => {
                let instruction = instructions.borrow_and_update().clone();
                if let Some(instruction) = instruction {
                    follow(system, common, &mut pool, &instruction).await?;
                }
                true
            }
            Some(request) = seat.requests.recv() => {
                answer(system, &mut pool, request).await?;
                false
            }
            Some(answer) = questions.next(), if !questions.is_empty() => match system {
                Some(system) => batch::learn(system, &mut pool, answer).await?,
                None => false,
            },
        };
        if may_ask
            && questions.is_empty()
            && let Some(system) = system
        {
            let due = batch::next_due(system, &mut pool);
            questions.extend(due.map(|due| batch::ask(system, due)));
        }
    }
}

/// `None` for an external pool.
fn batch_system<'settings>(
    settings: &'settings PoolSettings,
    common: &'settings Common,
) -> Option<BatchSystem<'settings>> {
    match &settings.provider {
        Provider::Command(commands) => Some(BatchSystem::new(
            commands,
            &common.address,
            &common.token_folder,
        )),
        Provider::External(_) => None,
    }
}

/// Records which workers are connected, replaces those that fail, and starts those that are needed.
async fn follow(
    system: Option<BatchSystem<'_>>,
    common: &Common,
    pool: &mut ManagedPool,
    instruction: &Instruction,
) -> Result<(), StoreError> {
    let Instruction {
        seen,
        lacks,
        scaling,
        demand,
        running,
    } = instruction;
    pool.see_lacking(*lacks);
    let failed = pool
        .see(seen, common.lost_after, common.failing_limit)
        .await?;
    let wanted = pools::wanted(scaling, demand, &pool.present(*running));
    let Some(system) = system else {
        // The broker cannot end them. They leave when they are idle. Others replace them until then.
        for (_, why) in failed {
            pool.fail(why).await?;
        }
        external::check(pool).await?;
        external::ask(pool, wanted);
        return Ok(());
    };
    pool.wanted = Some(wanted);
    // The commands below may take long.
    pool.publish();
    for (name, why) in failed {
        batch::cancel(system, pool, &name, why).await?;
    }
    let count = pools::to_start(scaling, demand, &pool.present(*running));
    batch::start(system, pool, count).await
}

async fn answer(
    system: Option<BatchSystem<'_>>,
    pool: &mut ManagedPool,
    request: Request,
) -> Result<(), StoreError> {
    // The callers may be gone.
    match request {
        Request::Resume(answer) => {
            pool.resume().await?;
            pool.publish();
            drop(answer.send(pool.shown()));
        }
        Request::Test(answer) => {
            let test = match system {
                Some(system) => system.test(pool),
                None => PoolTest {
                    pool: pool.settings.name.clone(),
                    commands: Vec::new(),
                },
            };
            drop(answer.send(test));
        }
        Request::Join(join, answer) => {
            let joined = match system {
                Some(_) => Err(NotDone::NotExternal(pool.settings.name.clone())),
                None => external::join(pool, join).await?,
            };
            drop(answer.send(joined));
        }
    }
    Ok(())
}
