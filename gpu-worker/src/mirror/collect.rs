//! Collects a cell's changes to files from its session's mirror, and sends them to where the proxy can fetch them.
//!
//! **Invariant:** a file that is too large is not sent, and a note for the student names it. If a file is not sent, no
//! removal is sent either: the removed file may be the only source of the file that stays.

use super::{MirrorError, SessionMirror, lock};
use crate::{messages, processes::mapped_for_writing, transfer::Access};
use baton_mirror::{Difference, FilesError, Mirror, Scan, read_file, send_payload};
use baton_protocol::{
    ChunkHash, JobKind, Piece,
    files::{Change, Content, Payload, RelativePath},
};
use nix::unistd::Pid;
use std::{
    collections::{BTreeSet, HashMap},
    iter,
    sync::{Arc, Mutex},
};
use tokio::task::spawn_blocking;

/// The most files and folders of a mirror to look at.
const MOST_ENTRIES: usize = 50_000;

#[derive(Default)]
pub(crate) struct Collected {
    /// A list of changes, if there are any.
    pub(crate) changes: Option<Payload>,
    /// Chunks of that list, and of the files that it names.
    pub(crate) chunks: Vec<ChunkHash>,
    /// Notes for the student.
    pub(crate) notes: Vec<String>,
    /// How many files stay here.
    pub(crate) left: usize,
}

/// Collects the changes of the cell that has ended in the session of this kernel. What background work of the session
/// writes meanwhile is collected after the next cell.
pub(crate) fn collect(
    mirror: &mut SessionMirror,
    kernel: Pid,
    kind: JobKind,
) -> impl Future<Output = Result<Collected, MirrorError>> + Send + 'static {
    let limit_bytes = mirror.config.files_limit_bytes;
    let mut notes = std::mem::take(&mut mirror.notes);
    let too_large = std::mem::take(&mut mirror.too_large);
    let not_opened = too_large
        .iter()
        .map(|(path, bytes)| messages::file_not_opened(kind, path, *bytes, limit_bytes));
    notes.extend(messages::few(not_opened));
    let not_fetched = std::mem::take(&mut mirror.not_fetched);
    let not_fetched = not_fetched
        .iter()
        .map(|(path, reason)| messages::file_not_fetched(kind, path, reason));
    notes.extend(messages::few(not_fetched));
    let collecting = Collecting {
        kind,
        limit_bytes,
        access: mirror.access.clone(),
        mirror: mirror.mirror.clone(),
        notes,
    };
    collecting.run(kernel)
}

struct Collecting {
    kind: JobKind,
    limit_bytes: u64,
    access: Access,
    mirror: Arc<Mutex<Mirror>>,
    notes: Vec<String>,
}

impl Collecting {
    async fn run(mut self, kernel: Pid) -> Result<Collected, MirrorError> {
        let (kind, mirror) = (self.kind, self.mirror.clone());
        let look = move || {
            let mapped = mapped_for_writing(kernel);
            Ok::<_, FilesError>((mapped, lock(&mirror).scan(MOST_ENTRIES)?))
        };
        let (mapped, scan) = spawn_blocking(look).await??;
        let scan = Arc::new(scan);
        self.notes
            .extend(messages::files_missing(kind, &scan.missing));
        if scan.cut {
            self.notes.push(messages::mirror_cut(kind, MOST_ENTRIES));
        }
        let Fitting {
            differences: fitting,
            left,
            not_removed,
        } = fitting(&scan.differences, self.limit_bytes);
        let limit_bytes = self.limit_bytes;
        let notes = left.iter().map(|(path, why)| match why {
            NotSent::TooLarge { bytes } => {
                messages::file_too_large(kind, path, *bytes, limit_bytes)
            }
            NotSent::SecondName => messages::second_name(kind, path),
            NotSent::PlaceTaken => messages::place_taken(kind, path),
        });
        self.notes.extend(messages::few(notes));
        let notes = not_removed
            .iter()
            .map(|path| messages::not_removed(kind, path));
        self.notes.extend(messages::few(notes));
        let Sent {
            changes,
            written,
            differences,
        } = self.send(&scan, fitting).await?;
        let payload = match changes.is_empty() {
            true => None,
            false => Some(send_payload(&self.access.chunk_client, &changes).await?),
        };
        let list = payload.iter().flat_map(|payload| &payload.0);
        let pieces = list.chain(written.values().flat_map(|content| &content.pieces));
        let chunks = pieces.filter_map(Piece::hash).collect();
        let mirror = self.mirror.clone();
        let adopt = move || {
            let mut mirror = lock(&mirror);
            // Files may be missing because the whole mirror has been removed.
            mirror.check()?;
            mirror.adopt(&scan, &differences, &written, &mapped);
            Ok::<_, FilesError>(())
        };
        spawn_blocking(adopt).await??;
        Ok(Collected {
            changes: payload,
            chunks,
            notes: self.notes,
            left: left.len(),
        })
    }

