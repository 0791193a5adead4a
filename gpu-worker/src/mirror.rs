//! A session's mirror of the notebook's folder, for machines that cannot access the folder.
//!
//! In: listings and contents from the proxy. Out: a cell's changes to files. A system call of the session that opens a
//! placeholder waits until the file has its bytes ([`watch`]). If the system does not allow that, all files are fetched
//! before the cell runs.
//!
//! **Invariant:** a call that waits gets an answer, even if there is no job that could ask the proxy.

mod collect;
mod filling;
mod questions;
mod watch;

use self::{
    filling::{NotFilled, Target},
    questions::{ask, ask_and_wait},
};
use crate::{
    Config,
    calls::Watched,
    messages,
    questions::{Questions, UnexpectedAnswer},
    transfer::Access,
};
use baton_jupyter_wire::folder::{self, FolderError, PrivateFolder};
use baton_mirror::{FilesError, Mirror, Placeholders, Root, STAGING, Status, open_payload};
use baton_protocol::{
    Cell,
    files::{FilesAnswer, FilesWanted, Listing, NotebookFolder, RelativePath},
};
use baton_transport::ChunkClient;
use nix::libc;
use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    ffi::OsStr,
    fs::File,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet, spawn_blocking},
};

pub(crate) use self::collect::{Collected, collect};
pub(crate) use self::watch::{Observer, Opened};

/// Files could not be mirrored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MirrorError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The proxy says so.
    #[error("{reason}")]
    AtHome { reason: String },
    #[error(transparent)]
    Answer(#[from] UnexpectedAnswer),
    #[error("The work on files was aborted")]
    Join(#[from] JoinError),
}

/// The user that the system shows for owners whose number it does not know, so such files may belong to different
/// people: the default of `/proc/sys/kernel/overflowuid`, and the user `nobody` of network file systems.
const UNKNOWN_USER: u32 = 65534;
/// How many files are asked for at once. Broker and proxy remember no more than 64 open questions of a job.
const MOST_FILLINGS: usize = 32;

/// Which sessions get a mirror.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FilesChoice {
    /// Those whose notebook's folder this machine cannot access, or does not belong to the notebook's user.
    #[default]
    Auto,
    /// All sessions.
    Mirror,
    /// All sessions, and every file is fetched before the cell runs.
    Copy,
}

/// Where a session finds the files of its notebook.
pub(crate) enum Files {
    /// In the notebook's own folder.
    Own(Root),
    Mirrored(Box<SessionMirror>),
}

pub(crate) struct SessionMirror {
    /// May be locked only in code that may block.
    mirror: Arc<Mutex<Mirror>>,
    placeholders: Placeholders,
    root: PathBuf,
    /// The path that the notebook uses.
    notebook_folder: PathBuf,
    /// Placeholders that the session opens; `None` if calls do not wait, so all files are fetched in advance.
    opened: Option<mpsc::UnboundedReceiver<Opened>>,
    /// `None` if there is no job.
    questions: Option<Questions>,
    /// Calls that wait for the bytes of a file.
    waiting: HashMap<RelativePath, Vec<Opened>>,
    fillings: JoinSet<(RelativePath, Result<(), NotFilled>)>,
    config: Config,
    access: Access,
    /// Notes for the student, which the next [`collect`] takes.
    notes: Vec<String>,
    /// Files that the cell could not open, and their sizes in bytes.
    too_large: BTreeMap<RelativePath, u64>,
    /// Files that could not be fetched, and why.
    not_fetched: BTreeMap<RelativePath, String>,
    _folder: PrivateFolder,
}

/// Removes the mirrors of killed workers of this machine.
pub(crate) fn remove_leftovers(mirrors: &Path) {
    folder::sweep(mirrors, &purpose());
}

fn purpose() -> String {
    format!("mirror-{}", this_machine())
}

/// A short name for this machine. Locks in a network folder may be valid on one machine only, so each machine sweeps
/// only the mirrors with its own name.
pub(crate) fn this_machine() -> String {
    let name = nix::sys::utsname::uname().map(|names| names.nodename().to_owned());
    let machine = baton_chunks::hash(name.unwrap_or_default().as_encoded_bytes()).to_string();
    machine[..8].to_owned()
}

