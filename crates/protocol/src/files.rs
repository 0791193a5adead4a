//! Files of the notebook's folder, on their way between proxy and worker.
//!
//! A worker that does not see the folder keeps a mirror of it. The proxy sends a [`Listing`]; contents follow when the
//! worker asks for them ([`FilesWanted`], [`FilesAnswer`]); what a cell did to files comes home as [`Change`]s.
//! All of it travels in [`Payload`]s, which the broker passes on and does not read.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::Piece;
use serde::{Deserialize, Serialize, de::Error as _};
use serde_bytes::{ByteBuf, Bytes};

/// An encoded message, cut like any other bytes: what is short lies inside, the rest in chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Payload(pub Vec<Piece>);

/// Where the notebook's folder is, and what tells whoever sees a folder there that it is the very same one.
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

/// A path below the notebook's folder: no `..`, no `.`, nothing empty. Names need not be Unicode.
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

    /// `None` for what lies directly in the notebook's folder.
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

/// Tells one version of a file at home from another. Means nothing elsewhere.
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
    /// A symbolic link to something else below the notebook's folder, by a relative path.
    Link {
        target: ByteBuf,
    },
}

/// What lies in the notebook's folder, or what is different since an earlier listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The listing that this one continues; none for a whole one.
    pub base: Option<u64>,
    pub number: u64,
    /// Folders before what is in them.
    pub changed: Vec<(RelativePath, Entry)>,
    pub gone: Vec<RelativePath>,
    /// Those of the changed that are as the last cell left them: the mirror has their contents.
    pub known: Vec<RelativePath>,
    /// The folder has more than a listing may hold.
    pub cut: bool,
}

/// What a worker asks for while it has a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesWanted {
    /// A whole one.
    Listing {},
    Contents {
        paths: Vec<RelativePath>,
    },
    /// A file of this name in the notebook's folder, made with the student's rights: the worker looks whether it is in
    /// what looks like that folder to it.
    Proof {
        name: String,
    },
    /// The file may go.
    ProofSeen {},
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesAnswer {
    Listing(Listing),
    /// In the order of the question.
    Contents(Vec<Result<Content, NoContent>>),
    Proof {
        seen: bool,
    },
    /// To any question.
    Failed {
        reason: String,
    },
}

/// A file with all its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// At home; none for a file that comes from a session.
    pub stamp: Option<Stamp>,
    pub bytes: u64,
    pub modified_ns: i64,
    pub mode: u32,
    /// Piece `n` has the bytes from `n * CHUNK_BYTES` on.
    pub pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoContent {
    /// It was there when the listing was made.
    Gone {},
    Denied {},
    Failed {
        reason: String,
    },
}

/// What a cell did to the files. All of them together are one step: a file may take the place of one that moves away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The file or link is gone. `base` is how it was when the cell began.
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
    /// The file has another name and the same bytes.
    Moved {
        from: RelativePath,
        base: Base,
        path: RelativePath,
        over: Option<Base>,
        mode: u32,
    },
    /// New bytes, in a new file or over what was there.
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
    /// Other permission bits.
    ModeSet {
        path: RelativePath,
        base: Base,
        mode: u32,
    },
}

impl Change {
    /// Everything at home that is different afterwards.
    pub fn paths(&self) -> impl Iterator<Item = &RelativePath> {
        let from = match self {
            Self::Moved { from, .. } => Some(from),
            _ => None,
        };
        from.into_iter().chain([self.path()])
    }

    /// Where the change leads.
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

/// How something was at home when a cell began, as far as its session knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    File(Stamp),
    Link { target: ByteBuf },
}
