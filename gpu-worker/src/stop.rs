//! How a worker is asked to stop.

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    #[default]
    No,
    /// Accepts no more jobs, and leaves when its cells have ended and their results are sent.
    WhenCellsEnd,
    /// Ends the running cells, and then leaves.
    Now,
}

impl Stop {
    /// Asks a worker to stop like this, unless it was already asked for as much.
    pub fn ask(self, worker: &watch::Sender<Self>) {
        worker.send_if_modified(|asked| {
            let more = self > *asked;
            *asked = self.max(*asked);
            more
        });
    }
}
