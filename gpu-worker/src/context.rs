//! What all jobs of a worker share.

use std::sync::Arc;

use baton_blobs::{BlobError, ChunkDirectory};
use baton_files::FilesError;
use baton_jupyter_link::folder::FolderError;
use baton_link::{ChunkLane, LinkError};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::mirror::SessionMirror;
use crate::session::{Session, StartError, StartOrder, start};

pub(crate) struct Context {
    pub(crate) config: Config,
    /// How people call this worker.
    pub(crate) name: String,
    pub(crate) lane: ChunkLane,
    pub(crate) cache: Arc<ChunkDirectory>,
    /// One permit for each job that may run at once.
    pub(crate) slots: Semaphore,
    /// Cancelled when running cells have had their time and the worker leaves.
    pub(crate) stopping: CancellationToken,
    /// Counts the connections to the broker.
    pub(crate) connections: watch::Sender<u64>,
}

/// State could not be moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("{reason}")]
    AtHome { reason: String },
    #[error("The notebook answered something else than what it was asked")]
    Answer,
    #[error("The notebook's memory can no longer be reached")]
    Unreachable,
    #[error("Work on the state was given up")]
    Join(#[from] JoinError),
}

impl Context {
    /// A fresh session with the worker's own Python or else the notebook's.
    pub(crate) async fn start_session(
        &self,
        cell: &baton_protocol::Cell,
        mirror: Option<SessionMirror>,
    ) -> Result<Session, StartError> {
        let python = self
            .config
            .python
            .clone()
            .unwrap_or_else(|| cell.python.clone().into());
        start(StartOrder {
            python,
            folder: cell.folder.clone().into(),
            mirror,
            runtime_folder: self.config.runtime_folder.clone(),
        })
        .await
    }
}

/// Runs what blocks where blocking is allowed.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, MoveError> {
    Ok(spawn_blocking(work).await??)
}
