//! Files of the notebook's folder, as proxy and worker exchange them.
//!
//! A worker that cannot access the folder keeps a mirror of it. The proxy sends a [`Listing`]; contents follow
//! when the worker asks for them ([`FilesWanted`], [`FilesAnswer`]). A cell's changes to files return as
//! [`Change`]s. All of these are sent in [`Payload`]s, which the broker forwards without reading.

use crate::Piece;
use serde::{Deserialize, Serialize, de::Error as _};
use serde_bytes::{ByteBuf, Bytes};
use std::{ffi::OsStr, fmt, os::unix::ffi::OsStrExt as _, path::Path};

/// An encoded message, cut like any other bytes: short pieces are inline, the rest is in chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Payload(pub Vec<Piece>);

/// The notebook's folder, and what identifies it to a worker that sees a folder under the same path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotebookFolder {
    pub path: String,
    /// As in [`crate::Holder`].
    pub host: String,
    pub device: u64,
    pub inode: u64,
    /// A [`Listing`], once a worker has a mirror of this folder.
    pub listing: Option<Payload>,
}

/// A path below the notebook's folder: no `..`, no `.`, no empty parts. Names need not be Unicode.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelativePath(Vec<u8>);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a path below a folder")]
pub struct PathError(String);

impl RelativePath {
    pub fn new(path: impl Into<Vec<u8>>) -> Result<Self, PathError> {
        let path = path.into();
        let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
        match path.split(|byte| *byte == b'/').all(is_name) && !path.contains(&0) {
            true => Ok(Self(path)),
            false => Err(PathError(String::from_utf8_lossy(&path).into_owned())),
        }
    }

    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The folder that contains it; `None` for an entry directly in the notebook's folder.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let end = self.0.iter().rposition(|byte| *byte == b'/')?;
        Some(Self(self.0[..end].to_vec()))
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(formatter)
    }
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for RelativePath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Bytes::new(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RelativePath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path = ByteBuf::deserialize(deserializer)?.into_vec();
        Self::new(path).map_err(D::Error::custom)
    }
}

/// Distinguishes the versions of a file in the notebook's folder. Has no meaning elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u64);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    File {
        stamp: Stamp,
        bytes: u64,
        /// Since 1970.
        modified_ns: i64,
        /// Permission bits.
        mode: u32,
    },
    Folder {
        mode: u32,
    },
    /// A symbolic link with a relative path to something else below the notebook's folder.
    Link {
        target: ByteBuf,
    },
}

/// The contents of the notebook's folder, or the changes since an earlier listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The listing that this one continues; none for a complete one.
    pub base: Option<u64>,
    pub number: u64,
    /// Folders precede their contents.
    pub changed: Vec<(RelativePath, Entry)>,
    pub gone: Vec<RelativePath>,
    /// Changed entries that are as the last cell left them: the mirror has their contents.
    pub known: Vec<RelativePath>,
    /// The folder has more entries than a listing may hold.
    pub cut: bool,
    /// The changes that were sent last could not be applied here: they remain changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_applied: bool,
}

/// A worker's request for files while it has a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesWanted {
    /// A complete listing.
    Listing {},
    Contents {
        paths: Vec<RelativePath>,
    },
    /// Make a file of this name in the notebook's folder with the student's rights. The worker
    /// checks whether the file appears in the folder that it sees.
    Proof {
        name: String,
    },
    /// The file is no longer needed.
    ProofSeen {},
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesAnswer {
    Listing(Listing),
    /// In the order of the request.
    Contents(Vec<Result<Content, NoContent>>),
    Proof {
        seen: bool,
    },
    /// The answer to any request that failed.
    Failed {
        reason: String,
    },
}

/// A file with all its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The version in the notebook's folder; none for a file from a session.
    pub stamp: Option<Stamp>,
    pub bytes: u64,
    pub modified_ns: i64,
    pub mode: u32,
    /// Piece `n` has the bytes from offset `n * CHUNK_BYTES`.
    pub pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoContent {
    /// The file existed when the listing was made.
    Gone {},
    Denied {},
    Failed {
        reason: String,
    },
}

/// A cell's changes to files. All of them together are one step: a file may take the place of one
/// that is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The file or link was removed. `base` is its version when the cell began.
    Removed {
        path: RelativePath,
        base: Base,
    },
    FolderRemoved {
        path: RelativePath,
    },
    FolderMade {
        path: RelativePath,
        mode: u32,
    },
    /// The file has a new name and the same bytes.
    Moved {
        from: RelativePath,
        base: Base,
        path: RelativePath,
        over: Option<Base>,
        mode: u32,
    },
    /// New bytes, in a new file or in place of an existing one.
    Written {
        path: RelativePath,
        over: Option<Base>,
        content: Content,
    },
    Linked {
        path: RelativePath,
        over: Option<Base>,
        target: ByteBuf,
    },
    /// New permission bits.
    ModeSet {
        path: RelativePath,
        base: Base,
        mode: u32,
    },
}

impl Change {
    /// All paths in the notebook's folder that the change affects.
    pub fn paths(&self) -> impl Iterator<Item = &RelativePath> {
        let from = match self {
            Self::Moved { from, .. } => Some(from),
            _ => None,
        };
        from.into_iter().chain([self.path()])
    }

    /// The path at which the change takes effect.
    #[must_use]
    pub fn path(&self) -> &RelativePath {
        match self {
            Self::Moved { path, .. }
            | Self::Removed { path, .. }
            | Self::FolderRemoved { path }
            | Self::FolderMade { path, .. }
            | Self::Written { path, .. }
            | Self::Linked { path, .. }
            | Self::ModeSet { path, .. } => path,
        }
    }
}

/// The state of a path in the notebook's folder when a cell began, as far as its session knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    File(Stamp),
    Link { target: ByteBuf },
}
