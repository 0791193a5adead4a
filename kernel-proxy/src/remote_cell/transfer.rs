//! Sends state out of the notebook kernel's memory, and receives it into a file for the shim.
//!
//! A worker on the same machine fetches the state from this process, as a sealed file in memory.
//! All other state goes through the broker in chunks. Results return by the same transport.

use super::{link::BrokerAccess, session_state::SessionState};
use baton_chunks::{Bundle, Ledger, memory::Room};
use baton_protocol::{HeldState, Manifest, State, shim::Snapshot};
use baton_transport::{
    Changes, ChunkClient, HeldMemory, MemoryHolder, Received, TransferError, transfer,
};
use tokio_util::sync::CancellationToken;

/// A state that was sent, and what must be kept until its job ends.
pub(super) struct Sent {
    pub(super) state: State,
    pub(super) ledger: Ledger,
    pub(super) held: Option<HeldMemory>,
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

    pub(super) fn kernel_pid(&self) -> i32 {
        self.kernel_pid
    }

    /// A worker could not reach this process, so all further state goes through the broker.
    pub(super) fn use_chunks(&mut self) {
        if self.memory.take().is_some() {
            tracing::info!("The worker is on another machine: state moves through the broker");
        }
    }

    /// Sends a snapshot that continues what the session holds. When this returns, even with an error, the kernel's memory is no longer read.
    pub(super) async fn send(
        &self,
        session: SessionState,
        snapshot: Snapshot,
        broker: &BrokerAccess,
        cancel: &CancellationToken,
    ) -> Result<Sent, TransferError> {
        let mut changes = self.changes(session, snapshot);
        if let (Some(memory), true) = (&self.memory, broker.near) {
            changes = match hold(memory, changes, cancel).await? {
                Ok(sent) => return Ok(sent),
                Err(not_held) => not_held,
            };
        }
        let (manifest, ledger) = transfer::upload(&broker.chunks, changes, cancel).await?;
        Ok(Sent {
            state: State::Chunks(manifest),
            ledger,
            held: None,
        })
    }

    /// Sends the only message of a whole table to the broker, where it outlives this kernel. The
    /// memory guarantee of [`Self::send`] holds here, too.
    pub(super) async fn store(
        &self,
        session: SessionState,
        snapshot: Snapshot,
        chunks: &ChunkClient,
        cancel: &CancellationToken,
    ) -> Result<Manifest, TransferError> {
        let changes = self.changes(session, snapshot);
        let (manifest, _) = transfer::upload(chunks, changes, cancel).await?;
        Ok(manifest)
    }

    fn changes(&self, session: SessionState, snapshot: Snapshot) -> Changes {
        Changes {
            kernel: self.kernel_pid,
            base: session.version,
            snapshot,
            ledger: session.ledger,
        }
    }
}

/// Returns the changes if this machine has no memory for a copy of them. Uploading them needs little.
async fn hold(
    memory: &MemoryHolder,
    changes: Changes,
    cancel: &CancellationToken,
) -> Result<Result<Sent, Changes>, TransferError> {
    let (bundle, changes) = transfer::pack(changes, Room::of_this_process, cancel.clone()).await?;
    let bundle = match bundle {
        Err(error) if error.is_lack_of_room() => return Ok(Err(changes)),
        bundle => bundle?,
    };
    let Changes { base, ledger, .. } = changes;
    let ledger = bundle.enter(ledger)?;
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
    Ok(Ok(Sent {
        state,
        ledger,
        held: Some(held),
    }))
}

/// Receives a job's result. `held` is what was kept for the job.
pub(super) async fn receive(
    state: State,
    ledger: Ledger,
    held: Option<&HeldMemory>,
    chunks: &ChunkClient,
) -> Result<Received, TransferError> {
    let held_state = match state {
        State::Chunks(manifest) => return receive_chunks(manifest, ledger, chunks).await,
        State::Memory(held_state) => held_state,
    };
    let bundle = match held_state.enclosed {
        Some(enclosed) => Bundle::disclose(*enclosed)?,
        None => held
            .and_then(|held| held.take_result(held_state.key))
            .ok_or(TransferError::NoResult)?,
    };
    Ok(transfer::unpack(bundle, ledger)?)
}

/// Receives a state that the broker has.
pub(super) async fn receive_chunks(
    manifest: Manifest,
    ledger: Ledger,
    chunks: &ChunkClient,
) -> Result<Received, TransferError> {
    transfer::download(chunks, None, manifest, ledger, Room::of_this_process()).await
}
