//! The notebook's folder, for workers that cannot access it.
//!
//! In: a worker's requests, and a cell's changes to files. Out: listings, contents, and the changed
//! folder. Nothing is listed before a worker's first request.
//!
//! **Invariant:** only files that were listed are read, and only below the folder with which the kernel started.

use crate::config::TrashConfig;
use baton_humanize::with_causes;
use baton_mirror::{
    Committed, FilesError, HomeListing, MOST_LISTED, Place, Root, STAGING, Staging, Status, Trash,
    list, open_listed, open_payload, read_file, send_payload, small_payload, stamp, write_file,
};
use baton_protocol::{
    JobId, JobKind,
    files::{
        Change, Content, FilesAnswer, FilesWanted, Listing, NoContent, NotebookFolder, Payload,
        RelativePath,
    },
};
use baton_transport::ChunkClient;
use std::{
    collections::{BTreeSet, HashSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::task::{JoinSet, spawn_blocking};

/// A cell gets a warning if it deletes more than `MANY` files, or at least `MORE_THAN_A_FEW` and
/// half of the folder.
const MANY: usize = 100;
const MORE_THAN_A_FEW: usize = 10;

pub(super) struct NotebookFiles {
    folder: Option<(NotebookFolder, Arc<Root>)>,
    trash: TrashConfig,
    /// Tasks that clean up the trash.
    tidying: JoinSet<()>,
    shared: Arc<Mutex<Shared>>,
    answers: JoinSet<(JobId, u64, Payload)>,
    /// Requests that arrived just before the connection broke.
    unanswered: Vec<(u64, Payload)>,
}

#[derive(Default)]
struct Shared {
    listing: HomeListing,
    /// Whether a worker has a mirror.
    mirrored: bool,
    /// Lines for the student about files that could not be read.
    notes: Vec<String>,
    /// All notes so far. Each is shown only once.
    noted: HashSet<String>,
    home_folder_noted: bool,
    /// The file that identifies the folder to a worker.
    proof: Option<Proof>,
}

impl NotebookFiles {
    pub(super) fn new(trash: TrashConfig) -> Self {
        Self {
            folder: notebook_folder(),
            trash,
            tidying: JoinSet::new(),
            shared: Arc::default(),
            answers: JoinSet::new(),
            unanswered: Vec::new(),
        }
    }

    /// Describes the folder for the next cell's worker.
    pub(super) async fn for_cell(
        &mut self,
        chunks: &ChunkClient,
    ) -> Result<Option<Box<NotebookFolder>>, FilesError> {
        self.answers.abort_all();
        self.unanswered.clear();
        lock(&self.shared).proof = None;
        let Some((folder, root)) = &self.folder else {
            return Ok(None);
        };
        let mut folder = folder.clone();
        if lock(&self.shared).mirrored {
            let listing = look(&self.shared, root, false).await?;
            folder.listing = Some(send_payload(chunks, &listing).await?);
        }
        Ok(Some(Box::new(folder)))
    }

    /// A new session begins. Only its worker knows whether it has a mirror.
    pub(super) fn session_is_new(&self, kind: JobKind) {
        let mut shared = lock(&self.shared);
        shared.mirrored = false;
        let lost = shared.listing.none_is_left();
        if !lost.is_empty() {
            shared.notes.push(lost_with_session(&lost, kind));
        }
    }

    /// Whether the session works in a mirror.
    pub(super) fn is_mirrored(&self) -> bool {
        lock(&self.shared).mirrored
    }

    pub(super) fn asked(&mut self, question: u64, wanted: Payload) {
        self.unanswered.push((question, wanted));
    }

    pub(super) fn answer(&mut self, job: JobId, chunks: &ChunkClient) {
        for (question, wanted) in std::mem::take(&mut self.unanswered) {
            let Some((_, root)) = &self.folder else {
                continue;
            };
            let (root, shared) = (root.clone(), self.shared.clone());
            let chunks = chunks.clone();
            self.answers.spawn(async move {
                let answer = answer(&root, &shared, &wanted, &chunks).await;
                let answer = answer.unwrap_or_else(|error| {
                    tracing::warn!(%error, "Failed to answer a request about files");
                    let reason = with_causes(&error);
                    small_payload(&FilesAnswer::Failed { reason })
                });
                (job, question, answer)
            });
        }
    }

    /// Whether an answer is being prepared.
    pub(super) fn are_being_prepared(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Returns the next answer to this job's requests. Cancel safe.
    pub(super) async fn next_answer(&mut self, of: JobId) -> (u64, Payload) {
        while let Some(answered) = self.answers.join_next().await {
            // An aborted task belongs to an earlier cell, and so does its answer.
            let Ok((job, question, answer)) = answered else {
                continue;
            };
            if job == of {
                return (question, answer);
            }
        }
        std::future::pending().await
    }

    /// Downloads everything that a cell wrote, without moving it into place.
    pub(super) async fn stage(
        &self,
        changes: Vec<Change>,
        chunks: &ChunkClient,
    ) -> Result<Staging, FilesError> {
        let root = self.folder.as_ref().map(|(_, root)| root.clone());
        let root = root.ok_or(FilesError::OutOfStep)?;
        let trash = Trash::of(root.path(), &self.trash.state_folder);
        let mut staging = spawn_blocking(move || Staging::create(&root, &trash)).await??;
        for change in changes {
            if let Some((file, content)) = staging.add(change)? {
                write_file(chunks, None, content, file).await?;
            }
        }
        Ok(staging)
    }

    /// The notebook has the cell's variables. Makes its changes final, or remembers that they wait.
    pub(super) async fn end_cell(&mut self, changes: FileChanges) {
        match changes {
            FileChanges::Waiting(paths) => lock(&self.shared).listing.were_not_applied(paths),
            FileChanges::None => drop(lock(&self.shared).listing.none_is_left()),
            FileChanges::Committed(committed) => {
                lock(&self.shared).listing.none_is_left();
                self.keep(committed).await;
            }
        }
    }

    /// Makes a cell's changes final.
    pub(super) async fn keep(&mut self, committed: Committed) {
        // In a blocking task, because it looks for empty folders in the trash.
        if let Err(error) = spawn_blocking(move || committed.keep()).await {
            tracing::error!(%error, "Failed to make the changes to files final");
        }
        let Some((_, root)) = &self.folder else {
            return;
        };
        let trash = Trash::of(root.path(), &self.trash.state_folder);
        let limits = self.trash.limits;
        while self.tidying.try_join_next().is_some() {}
        if self.tidying.is_empty() {
            self.tidying.spawn_blocking(move || {
                if let Err(error) = trash.tidy(limits) {
                    tracing::warn!(%error, "Failed to clean up the trash beside the notebook");
                }
            });
        }
    }

    /// The folder with which the kernel started.
    pub(super) fn folder(&self) -> Option<&str> {
        let (folder, _) = self.folder.as_ref()?;
        Some(&folder.path)
    }

    /// The number of files in the folder.
    pub(super) fn count(&self) -> usize {
        lock(&self.shared).listing.files()
    }

    /// Takes the lines to show to the student.
    pub(super) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared).notes)
    }

    /// Moves what a cell wrote into place. `paths`: all that it changed.
    pub(super) async fn commit(
        &self,
        staging: Staging,
        paths: BTreeSet<RelativePath>,
        kind: JobKind,
    ) -> Result<Committed, FilesError> {
        lock(&self.shared).listing.touched(paths);
        let committed = spawn_blocking(move || baton_mirror::commit(staging, kind)).await?;
        let mut shared = lock(&self.shared);
        let written = committed.written.iter().cloned();
        shared.listing.is_as_in_mirror(written);
        shared.listing.were_made(committed.made.iter().cloned());
        drop(shared);
        Ok(committed)
    }
}

