//! A GPU that sessions share: their interposers, and the arbiter that says whose turn it is.
//!
//! In: what the worker knows of the cells, and what the interposers say over a socket in a private folder. Out: leases,
//! moves of memory, and how much each session used. Every process of a session that initialises CUDA connects by
//! itself, with the session's token.
//!
//! **Invariant:** the worker itself never uses CUDA, and believes no number of a session in what concerns another.

mod arbitration;
mod connection;
mod driver;
mod hardware;
mod mode;
mod monitor;
mod places;
mod program;
mod shared;
pub mod sleep;
mod sys;
mod timeshare;
pub mod trial;

use std::{io, path::Path, sync::Arc, time::Duration};

pub use baton_scheduling::arbiter::EndReason;
use baton_scheduling::arbiter::{Settings, UserId};
use nix::unistd::Pid;
use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

use self::arbitration::{Arbitration, Order};
pub use self::hardware::{Hardware, Slice};
pub use self::mode::GpuMode;
pub(crate) use self::mode::{Part, Sharing, session_memory};
pub(crate) use self::monitor::{CUDA_VISIBLE_DEVICES, lost};
pub use self::monitor::{MONITORING, Monitored, Reading, gpus, monitor, slices, smallest_slice};
pub(crate) use self::places::{Place, Places};
pub(crate) use self::program::ProgramError;
pub(crate) use self::{shared::Membership, timeshare::Timeshare};

/// Which session a process belongs to; a secret between the two.
pub type Token = u128;

/// How much of what sessions say may wait to be heard; then they wait.
const HEARD: usize = 1024;

/// How often the worker looks how much memory the host has.
const HOST_EVERY: Duration = Duration::from_secs(1);

/// How long a cell waits for processes of its session to hear how much they may allocate.
const HEARING: Duration = Duration::from_secs(2);

/// Dropping it ends all connections; sessions wait a while for another.
#[derive(Debug)]
pub struct Gpu {
    orders: mpsc::UnboundedSender<Order>,
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

/// The only process of a session that uses the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lone {
    /// Of its connection.
    number: u64,
    pid: Pid,
}

/// What the host has for more memory of sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostRoom {
    /// For all together.
    bytes: u64,
    /// For each process by its session's limits.
    of_processes: Vec<(Pid, u64)>,
}

/// What a session may have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// Of a GPU's memory; `None`: all.
    pub(crate) gpu_bytes: Option<u64>,
    /// Of the machine's.
    pub(crate) memory_bytes: Option<u64>,
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
    /// How long its memory was on the move.
    pub moving: Duration,
    /// Places on the host that were made and pinned while it moved, because there were none.
    pub pinned_in_moves_bytes: u64,
    /// The same ahead of moves.
    pub pinned_ahead_bytes: u64,
    /// The most that it had allocated.
    pub peak_bytes: u64,
    /// The driver's code of the error after which the session can compute no more.
    pub fault: Option<u32>,
    /// It was ended.
    pub ended: Option<EndReason>,
}

impl Gpu {
    /// Listens at `socket`, which is made anew. `settings` makes the arbiter's of the bytes that the first session finds
    /// on the GPU. What sessions say of its memory is held against what the driver's monitoring says, where there is one.
    ///
    /// # Errors
    /// Where the socket cannot be made.
    pub fn start(
        socket: &Path,
        settings: impl FnOnce(u64) -> Settings + Send + Sync + 'static,
        monitored: Option<Monitored>,
    ) -> io::Result<Self> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        let (orders, given) = mpsc::unbounded_channel();
        let (inputs, heard) = mpsc::channel(HEARD);
        let arbitration = Arbitration::new(Box::new(settings), monitored);
        let connections = connection::accept_all(listener, inputs);
        let task = tokio::spawn(async move {
            tokio::join!(arbitration.run(given, heard), connections);
        });
        Ok(Self { orders, task })
    }

    /// Lets a session's processes connect. It is true while the session has no cell and others lack what its contexts
    /// take: then it should leave the GPU.
    pub fn admit(&self, admission: Admission) -> watch::Receiver<bool> {
        let (released, is_released) = watch::channel(false);
        self.order(Order::Admit(admission, released));
        is_released
    }

    /// How much the session may allocate from now on; `None`: what it was admitted with. Returns when all its processes
    /// go by that.
    pub async fn limit(&self, token: Token, bytes: Option<u64>) {
        let (unheard, mut heard) = mpsc::channel(1);
        self.order(Order::Limit(token, bytes, unheard));
        if timeout(HEARING, heard.recv()).await.is_err() {
            tracing::warn!("Failed to send a session its GPU memory limit");
        }
    }

    pub fn cell(&self, token: Token, cell: Cell) {
        self.order(Order::Cell(token, cell));
    }

    /// The session is over; what is left of its processes is cut off.
    pub fn dismiss(&self, token: Token) {
        self.order(Order::Dismiss(token));
    }

    pub async fn usage(&self, token: Token) -> Usage {
        let (answer, answered) = oneshot::channel();
        self.order(Order::TellUsage(token, answer));
        answered.await.unwrap_or_default()
    }

    /// From now on sessions may have as much more of the host's memory as `look` says, which is asked once a second.
    fn follow_host(&self, look: impl Fn(&[Pid]) -> HostRoom + Send + Sync + 'static) {
        let (orders, look) = (self.orders.clone(), Arc::new(look));
        tokio::spawn(async move {
            loop {
                let (answer, answered) = oneshot::channel();
                let _ = orders.send(Order::TellProcesses(answer));
                let Ok(processes) = answered.await else {
                    return;
                };
                let look = look.clone();
                if let Ok(room) = spawn_blocking(move || look(&processes)).await {
                    let _ = orders.send(Order::HostHas(room));
                }
                sleep(HOST_EVERY).await;
            }
        });
    }

    /// The session's process, where there is one and it could leave the GPU.
    async fn process(&self, token: Token) -> Option<Lone> {
        let (answer, answered) = oneshot::channel();
        self.order(Order::TellProcess(token, answer));
        answered.await.ok()?
    }

    /// The process' contexts are off the GPU until its session's next cell.
    fn vacated(&self, process: Lone) {
        self.order(Order::Vacated(process));
    }

    /// Nothing yet, for what is in no ledger.
    fn room(&self, token: Token) -> Room {
        let orders = self.orders.clone();
        Room { orders, token }
    }

    fn order(&self, order: Order) {
        // The loop ends only with this value.
        let _ = self.orders.send(order);
    }
}

/// Room on the GPU that others made for a session, until it is dropped.
struct Room {
    orders: mpsc::UnboundedSender<Order>,
    token: Token,
}

impl Room {
    /// More than before, which was not enough. `false` where nobody can make room.
    async fn more(&mut self) -> bool {
        let (answer, answered) = oneshot::channel();
        let _ = self.orders.send(Order::MakeRoom(self.token, answer));
        answered.await.unwrap_or(false)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::LeaveRoom(self.token));
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.task.abort();
    }
}
