//! Sends state out of the notebook kernel's memory, and receives it into a file for the shim.
//!
//! A worker on the same machine fetches the state from this process, as a sealed file in memory.
//! All other state goes through the broker in chunks. Results return by the same transport.

use std::os::fd::OwnedFd;

use baton_chunks::{Assembler, BlobError, Bundle, Collector, Ledger};
use baton_mirror::FilesError;
use baton_protocol::shim::{Delta, Snapshot};
use baton_protocol::{ChunkHash, HeldState, Manifest, State, StateVersion};
use baton_transport::{ChunkClient, Held, LinkError, MemoryHolder};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::link::Transports;

/// The number of chunks to fetch before they are placed, which bounds the memory in use.
const FETCH_GROUP: usize = 32;

#[derive(Debug, thiserror::Error)]
pub(super) enum TransferError {
    #[error("cancelled")]
    Cancelled,
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("the transfer of the state broke off")]
    Join(#[from] tokio::task::JoinError),
    #[error("the worker's result is missing")]
    NoResult,
}

impl TransferError {
    /// Whether a later attempt may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Link(error) => error.may_pass(),
            Self::Blob(error) => error.may_pass(),
            _ => false,
        }
    }

    /// Whether every attempt fails the same way, because the state contradicts what was sent before.
    pub(super) fn is_lasting(&self) -> bool {
        let Self::Blob(error) = self else {
            return false;
        };
        matches!(
            error,
            BlobError::Ledger { .. }
                | BlobError::Manifest(_)
                | BlobError::Bundle(_)
                | BlobError::NotWanted { .. }
        )
    }
}

/// A snapshot, and the state of the session that it continues.
pub(super) struct Outgoing {
    pub(super) base: StateVersion,
    pub(super) snapshot: Snapshot,
    pub(super) ledger: Ledger,
}

/// A state that was sent, and what must be kept until its job ends.
pub(super) struct Sent {
    pub(super) state: State,
    pub(super) ledger: Ledger,
    pub(super) held: Option<Held>,
}

/// The transfers of one notebook.
#[derive(Clone)]
pub(super) struct Transfer {
    kernel_pid: i32,
    memory: Option<MemoryHolder>,
}

impl Transfer {
    pub(super) fn new(kernel_pid: u32, memory: Option<MemoryHolder>) -> Self {
        Self {
            kernel_pid: kernel_pid.cast_signed(),
            memory,
        }
    }

    /// A worker could not reach this process, so all further state goes through the broker.
    pub(super) fn use_chunks(&mut self) {
        if self.memory.take().is_some() {
            tracing::info!("The worker is on another machine: state moves through the broker");
        }
    }

    /// When this returns, even with an error, the kernel's memory is no longer read.
    pub(super) async fn send(
        &self,
        outgoing: Outgoing,
        transports: &Transports,
        cancel: &CancellationToken,
    ) -> Result<Sent, TransferError> {
        match &self.memory {
            Some(memory) if transports.near => self.hold(memory, outgoing, cancel).await,
            _ => {
                let (manifest, ledger) =
                    upload(self.kernel_pid, outgoing, &transports.chunks, cancel).await?;
                Ok(Sent {
                    state: State::Chunks(manifest),
                    ledger,
                    held: None,
                })
            }
        }
    }

    /// Sends the only message of a whole table to the broker, where it outlives this kernel. The
    /// memory guarantee of [`Self::send`] holds here, too.
    pub(super) async fn store(
        &self,
        outgoing: Outgoing,
        chunks: &ChunkClient,
        cancel: &CancellationToken,
    ) -> Result<Manifest, TransferError> {
        let (manifest, _) = upload(self.kernel_pid, outgoing, chunks, cancel).await?;
        Ok(manifest)
    }

