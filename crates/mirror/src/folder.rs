//! An open folder, and the names below it.
//!
//! Every access to a notebook's folder and to a mirror starts from an open descriptor of that folder.
//! [`Folder::at`] finds the folder that contains a name once: with `openat2`, which follows no link and never
//! leaves the starting folder, or component by component if the system lacks it. Everything else is done to
//! that name in that folder, even while another process renames folders or puts links in their place. A file
//! whose bytes are read or written is opened once, and all further operations use its descriptor.
//!
//! **Invariant:** no link is followed, except where a function says so. No call waits for the other
//! end of a pipe.

use baton_protocol::files::RelativePath;
use baton_removal::remove_tree_at;
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat, renameat},
    libc,
    sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat},
    unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat},
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata, Permissions},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// Opens without the right to read or write: enough to start from.
const FOUND: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);
const FOLDER: OFlag = FOUND.union(OFlag::O_DIRECTORY);

/// An open folder. Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct Folder(Arc<OwnedFd>);

/// A name in an open folder, whether or not it exists.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    name: OsString,
}

/// A file or folder that was found. It stays the same one even if its name changes.
#[derive(Debug)]
pub struct Handle(OwnedFd);

/// The system's information about a file, folder or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    kind: u32,
    pub device: u64,
    pub inode: u64,
    pub owner: u32,
    pub bytes: u64,
    pub(crate) blocks: u64,
    /// Since 1970.
    pub(crate) modified_ns: i64,
    /// Permission bits.
    pub(crate) mode: u32,
}