/// The notebook's own folder, if this machine can access it and a session may work in it.
///
/// A proxy could name any folder of this machine, and the worker may have more rights than the student. So neither the
/// path nor the inode proves anything. The worker asks the proxy to create a file in the folder, with the student's
/// rights, and looks for this file through the folder that it has opened. (The permissions of the folder would prove
/// nothing, because a student can name another person's folder.)
///
/// A student can also create files in folders that contain other people's folders. So the folder must belong to the
/// owner of the file, unless this is the worker's own user, who has the same rights anyway. (That is not so for root: what
/// root may do depends on where it runs.)
pub(crate) async fn own_folder(
    choice: FilesChoice,
    folder: &NotebookFolder,
    questions: &Questions,
    chunk_client: &ChunkClient,
) -> Option<Root> {
    if choice != FilesChoice::Auto {
        return None;
    }
    let root = Root::open(Path::new(&folder.path)).ok()?;
    if root.inode() != folder.inode {
        return None;
    }
    let file = proof(&root, questions, chunk_client).await?;
    let worker = nix::unistd::geteuid().as_raw();
    belongs_to(root.owner(), file.owner, worker).then_some(root)
}

/// The file that the notebook has created in the folder.
async fn proof(root: &Root, questions: &Questions, chunk_client: &ChunkClient) -> Option<Status> {
    let name = format!("{STAGING}{}", uuid::Uuid::new_v4().simple());
    let path = RelativePath::new(name.as_str()).ok()?;
    let wanted = FilesWanted::Proof { name };
    if !matches!(
        ask_and_wait(questions, &wanted, chunk_client).await,
        Ok(FilesAnswer::Proof { seen: true })
    ) {
        return None;
    }
    let found = root.folder().at(&path).and_then(|place| place.status());
    // Lets the proxy remove the file. Its answer does not matter.
    let _ = ask_and_wait(questions, &FilesWanted::ProofSeen {}, chunk_client).await;
    found.ok().filter(Status::is_file)
}

/// Whether a session of the worker's user may work in the folder. `folder`, `file`: the owners of the folder and of the
/// file with which the notebook has proved that it can write there.
fn belongs_to(folder: u32, file: u32, worker: u32) -> bool {
    const ROOT: u32 = 0;
    (file == folder && file != UNKNOWN_USER) || (file == worker && worker != ROOT)
}