    async fn hold(
        &self,
        memory: &MemoryHolder,
        outgoing: Outgoing,
        cancel: &CancellationToken,
    ) -> Result<Sent, TransferError> {
        let (kernel_pid, cancel) = (self.kernel_pid, cancel.clone());
        let base = outgoing.base;
        let quick = baton_chunks::is_quick(&outgoing.snapshot);
        let pack = move || {
            let Outgoing {
                snapshot, ledger, ..
            } = outgoing;
            let cancelled = || cancel.is_cancelled();
            let bundle = baton_chunks::pack(kernel_pid, &snapshot, &ledger, &cancelled)?;
            let ledger = bundle.enter(ledger)?;
            Ok::<_, BlobError>((bundle, ledger))
        };
        let (bundle, ledger) = match quick {
            true => pack()?,
            false => tokio::task::spawn_blocking(pack).await??,
        };
        let bytes = bundle.file_bytes();
        // A worker must fetch the first message of a table, which shows that it can reach this process.
        let enclosed = match base.messages {
            0 => None,
            _ => bundle.enclose()?,
        };
        let held = memory.hold(bundle);
        let state = State::Memory(HeldState {
            base,
            bytes,
            holder: memory.address().clone(),
            key: held.key(),
            enclosed,
        });
        Ok(Sent {
            state,
            ledger,
            held: Some(held),
        })
    }
}

/// The file for the shim, its description, and what both ends hold once the shim has applied it.
pub(super) type Received = (OwnedFd, Delta, Ledger);

/// Receives a job's result. `held` is what was kept for the job.
pub(super) async fn receive(
    state: State,
    ledger: Ledger,
    held: Option<&Held>,
    chunks: &ChunkClient,
) -> Result<Received, TransferError> {
    let held_state = match state {
        State::Chunks(manifest) => return download(manifest, ledger, chunks).await,
        State::Memory(held_state) => held_state,
    };
    let bundle = match held_state.enclosed {
        Some(enclosed) => Bundle::disclose(*enclosed)?,
        None => held
            .and_then(|held| held.take_result(held_state.key))
            .ok_or(TransferError::NoResult)?,
    };
    let ledger = bundle.enter(ledger)?;
    let (file, delta) = bundle.into_parts();
    Ok((file, delta, ledger))
}

/// Reads the changes, uploads what the broker lacks, and returns the manifest.
async fn upload(
    kernel_pid: i32,
    outgoing: Outgoing,
    chunks: &ChunkClient,
    cancel: &CancellationToken,
) -> Result<(Manifest, Ledger), TransferError> {
    let Outgoing {
        base,
        snapshot,
        ledger,
    } = outgoing;
    let mut collector = Collector::new(kernel_pid, base, snapshot, ledger);
    loop {
        let (returned, batch) = tokio::task::spawn_blocking(move || {
            let batch = collector.next_batch();
            (collector, batch)
        })
        .await?;
        collector = returned;
        let Some(batch) = batch? else {
            return Ok(collector.finish());
        };
        tokio::select! {
            () = cancel.cancelled() => return Err(TransferError::Cancelled),
            stored = upload_missing(batch, chunks) => stored?,
        }
    }
}

async fn upload_missing(
    batch: Vec<(ChunkHash, Bytes)>,
    chunks: &ChunkClient,
) -> Result<(), LinkError> {
    let hashes: Vec<ChunkHash> = batch.iter().map(|(hash, _)| *hash).collect();
    let missing = chunks.missing(&hashes).await?;
    let wanted: Vec<(ChunkHash, Bytes)> = batch
        .into_iter()
        .filter(|(hash, _)| missing.contains(hash))
        .collect();
    match wanted.is_empty() {
        true => Ok(()),
        false => chunks.put(&wanted).await,
    }
}

/// Fetches all chunks of a manifest and lays them out in a file for the shim.
async fn download(
    manifest: Manifest,
    ledger: Ledger,
    chunks: &ChunkClient,
) -> Result<Received, TransferError> {
    let limit_bytes = baton_chunks::memory::available_bytes();
    let mut assembler = Assembler::new(manifest, ledger, limit_bytes)?;
    let wanted = assembler.wanted();
    for group in wanted.chunks(FETCH_GROUP) {
        let mut fetched = Vec::with_capacity(group.len());
        chunks
            .get(group, |hash, bytes| {
                fetched.push((hash, bytes));
                Ok(())
            })
            .await?;
        assembler = tokio::task::spawn_blocking(move || {
            for (hash, bytes) in fetched {
                assembler.place(hash, &bytes)?;
            }
            Ok::<_, BlobError>(assembler)
        })
        .await??;
    }
    Ok(tokio::task::spawn_blocking(move || assembler.finish()).await??)
}
