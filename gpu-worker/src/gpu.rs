//! A GPU that sessions share: the worker's side of their interposers, and the arbiter that decides which
//! session computes.
//!
//! In: the worker's events about cells, and the interposers' messages over a socket for each session. Out:
//! leases, moves of memory, and how much each session used. Every process of a session that initialises CUDA
//! connects by itself, with the session's token.
//!
//! **Invariant:** the worker itself never uses CUDA, and no number that a session reports can harm another
//! session.

mod arbitration;
mod bypasses;
mod connection;
mod exclusive;
mod hardware;
mod mode;
mod monitor;
mod program;
mod shared;
pub mod sleep;
mod sys;
mod timeshare;
pub mod trial;

use self::{
    arbitration::{Arbitration, Request},
    connection::Accepted,
};
use baton_scheduling::arbiter::{Settings, UserId};
use nix::unistd::Pid;
use std::{io, path::Path, sync::Arc, time::Duration};
use tokio::{
    net::UnixListener,
    sync::{Notify, mpsc, oneshot, watch},
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

pub(crate) use self::exclusive::{ExclusiveGpu, ExclusiveGpus};
pub use self::hardware::{Hardware, Slice};
pub use self::mode::GpuMode;
pub(crate) use self::mode::{Part, Sharing, session_memory};
pub(crate) use self::monitor::{CUDA_VISIBLE_DEVICES, lost};
pub use self::monitor::{
    MONITORING, Monitored, ProgramMemory, Reading, each, gpus, monitor, slices, smallest_slice,
};
pub(crate) use self::program::ProgramError;
pub use self::timeshare::{driver_is_here, try_time_sharing};
pub(crate) use self::{shared::Membership, timeshare::Timeshare};
pub use baton_scheduling::arbiter::EndReason;

/// Which session a process belongs to; a secret between the two.
pub type Token = u128;

/// How many messages of sessions may be queued; beyond that, sessions wait.
const HEARD: usize = 1024;

/// How many connections may wait until they are served.
const ACCEPTED: usize = 16;

/// How often the worker checks how much memory the host has.
const HOST_EVERY: Duration = Duration::from_secs(1);

/// How long a cell waits until the processes of its session have adopted a new memory limit.
const HEARING: Duration = Duration::from_secs(2);

/// The worker's handle to a shared GPU. Dropping it ends all connections; sessions try to reconnect for a
/// while.
#[derive(Debug)]
pub struct Gpu {
    requests: mpsc::UnboundedSender<Request>,
    accepted: mpsc::Sender<Accepted>,
    /// Notified when a process has connected.
    arrivals: Arc<Notify>,
    task: JoinHandle<()>,
}

/// A socket at which processes of sessions connect, until this is dropped. Their connections continue.
#[derive(Debug)]
pub struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A session that may connect.
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    pub token: Token,
    pub user: UserId,
    /// How much the session may allocate; `None`: as much as the GPU has.
    pub cap_bytes: Option<u64>,
}

/// The only process of a session that uses the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lone {
    /// The number of its connection.
    number: u64,
    pid: Pid,
}

/// How much more host memory sessions may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoom {
    /// For all sessions together.
    pub bytes: u64,
    /// For each process, by its session's limits.
    pub of_processes: Vec<(Pid, u64)>,
}

/// How much memory a session may have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// GPU memory; `None`: all of it.
    pub(crate) gpu_bytes: Option<u64>,
    /// The machine's memory; `None`: unlimited.
    pub(crate) memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// On its way to the session.
    Expected,
    Started,
    /// Asked to stop.
    Stopped,
    Ended,
}

/// What a session did on the GPU since its usage was last read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// How long it had the GPU.
    pub held: Duration,
    /// How long it waited at the gate.
    pub waited: Duration,
    pub swaps: u64,
    pub moved_bytes: u64,
    /// How long its memory was moving.
    pub moving: Duration,
    /// Places on the host that were made during its moves, because none were ready.
    pub pinned_in_moves_bytes: u64,
    /// Places on the host that were made ahead of moves.
    pub pinned_ahead_bytes: u64,
    /// The most that it had allocated at any time.
    pub peak_bytes: u64,
    /// The driver's error code after which the session can no longer compute.
    pub fault: Option<u32>,
    /// Why the arbiter ended it, if it did.
    pub ended: Option<EndReason>,
    /// Whether a process of it used the GPU without time-sharing.
    pub bypassed: bool,
}

impl Usage {
    fn moved(&mut self, bytes: u64, nanoseconds: u64) {
        self.moved_bytes = self.moved_bytes.saturating_add(bytes);
        self.moving = self
            .moving
            .saturating_add(Duration::from_nanos(nanoseconds));
    }

    fn pinned_in_moves(&mut self, bytes: u64) {
        self.pinned_in_moves_bytes = self.pinned_in_moves_bytes.saturating_add(bytes);
    }

    fn pinned_ahead(&mut self, bytes: u64) {
        self.pinned_ahead_bytes = self.pinned_ahead_bytes.saturating_add(bytes);
    }
}

