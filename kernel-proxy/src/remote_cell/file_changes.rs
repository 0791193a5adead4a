//! A cell's changes to files: applied to the notebook's folder with the variables, or undone with them.

use super::{
    cell::RemoteCell,
    display::Display,
    failure::Failure,
    link::Link,
    notebook_files::{FileChanges, NotebookFiles, is_much},
    stop::Stop,
    waits::{connect, unless_stopped},
};
use baton_humanize::with_causes;
use baton_mirror::{Committed, FilesError, Staging, open_changes};
use baton_protocol::{
    JobKind,
    files::{Change, Payload, RelativePath},
    wording::{folder, next_one},
};
use baton_transport::{Attempts, ChunkClient};
use std::{collections::BTreeSet, time::Duration};
use tokio::{task::spawn_blocking, time::sleep};

/// Changes that could not be applied, and why: the disk is full, the folder is gone, writing is not permitted, or the
/// broker no longer has the bytes.
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
            display.warn(cell, &not_applied(&error, cell.kind)).await?;
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
    let Fetched { paths, staged } = fetch(files, display, cell, link, &changes, patience).await?;
    let staged = match staged {
        Ok(staged) => staged,
        Err(error) => return Ok(Err(NotApplied { paths, error })),
    };
    let (job, kind) = (cell.named_job(), cell.kind);
    let files_before = files.count();
    let committed = files
        .commit(staged, paths, kind)
        .await
        .map_err(|error| Failure::result_lost(&error, job))?;
    if is_much(committed.deleted, files_before) {
        display
            .warn(cell, &much_deleted(committed.deleted, kind))
            .await?;
    }
    for note in &committed.notes {
        display.warn(cell, note).await?;
    }
    Ok(Ok(Some(committed)))
}

/// A cell's changes, fetched from the broker.
struct Fetched {
    paths: BTreeSet<RelativePath>,
    /// An error if they cannot be fetched completely, or cannot be written here.
    staged: Result<Staging, FilesError>,
}

/// Retries until `patience` ends, like [`receive_state`](super::waits::receive_state). The result is lost only if it
/// remains unknown what the cell changed.
async fn fetch(
    files: &NotebookFiles,
    display: &mut Display,
    cell: &mut RemoteCell<'_>,
    link: &mut Link,
    changes: &Payload,
    patience: Duration,
) -> Result<Fetched, Stop> {
    let mut attempts = Attempts::new(patience);
    loop {
        let broker = connect(cell, link, display, patience).await?;
        let fetching = fetch_once(files, &broker.chunks, changes);
        let fetched = unless_stopped(cell, display, fetching).await?;
        let error = fetched
            .as_ref()
            .map_or_else(Some, |fetched| fetched.staged.as_ref().err());
        let delay = error.and_then(|error| attempts.delay_after(error.severity()));
        let (Some(error), Some(delay)) = (error, delay) else {
            let lost = |error| Failure::result_lost(&error, cell.named_job()).into();
            return fetched.map_err(lost);
        };
        tracing::info!(
            error = with_causes(error),
            "A cell's file changes could not be fetched yet"
        );
        unless_stopped(cell, display, sleep(delay)).await?;
    }
}

async fn fetch_once(
    files: &NotebookFiles,
    chunks: &ChunkClient,
    changes: &Payload,
) -> Result<Fetched, FilesError> {
    let changes = open_changes(chunks, changes).await?;
    let paths = changes.iter().flat_map(Change::paths).cloned().collect();
    let staged = files.stage(changes, chunks).await;
    Ok(Fetched { paths, staged })
}

/// Restores the files from before the cell, because the notebook keeps the variables from before it. Warns about each
/// file that something else has changed meanwhile.
pub(super) async fn undo(
    committed: Option<Committed>,
    display: &mut Display,
    cell: &mut RemoteCell<'_>,
) {
    let Some(committed) = committed else { return };
    match spawn_blocking(move || committed.undo()).await {
        Ok(notes) => {
            for note in notes {
                // If the shim is gone, no one can see the warning.
                let _ = display.warn(cell, &note).await;
            }
        }
        Err(error) => tracing::error!(%error, "Failed to restore the files from before a cell"),
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
        let _ = display.warn(cell, &not_undone(cell.kind)).await;
    }
}

fn not_undone(kind: JobKind) -> String {
    let (noun, folder) = (kind.noun(), folder(kind));
    format!("Changes to files are not undone: the {noun} worked in {folder} itself")
}

fn much_deleted(files: usize, kind: JobKind) -> String {
    let (noun, folder) = (kind.noun(), folder(kind));
    format!(
        "The {noun} deleted {files} files in {folder}; run `baton files restore` in a terminal to restore them"
    )
}

fn not_applied(error: &FilesError, kind: JobKind) -> String {
    let (noun, next) = (kind.noun(), next_one(kind));
    format!(
        "The {noun}'s file changes could not be applied here ({}); they exist only on the GPU machine, while this \
         session lives. The {next} tries again",
        with_causes(error)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_in_the_words_of_what_runs() {
        for (kind, said) in [
            (JobKind::Cell, "the cell worked in the notebook's folder"),
            (JobKind::Block, "the block worked in the current folder"),
            (JobKind::Map, "the call worked in the current folder"),
            (JobKind::Notebook, "the run worked in the notebook's folder"),
            (JobKind::Script, "the run worked in the current folder"),
        ] {
            let expected = format!("Changes to files are not undone: {said} itself");
            assert_eq!(not_undone(kind), expected);
        }
        let error = FilesError::OutOfStep;
        let ends = |kind, with: &str| assert!(not_applied(&error, kind).ends_with(with));
        ends(JobKind::Cell, "The next %%gpu cell tries again");
        ends(JobKind::Call, "The next call tries again");
    }
}
