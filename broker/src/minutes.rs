//! Samples the queue every few seconds, so that pages can show the last day without an external program.

use crate::{clock::unix_ms, engine::Event};
use baton_broker_store::{Look, Store};
use std::time::Duration;
use tokio::{
    sync::{mpsc, oneshot},
    time::{MissedTickBehavior, interval},
};

pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Runs until the engine ends.
pub(crate) async fn run(inbox: mpsc::Sender<Event>, store: Store) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (question, answer) = oneshot::channel();
        if inbox.send(Event::Overview(question)).await.is_err() {
            return std::future::pending().await;
        }
        // While the engine loads its state again, it does not answer.
        let Ok(present) = answer.await else { continue };
        let look = Look {
            at_ms: unix_ms(),
            running: present.running as u64,
            waiting: present.waiting as u64,
            slots: present.open_slots(),
        };
        if let Err(error) = store.past().add(look).await {
            tracing::error!("Failed to store the history of the page: {error}");
        }
    }
}
