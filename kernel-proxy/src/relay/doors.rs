//! The five sockets of the connection file, where clients knock.
//!
//! **Invariant:** a socket is open before the kernel starts or the kernel does not start.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use baton_jupyter_wire::connection::{Channel, ConnectionError, ConnectionFile, Endpoint};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Relay;
use super::splice::{KernelSide, splice};

/// The client chose free ports and let go of them, or the kernel before this one has just ended.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_POLL: Duration = Duration::from_millis(20);
/// When the system has no more descriptors, it will not have one at once either.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the last bytes may take on their way to clients.
const DRAIN: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DoorError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("Failed to listen on {endpoint} for the channel {}", channel.name())]
    Listen {
        channel: Channel,
        endpoint: Endpoint,
        #[source]
        source: std::io::Error,
    },
}

pub(crate) struct Doors {
    doors: Vec<(Channel, Door)>,
    /// Files of Unix sockets, removed with this.
    files: SocketFiles,
}

enum Door {
    Tcp(TcpListener),
    Ipc(UnixListener),
}

#[derive(Default)]
struct SocketFiles(Vec<PathBuf>);

impl Drop for SocketFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Doors {
    pub(crate) async fn open(connection: &ConnectionFile) -> Result<Self, DoorError> {
        let mut doors = Vec::new();
        let mut files = SocketFiles::default();
        let patience_ends = Instant::now() + BUSY_PATIENCE;
        for channel in Channel::ALL {
            let endpoint = connection.endpoint(channel)?;
            match listen_patiently(&endpoint, patience_ends).await {
                Ok(door) => doors.push((channel, door)),
                Err(source) => {
                    return Err(DoorError::Listen {
                        channel,
                        endpoint,
                        source,
                    });
                }
            }
            if let Endpoint::Ipc(path) = endpoint {
                files.0.push(path);
            }
        }
        Ok(Self { doors, files })
    }

    /// Lets clients in until `shutdown`.
    pub(crate) fn serve(
        self,
        relay: &Relay,
        kernel: &KernelSide,
        shutdown: &CancellationToken,
    ) -> Connections {
        let tasks = TaskTracker::new();
        for (channel, door) in self.doors {
            let lobby = Lobby {
                channel,
                relay: relay.clone(),
                kernel: kernel.clone(),
                shutdown: shutdown.clone(),
                tasks: tasks.clone(),
            };
            tasks.spawn(async move {
                match door {
                    Door::Tcp(listener) => lobby.let_in_tcp(listener).await,
                    Door::Ipc(listener) => lobby.let_in_ipc(listener).await,
                }
            });
        }
        tasks.close();
        Connections {
            tasks,
            _files: self.files,
        }
    }
}

/// All that clients have open.
pub(crate) struct Connections {
    tasks: TaskTracker,
    _files: SocketFiles,
}

impl Connections {
    /// Waits until clients have what the kernel said last, but not for one that does not read.
    pub(crate) async fn drain(self) {
        if tokio::time::timeout(DRAIN, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::info!("Some clients did not read all of their output");
        }
    }
}

async fn listen_patiently(
    endpoint: &Endpoint,
    patience_ends: Instant,
) -> Result<Door, std::io::Error> {
    loop {
        match listen(endpoint).await {
            Err(error)
                if error.kind() == ErrorKind::AddrInUse && Instant::now() < patience_ends =>
            {
                tokio::time::sleep(BUSY_POLL).await;
            }
            result => return result,
        }
    }
}

async fn listen(endpoint: &Endpoint) -> Result<Door, std::io::Error> {
    match endpoint {
        Endpoint::Tcp { host, port } => {
            let host = if host == "*" { "0.0.0.0" } else { host };
            Ok(Door::Tcp(TcpListener::bind((host, *port)).await?))
        }
        Endpoint::Ipc(path) => {
            let bound = UnixListener::bind(path);
            if bound
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
                && UnixStream::connect(path).await.is_err()
            {
                // Nobody listens there any more.
                std::fs::remove_file(path)?;
                return Ok(Door::Ipc(UnixListener::bind(path)?));
            }
            Ok(Door::Ipc(bound?))
        }
    }
}

/// Behind one door.
struct Lobby {
    channel: Channel,
    relay: Relay,
    kernel: KernelSide,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

impl Lobby {
    async fn let_in_tcp(&self, listener: TcpListener) {
        while let Some(accepted) = self.shutdown.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((client, _)) => {
                    if let Err(error) = client.set_nodelay(true) {
                        tracing::debug!(%error, "A client disconnected immediately");
                    }
                    self.let_in(client);
                }
                Err(error) => self.pause(&error).await,
            }
        }
    }

    async fn let_in_ipc(&self, listener: UnixListener) {
        while let Some(accepted) = self.shutdown.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((client, _)) => self.let_in(client),
                Err(error) => self.pause(&error).await,
            }
        }
    }

    fn let_in(&self, client: impl AsyncRead + AsyncWrite + Send + 'static) {
        let (relay, kernel, shutdown) = (
            self.relay.clone(),
            self.kernel.clone(),
            self.shutdown.clone(),
        );
        let channel = self.channel;
        self.tasks
            .spawn(async move { splice(channel, client, &kernel, &relay, &shutdown).await });
    }

    async fn pause(&self, error: &std::io::Error) {
        tracing::warn!(%error, channel = self.channel.name(), "Failed to accept a client");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}
