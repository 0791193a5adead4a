//! Notices when a session is about to open a placeholder, or to remove or rename a file of its mirror.
//!
//! In: system calls of the session and of its children, also those made by C libraries and other programs. Out: an
//! [`Opened`] for each call that needs the bytes of a placeholder. All other calls continue at once. The mirror records
//! each name that a call removes or renames.
//!
//! The path of a call is looked up once, to find the file. A placeholder is then opened through the handle that was
//! found, so a later change of the path has no effect.
//!
//! **Invariant:** every call that waits gets an answer. If its file is not filled, the call fails. The worker opens no
//! file except placeholders of this mirror.

use super::lock;
use crate::calls::{
    About, FlagsOf, MOST_WAITING, Notification, PathOf, Waiting, Watched, read_memory, read_text,
};
use baton_mirror::{Handle, Mirror, Placeholder, Placeholders};
use nix::libc;
use std::{
    fs::{self, File},
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// A call of the session that waits to open a placeholder.
pub(crate) struct Opened {
    pub(crate) placeholder: Placeholder,
    /// The placeholder's file, open for writing.
    pub(crate) file: File,
    pub(crate) waiting: Waiting,
    /// One of [`MOST_WAITING`].
    _place: OwnedSemaphorePermit,
}

/// Answers the system calls of a session that concern its mirror.
pub(crate) struct Observer {
    watched: Watched,
    mirror: Arc<Mutex<Mirror>>,
    placeholders: Placeholders,
    opens: mpsc::UnboundedSender<Opened>,
    places: Arc<Semaphore>,
}

impl Observer {
    /// Also returns the channel on which placeholders arrive that the session is about to open.
    pub(super) fn new(
        watched: Watched,
        mirror: Arc<Mutex<Mirror>>,
    ) -> (Self, mpsc::UnboundedReceiver<Opened>) {
        // Bounded by `MOST_WAITING`: each message has one of the places.
        let (opens, opened) = mpsc::unbounded_channel();
        let placeholders = lock(&mirror).placeholders();
        let observer = Self {
            watched,
            mirror,
            placeholders,
            opens,
            places: Arc::new(Semaphore::new(MOST_WAITING)),
        };
        (observer, opened)
    }

    pub(crate) fn watched(&self) -> Watched {
        self.watched
    }

    pub(crate) fn judge(&self, notification: &Notification, waiting: Waiting) {
        let thread = notification.thread;
        let needed = match &notification.about {
            About::Open(path, flags) => needed(thread, path, *flags, &self.placeholders),
            About::Removal(path, to) => {
                for path in std::iter::once(path).chain(to) {
                    note_removal(thread, path, &self.mirror);
                }
                Needed::Nothing
            }
            _ => Needed::Nothing,
        };
        match needed {
            Needed::Nothing => waiting.resume(),
            Needed::Bytes(file, placeholder) => match self.places.clone().try_acquire_owned() {
                // If the session has ended, sending fails, and the call, which no longer waits, is dropped.
                Ok(place) => drop(self.opens.send(Opened {
                    placeholder,
                    file,
                    waiting,
                    _place: place,
                })),
                Err(_) => waiting.refuse(libc::EMFILE),
            },
            Needed::Refusal(errno) => waiting.refuse(errno),
        }
    }
}

enum Needed {
    Nothing,
    Bytes(File, Placeholder),
    Refusal(i32),
}

/// Records a removal before it happens. Otherwise a scan of the mirror could find a file missing and not know that a
/// cell has removed it.
fn note_removal(thread: i32, path: &PathOf, mirror: &Mutex<Mirror>) {
    let Some(place) = place_of(thread, path) else {
        return;
    };
    if let (Some(folder), Some(name)) = (place.path.parent(), place.path.file_name())
        && let Ok(folder) = place.find(folder).and_then(|folder| folder.status())
    {
        lock(mirror).is_being_removed(&folder, name);
    }
}

fn needed(thread: i32, path: &PathOf, flags: FlagsOf, placeholders: &Placeholders) -> Needed {
    const NO_BYTES: i32 = libc::O_PATH | libc::O_DIRECTORY;
    if placeholders.is_empty() {
        return Needed::Nothing;
    }
    let flags = match flags {
        FlagsOf::Known { flags, .. } => flags,
        FlagsOf::At(address) => {
            let bytes = read_memory(thread, address, 4);
            bytes.try_into().map_or(0, i32::from_ne_bytes)
        }
    };
    if flags & NO_BYTES != 0 {
        return Needed::Nothing;
    }
    let Some(place) = place_of(thread, path) else {
        return Needed::Refusal(libc::EFAULT);
    };
    let Ok(handle) = place.find(&place.path) else {
        return Needed::Nothing;
    };
    let Ok(status) = handle.status() else {
        return Needed::Nothing;
    };
    if flags & libc::O_TRUNC != 0 && placeholders.may_be_emptied(&status) {
        return Needed::Nothing;
    }
    match placeholders.open(&handle) {
        Ok(Some((file, placeholder))) => Needed::Bytes(file, placeholder),
        Ok(None) => Needed::Nothing,
        Err(error) => {
            tracing::warn!(%error, "A file of a mirror cannot be filled");
            Needed::Refusal(libc::EIO)
        }
    }
}

/// A path of the session, and where to look it up.
struct PlaceOf {
    path: PathBuf,
    /// The session's root; `None` if the path is one of this process.
    root: Option<PathBuf>,
}

impl PlaceOf {
    fn find(&self, path: &Path) -> std::io::Result<Handle> {
        match &self.root {
            Some(root) => Handle::find_in(root, path),
            None => Handle::find(path),
        }
    }
}

/// `None` if the path cannot be read from the session's memory.
fn place_of(thread: i32, path: &PathOf) -> Option<PlaceOf> {
    let PathOf { folder, address } = path;
    let path = read_text(thread, *address)?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path));
    let of_thread = PathBuf::from(format!("/proc/{thread}"));
    if let Ok(rest) = path.strip_prefix("/proc/self") {
        let (path, root) = (of_thread.join(rest), None);
        return Some(PlaceOf { path, root });
    }
    let folder = match folder {
        Some(folder) => of_thread.join(format!("fd/{folder}")),
        None => of_thread.join("cwd"),
    };
    // The link leads to the path of the folder as the session sees it.
    let path = match path.is_absolute() {
        true => path,
        false => fs::read_link(folder).ok()?.join(path),
    };
    let root = Some(of_thread.join("root"));
    Some(PlaceOf { path, root })
}
