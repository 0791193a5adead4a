//! What who runs a worker wishes.

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
    /// Says so to a worker that was not asked for more than this before.
    pub fn ask(self, worker: &watch::Sender<Self>) {
        worker.send_if_modified(|asked| {
            let more = self > *asked;
            *asked = self.max(*asked);
            more
        });
    }
}
