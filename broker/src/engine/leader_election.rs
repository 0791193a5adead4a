//! One of the brokers on a database is the leader. The others are followers and keep trying to
//! become the leader.

use crate::{
    clock::unix_ms,
    engine::{Engine, Event},
};
use baton_broker_queue::Loaded;
use baton_broker_store::StoreError;
use baton_protocol::JobId;
use std::{collections::HashMap, time::Duration};
use tokio::sync::mpsc;

/// How often a follower tries to become the leader.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The role of this broker among those on its database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leadership {
    /// Not known yet, or the database cannot be reached.
    Unknown,
    Follower {
        leader: String,
    },
    Leader,
}

/// Makes this broker the leader and loads the jobs, with the bytes of their outputs. From then on no
/// other broker can change them.
pub(crate) async fn acquire(engine: &Engine) -> Result<(Loaded, HashMap<JobId, u64>), StoreError> {
    engine.store.acquire_leadership().await?;
    // Reset this before the announcement. Otherwise two brokers could forward a connection to each other.
    engine.leadership.send_replace(Leadership::Unknown);
    engine.store.announce(&engine.address).await?;
    engine.store.pools().lose_workers(unix_ms()).await?;
    Ok((
        engine.store.load().await?,
        engine.store.events().output_bytes().await?,
    ))
}

pub(crate) fn follow(engine: &Engine, leader: Option<String>) {
    let leadership = match leader {
        Some(leader) if leader != engine.address => Leadership::Follower { leader },
        _ => Leadership::Unknown,
    };
    engine.leadership.send_if_modified(|known| {
        let changed = *known != leadership;
        if changed && let Leadership::Follower { leader } = &leadership {
            tracing::info!("This broker is a follower; {leader} is the leader");
        }
        *known = leadership;
        changed
    });
}

/// Closes new connections for the length of `pause`, because the state is not known; peers
/// reconnect. Requests from pages get no answer.
pub(crate) async fn reject_connections(inbox: &mut mpsc::Receiver<Event>, pause: Duration) {
    let over = tokio::time::sleep(pause);
    tokio::pin!(over);
    loop {
        tokio::select! {
            biased;
            () = &mut over => return,
            Some(event) = inbox.recv() => {
                if let Event::ProxyConnected(_, outgoing, ..) | Event::WorkerConnected(_, outgoing, _) = event {
                    outgoing.close.cancel();
                }
            }
        }
    }
}
