//! A cell's changes to files: applied to the notebook's folder with the variables, or undone with them.

use super::{
    cell::RemoteCell,
    display::Display,
    failure::Failure,
    link::Link,
    notebook_files::{FileChanges, NotebookFiles, is_much},
    stop::Stop,
    waits::connect,
};
use baton_humanize::with_causes;
use baton_mirror::{Committed, FilesError, open_changes};
use baton_protocol::files::{Change, Payload, RelativePath};
use std::{collections::BTreeSet, time::Duration};

const NOT_UNDONE: &str =
    "Changes to files are not undone: the cell worked in the notebook's folder itself";

/// Changes that could not be applied, and why: the disk is full, the folder is gone, or writing is not permitted.
pub(super) struct NotApplied {
    paths: BTreeSet<RelativePath>,
    pub(super) error: FilesError,
}

/// If none of the changes could be applied, the variables are applied all the same, with a warning, and the changes
/// wait. A program fails instead: its session ends with it.
pub(super) async fn or_wait(
    applied: Result<Option<Committed>, NotApplied>,
    display: &mut Display,
    cell: &mut RemoteCell<'_>,
) -> Result<FileChanges, Stop> {
    match applied {
        Ok(Some(committed)) => Ok(FileChanges::Committed(committed)),
        Ok(None) => Ok(FileChanges::None),
        Err(NotApplied { error, .. }) if cell.kind.is_program() => {
            Err(Failure::files_lost(&error, cell.job).into())
        }
        Err(NotApplied { paths, error }) => {
            display.warn(cell, &not_applied(&error)).await?;
            Ok(FileChanges::Waiting(paths))
        }
    }
}

/// Applies changes to the notebook's folder, and warns about each file that is not as the cell left it.
pub(super) async fn apply(
    files: &mut NotebookFiles,
    display: &mut Display,
    cell: &mut RemoteCell<'_>,
    link: &mut Link,
    changes: Option<Payload>,
    patience: Duration,
) -> Result<Result<Option<Committed>, NotApplied>, Stop> {
    for note in files.take_notes() {
        display.warn(cell, &note).await?;
    }
    let Some(changes) = changes else {
        return Ok(Ok(None));
    };
    let broker = connect(cell, link, display, patience).await?;
    let job = cell.job;
    let lost = |error: FilesError| Failure::result_lost(&error, job);
    let changes = tokio::select! {
        changes = open_changes(&broker.chunks, &changes) => changes.map_err(lost)?,
        stop = cell.stopped() => return Err(stop),
    };
    let paths = changes.iter().flat_map(Change::paths).cloned().collect();
    let staged = tokio::select! {
        staged = files.stage(changes, &broker.chunks) => staged,
        stop = cell.stopped() => return Err(stop),
    };
    let staged = match staged {
        Err(error @ (FilesError::Io { .. } | FilesError::FolderGone { .. })) => {
            return Ok(Err(NotApplied { paths, error }));
        }
        staged => staged.map_err(lost)?,
    };
    let files_before = files.count();
    let committed = files.commit(staged, paths).await.map_err(lost)?;
    if is_much(committed.deleted, files_before) {
        display.warn(cell, &much_deleted(committed.deleted)).await?;
    }
    for note in &committed.notes {
        display.warn(cell, note).await?;
    }
    Ok(Ok(Some(committed)))
}

/// Restores the files from before the cell, because the notebook keeps the variables from before it.
pub(super) async fn undo(committed: Option<Committed>) {
    if let Some(committed) = committed
        && let Err(error) = tokio::task::spawn_blocking(move || committed.undo()).await
    {
        tracing::error!(%error, "Failed to restore the files from before a cell");
    }
}

/// Warns that files were not restored. If the session had a mirror, they are as before the cell,
/// like the variables.
pub(super) async fn warn_if_not_undone(
    files: &NotebookFiles,
    display: &mut Display,
    cell: &mut RemoteCell<'_>,
) {
    if cell.started && !files.is_mirrored() {
        // If the shim is gone, no one can see the warning.
        let _ = display.warn(cell, NOT_UNDONE).await;
    }
}

fn much_deleted(files: usize) -> String {
    format!(
        "The cell deleted {files} files in the notebook's folder; run `baton files restore` in a \
         terminal to restore them"
    )
}

fn not_applied(error: &FilesError) -> String {
    format!(
        "The cell's file changes could not be applied here ({}); they exist only on the GPU machine, while this \
         session lives. The next %%gpu cell tries again",
        with_causes(error)
    )
}
