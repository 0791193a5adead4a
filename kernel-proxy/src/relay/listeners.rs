//! The five sockets of the connection file, which accept clients.
//!
//! **Invariant:** all sockets are open before the kernel starts; otherwise it does not start.

use super::{
    Relay,
    splice::{KernelSide, splice},
};
use baton_jupyter_wire::connection::{Channel, ConnectionError, ConnectionFile, Endpoint};
use std::{io::ErrorKind, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener, UnixStream},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long to wait for a port in use: the client may have just released it, or the previous kernel
/// may be ending.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_POLL: Duration = Duration::from_millis(20);
/// Without a pause, a system that has run out of descriptors would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the last bytes may take to reach the clients.
const DRAIN: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ListenError {
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

pub(crate) struct Listeners {
    listeners: Vec<(Channel, Listener)>,
    /// Files of Unix sockets, removed on drop.
    files: SocketFiles,
}

enum Listener {
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

impl Listeners {
    pub(crate) async fn open(connection: &ConnectionFile) -> Result<Self, ListenError> {
        let mut listeners = Vec::new();
        let mut files = SocketFiles::default();
        let patience_ends = Instant::now() + BUSY_PATIENCE;
        for channel in Channel::ALL {
            let endpoint = connection.endpoint(channel)?;
            match listen_patiently(&endpoint, patience_ends).await {
                Ok(listener) => listeners.push((channel, listener)),
                Err(source) => {
                    return Err(ListenError::Listen {
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
        Ok(Self { listeners, files })
    }

    /// Accepts clients until `shutdown`.
    pub(crate) fn serve(
        self,
        relay: &Relay,
        kernel: &KernelSide,
        shutdown: &CancellationToken,
    ) -> Connections {
        let tasks = TaskTracker::new();
        for (channel, listener) in self.listeners {
            let acceptor = Acceptor {
                channel,
                relay: relay.clone(),
                kernel: kernel.clone(),
                shutdown: shutdown.clone(),
                tasks: tasks.clone(),
            };
            tasks.spawn(async move {
                match listener {
                    Listener::Tcp(listener) => acceptor.accept_tcp(listener).await,
                    Listener::Ipc(listener) => acceptor.accept_ipc(listener).await,
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

/// All client connections.
pub(crate) struct Connections {
    tasks: TaskTracker,
    _files: SocketFiles,
}

impl Connections {
    /// Waits until clients have received the kernel's last messages, but not for clients that do not read.
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
) -> Result<Listener, std::io::Error> {
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

async fn listen(endpoint: &Endpoint) -> Result<Listener, std::io::Error> {
    match endpoint {
        Endpoint::Tcp { host, port } => {
            let host = if host == "*" { "0.0.0.0" } else { host };
            Ok(Listener::Tcp(TcpListener::bind((host, *port)).await?))
        }
        Endpoint::Ipc(path) => {
            let bound = UnixListener::bind(path);
            if bound
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
                && UnixStream::connect(path).await.is_err()
            {
                // The socket file is stale.
                std::fs::remove_file(path)?;
                return Ok(Listener::Ipc(UnixListener::bind(path)?));
            }
            Ok(Listener::Ipc(bound?))
        }
    }
}

/// Serves the clients of one channel.
struct Acceptor {
    channel: Channel,
    relay: Relay,
    kernel: KernelSide,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

impl Acceptor {
    async fn accept_tcp(&self, listener: TcpListener) {
        while let Some(accepted) = self.shutdown.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((client, _)) => {
                    if let Err(error) = client.set_nodelay(true) {
                        tracing::debug!(%error, "A client disconnected immediately");
                    }
                    self.serve_client(client);
                }
                Err(error) => self.pause(&error).await,
            }
        }
    }

    async fn accept_ipc(&self, listener: UnixListener) {
        while let Some(accepted) = self.shutdown.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((client, _)) => self.serve_client(client),
                Err(error) => self.pause(&error).await,
            }
        }
    }

    fn serve_client(&self, client: impl AsyncRead + AsyncWrite + Send + 'static) {
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
