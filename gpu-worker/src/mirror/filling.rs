//! Fills a placeholder with the bytes that the proxy sends.
//!
//! **Invariant:** a file that does not get all its bytes remains a placeholder.

use super::{MirrorError, lock, questions::answer};
use crate::{questions::Answered, transfer::Access};
use baton_mirror::{Mirror, Placeholders, write_file};
use baton_protocol::files::{Content, FilesAnswer, NoContent};
use nix::libc;
use std::{
    fs::File,
    sync::{Arc, Mutex},
};
use tokio::task::spawn_blocking;

/// A placeholder's file, open for writing.
pub(super) struct Target {
    pub(super) file: File,
    pub(super) access: Access,
    pub(super) mirror: Arc<Mutex<Mirror>>,
    pub(super) placeholders: Placeholders,
}

impl Target {
    /// Fills the file with the content in the proxy's answer. An error is the number with which the waiting call fails.
    pub(super) async fn fill_from(self, answered: Answered) -> Result<(), i32> {
        let content = match answer(answered, &self.access.chunk_client).await {
            Ok(FilesAnswer::Contents(mut contents)) if contents.len() == 1 => contents.remove(0),
            Ok(_) => Err(NoContent::Gone {}),
            Err(error) => Err(NoContent::Failed {
                reason: error.to_string(),
            }),
        };
        let content = content.map_err(|why| match why {
            NoContent::Gone {} => libc::ENOENT,
            NoContent::Denied {} => libc::EACCES,
            NoContent::Failed { reason } => {
                tracing::warn!(reason, "A file of a notebook could not be fetched");
                libc::EIO
            }
        })?;
        self.fill(content).await.map_err(|error| {
            tracing::warn!(%error, "A file of a mirror could not be filled");
            libc::EIO
        })
    }

    pub(super) async fn fill(self, content: Content) -> Result<(), MirrorError> {
        let (access, mirror, placeholders) = (self.access, self.mirror, self.placeholders);
        let filling = spawn_blocking(move || placeholders.fill(self.file)).await??;
        // A cell may have emptied the file since its bytes were asked for.
        let Some(filling) = filling else {
            return Ok(());
        };
        let (chunk_client, cache) = (&access.chunk_client, &access.cache);
        let filling = write_file(chunk_client, Some(cache), content.clone(), filling).await?;
        Ok(spawn_blocking(move || lock(&mirror).filled(filling, &content)).await??)
    }
}
