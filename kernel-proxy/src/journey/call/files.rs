//! The files of one call: what the worker is told before the cell, and what comes home after it.

use baton_mirror::{Committed, FilesError};
use baton_protocol::Output;
use baton_protocol::files::{NotebookFolder, Parcel};
use baton_protocol::proxy::FromProxy;

use super::Journey;
use super::current::{Call, Stop};
use crate::journey::failure::Failure;
use crate::journey::files::is_much;
use crate::journey::link::{Lanes, describe};

const FILES_STAY: &str =
    "Changes to files are not undone: the cell worked in the notebook's folder itself";

impl Journey {
    pub(super) async fn notebook_folder(
        &mut self,
        call: &mut Call<'_>,
        lanes: &Lanes,
    ) -> Result<Option<Box<NotebookFolder>>, Stop> {
        let folder = tokio::select! {
            folder = self.files.for_cell(&lanes.chunks) => folder,
            stop = call.stopped() => return Err(stop),
        };
        folder.map_err(|error| Failure::moving(&error.into(), call.job).into())
    }

    /// The broker may have been another one, or the worker away.
    pub(super) async fn say_files_again(&self, call: &Call<'_>) {
        for (question, answer) in self.files.said() {
            let (job, question, answer) = (call.job, *question, answer.clone());
            self.link
                .send(FromProxy::Files {
                    job,
                    question,
                    answer,
                })
                .await;
        }
    }

    /// Puts what the cell did to files in its place, and says which file is not as the cell left it.
    pub(super) async fn bring_files(
        &mut self,
        call: &mut Call<'_>,
        files: Option<Parcel>,
    ) -> Result<Option<Committed>, Stop> {
        for note in self.files.take_notes() {
            self.show(call, warning(&note)).await?;
        }
        let Some(parcel) = files else {
            return Ok(None);
        };
        let lanes = self.lanes(call, self.patience).await?;
        let staged = tokio::select! {
            staged = self.files.stage(&parcel, &lanes.chunks) => staged,
            stop = call.stopped() => return Err(stop),
        };
        let lost = |error: FilesError| Failure::result_lost(&error.into(), call.job);
        let staged = match staged {
            // No room, no right to write, or no folder: the variables come home all the same.
            Err(error @ (FilesError::Io { .. } | FilesError::FolderGone { .. })) => {
                self.show(call, warning(&not_here(&error))).await?;
                return Ok(None);
            }
            staged => staged.map_err(lost)?,
        };
        let files_before = self.files.files();
        let committed = self.files.commit(staged).await.map_err(lost)?;
        if is_much(committed.deleted, files_before) {
            self.show(call, warning(&much_deleted(committed.deleted)))
                .await?;
        }
        for note in &committed.notes {
            self.show(call, warning(note)).await?;
        }
        Ok(Some(committed))
    }

    /// The variables are as they were before the cell, and so are the files where the session had a mirror of them.
    pub(super) async fn tell_of_files(&mut self, call: &mut Call<'_>) {
        if call.started && !self.files.is_mirrored() {
            // A shim that is gone needs no line.
            let _ = self.show(call, warning(FILES_STAY)).await;
        }
    }
}

/// The notebook keeps the variables from before the cell, so it keeps the files, too.
pub(super) async fn undo_files(committed: Option<Committed>) {
    if let Some(committed) = committed
        && let Err(error) = tokio::task::spawn_blocking(move || committed.undo()).await
    {
        tracing::error!(%error, "Failed to restore the files from before a cell");
    }
}

fn much_deleted(files: usize) -> String {
    format!(
        "The cell deleted {files} files in the notebook's folder; run `baton files restore` in a \
         terminal to restore them"
    )
}

fn not_here(error: &FilesError) -> String {
    format!(
        "The cell's file changes could not be applied here ({}); they exist only on the GPU machine, while this \
         session lives",
        describe(error)
    )
}

/// Below the cell, where its own warnings are.
fn warning(line: &str) -> Output {
    let content = serde_json::json!({ "name": "stderr", "text": format!("warning: {line}\n") });
    Output {
        kind: "stream".to_owned(),
        content: content.to_string().into(),
        metadata: "{}".into(),
        buffers: Vec::new(),
    }
}
