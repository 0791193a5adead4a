//! Fills a placeholder with the bytes that the proxy sends.
//!
//! **Invariant:** a file that does not get all its bytes remains a placeholder.

use super::{MirrorError, lock, questions::answer};
use crate::{questions::Answered, transfer::Access};
use baton_humanize::with_causes;
use baton_mirror::{FilesError, Mirror, Placeholders, write_file};
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
    /// Fills the file with the content in the proxy's answer.
    pub(super) async fn fill_from(self, answered: Answered) -> Result<(), NotFilled> {
        let content = match answer(answered, &self.access.chunk_client).await? {
            FilesAnswer::Contents(mut contents) if contents.len() == 1 => contents.remove(0),
            _ => Err(NoContent::Gone {}),
        };
        Ok(self.fill(content?).await?)
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

/// Why a call that opens a file fails.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotFilled {
    pub(super) errno: i32,
    /// For the student; `None` if the call would fail in the same way in an ordinary cell.
    pub(super) reason: Option<String>,
}

impl From<NoContent> for NotFilled {
    fn from(why: NoContent) -> Self {
        let (errno, reason) = match why {
            NoContent::Gone {} => (libc::ENOENT, None),
            NoContent::Denied {} => (libc::EACCES, None),
            NoContent::Failed { reason } => (libc::EIO, Some(reason)),
        };
        Self { errno, reason }
    }
}

impl From<MirrorError> for NotFilled {
    fn from(error: MirrorError) -> Self {
        let errno = match &error {
            MirrorError::Files(FilesError::Io { source, .. }) => source.raw_os_error(),
            _ => None,
        };
        let (errno, reason) = match errno {
            Some(errno @ (libc::ENOSPC | libc::EDQUOT)) => {
                (errno, "the GPU machine has no space left for it".to_owned())
            }
            _ => (libc::EIO, with_causes(&error)),
        };
        let reason = Some(reason);
        Self { errno, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_called_a_full_disk() {
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            let error = FilesError::Io {
                path: "a received file".into(),
                source: std::io::Error::from_raw_os_error(errno),
            };
            let reason = Some("the GPU machine has no space left for it".to_owned());
            let expected = NotFilled { errno, reason };
            assert_eq!(NotFilled::from(MirrorError::from(error)), expected);
        }
    }
}
