//! Runs the pools while this broker is the leader.

use super::{
    coordinator::{Coordinator, Link},
    lessons::Lessons,
    pool_loop::{self, Common, Seat},
    removed,
};
use crate::engine::{Event, Leadership};
use futures_util::future::join_all;
use tokio::sync::{mpsc, watch};

pub(crate) struct Runner {
    pub(crate) seats: Vec<Seat>,
    pub(crate) common: Common,
    pub(crate) inbox: mpsc::Sender<Event>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) lessons: Lessons,
}

/// Runs until it is dropped. When the leadership changes, all pools stop at once, even those that
/// wait for a command.
pub(crate) async fn run(mut runner: Runner) {
    let mut leadership = runner.leadership.clone();
    let is_leader = |leadership: &Leadership| *leadership == Leadership::Leader;
    // The sender lives as long as the broker, so the loop ends only when the broker is ending.
    while leadership.wait_for(is_leader).await.is_ok() {
        tokio::select! {
            _ = leadership.changed() => {}
            () = runner.run_as_leader() => {}
        }
    }
    std::future::pending().await
}

impl Runner {
    async fn run_as_leader(&mut self) {
        let names = self.seats.iter().map(|seat| seat.settings.name.clone());
        let of_others = removed::run(names.collect(), &self.common);
        let (mut links, mut loops) = (Vec::new(), Vec::new());
        for seat in &mut self.seats {
            let (reports, reported) = watch::channel(None);
            let (instructions, instructed) = watch::channel(None);
            links.push(Link {
                scaling: seat.settings.scaling,
                reports: reported,
                instructions,
            });
            loops.push(pool_loop::run(seat, &self.common, reports, instructed));
        }
        let coordinator = Coordinator::new(
            links,
            self.common.store.clone(),
            self.inbox.clone(),
            self.lessons.clone(),
        );
        tokio::join!(coordinator.run(), join_all(loops), of_others);
    }
}
