//! The folder in which this user's own broker has its socket and token, and who may be in it.
//!
//! Without `XDG_RUNTIME_DIR` the folder is in `/tmp`, where any user can make it first. Such a user could give a
//! notebook a broker and a worker that run its cells. So each use of the folder begins with [`check_private`], and
//! only this user or root may answer at its socket ([`answers`]).
//!
//! **Invariant:** nothing is read from the folder, or sent to its socket, before it has been checked.

use nix::{
    sys::socket::{
        AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket,
        sockopt::PeerCredentials,
    },
    unistd::Uid,
};
use std::{
    fs, io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnsafeFolder {
    #[error("Failed to check who can enter {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not a folder", .0.display())]
    NoFolder(PathBuf),
    #[error("{} belongs to another user, who may want to read what you run", .0.display())]
    Foreign(PathBuf),
    #[error("Other users can enter {}", .0.display())]
    Open(PathBuf),
    #[error("A process of another user answers at {}", .0.display())]
    ForeignPeer(PathBuf),
}

impl UnsafeFolder {
    /// What a person can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } | Self::NoFolder(_) => {
                "name another folder with BATON_RUNTIME_FOLDER"
            }
            Self::Foreign(_) | Self::ForeignPeer(_) => {
                "tell the administrator of this machine, and name another folder with BATON_RUNTIME_FOLDER"
            }
            Self::Open(_) => {
                "let only yourself enter it (`chmod 700`), after you have checked what is in it"
            }
        }
    }
}

/// Checks that the folder is not a link, belongs to this user, and that no other user can enter it.
/// A folder that does not exist is safe: its maker lets only this user enter.
pub fn check_private(path: &Path) -> Result<(), UnsafeFolder> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            let path = path.to_owned();
            return Err(UnsafeFolder::Unreadable { path, source });
        }
    };
    if !metadata.is_dir() {
        return Err(UnsafeFolder::NoFolder(path.to_owned()));
    }
    if metadata.uid() != Uid::effective().as_raw() {
        return Err(UnsafeFolder::Foreign(path.to_owned()));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(UnsafeFolder::Open(path.to_owned()));
    }
    Ok(())
}

/// Whether this user's own broker answers at this socket in its folder.
pub fn answers(folder: &Path, socket: &Path) -> Result<bool, UnsafeFolder> {
    check_private(folder)?;
    match peer_of(socket) {
        Ok(peer) if may_answer(peer) => Ok(true),
        Ok(_) => Err(UnsafeFolder::ForeignPeer(socket.to_owned())),
        Err(_) => Ok(false),
    }
}

/// The user whose process listens. Does not wait if it accepts no more connections.
fn peer_of(path: &Path) -> nix::Result<Uid> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    let peer = getsockopt(&stream, PeerCredentials)?;
    Ok(Uid::from_raw(peer.uid()))
}

fn may_answer(peer: Uid) -> bool {
    peer == Uid::effective() || peer.is_root()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use nix::sys::socket::{Backlog, bind, listen};
    use std::os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    };

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_a_real_folder_of_this_user_alone_is_used() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("baton");
        let socket = folder.join("broker.sock");
        assert!(!answers(&folder, &socket).unwrap(), "it does not exist yet");
        fs::create_dir(&folder).unwrap();
        set_mode(&folder, 0o700);
        assert!(!answers(&folder, &socket).unwrap());
        let _listener = UnixListener::bind(&socket).unwrap();
        assert!(answers(&folder, &socket).unwrap());

        set_mode(&folder, 0o755);
        let open = answers(&folder, &socket).unwrap_err();
        assert!(matches!(open, UnsafeFolder::Open(_)), "{open:?}");
        set_mode(&folder, 0o700);

        let link = place.path().join("link");
        symlink(&folder, &link).unwrap();
        let linked = check_private(&link).unwrap_err();
        assert!(matches!(linked, UnsafeFolder::NoFolder(_)), "{linked:?}");
    }

    #[test]
    fn a_service_that_accepts_no_more_connections_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o700);
        let path = folder.path().join("broker.sock");
        let listener = socket(
            AddressFamily::Unix,
            SockType::Stream,
            SockFlag::empty(),
            None,
        )
        .unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        assert!(answers(folder.path(), &path).unwrap());
        assert!(!answers(folder.path(), &path).unwrap());
    }

    #[test]
    fn a_folder_or_peer_of_another_user_is_refused() {
        if !Uid::effective().is_root() {
            let foreign = check_private(Path::new("/")).unwrap_err();
            assert!(matches!(foreign, UnsafeFolder::Foreign(_)), "{foreign:?}");
        }
        assert!(may_answer(Uid::effective()));
        assert!(may_answer(Uid::from_raw(0)));
        assert!(!may_answer(Uid::from_raw(Uid::effective().as_raw() + 1)));
    }
}