impl Folder {
    /// Opens a folder. Follows links, so use it only for paths that neither a cell nor another
    /// machine has chosen.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(open(path, FOLDER, Mode::empty())?)))
    }

    /// Finds a name. The folder that contains it must exist; the name need not.
    pub fn at(&self, path: &RelativePath) -> io::Result<Place> {
        let folder = match path.parent() {
            Some(parent) => self.folder(&parent)?,
            None => self.clone(),
        };
        let name = path.as_path().file_name().unwrap_or_default();
        Ok(folder.child(name))
    }

    /// A name in this folder. `name` must not be a path.
    pub(crate) fn child(&self, name: impl Into<OsString>) -> Place {
        Place {
            folder: self.clone(),
            name: name.into(),
        }
    }

    pub fn folder(&self, path: &RelativePath) -> io::Result<Self> {
        let how = OpenHow::new().flags(FOLDER).resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
        match openat2(self.0.as_fd(), path.as_path(), how) {
            Ok(folder) => Ok(Self(Arc::new(folder))),
            // Older systems lack it, and some sandboxes forbid unknown system calls.
            Err(Errno::ENOSYS | Errno::EPERM) => self.step_by_step(path),
            // The same error as component by component.
            Err(Errno::ELOOP) => Err(Errno::ENOTDIR.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn step_by_step(&self, path: &RelativePath) -> io::Result<Self> {
        let mut folder = self.clone();
        for name in path.as_path().components() {
            folder = folder.child(name.as_os_str()).folder()?;
        }
        Ok(folder)
    }

    /// Returns the folder of this path. Missing folders on the way are made.
    pub fn make_folders(&self, path: &RelativePath) -> io::Result<Self> {
        match self.folder(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let mut folder = self.clone();
        for name in path.as_path().components() {
            let place = folder.child(name.as_os_str());
            match place.make_folder(0o777) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => folder = place.folder()?,
            }
        }
        Ok(folder)
    }

    pub fn status(&self) -> io::Result<Status> {
        Ok(Status::from(fstat(self.0.as_fd())?))
    }

    /// A descriptor that can be listed or locked.
    pub(crate) fn readable(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(openat(self.0.as_fd(), ".", flags, Mode::empty())?)
    }

    /// Locks the folder until the result is dropped, if its file system supports locks.
    pub(crate) fn lock(&self) -> io::Result<File> {
        let lock = File::from(self.readable()?);
        if let Err(error) = lock.try_lock() {
            tracing::debug!(%error, "Failed to lock a folder");
        }
        Ok(lock)
    }

    /// Calls `each` with every name in the folder, until it returns `false`.
    pub(crate) fn each_name(
        &self,
        mut each: impl FnMut(&OsStr) -> io::Result<bool>,
    ) -> io::Result<()> {
        let mut names = Dir::from_fd(self.readable()?)?;
        for entry in names.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") && !each(OsStr::from_bytes(name))? {
                break;
            }
        }
        Ok(())
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Place {
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Another name in the same folder.
    pub(crate) fn beside(&self, name: impl Into<OsString>) -> Self {
        self.folder.child(name)
    }

    pub fn status(&self) -> io::Result<Status> {
        self.look(AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    /// The status of a link's target, wherever it is.
    pub(crate) fn followed_status(&self) -> io::Result<Status> {
        self.look(AtFlags::empty())
    }

    fn look(&self, flags: AtFlags) -> io::Result<Status> {
        let found = fstatat(self.folder.0.as_fd(), self.name.as_os_str(), flags)?;
        Ok(Status::from(found))
    }

    pub(crate) fn present(&self) -> io::Result<Option<Status>> {
        match self.status() {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn read_link(&self) -> io::Result<OsString> {
        Ok(readlinkat(self.folder.0.as_fd(), self.name.as_os_str())?)
    }

    fn open(&self, flags: OFlag) -> io::Result<OwnedFd> {
        let flags = flags | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o666);
        let name = self.name.as_os_str();
        Ok(openat(self.folder.0.as_fd(), name, flags, mode)?)
    }

    /// Opens a regular file to read it. Anything else counts as absent.
    pub fn open_file(&self) -> io::Result<File> {
        self.open_regular(OFlag::O_NOFOLLOW)
    }

    /// Opens a regular file to read it. Follows a link.
    pub(crate) fn open_followed(&self) -> io::Result<File> {
        self.open_regular(OFlag::empty())
    }

    fn open_regular(&self, flags: OFlag) -> io::Result<File> {
        let no_file = || io::Error::new(io::ErrorKind::NotFound, "it is no file");
        let opened = self.open(flags | OFlag::O_RDONLY | OFlag::O_NONBLOCK);
        let file = match opened {
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(no_file()),
            opened => File::from(opened?),
        };
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(no_file()),
        }
    }

    /// Creates a file to read and write.
    pub fn create_file(&self) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        Ok(File::from(self.open(flags)?))
    }

    pub(crate) fn folder(&self) -> io::Result<Folder> {
        Ok(Folder(Arc::new(self.open(FOLDER | OFlag::O_NOFOLLOW)?)))
    }

    pub fn handle(&self) -> io::Result<Handle> {
        Ok(Handle(self.open(FOUND | OFlag::O_NOFOLLOW)?))
    }

    pub(crate) fn make_folder(&self, mode: u32) -> io::Result<()> {
        let mode = Mode::from_bits_truncate(mode);
        Ok(mkdirat(self.folder.0.as_fd(), self.name.as_os_str(), mode)?)
    }

    pub(crate) fn make_link(&self, target: &OsStr) -> io::Result<()> {
        Ok(symlinkat(
            target,
            self.folder.0.as_fd(),
            self.name.as_os_str(),
        )?)
    }

    /// Removes anything except a folder.
    pub fn remove_file(&self) -> io::Result<()> {
        self.unlink(UnlinkatFlags::NoRemoveDir)
    }

    /// Removes a folder if it is empty.
    pub(crate) fn remove_folder(&self) -> io::Result<()> {
        self.unlink(UnlinkatFlags::RemoveDir)
    }

    fn unlink(&self, flags: UnlinkatFlags) -> io::Result<()> {
        Ok(unlinkat(
            self.folder.0.as_fd(),
            self.name.as_os_str(),
            flags,
        )?)
    }

    /// Removes a file, or a folder with everything in it. Does nothing for what is already gone.
    pub(crate) fn remove_tree(&self) -> io::Result<()> {
        remove_tree_at(self.folder.0.as_fd(), &self.name)
    }

    /// Renames this. Replaces whatever the other place has.
    pub(crate) fn rename_to(&self, other: &Self) -> io::Result<()> {
        let (from, to) = (self.folder.0.as_fd(), other.folder.0.as_fd());
        let (old, new) = (self.name.as_os_str(), other.name.as_os_str());
        Ok(renameat(from, old, to, new)?)
    }

    /// Gives this a second name. Works for a link, too.
    pub(crate) fn hard_link_to(&self, other: &Self) -> io::Result<()> {
        let (from, to) = (self.folder.0.as_fd(), other.folder.0.as_fd());
        let (old, new) = (self.name.as_os_str(), other.name.as_os_str());
        Ok(linkat(from, old, to, new, AtFlags::empty())?)
    }

    /// Sets the permissions. Fails for a link, which has none of its own.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<Status> {
        let handle = self.handle()?;
        handle.set_mode(mode)?;
        handle.status()
    }
}

impl Handle {
    /// Finds the file that a session names, to identify it. Follows links.
    pub fn find(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, FOUND, Mode::empty())?))
    }

    /// The same for an absolute path as seen by a process with this root folder (`/proc/PID/root`):
    /// links are resolved in that process's view, too.
    pub fn find_in(root: &Path, path: &Path) -> io::Result<Self> {
        let how = OpenHow::new()
            .flags(FOUND)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        match openat2(open(root, FOLDER, Mode::empty())?, path, how) {
            // Without that system call, files behind some absolute links are not found.
            Err(Errno::ENOSYS) => Self::find(&root.join(path.strip_prefix("/").unwrap_or(path))),
            found => Ok(Self(found?)),
        }
    }

    pub fn status(&self) -> io::Result<Status> {
        Ok(Status::from(fstat(self.0.as_fd())?))
    }

    /// Opens it to read and write.
    pub(crate) fn open(&self) -> io::Result<File> {
        File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.by_number())
    }

    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        if self.status()?.is_link() {
            return Err(Errno::ELOOP.into());
        }
        fs::set_permissions(self.by_number(), Permissions::from_mode(mode))
    }

    /// The path of this descriptor, which always leads to this very file.
    fn by_number(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl Status {
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == libc::S_IFREG
    }

    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    #[must_use]
    pub fn is_link(&self) -> bool {
        self.kind == libc::S_IFLNK
    }

    /// Whether both are the same file or folder, even if it has changed in between.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl From<FileStat> for Status {
    #[allow(
        clippy::cast_sign_loss,
        clippy::cast_lossless,
        clippy::unnecessary_cast
    )]
    fn from(found: FileStat) -> Self {
        Self {
            kind: found.st_mode & libc::S_IFMT,
            device: found.st_dev as u64,
            inode: found.st_ino as u64,
            owner: found.st_uid,
            bytes: found.st_size as u64,
            blocks: found.st_blocks as u64,
            modified_ns: nanoseconds(found.st_mtime as i64, found.st_mtime_nsec as i64),
            mode: found.st_mode & 0o7777,
        }
    }
}

impl From<&Metadata> for Status {
    fn from(found: &Metadata) -> Self {
        Self {
            kind: found.mode() & libc::S_IFMT,
            device: found.dev(),
            inode: found.ino(),
            owner: found.uid(),
            bytes: found.len(),
            blocks: found.blocks(),
            modified_ns: nanoseconds(found.mtime(), found.mtime_nsec()),
            mode: found.mode() & 0o7777,
        }
    }
}

/// Whether the path does not exist, or goes through a file instead of a folder.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

/// A path below a folder that stays open, for later use.
#[derive(Debug, Clone)]
pub(crate) struct Below {
    pub(crate) folder: Folder,
    pub(crate) path: RelativePath,
}

impl Below {
    pub(crate) fn place(&self) -> io::Result<Place> {
        self.folder.at(&self.path)
    }
}
