//! Errors of this crate, one variant for each case that a caller can act on.

use baton_protocol::ChunkHash;
use std::path::PathBuf;

/// What another attempt to transfer a state would lead to after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The same attempt may succeed later: memory, descriptors, disk space or a connection are missing at the moment.
    Passing,
    /// The same bytes will not arrive, but the other end can send them again.
    AskAgain,
    /// Every attempt fails in the same way: the memory cannot be read, the state never fits here, or it contradicts
    /// what was sent before.
    Lasting,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The operating system does not let a parent read its child.
    #[error(
        "This machine does not let Baton read the memory of its own kernel (process {pid}{})",
        ptrace_scope.as_ref().map(|scope| format!(", kernel.yama.ptrace_scope is {scope}")).unwrap_or_default()
    )]
    MemoryNotPermitted {
        pid: i32,
        /// The content of `/proc/sys/kernel/yama/ptrace_scope`, if it exists.
        ptrace_scope: Option<String>,
    },
    #[error("The kernel (process {pid}) ended while its memory was read")]
    ProcessGone { pid: i32 },
    #[error("Failed to read {bytes} bytes at {address:#x} of process {pid}")]
    Memory {
        pid: i32,
        address: u64,
        bytes: usize,
        #[source]
        source: nix::Error,
    },
    /// The snapshot or manifest contradicts earlier ones, so the object table is void.
    #[error("The state does not fit what was sent before: segment {segment} {what}")]
    Ledger { segment: u32, what: &'static str },
    #[error("The manifest contradicts itself: {0}")]
    Manifest(&'static str),
    #[error("Chunk {hash} was not asked for")]
    NotWanted { hash: ChunkHash },
    #[error("Chunk {hash} arrived with other bytes: {found}")]
    Damaged { hash: ChunkHash, found: ChunkHash },
    #[error("{missing} chunks have not arrived")]
    Incomplete { missing: usize },
    #[error(
        "A chunk has at most {} bytes, not {bytes}",
        baton_protocol::CHUNK_BYTES
    )]
    TooLarge { bytes: usize },
    #[error("Failed to keep the state in memory")]
    Assemble(#[source] std::io::Error),
    /// There is not enough free memory at the moment, or neither memory nor swap had room for what was written.
    #[error("This machine has no memory left for the state")]
    MemoryFull,
    /// More than this machine or a session may ever hold, judged by the manifest or snapshot.
    #[error("The state has {bytes} bytes; there is room for {limit_bytes}")]
    NoRoom { bytes: u64, limit_bytes: u64 },
    #[error("The received state contradicts itself: {0}")]
    Bundle(&'static str),
    #[error("The transfer of the state was aborted")]
    Cancelled,
    /// The store is full. Without a limit, the disk is.
    #[error(
        "{} has no room for more chunks: {}", root.display(),
        limit_bytes.map_or_else(|| "the disk is full".to_owned(), |limit| format!("its limit is {limit} bytes"))
    )]
    Full {
        root: PathBuf,
        limit_bytes: Option<u64>,
    },
    #[error("Failed to use {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl StateError {
    /// Whether this machine has no room for a copy of the state in memory. Its chunks can be sent one by one.
    #[must_use]
    pub fn is_lack_of_room(&self) -> bool {
        matches!(self, Self::NoRoom { .. } | Self::MemoryFull)
    }

    /// What another attempt would lead to.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::Assemble(_) | Self::MemoryFull | Self::Full { .. } => Severity::Passing,
            Self::Damaged { .. }
            | Self::Incomplete { .. }
            | Self::Cancelled
            | Self::Directory { .. } => Severity::AskAgain,
            Self::MemoryNotPermitted { .. }
            | Self::ProcessGone { .. }
            | Self::Memory { .. }
            | Self::Ledger { .. }
            | Self::Manifest(_)
            | Self::NotWanted { .. }
            | Self::TooLarge { .. }
            | Self::NoRoom { .. }
            | Self::Bundle(_) => Severity::Lasting,
        }
    }
}
