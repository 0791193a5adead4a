//! Which placeholders a session is about to open, and which names it takes away.
//!
//! In: system calls of the session and of its children. Out: [`Opened`] for each that needs bytes; all others go on
//! at once. The mirror learns of each name that a call removes or renames. Also C libraries and other programs are
//! seen, because the system itself tells.
//!
//! A path that a session names is looked up once, only to find which file it is. Nothing is read or written through
//! it: a placeholder is opened through what was found, whatever has its name by then.
//!
//! **Invariant:** every call that waits gets an answer; one that nobody fills fails. No other file than a placeholder of
//! this mirror is ever opened.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use baton_mirror::{Handle, Mirror, Placeholder, Placeholders};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use tokio::sync::{mpsc, oneshot};

use super::lock;
pub(super) use super::sys::Watched;
pub(crate) use super::sys::Watching;
use super::sys::{self, About, FlagsOf, PathOf};

/// A session waits to open a file that has no bytes yet.
pub(crate) struct Opened {
    pub(crate) placeholder: Placeholder,
    /// To be filled.
    pub(crate) file: File,
    pub(crate) waiting: Waiting,
}

/// A system call that waits. Dropping it lets the call fail.
pub(crate) struct Waiting {
    listener: Arc<OwnedFd>,
    id: Option<u64>,
}

impl Waiting {
    pub(crate) fn go_on(mut self) {
        if let Some(id) = self.id.take() {
            sys::go_on(&self.listener, id);
        }
    }

    /// `errno` is for the cell.
    pub(crate) fn refuse(mut self, errno: i32) {
        if let Some(id) = self.id.take() {
            sys::refuse(&self.listener, id, errno);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            sys::refuse(&self.listener, id, libc::EIO);
        }
    }
}

/// Set up before the session's process starts.
pub(crate) struct Watch {
    opened: mpsc::UnboundedReceiver<Opened>,
    works: oneshot::Receiver<bool>,
}

impl Watch {
    /// The thread that listens ends with the last process of the session.
    pub(crate) fn start(
        watched: Watched,
        mirror: Arc<Mutex<Mirror>>,
    ) -> std::io::Result<(Self, Watching)> {
        let (from_session, to_worker) = UnixStream::pair()?;
        let (opens, opened) = mpsc::unbounded_channel();
        let (says, works) = oneshot::channel();
        let watching = Watching::new(watched, to_worker, &from_session);
        std::thread::Builder::new()
            .name("baton-opens".to_owned())
            .spawn(move || {
                let listener = sys::receive_listener(&from_session);
                // Nobody asks when the session did not start.
                let _ = says.send(listener.is_some());
                if let Some(listener) = listener {
                    listen(&Arc::new(listener), &mirror, &opens);
                }
            })?;
        Ok((Self { opened, works }, watching))
    }

    /// Once the session has its end of the connection and this process has none: what the session opens; none where the system does not tell.
    pub(crate) async fn opened(self) -> Option<mpsc::UnboundedReceiver<Opened>> {
        self.works.await.unwrap_or(false).then_some(self.opened)
    }
}

fn listen(listener: &Arc<OwnedFd>, mirror: &Mutex<Mirror>, opens: &mpsc::UnboundedSender<Opened>) {
    let placeholders = lock(mirror).placeholders();
    loop {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => continue,
            Err(_) => return,
        }
        let events = ready[0].revents().unwrap_or(PollFlags::POLLHUP);
        if !events.contains(PollFlags::POLLIN) {
            return;
        }
        let notification = match sys::receive(listener) {
            Ok(Some(notification)) => notification,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(%error, "File accesses of a session are no longer observed");
                return;
            }
        };
        let waiting = Waiting {
            listener: listener.clone(),
            id: Some(notification.id),
        };
        let thread = notification.thread;
        let needed = match notification.about {
            About::Open(path, flags) => needed(thread, &path, &flags, &placeholders),
            About::Removal(path, to) => {
                for path in std::iter::once(path).chain(to) {
                    note_removal(thread, &path, mirror);
                }
                Needed::Nothing
            }
        };
        match needed {
            Needed::Nothing => waiting.go_on(),
            // Without a session nobody listens, and nobody waits.
            Needed::Bytes(file, placeholder) => drop(opens.send(Opened {
                placeholder,
                file,
                waiting,
            })),
            Needed::Refusal(errno) => waiting.refuse(errno),
        }
    }
}

enum Needed {
    Nothing,
    Bytes(File, Placeholder),
    Refusal(i32),
}

/// The mirror is told before it happens, so that no look at the mirror finds a name gone of which it knows nothing.
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

fn needed(thread: i32, path: &PathOf, flags: &FlagsOf, placeholders: &Placeholders) -> Needed {
    const NO_BYTES: i32 = libc::O_PATH | libc::O_DIRECTORY;
    if placeholders.is_empty() {
        return Needed::Nothing;
    }
    let flags = match *flags {
        FlagsOf::Known(flags) => flags,
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
    if placeholders.get(&status).is_none() {
        return Needed::Nothing;
    }
    if flags & libc::O_TRUNC != 0 {
        placeholders.emptied(status.inode);
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

/// A path as the session means it.
struct PlaceOf {
    path: PathBuf,
    /// Where its absolute paths begin; `None`: the path is one of this process's own.
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

/// `None` when the path cannot be read.
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
    // The system says where the folder is as the session sees it.
    let path = match path.is_absolute() {
        true => path,
        false => fs::read_link(folder).ok()?.join(path),
    };
    let root = Some(of_thread.join("root"));
    Some(PlaceOf { path, root })
}

fn read_text(thread: i32, address: u64) -> Option<Vec<u8>> {
    const PAGE: u64 = 4096;
    let mut text = Vec::new();
    let mut address = address;
    while text.len() < libc::PATH_MAX as usize {
        // Up to the end of the page: the next one may not be there.
        let bytes = read_memory(thread, address, PAGE - address % PAGE);
        if bytes.is_empty() {
            return None;
        }
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&bytes[..end]);
            return Some(text);
        }
        address += bytes.len() as u64;
        text.extend_from_slice(&bytes);
    }
    None
}

/// Empty when it cannot be read.
fn read_memory(thread: i32, address: u64, count: u64) -> Vec<u8> {
    let count = usize::try_from(count).unwrap_or_default();
    let mut bytes = vec![0; count];
    let Ok(base) = usize::try_from(address) else {
        return Vec::new();
    };
    let remote = [RemoteIoVec { base, len: count }];
    let local = &mut [IoSliceMut::new(&mut bytes)];
    let read = process_vm_readv(Pid::from_raw(thread), local, &remote).unwrap_or(0);
    bytes.truncate(read);
    bytes
}
