//! Removes folders, whatever programs have put into them.
//!
//! A program can nest folders deeper than a path can name, deeper than the stack of a recursion, and deeper than the
//! limit of open files. So there is no recursion: a folder that is not empty is removed after its own folders have
//! been moved up to the top. Each folder moves at most once.
//!
//! **Invariant:** no link is followed. The stack, the memory and the number of open files do not depend on the
//! contents.

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, openat, renameat},
    sys::stat::{Mode, fstat},
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::OsStr,
    fs::{Permissions, set_permissions},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    },
    path::Path,
};

/// What the owner of a folder needs to empty it.
const ACCESS: u32 = 0o700;

/// Removes a file, or a folder with everything in it. Does nothing for what is already gone.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    remove_tree_at(AT_FDCWD, path.as_os_str())
}

/// The same for a name in an open folder.
pub fn remove_tree_at(parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    match remove(&parent, name) {
        Err(Errno::ENOTEMPTY) => {
            empty(&open_folder(&parent, name)?, None)?;
            Ok(remove(&parent, name)?)
        }
        removed => Ok(removed?),
    }
}

/// Like [`remove_tree`], but the entry named `last` is removed after all others. So it is still there if the removal
/// fails or is interrupted.
pub fn remove_tree_with_last(path: &Path, last: &OsStr) -> io::Result<()> {
    match open_folder(AT_FDCWD, path.as_os_str()) {
        Err(Errno::ENOENT) => return Ok(()),
        folder => empty(&folder?, Some(last))?,
    }
    remove_tree(path)
}

/// Removes everything in a folder, except what is named `kept`.
fn empty(folder: &OwnedFd, kept: Option<&OsStr>) -> io::Result<()> {
    let mut names = Dir::from_fd(readable(folder)?)?;
    loop {
        let mut has_removed = false;
        let mut failed = None;
        // Each pass also finds the folders that the last one has moved here.
        for entry in names.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if is_self(name) || Some(name) == kept {
                continue;
            }
            match remove(folder, name).or_else(|_| remove_flat(folder, name)) {
                Ok(()) => has_removed = true,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if !has_removed => return Err(error.into()),
            None if !has_removed => return Ok(()),
            _ => {}
        }
    }
}

/// Removes a folder whose own folders, unless they are empty, are moved into `top`, its parent.
fn remove_flat(top: &OwnedFd, name: &OsStr) -> nix::Result<()> {
    let folder = open_folder(top, name)?;
    let mut names = Dir::from_fd(readable(&folder)?)?;
    for entry in names.iter() {
        let entry = entry?;
        let inner = OsStr::from_bytes(entry.file_name().to_bytes());
        if is_self(inner) || remove(&folder, inner).is_ok() {
            continue;
        }
        // Moving a folder changes what `..` in it means, so it takes the right to write to it.
        open_folder(&folder, inner)?;
        let unique = uuid::Uuid::new_v4().simple().to_string();
        renameat(&folder, inner, top, unique.as_str())?;
    }
    remove(top, name)
}

/// Removes a file or an empty folder. The error for any other folder is [`Errno::ENOTEMPTY`].
fn remove(parent: impl AsFd, name: &OsStr) -> nix::Result<()> {
    let removed = match unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR) => unlinkat(&parent, name, UnlinkatFlags::RemoveDir),
        removed => removed,
    };
    match removed {
        Err(Errno::ENOENT) => Ok(()),
        Err(Errno::EEXIST) => Err(Errno::ENOTEMPTY),
        removed => removed,
    }
}

/// Opens a folder, and gives its owner the right to empty it.
fn open_folder(parent: impl AsFd, name: &OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty())?;
    let mode = fstat(&folder)?.st_mode & 0o7777;
    if mode & ACCESS != ACCESS {
        // This path always leads to the opened folder itself.
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        set_permissions(path, Permissions::from_mode(mode | ACCESS))
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
    }
    Ok(folder)
}

fn readable(folder: &OwnedFd) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(folder, ".", flags, Mode::empty())
}

fn is_self(name: &OsStr) -> bool {
    matches!(name.as_bytes(), b"." | b"..")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use nix::sys::stat::mkdirat;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Nests 500 folders, whose path would be longer than a path may be.
    fn nest(base: &Path) {
        let mut folder = open_folder(AT_FDCWD, base.as_os_str()).unwrap();
        for _ in 0..500 {
            mkdirat(&folder, "a-long-name", Mode::S_IRWXU).unwrap();
            folder = open_folder(&folder, OsStr::new("a-long-name")).unwrap();
        }
    }

    #[test]
    fn deep_folders_are_removed_with_little_stack_and_few_open_files() {
        let base = tempfile::tempdir().unwrap();
        let top = base.path().join("top");
        fs::create_dir_all(top.join("wide")).unwrap();
        nest(&top);
        nest(&top.join("wide"));
        fs::write(top.join("wide/file"), "x").unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, soft.min(32), hard).unwrap();
        let removal = std::thread::Builder::new().stack_size(64 << 10);
        let removed = removal.spawn({
            let top = top.clone();
            move || remove_tree(&top)
        });
        removed.unwrap().join().unwrap().unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn no_link_is_followed() {
        let base = tempfile::tempdir().unwrap();
        let (outside, top) = (base.path().join("outside"), base.path().join("top"));
        fs::create_dir_all(outside.join("kept")).unwrap();
        fs::create_dir_all(top.join("a/b")).unwrap();
        for link in ["link", "a/link", "a/b/link"] {
            symlink(&outside, top.join(link)).unwrap();
        }
        symlink(&top, base.path().join("link")).unwrap();
        remove_tree(&base.path().join("link")).unwrap();
        assert!(top.join("a/b/link").exists());
        remove_tree(&top).unwrap();
        assert!(!top.exists() && outside.join("kept").exists());
        remove_tree(&top).unwrap();
    }

    #[test]
    fn folders_without_permissions_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let top = base.path().join("top");
        let folders = ["a/b/c", "a/b", "a", ""].map(|path| top.join(path));
        fs::create_dir_all(&folders[0]).unwrap();
        fs::write(folders[0].join("file"), "x").unwrap();
        for folder in folders {
            set_permissions(folder, Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn what_is_removed_last_remains_after_a_failure() {
        let base = tempfile::tempdir().unwrap();
        let top = base.path().join("top");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("last"), "x").unwrap();
        let folder = open_folder(AT_FDCWD, top.as_os_str()).unwrap();
        empty(&folder, Some(OsStr::new("last"))).unwrap();
        assert!(top.join("last").exists() && !top.join("a").exists());
        remove_tree_with_last(&top, OsStr::new("last")).unwrap();
        assert!(!top.exists());
    }
}
