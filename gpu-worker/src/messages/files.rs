//! Messages about a mirror's files.

use super::{bytes, error};
use baton_humanize::with_causes;
use baton_protocol::{
    JobKind, RemoteError,
    files::RelativePath,
    wording::{folder, next_one, read_elsewhere, run_again},
};
use std::path::Path;

/// A file of a mirror is not copied to the notebook.
pub(crate) fn file_too_large(
    kind: JobKind,
    path: &RelativePath,
    file_bytes: u64,
    limit_bytes: u64,
) -> String {
    // The session of a run ends with it.
    let otherwise = match kind.is_of_cell() {
        true => format!(
            ", or read what you need into a variable in the {}",
            next_one(kind)
        ),
        false => String::new(),
    };
    format!(
        "'{path}' ({}) stays on the GPU machine: the files of one {} may have {} in total (worker.files_limit); \
         write less{otherwise}",
        bytes(file_bytes),
        kind.noun(),
        bytes(limit_bytes)
    )
}

pub(crate) fn file_not_opened(
    kind: JobKind,
    path: &RelativePath,
    file_bytes: u64,
    limit_bytes: u64,
) -> String {
    format!(
        "'{path}' ({}) is larger than the limit of {} for files that a {} opens (worker.files_limit); {}",
        bytes(file_bytes),
        bytes(limit_bytes),
        kind.noun(),
        read_elsewhere(kind)
    )
}

/// A call of the cell that opened the file has failed.
pub(crate) fn file_not_fetched(kind: JobKind, path: &RelativePath, reason: &str) -> String {
    let (folder, again) = (folder(kind), run_again(kind));
    let otherwise = match kind.is_program() {
        true => String::new(),
        false => format!(", or {}", read_elsewhere(kind)),
    };
    format!(
        "'{path}' could not be fetched from {folder}: {reason}; the file there is unchanged; {again}{otherwise}"
    )
}

/// For a machine on which the worker cannot notice which files a cell opens.
pub(crate) fn files_not_copied(kind: JobKind, limit_bytes: u64) -> String {
    format!(
        "There is more than {} of files in {} (worker.files_limit), so the largest are empty on this GPU machine; \
         to use such a file, {}",
        bytes(limit_bytes),
        folder(kind),
        read_elsewhere(kind)
    )
}

pub(crate) fn folder_cut(kind: JobKind, folder: &Path) -> String {
    format!(
        "'{}' has too many files for a {}; those in the deepest folders are missing there",
        folder.display(),
        kind.noun()
    )
}

pub(crate) fn mirror_cut(kind: JobKind, most: usize) -> String {
    let folder = folder(kind);
    format!(
        "The copy of {folder} on the GPU machine has more than {most} files; those in the deepest folders \
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

pub(crate) fn second_name(kind: JobKind, path: &RelativePath) -> String {
    let noun = kind.noun();
    format!(
        "'{path}' stays on the GPU machine: it is another name (a hard link) of a file that no {noun} has opened; \
         copy the file instead"
    )
}

/// The cell replaced a file by a folder, or a folder by a file, and [`not_removed`] is true of what was replaced.
pub(crate) fn place_taken(kind: JobKind, path: &RelativePath) -> String {
    format!(
        "'{path}' stays on the GPU machine, because what it replaced remains in {}",
        folder(kind)
    )
}

/// The cell removed this, and a file that it wrote is not copied to the notebook.
pub(crate) fn not_removed(kind: JobKind, path: &RelativePath) -> String {
    format!(
        "'{path}' was deleted by the {}, but it remains here while other files stay on the GPU machine",
        kind.noun()
    )
}

/// A program has ended, and its session with it.
pub(crate) fn files_left(kind: JobKind, files: usize) -> RemoteError {
    let files = match files {
        1 => "one file that it wrote is".to_owned(),
        files => format!("{files} files that it wrote are"),
    };
    error(
        kind,
        "FilesLost",
        &format!("The program ran, but {files} lost. A warning in its output says why"),
        "write less, or ask your course staff to raise worker.files_limit, then run it again",
    )
}

pub(crate) fn files_lost(
    kind: JobKind,
    problem: &(dyn std::error::Error + 'static),
) -> RemoteError {
    let (folder, causes) = (folder(kind), with_causes(problem));
    let what = format!("The files of {folder} could not be prepared on the GPU machine: {causes}");
    error(kind, "FilesLost", &what, run_again(kind))
}

/// Shown before a cell that would otherwise have continued in its session.
pub(crate) fn mirror_lost_before(kind: JobKind) -> String {
    let (folder, noun) = (folder(kind), kind.noun());
    format!(
        "The copy of {folder} on the GPU machine was damaged, so this {noun} runs in a new session; your files and \
         variables are safe"
    )
}

/// Files are missing from a mirror, and nothing shows that the cell deleted them.
pub(crate) fn files_missing(kind: JobKind, missing: &[RelativePath]) -> Option<String> {
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
            "Files are missing from the copy of {} on the GPU machine, and nothing shows that the {} deleted them: \
             {}{more}. They remain here",
            folder(kind),
            kind.noun(),
            names.join(", ")
        )
    })
}

/// The cell has run, and it is unknown what it did to files.
pub(crate) fn files_not_collected(
    kind: JobKind,
    problem: &(dyn std::error::Error + 'static),
) -> RemoteError {
    let (noun, causes) = (kind.noun(), with_causes(problem));
    let what = format!(
        "The {noun} ran, but its file changes could not be returned: {causes}. No file was changed here"
    );
    let hint = format!(
        "{}; if it fails again, tell your course staff",
        run_again(kind)
    );
    error(kind, "FilesLost", &what, hint)
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
