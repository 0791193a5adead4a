//! Messages about a mirror's files.

use super::{bytes, error};
use baton_humanize::with_causes;
use baton_protocol::{RemoteError, files::RelativePath};
use std::path::Path;

/// A file of a mirror is not copied to the notebook.
pub(crate) fn file_too_large(path: &RelativePath, file_bytes: u64, limit_bytes: u64) -> String {
    format!(
        "'{path}' ({}) stays on the GPU machine: the files of one cell may have {} in total \
         (worker.files_limit); write less, or, in an open notebook, read what you need into a variable in the \
         next %%gpu cell",
        bytes(file_bytes),
        bytes(limit_bytes)
    )
}

pub(crate) fn file_not_opened(path: &RelativePath, file_bytes: u64, limit_bytes: u64) -> String {
    format!(
        "'{path}' ({}) is larger than the limit of {} for files that a cell opens (worker.files_limit); read it \
         in an ordinary cell, and use what you need of it",
        bytes(file_bytes),
        bytes(limit_bytes)
    )
}

/// A call of the cell that opened the file has failed.
pub(crate) fn file_not_fetched(path: &RelativePath, reason: &str) -> String {
    format!(
        "'{path}' could not be fetched from the notebook's folder: {reason}; the file there is unchanged; run the cell \
         again, or read the file in an ordinary cell, and use what you need of it"
    )
}

/// For a machine on which the worker cannot notice which files a cell opens.
pub(crate) fn files_not_copied(limit_bytes: u64) -> String {
    format!(
        "The notebook's folder has more than {} of files (worker.files_limit), so the largest are empty on this \
         GPU machine; read them in an ordinary cell",
        bytes(limit_bytes)
    )
}

pub(crate) fn folder_cut(folder: &Path) -> String {
    format!(
        "'{}' has too many files for a %%gpu cell; those in the deepest folders are missing there",
        folder.display()
    )
}

pub(crate) fn mirror_cut(most: usize) -> String {
    format!(
        "The copy of the notebook's folder on the GPU machine has more than {most} files; those in the deepest folders \
         stay there, and no file is deleted here; delete what you do not need, or put many small files into one archive"
    )
}

/// The first of these notes, and how many more there are.
pub(crate) fn few(notes: impl ExactSizeIterator<Item = String>) -> impl Iterator<Item = String> {
    const SHOWN: usize = 10;
    let more = notes.len().saturating_sub(SHOWN);
    let rest = (more > 0).then(|| format!("The same is true of {more} more files"));
    notes.take(SHOWN).chain(rest)
}

pub(crate) fn second_name(path: &RelativePath) -> String {
    format!(
        "'{path}' stays on the GPU machine: it is another name (a hard link) of a file that no cell has opened; \
         copy the file instead"
    )
}

/// A program has ended, and its session with it.
pub(crate) fn files_left(files: usize) -> RemoteError {
    let files = match files {
        1 => "one file that it wrote is".to_owned(),
        files => format!("{files} files that it wrote are"),
    };
    error(
        "FilesLost",
        &format!("The program ran, but {files} lost. A warning in its output says why"),
        "write less, or ask your course staff to raise worker.files_limit, then run it again",
    )
}

pub(crate) fn files_lost(problem: &(dyn std::error::Error + 'static)) -> RemoteError {
    error(
        "FilesLost",
        &format!(
            "The files of the notebook's folder could not be prepared on the GPU machine: {}",
            with_causes(problem)
        ),
        "run the cell again",
    )
}

/// Shown before a cell that would otherwise have continued in its session.
pub(crate) fn mirror_lost_before() -> String {
    "The copy of the notebook's folder on the GPU machine was damaged, so this cell runs in a new session; your \
     files and variables are safe"
        .to_owned()
}

/// Files are missing from a mirror, and nothing shows that the cell deleted them.
pub(crate) fn files_missing(missing: &[RelativePath]) -> Option<String> {
    const NAMED: usize = 3;
    let names: Vec<String> = missing
        .iter()
        .take(NAMED)
        .map(|path| format!("'{path}'"))
        .collect();
    let more = match missing.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!missing.is_empty()).then(|| {
        format!(
            "Files are missing from the copy of the notebook's folder on the GPU machine, and nothing shows that the \
             cell deleted them: {}{more}. They remain here; to delete them, use an ordinary cell",
            names.join(", ")
        )
    })
}

/// The cell has run, and it is unknown what it did to files.
pub(crate) fn files_not_collected(problem: &(dyn std::error::Error + 'static)) -> RemoteError {
    error(
        "FilesLost",
        &format!(
            "The cell ran, but its file changes could not be returned: {}. No file was changed here",
            with_causes(problem)
        ),
        "run the cell again; if it fails again, tell your course staff",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_notes_become_few() {
        let notes = |count: usize| few((0..count).map(|number| number.to_string())).count();
        assert_eq!(
            (notes(0), notes(10), notes(11), notes(1000)),
            (0, 10, 11, 11)
        );
        let last = few((0..1000).map(|number| number.to_string())).last();
        assert_eq!(last.as_deref(), Some("The same is true of 990 more files"));
    }
}
