//! A GPU that sessions share: their interposers, and the arbiter that says whose turn it is.
//!
//! In: what the worker knows of the cells, and what the interposers say over a socket in a private folder. Out: leases,
//! moves of memory, and how much each session used. Every process of a session that initialises CUDA connects by
//! itself, with the session's token.
//!
//! **Invariant:** the worker itself never uses CUDA, and believes no number of a session in what concerns another.

mod arbitration;
mod connection;
mod monitor;
mod shared;

use std::{io, path::Path, time::Duration};

use baton_arbiter::{Settings, UserId};
use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use self::arbitration::{Arbitration, Input};
pub(crate) use self::monitor::{CUDA_VISIBLE_DEVICES, lost};
pub use self::monitor::{MONITORING, Reading, monitor};
pub(crate) use self::shared::{Membership, SharedGpu};

/// Which session a process belongs to; a secret between the two.
pub type Token = u128;

/// Dropping it ends all connections; sessions wait a while for another.
#[derive(Debug)]
pub struct Gpu {
    inputs: mpsc::UnboundedSender<Input>,
    task: JoinHandle<()>,
}

/// A session that may connect.
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    pub token: Token,
    pub user: UserId,
    /// How much it may allocate; `None`: as much as the GPU has.
    pub cap_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// On its way to the session.
    Expected,
    Started,
    Ended,
}

/// What a session did on the GPU since it was last asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// How long it had the GPU.
    pub held: Duration,
    /// How long it stood at the gate.
    pub waited: Duration,
    pub swaps: u64,
    pub moved_bytes: u64,
    /// The most that it had allocated.
    pub peak_bytes: u64,
    /// The driver's code of the error after which the session can compute no more.
    pub fault: Option<u32>,
    /// It kept the GPU when its turn was over, and was ended.
    pub overstayed: bool,
}

impl Gpu {
    /// Listens at `socket`, which is made anew. `settings` makes the arbiter's of the bytes that the first session finds
    /// on the GPU.
    ///
    /// # Errors
    /// Where the socket cannot be made.
    pub fn start(
        socket: &Path,
        settings: impl FnOnce(u64) -> Settings + Send + Sync + 'static,
    ) -> io::Result<Self> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        let (inputs, received) = mpsc::unbounded_channel();
        let arbitration = Arbitration::new(Box::new(settings));
        let connections = connection::accept_all(listener, inputs.clone());
        let task = tokio::spawn(async move {
            tokio::join!(arbitration.run(received), connections);
        });
        Ok(Self { inputs, task })
    }

    /// Lets a session's processes connect.
    pub fn admit(&self, admission: Admission) {
        self.say(Input::Admitted(admission));
    }

    pub fn cell(&self, token: Token, cell: Cell) {
        self.say(Input::Cell(token, cell));
    }

    /// The session is over.
    pub fn dismiss(&self, token: Token) {
        self.say(Input::Dismissed(token));
    }

    pub async fn usage(&self, token: Token) -> Usage {
        let (answer, answered) = oneshot::channel();
        self.say(Input::UsageAsked(token, answer));
        answered.await.unwrap_or_default()
    }

    fn say(&self, input: Input) {
        // The loop ends only with this value.
        let _ = self.inputs.send(input);
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.task.abort();
    }
}