impl SessionMirror {
    pub(crate) fn create(
        config: &Config,
        access: &Access,
        notebook_folder: &NotebookFolder,
    ) -> Result<Self, MirrorError> {
        let mirrors = &config.mirrors;
        let private = std::fs::create_dir_all(mirrors)
            .map_err(|source| FilesError::Io {
                path: mirrors.clone(),
                source,
            })
            .map_err(MirrorError::from)
            .and_then(|()| Ok(PrivateFolder::create_in(mirrors, &purpose())?))?;
        let notebook_folder = PathBuf::from(&notebook_folder.path);
        let name = notebook_folder
            .file_name()
            .unwrap_or(OsStr::new("notebook"));
        let mirror = Mirror::create(private.path(), name)?;
        Ok(Self {
            placeholders: mirror.placeholders(),
            root: mirror.root().to_owned(),
            mirror: Arc::new(Mutex::new(mirror)),
            notebook_folder,
            opened: None,
            questions: None,
            waiting: HashMap::new(),
            fillings: JoinSet::new(),
            config: config.clone(),
            access: access.clone(),
            notes: Vec::new(),
            too_large: BTreeMap::new(),
            not_fetched: BTreeMap::new(),
            _folder: private,
        })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the mirror is damaged or removed, so that it no longer corresponds to the notebook's folder.
    pub(crate) fn is_lost(&self) -> bool {
        let mirror = lock(&self.mirror);
        mirror.is_damaged() || mirror.check().is_err()
    }

    pub(crate) fn notebook_folder(&self) -> &Path {
        &self.notebook_folder
    }

    /// Creates the mirror's folder for a session that works in this folder of the notebook. Returns its path.
    pub(crate) fn make_working_folder(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let below = folder.strip_prefix(&self.notebook_folder);
        // A path with `..` may lead out of the notebook's folder.
        let below = below.map(|below| RelativePath::new(below.as_os_str().as_bytes()));
        let Ok(Ok(below)) = below else {
            return Ok(self.root.clone());
        };
        lock(&self.mirror).folder().make_folders(&below)?;
        Ok(self.root.join(below.as_path()))
    }

    /// The observer of the session's system calls, and the channel for [`Self::started`].
    pub(crate) fn observe(&self) -> (Observer, mpsc::UnboundedReceiver<Opened>) {
        let watched = Watched {
            removals: true,
            opens: self.config.files != FilesChoice::Copy,
            shared: false,
        };
        Observer::new(watched, self.mirror.clone())
    }

    /// Must be called when the session has started. `opened`: `None` if its system calls do not wait.
    pub(crate) fn started(&mut self, opened: Option<mpsc::UnboundedReceiver<Opened>>) {
        let Some(opened) = opened else {
            tracing::warn!(
                "This system cannot observe file accesses; files are copied before each cell"
            );
            return;
        };
        lock(&self.mirror).removals_are_seen();
        self.opened = Some(opened).filter(|_| self.config.files != FilesChoice::Copy);
    }

    /// Makes the mirror ready for a cell. `questions`: the job's connection to the proxy.
    pub(crate) async fn prepare(
        &mut self,
        cell: &Cell,
        questions: Questions,
    ) -> Result<(), MirrorError> {
        let questions = self.questions.insert(questions);
        let said = cell
            .notebook_folder
            .as_ref()
            .and_then(|folder| folder.listing.as_ref());
        let mut listing = None;
        if let Some(payload) = said {
            // If this listing cannot be read, for example because its chunks no longer exist, a new one is requested.
            listing = open_payload::<Listing>(&self.access.chunk_client, payload)
                .await
                .ok();
        }
        let listing = match listing {
            Some(listing) if lock(&self.mirror).continues(&listing) => listing,
            _ => match ask_and_wait(
                questions,
                &FilesWanted::Listing {},
                &self.access.chunk_client,
            )
            .await?
            {
                FilesAnswer::Listing(listing) => listing,
                _ => return Err(UnexpectedAnswer.into()),
            },
        };
        if listing.cut && listing.base.is_none() {
            self.notes
                .push(messages::folder_cut(cell.kind, &self.notebook_folder));
        }
        self.blocking(move |mirror| mirror.sync(&listing)).await?;
        let limit_bytes = self.config.files_limit_bytes;
        let paths = match self.opened {
            // A file that is left out is fetched when it is opened, unless it alone exceeds the limit.
            Some(_) => lock(&self.mirror).named_in(&cell.code, limit_bytes),
            None => {
                let (paths, more) = lock(&self.mirror).waiting(limit_bytes);
                if more {
                    self.notes
                        .push(messages::files_not_copied(cell.kind, limit_bytes));
                }
                paths
            }
        };
        self.fetch(paths).await
    }

    /// Fills these placeholders before the cell runs. All others are fetched one by one when they are opened.
    async fn fetch(&mut self, paths: Vec<RelativePath>) -> Result<(), MirrorError> {
        let Some(questions) = self.questions.as_ref().filter(|_| !paths.is_empty()) else {
            return Ok(());
        };
        let wanted = FilesWanted::Contents {
            paths: paths.clone(),
        };
        let answer = ask_and_wait(questions, &wanted, &self.access.chunk_client).await?;
        let FilesAnswer::Contents(contents) = answer else {
            return Err(UnexpectedAnswer.into());
        };
        for (path, content) in paths.iter().zip(contents) {
            // If a file no longer exists, the cell gets an error when it opens the file.
            let Ok(content) = content else { continue };
            let path = path.clone();
            let opened = self
                .blocking(move |mirror| mirror.open_placeholder(&path))
                .await?;
            if let Some(file) = opened {
                self.target(file).fill(content).await?;
            }
        }
        Ok(())
    }

    /// Fills the placeholders that the session opens. Cancel safe.
    pub(crate) async fn serve(&mut self) -> Infallible {
        loop {
            tokio::select! {
                Some(opened) = next_opened(&mut self.opened), if self.fillings.len() < MOST_FILLINGS => {
                    self.on_opened(opened);
                }
                Some(filled) = self.fillings.join_next(), if !self.fillings.is_empty() => {
                    if let Ok((path, result)) = filled {
                        self.on_filled(path, result);
                    }
                }
                else => std::future::pending().await,
            }
        }
    }

    /// Must be called when the job has ended. Calls that still wait fail.
    pub(crate) fn after_cell(&mut self) {
        self.questions = None;
        self.waiting.clear();
        self.fillings.abort_all();
    }

    fn on_opened(&mut self, opened: Opened) {
        let path = opened.placeholder.path.clone();
        if !self.is_empty(&opened) {
            opened.waiting.resume();
            return;
        }
        let Some(questions) = &self.questions else {
            opened.waiting.refuse(libc::EIO);
            return;
        };
        let limit_bytes = self.config.files_limit_bytes;
        if opened.placeholder.bytes > limit_bytes {
            self.too_large.insert(path, opened.placeholder.bytes);
            opened.waiting.refuse(libc::EFBIG);
            return;
        }
        if !self.waiting.contains_key(&path) {
            let Ok(file) = opened.file.try_clone() else {
                opened.waiting.refuse(libc::EMFILE);
                return;
            };
            let paths = vec![path.clone()];
            let answered = ask(questions, &FilesWanted::Contents { paths });
            let (path, target) = (path.clone(), self.target(file));
            self.fillings
                .spawn(async move { (path, target.fill_from(answered).await) });
        }
        self.waiting.entry(path).or_default().push(opened);
    }

    /// Whether the file is still a placeholder. Another call may have had it filled, and the session may have written
    /// to it since.
    fn is_empty(&self, opened: &Opened) -> bool {
        let look = || opened.file.metadata().map(|found| Status::from(&found));
        look().is_ok_and(|status| self.placeholders.find(&status, look).is_some())
    }

    fn target(&self, file: File) -> Target {
        Target {
            file,
            access: self.access.clone(),
            mirror: self.mirror.clone(),
            placeholders: self.placeholders.clone(),
        }
    }

    fn on_filled(&mut self, path: RelativePath, result: Result<(), NotFilled>) {
        for opened in self.waiting.remove(&path).unwrap_or_default() {
            match &result {
                Ok(()) => opened.waiting.resume(),
                Err(why) => opened.waiting.refuse(why.errno),
            }
        }
        match result.map_err(|why| why.reason) {
            Err(Some(reason)) => {
                tracing::warn!(reason, "A file of a mirror could not be filled");
                self.not_fetched.insert(path, reason);
            }
            // An earlier attempt in this cell may have failed.
            _ => drop(self.not_fetched.remove(&path)),
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Mirror) -> Result<T, FilesError> + Send + 'static,
    ) -> Result<T, MirrorError> {
        let mirror = self.mirror.clone();
        Ok(spawn_blocking(move || work(&mut lock(&mirror))).await??)
    }
}

async fn next_opened(opened: &mut Option<mpsc::UnboundedReceiver<Opened>>) -> Option<Opened> {
    opened.as_mut()?.recv().await
}

/// Ignores poisoning, because no code panics while it holds this lock.
fn lock(mirror: &Mutex<Mirror>) -> MutexGuard<'_, Mirror> {
    mirror.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_works_only_in_a_folder_of_its_own_notebook() {
        const ROOT: u32 = 0;
        const WORKER: u32 = 100;
        const ADA: u32 = 1001;
        const EVE: u32 = 1002;
        let check = |folder, file, worker, expected| {
            let found = belongs_to(folder, file, worker);
            assert_eq!(found, expected, "{folder} {file} {worker}");
        };
        check(ADA, ADA, WORKER, true);
        check(ADA, ADA, ROOT, true);
        // Eve may write in these folders, for example because everyone may.
        check(ROOT, EVE, WORKER, false);
        check(ADA, EVE, WORKER, false);
        check(WORKER, EVE, WORKER, false);
        check(UNKNOWN_USER, UNKNOWN_USER, WORKER, false);
        // The notebook is a process of the worker's user.
        check(ROOT, WORKER, WORKER, true);
        check(ADA, ROOT, ROOT, false);
        check(ROOT, ROOT, ROOT, true);
    }
}