/// What became of a cell's changes to files.
pub(super) enum FileChanges {
    Committed(Committed),
    /// The session's mirror has them at these paths, and sends them again with those of the next cell.
    Waiting(BTreeSet<RelativePath>),
    None,
}

impl FileChanges {
    pub(super) fn committed(self) -> Option<Committed> {
        match self {
            Self::Committed(committed) => Some(committed),
            Self::Waiting(_) | Self::None => None,
        }
    }
}

/// Whether the student may have deleted this many files by accident.
pub(super) fn is_much(deleted: usize, files_before: usize) -> bool {
    deleted > MANY || deleted >= MORE_THAN_A_FEW && 2 * deleted >= files_before
}

fn notebook_folder() -> Option<(NotebookFolder, Arc<Root>)> {
    let root = Root::open(&std::env::current_dir().ok()?).ok()?;
    let folder = NotebookFolder {
        path: root.path().to_str()?.to_owned(),
        host: baton_transport::host().ok()?,
        device: root.device(),
        inode: root.inode(),
        listing: None,
    };
    Some((folder, Arc::new(root)))
}

async fn answer(
    root: &Arc<Root>,
    shared: &Arc<Mutex<Shared>>,
    wanted: &Payload,
    chunks: &ChunkClient,
) -> Result<Payload, FilesError> {
    let answer = match open_payload(chunks, wanted).await? {
        FilesWanted::Listing {} => {
            lock(shared).mirrored = true;
            FilesAnswer::Listing(look(shared, root, true).await?)
        }
        FilesWanted::Proof { name } => {
            let proof = Proof::make(root, &name);
            let seen = proof.is_some();
            lock(shared).proof = proof;
            FilesAnswer::Proof { seen }
        }
        FilesWanted::ProofSeen {} => {
            lock(shared).proof = None;
            FilesAnswer::Proof { seen: false }
        }
        FilesWanted::Contents { paths } => {
            let mut contents = Vec::with_capacity(paths.len());
            for path in paths {
                let content = match lock(shared).listing.has_file(&path) {
                    true => Ok(path),
                    false => Err(NoContent::Gone {}),
                };
                contents.push(match content {
                    Ok(path) => read(root.clone(), path, chunks).await,
                    Err(why) => Err(why),
                });
            }
            FilesAnswer::Contents(contents)
        }
    };
    send_payload(chunks, &answer).await
}

