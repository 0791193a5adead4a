//! A client's connection and its counterpart to the notebook kernel.
//!
//! **Invariant:** bytes leave unchanged, in the order in which they arrived. When one end closes, the other is
//! closed, too, but only after the client has received everything that the kernel sent.

use super::{
    Relay,
    view::{Audience, ViewError, show},
};
use baton_jupyter_wire::{
    connection::{Channel, ConnectionFile, Endpoint},
    wire::{Tracker, WireError},
};
use bytes::BytesMut;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::UnixStream,
};
use tokio_util::sync::CancellationToken;

const BUFFER_BYTES: usize = 256 << 10;
/// The kernel opens its sockets about 200 ms after it starts; polling should add little to that.
const CONNECT_POLL: Duration = Duration::from_millis(2);
/// How long a client may take to close its end once the kernel has closed the other. Closing first
/// could discard data that the client has not read.
const LINGER: Duration = Duration::from_millis(300);

/// Where the notebook kernel listens.
#[derive(Clone)]
pub(crate) struct KernelSide {
    connection: Arc<ConnectionFile>,
    was_reached: Arc<AtomicBool>,
}

impl KernelSide {
    pub(crate) fn new(connection: ConnectionFile) -> Self {
        Self {
            connection: Arc::new(connection),
            was_reached: Arc::default(),
        }
    }

    /// Whether the kernel ever got as far as opening its sockets.
    pub(crate) fn was_reached(&self) -> bool {
        let has_socket = || {
            self.socket(Channel::Heartbeat)
                .is_some_and(|path| path.exists())
        };
        self.was_reached.load(Ordering::Relaxed) || has_socket()
    }

    fn socket(&self, channel: Channel) -> Option<PathBuf> {
        match self.connection.endpoint(channel) {
            Ok(Endpoint::Ipc(path)) => Some(path),
            _ => None,
        }
    }

    /// Waits until the kernel accepts the connection.
    async fn connect(&self, channel: Channel) -> Option<UnixStream> {
        let path = self.socket(channel)?;
        loop {
            if let Ok(stream) = UnixStream::connect(&path).await {
                self.was_reached.store(true, Ordering::Relaxed);
                return Some(stream);
            }
            tokio::time::sleep(CONNECT_POLL).await;
        }
    }
}

pub(super) async fn splice(
    channel: Channel,
    client: impl AsyncRead + AsyncWrite,
    kernel: &KernelSide,
    relay: &Relay,
    shutdown: &CancellationToken,
) {
    let connected = shutdown.run_until_cancelled(kernel.connect(channel)).await;
    let Some(Some(kernel)) = connected else {
        return;
    };
    let (from_client, mut to_client) = tokio::io::split(client);
    let (from_kernel, to_kernel) = kernel.into_split();
    let audience = Audience::default();
    let upwards = async {
        match channel {
            Channel::Iopub => listen(from_client, to_kernel, relay, &audience).await,
            _ => copy_until_client_leaves(from_client, to_kernel).await,
        }
    };
    let downwards = async {
        match channel {
            Channel::Iopub => show(from_kernel, &mut to_client, relay, &audience).await,
            _ => Ok(copy_until_kernel_ends(from_kernel, &mut to_client).await?),
        }
    };
    tokio::pin!(upwards);
    let shown = tokio::select! {
        left = &mut upwards => {
            report(channel, left);
            return;
        }
        shown = downwards => shown,
    };
    let whole = shown.is_ok();
    report(channel, shown);
    if whole && to_client.shutdown().await.is_ok() {
        let _ = tokio::time::timeout(LINGER, upwards).await;
    }
}

/// Logs errors, except an end that closed, because that is how connections normally end.
fn report(channel: Channel, result: Result<(), ViewError>) {
    match result {
        Ok(()) | Err(ViewError::Io(_)) => {}
        Err(error) => {
            tracing::warn!(%error, channel = channel.name(), "Closed the connection of one client: {error}");
        }
    }
}

/// Copies until the end of the stream or an error, which a killed kernel may leave instead.
async fn copy_until_kernel_ends(
    mut kernel: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut chunk = BytesMut::with_capacity(BUFFER_BYTES);
    while matches!(kernel.read_buf(&mut chunk).await, Ok(1..)) {
        client.write_all(&chunk).await?;
        chunk.clear();
    }
    Ok(())
}

/// Goes on when the kernel accepts no more bytes, because the client may still have to receive its output.
async fn copy_until_client_leaves(
    mut client: impl AsyncRead + Unpin,
    kernel: impl AsyncWrite + Unpin,
) -> Result<(), ViewError> {
    let mut kernel = Some(kernel);
    let mut chunk = BytesMut::with_capacity(BUFFER_BYTES);
    loop {
        chunk.clear();
        if client.read_buf(&mut chunk).await? == 0 {
            return Ok(());
        }
        if let Some(open) = &mut kernel
            && open.write_all(&chunk).await.is_err()
        {
            kernel = None;
        }
    }
}

/// Does the same for iopub, and notes the client's subscriptions.
async fn listen(
    mut client: impl AsyncRead + Unpin,
    kernel: impl AsyncWrite + Unpin,
    relay: &Relay,
    audience: &Audience,
) -> Result<(), ViewError> {
    let mut kernel = Some(kernel);
    let mut tracker = Tracker::default();
    let mut chunk = BytesMut::with_capacity(BUFFER_BYTES);
    loop {
        chunk.clear();
        if client.read_buf(&mut chunk).await? == 0 {
            return Ok(());
        }
        // Note them before the kernel receives them. Otherwise a cell that this client sees could
        // begin in between.
        note_subscriptions(&mut tracker, &chunk, relay, audience)?;
        if let Some(open) = &mut kernel
            && open.write_all(&chunk).await.is_err()
        {
            kernel = None;
        }
    }
}

fn note_subscriptions(
    tracker: &mut Tracker,
    bytes: &[u8],
    relay: &Relay,
    audience: &Audience,
) -> Result<(), WireError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let step = tracker.advance(rest)?;
        rest = &rest[step.used..];
        if let Some(said) = &step.ended {
            audience.note(said, relay);
        }
    }
    if tracker.is_blind() {
        audience.note_blind();
    }
    Ok(())
}
