//! Errors of this crate, one variant for each case that a caller can act on.

use baton_protocol::ChunkHash;
use std::path::PathBuf;

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
    /// Neither memory nor swap has enough free space.
    #[error("This machine has no memory left for the state")]
    MemoryFull,
    /// Judged by the manifest or snapshot; nothing has been allocated yet.
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
    /// Whether memory, descriptors or disk space are exhausted now and may be available later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Assemble(_) | Self::MemoryFull | Self::Full { .. }
        )
    }
}
