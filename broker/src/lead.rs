//! One of the brokers on a database leads: it takes the lead, stands by, and turns away whoever comes too early.

use crate::{
    engine::{Engine, Event},
    store::{Loaded, StoreError},
};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often a broker that stands by looks whether it must lead.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What this broker is among those on its database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It does not know yet, or has lost the database.
    Unknown,
    StandsBy {
        leader: String,
    },
    Leads,
}

/// What the jobs are, once nobody else can change them.
pub(crate) async fn take(engine: &Engine) -> Result<Loaded, StoreError> {
    engine.store.lead().await?;
    // Before others hear of it, so that no two brokers send a connection to each other.
    engine.standing.send_replace(Standing::Unknown);
    engine.store.announce(&engine.address).await?;
    engine.store.load().await
}

pub(crate) fn stand_by(engine: &Engine, leader: Option<String>) {
    let standing = match leader {
        Some(leader) if leader != engine.address => Standing::StandsBy { leader },
        _ => Standing::Unknown,
    };
    engine.standing.send_if_modified(|known| {
        let changed = *known != standing;
        if changed && let Standing::StandsBy { leader } = &standing {
            tracing::info!("This broker is a follower; {leader} is the leader");
        }
        *known = standing;
        changed
    });
}

/// Whoever comes while the state is not known comes back later. Who asked hears nothing, which is an answer, too.
pub(crate) async fn turn_away(inbox: &mut mpsc::Receiver<Event>, pause: Duration) {
    let over = tokio::time::sleep(pause);
    tokio::pin!(over);
    loop {
        tokio::select! {
            biased;
            () = &mut over => return,
            Some(event) = inbox.recv() => {
                if let Event::ProxyCame(_, outgoing, ..) | Event::WorkerCame(_, outgoing, _) = event {
                    outgoing.close.cancel();
                }
            }
        }
    }
}