/// A file in the student's folder by which a worker recognizes it. Dropping this removes the file.
struct Proof(Place);

impl Proof {
    fn make(root: &Root, name: &str) -> Option<Self> {
        let path = RelativePath::new(name).ok()?;
        if path.parent().is_some() || !name.starts_with(STAGING) {
            return None;
        }
        let place = root.folder().at(&path).ok()?;
        place.create_file().ok()?;
        Some(Self(place))
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_file() {
            tracing::warn!(%error, "Failed to remove the file that identifies the notebook's folder");
        }
    }
}

async fn look(
    shared: &Arc<Mutex<Shared>>,
    root: &Arc<Root>,
    whole: bool,
) -> Result<Listing, FilesError> {
    let looked_at = root.clone();
    let made = lock(shared).listing.made().clone();
    let seen = spawn_blocking(move || list(&looked_at, MOST_LISTED, &made)).await?;
    let mut shared = lock(shared);
    shared.note(&seen.errors);
    for line in &seen.broken_rules {
        shared.note_once(format!("This line of .batonignore has no effect: '{line}'"));
    }
    if is_home_folder(root) && !seen.left_out.is_empty() && !shared.home_folder_noted {
        shared.home_folder_noted = true;
        let line = home_folder(&seen.left_out);
        shared.note_once(line);
    }
    Ok(shared.listing.next(seen, whole))
}

fn is_home_folder(root: &Root) -> bool {
    let home = std::env::var_os("HOME").and_then(|home| Root::open(home.as_ref()).ok());
    home.is_some_and(|home| (home.device(), home.inode()) == (root.device(), root.inode()))
}

fn home_folder(left_out: &[RelativePath]) -> String {
    let names = left_out.iter().map(ToString::to_string).collect();
    format!(
        "This runs in your home folder; hidden files there ({}) are not copied to the GPU machine. \
         To copy one, add a line such as '!.config' to .batonignore there",
        few(names)
    )
}

fn lost_with_session(paths: &BTreeSet<RelativePath>, kind: JobKind) -> String {
    let noun = kind.noun();
    let names = paths.iter().map(|path| format!("'{path}'")).collect();
    format!(
        "The changes of earlier {noun}s to these files are lost: they could not be applied here before the session \
         ended ({}). Run the {noun}s that made them again",
        few(names)
    )
}

/// The first few names, and how many more there are.
fn few(mut names: Vec<String>) -> String {
    const NAMED: usize = 3;
    names.sort_unstable();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.truncate(NAMED);
    format!("{}{more}", names.join(", "))
}

impl Shared {
    /// Notes files that cannot be read. A folder that the student may not enter is closed to
    /// ordinary cells, too, so it is not reported.
    fn note(&mut self, errors: &[FilesError]) {
        let is_denied = |error: &&FilesError| matches!(error, FilesError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied);
        for error in errors.iter().filter(|error| !is_denied(error)) {
            let note = format!(
                "Some files cannot be read here ({}); the GPU machine has their last known state",
                with_causes(error)
            );
            self.note_once(note);
        }
    }

    fn note_once(&mut self, note: String) {
        if self.noted.insert(note.clone()) {
            self.notes.push(note);
        }
    }
}

async fn read(
    root: Arc<Root>,
    path: RelativePath,
    chunks: &ChunkClient,
) -> Result<Content, NoContent> {
    let listed = path.clone();
    let (file, status) = spawn_blocking(move || {
        let file = open_listed(&root, &listed)?;
        let status = Status::from(&file.metadata()?);
        Ok((file, status))
    })
    .await
    .map_err(|error| failed(&error))?
    .map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => NoContent::Gone {},
        io::ErrorKind::PermissionDenied => NoContent::Denied {},
        _ => failed(&error),
    })?;
    let content = read_file(chunks, &path, file, status.bytes)
        .await
        .map_err(|error| failed(&error))?;
    Ok(Content {
        stamp: Some(stamp(&status)),
        ..content
    })
}

fn failed(error: &(dyn std::error::Error + 'static)) -> NoContent {
    NoContent::Failed {
        reason: with_causes(error),
    }
}

/// Holders of the lock cannot panic.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
