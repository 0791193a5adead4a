//! How a worker is asked to stop.

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    #[default]
    No,
    /// Takes nothing more, and leaves when its cells have ended and what they made is home.
    WhenCellsEnd,
    /// Ends the running cells first.
    Now,
}

impl Stop {
    /// Asks a worker for this, unless it was asked for as much before.
    pub fn ask(self, worker: &watch::Sender<Self>) {
        worker.send_if_modified(|asked| {
            let more = self > *asked;
            *asked = self.max(*asked);
            more
        });
    }
}
