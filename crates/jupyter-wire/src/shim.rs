//! The private socket between a kernel's Python shim and the process that started the kernel.
//!
//! In: frames of the kernel that was started, and of nobody else. Out: frames, with at most one file descriptor each.
//! The types are in `baton_protocol::shim`, the frames in [`baton_transport::frames`].

use std::path::{Path, PathBuf};

use baton_transport::frames::{FrameError, split};
pub use baton_transport::frames::{FrameReader as ShimReader, FrameWriter as ShimWriter};
use tokio::net::UnixListener;

/// The name of the variable that tells the kernel where to connect.
pub const SHIM_SOCKET: &str = "BATON_SHIM_SOCKET";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShimError {
    #[error("Failed to listen on {path}")]
    Bind {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("The connection to the Python kernel broke")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

pub struct ShimListener {
    listener: UnixListener,
    path: PathBuf,
}

impl ShimListener {
    /// Listens in `folder`, which only this user can enter.
    pub fn bind(folder: &Path) -> Result<Self, ShimError> {
        let path = folder.join("shim");
        match UnixListener::bind(&path) {
            Ok(listener) => Ok(Self { listener, path }),
            Err(source) => Err(ShimError::Bind { path, source }),
        }
    }

    /// What the kernel gets as [`SHIM_SOCKET`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection that comes from `kernel_pid` itself; others are closed.
    pub async fn accept(&self, kernel_pid: u32) -> Result<(ShimReader, ShimWriter), ShimError> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let peer = stream.peer_cred()?.pid();
            if peer.is_some_and(|pid| u32::try_from(pid) == Ok(kernel_pid)) {
                return Ok(split(stream));
            }
            tracing::warn!(
                ?peer,
                "A process other than the kernel tried to open the kernel's private socket"
            );
        }
    }
}