impl Gpu {
    /// `settings` computes the arbiter's settings from the GPU memory in bytes that the first session reports. If
    /// the driver's monitoring is available, later reports of free memory are checked against it.
    pub fn start(
        settings: impl FnOnce(u64) -> Settings + Send + Sync + 'static,
        monitored: Option<Monitored>,
    ) -> Self {
        // Bounded by the sessions: each sends a few requests for each cell, and most wait for the answer.
        let (requests, given) = mpsc::unbounded_channel();
        let (inputs, heard) = mpsc::channel(HEARD);
        let (accepted, to_serve) = mpsc::channel(ACCEPTED);
        let bypasses = bypasses::watch(monitored.clone(), requests.clone());
        let arrivals = Arc::<Notify>::default();
        let arbitration = Arbitration::new(Box::new(settings), monitored, arrivals.clone());
        let connections = connection::serve_all(to_serve, inputs);
        let task = tokio::spawn(async move {
            tokio::join!(arbitration.run(given, heard), connections, bypasses);
        });
        Self {
            requests,
            accepted,
            arrivals,
            task,
        }
    }

    /// Listens at `socket`, replacing an old file there.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn listen(&self, socket: &Path) -> io::Result<Listener> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let accepting = connection::accept_all(UnixListener::bind(socket)?, self.accepted.clone());
        Ok(Listener(tokio::spawn(accepting)))
    }

    /// Lets a session's processes connect. The returned value is true while the session should leave the GPU,
    /// because it has no cell and others need the room that its contexts take.
    pub fn admit(&self, admission: Admission) -> watch::Receiver<bool> {
        let (released, is_released) = watch::channel(false);
        self.request(Request::Admit(admission, released));
        is_released
    }

    /// Sets how much the session may allocate from now on; `None`: as much as when it was admitted. Returns
    /// when all its processes have adopted the limit.
    pub async fn limit(&self, token: Token, bytes: Option<u64>) {
        let (unheard, mut heard) = mpsc::channel(1);
        self.request(Request::Limit(token, bytes, unheard));
        if timeout(HEARING, heard.recv()).await.is_err() {
            tracing::warn!("Failed to send a session its GPU memory limit");
        }
    }

    pub fn cell(&self, token: Token, cell: Cell) {
        self.request(Request::Cell(token, cell));
    }

    /// The session has ended; connections of remaining processes are closed.
    pub fn dismiss(&self, token: Token) {
        self.request(Request::Dismiss(token));
    }

    pub async fn usage(&self, token: Token) -> Usage {
        let (answer, answered) = oneshot::channel();
        self.request(Request::TellUsage(token, answer));
        answered.await.unwrap_or_default()
    }

    /// Whether the session waits for its turn on the GPU, or for room there.
    pub async fn waits(&self, token: Token) -> bool {
        let (answer, answered) = oneshot::channel();
        self.request(Request::TellWaiting(token, answer));
        answered.await.unwrap_or_default()
    }

    /// From now on, `look` is called once a second and for each new process. It returns how much more host
    /// memory sessions may use.
    pub fn follow_host(&self, look: impl Fn(&[Pid]) -> HostRoom + Send + Sync + 'static) {
        let (requests, look) = (self.requests.clone(), Arc::new(look));
        let arrivals = self.arrivals.clone();
        tokio::spawn(async move {
            loop {
                let (answer, answered) = oneshot::channel();
                let _ = requests.send(Request::TellProcesses(answer));
                let Ok(processes) = answered.await else {
                    return;
                };
                let look = look.clone();
                if let Ok(room) = spawn_blocking(move || look(&processes)).await {
                    let _ = requests.send(Request::HostHas(room));
                }
                let _ = timeout(HOST_EVERY, arrivals.notified()).await;
            }
        });
    }

    /// The session's process, if it has exactly one and that could leave the GPU.
    async fn process(&self, token: Token) -> Option<Lone> {
        let (answer, answered) = oneshot::channel();
        self.request(Request::TellProcess(token, answer));
        answered.await.ok()?
    }

    /// The process's contexts have left the GPU until its session's next cell.
    fn vacated(&self, process: Lone) {
        self.request(Request::Vacated(process));
    }

    /// An empty room for memory that is in no ledger; see [`Room::more`].
    fn room(&self, token: Token) -> Room {
        let requests = self.requests.clone();
        Room { requests, token }
    }

    fn request(&self, request: Request) {
        // The loop ends only with this value.
        let _ = self.requests.send(request);
    }
}

/// Room on the GPU that others made for a session, until it is dropped.
struct Room {
    requests: mpsc::UnboundedSender<Request>,
    token: Token,
}

impl Room {
    /// Asks for this many bytes more than before, which was not enough. Returns `false` if no session can make room.
    async fn more(&mut self, bytes: u64) -> bool {
        let (answer, answered) = oneshot::channel();
        let request = Request::MakeRoom(self.token, bytes, answer);
        let _ = self.requests.send(request);
        answered.await.unwrap_or(false)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.requests.send(Request::LeaveRoom(self.token));
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.task.abort();
    }
}