    /// Sends the contents of files that were written.
    async fn send(&self, scan: &Arc<Scan>, fitting: Vec<Difference>) -> Result<Sent, MirrorError> {
        let mut sent = Sent::default();
        for difference in fitting {
            match &difference {
                Difference::Change(change) => sent.changes.push(change.clone()),
                Difference::Written {
                    path,
                    over,
                    bytes,
                    unsure,
                    ..
                } => {
                    let Some(content) = self.read(scan, path, *bytes).await? else {
                        continue;
                    };
                    sent.written.insert(path.clone(), content.clone());
                    if unsure.as_ref() == Some(&content.pieces) {
                        continue;
                    }
                    sent.changes.push(Change::Written {
                        path: path.clone(),
                        over: over.clone(),
                        content,
                    });
                }
            }
            sent.differences.push(difference);
        }
        Ok(sent)
    }

    /// Returns the first `bytes` of a file, or `None` if it no longer exists.
    async fn read(
        &self,
        scan: &Arc<Scan>,
        path: &RelativePath,
        bytes: u64,
    ) -> Result<Option<Content>, MirrorError> {
        let (mirror, scan, found_at) = (self.mirror.clone(), scan.clone(), path.clone());
        let found = spawn_blocking(move || lock(&mirror).open_found(&scan, &found_at)).await??;
        match found {
            Some(file) => {
                let content = read_file(&self.access.chunk_client, path, file, bytes).await?;
                Ok(Some(content))
            }
            None => Ok(None),
        }
    }
}

#[derive(Default)]
struct Sent {
    /// The list for the proxy.
    changes: Vec<Change>,
    /// Files whose contents were sent.
    written: HashMap<RelativePath, Content>,
    /// The differences that the list contains.
    differences: Vec<Difference>,
}

/// Why a file is not sent.
enum NotSent {
    TooLarge {
        bytes: u64,
    },
    /// It is another name of a placeholder.
    SecondName,
    /// What it replaced is not removed at home.
    PlaceTaken,
}

/// What is sent, and what stays here and remains a difference.
struct Fitting {
    differences: Vec<Difference>,
    left: Vec<(RelativePath, NotSent)>,
    /// What the cell removed, if a file stays here.
    not_removed: BTreeSet<RelativePath>,
}

/// Small files come first.
fn fitting(differences: &[Difference], limit_bytes: u64) -> Fitting {
    let mut fitting = Vec::new();
    let mut files = Vec::new();
    for difference in differences {
        match difference {
            Difference::Change(_) => fitting.push(difference.clone()),
            Difference::Written { bytes, .. } => files.push((*bytes, difference)),
        }
    }
    files.sort_by_key(|(bytes, _)| *bytes);
    let mut total: u64 = 0;
    let mut left = Vec::new();
    for (bytes, difference) in files {
        let path = difference.path().clone();
        if matches!(
            difference,
            Difference::Written {
                placeholder: true,
                ..
            }
        ) {
            left.push((path, NotSent::SecondName));
            continue;
        }
        total = total.saturating_add(bytes);
        match total <= limit_bytes {
            true => fitting.push(difference.clone()),
            false => left.push((path, NotSent::TooLarge { bytes })),
        }
    }
    let mut not_removed = BTreeSet::new();
    if !left.is_empty() {
        not_removed.extend(fitting.iter().filter_map(removed).cloned());
        // A folder may have taken the place of a file, or a file that of a folder.
        let stays = |difference: &mut Difference| {
            let path = Some(difference.path().clone());
            iter::successors(path, RelativePath::parent).any(|path| not_removed.contains(&path))
        };
        for difference in fitting.extract_if(.., stays) {
            let is_folder = matches!(difference, Difference::Change(Change::FolderMade { .. }));
            if removed(&difference).is_none() && !is_folder {
                left.push((difference.path().clone(), NotSent::PlaceTaken));
            }
        }
    }
    Fitting {
        differences: fitting,
        left,
        not_removed,
    }
}

/// What the difference removes, without a replacement for it.
fn removed(difference: &Difference) -> Option<&RelativePath> {
    match difference {
        Difference::Change(Change::Removed { path, .. } | Change::FolderRemoved { path }) => {
            Some(path)
        }
        _ => None,
    }
}
