//! Receives a job's state and sends its result back, through the broker or from memory on one machine.
//!
//! In: what the proxy reports about its state. Out: the file that a session maps, or what the job's last event
//! contains.
//!
//! **Invariant:** a result is where the proxy can fetch it before the session releases its memory.

use crate::host_memory;
use baton_chunks::{Bundle, ChunkDirectory, Ledger, check_size, memory::Room};
use baton_humanize::duration;
use baton_protocol::{HeldKey, HeldState, Holder, Manifest, State};
use baton_transport::{
    Attempts, Changes, ChunkClient, Received, TransferError, TransportChoice, Unreachable, deposit,
    fetch, transfer,
};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How the state and the files of one notebook reach this machine.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) chunk_client: ChunkClient,
    pub(crate) cache: Arc<ChunkDirectory>,
    pub(crate) transport: TransportChoice,
    /// The memory limit of a session, which also limits a state.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// How long a transfer is tried again if the broker or this machine has no room for it.
    pub(crate) patience: Duration,
}

impl Access {
    /// How many bytes a state of a session may have.
    fn room(&self) -> Room {
        Room {
            limit_bytes: self.state_limit_bytes(),
            free_bytes: host_memory::available_bytes(),
        }
    }

    /// The most that a session's memory can hold. For a snapshot, what is free now does not matter, because it names
    /// all segments, also those that the notebook already has.
    pub(crate) fn state_limit_bytes(&self) -> u64 {
        self.memory_limit_bytes
            .unwrap_or_else(host_memory::total_bytes)
    }
}

/// State could not be transferred.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTransferred {
    #[error(transparent)]
    Failed(#[from] TransferError),
    #[error("The transfer of the state took longer than {}", duration(*.0))]
    TooSlow(Duration),
    #[error("The notebook's memory can no longer be reached")]
    Unreachable,
}

/// A state that can be received.
pub(crate) enum Source {
    Chunks(Manifest),
    Memory(Bundle),
}

/// How a result is sent back.
#[derive(Clone)]
pub(crate) enum Transport {
    Chunks,
    Memory { holder: Holder, key: HeldKey },
}

/// Returns `None` if the proxy must send the state by another transport.
pub(crate) async fn open(access: &Access, state: State) -> Option<(Source, Transport)> {
    let HeldState {
        holder,
        key,
        enclosed,
        ..
    } = match state {
        State::Chunks(manifest) => return Some((Source::Chunks(manifest), Transport::Chunks)),
        State::Memory(held) => held,
    };
    if access.transport == TransportChoice::Http {
        return None;
    }
    let bundle = match enclosed {
        Some(enclosed) => Bundle::disclose(*enclosed).map_err(Unreachable::from),
        None => fetch(&holder, key).await,
    };
    match bundle {
        Ok(bundle) => Some((Source::Memory(bundle), Transport::Memory { holder, key })),
        Err(error) => {
            log_other_transport(&error, "its state moves");
            None
        }
    }
}

/// Receives the file that a session maps. Tries again if memory is short at the moment.
pub(crate) async fn receive(
    access: &Access,
    source: Source,
    ledger: Ledger,
) -> Result<Received, TransferError> {
    match source {
        Source::Chunks(manifest) => receive_chunks(access, manifest, ledger).await,
        Source::Memory(bundle) => Ok(transfer::unpack(bundle, ledger)?),
    }
}

async fn receive_chunks(
    access: &Access,
    manifest: Manifest,
    ledger: Ledger,
) -> Result<Received, TransferError> {
    let (client, cache) = (&access.chunk_client, Some(&access.cache));
    let mut attempts = Attempts::new(access.patience);
    loop {
        let (manifest, ledger) = (manifest.clone(), ledger.clone());
        let error = match transfer::download(client, cache, manifest, ledger, access.room()).await {
            Ok(received) => return Ok(received),
            Err(error) => error,
        };
        let Some(delay) = attempts.delay_after(error.severity()) else {
            return Err(error);
        };
        tracing::warn!(%error, "A state could not be received yet");
        tokio::time::sleep(delay).await;
    }
}

/// Receives what a running cell lacks. No other transport is possible: the notebook's table has advanced.
pub(crate) async fn receive_more(
    access: &Access,
    state: State,
    ledger: Ledger,
) -> Result<Received, NotTransferred> {
    match open(access, state).await {
        Some((source, _)) => Ok(receive(access, source, ledger).await?),
        None => Err(NotTransferred::Unreachable),
    }
}

/// The changes are not where the proxy can fetch them.
pub(crate) struct NotSent {
    pub(crate) error: TransferError,
    /// For another attempt.
    changes: Option<Changes>,
}

impl<E: Into<TransferError>> From<E> for NotSent {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            changes: None,
        }
    }
}

/// Reads what changed and moves it to where the proxy can get it. Dropping the future stops the reading.
pub(crate) async fn send_back(
    access: &Access,
    transport: Transport,
    mut changes: Changes,
) -> Result<(State, Ledger), NotSent> {
    check_size(&changes.snapshot, access.state_limit_bytes())?;
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();
    if let Transport::Memory { holder, key } = transport {
        let access = access.clone();
        changes = match hand_over(holder, key, changes, move || access.room(), &stop).await? {
            Ok(sent) => return Ok(sent),
            Err(changes) => changes,
        };
    }
    match transfer::upload(&access.chunk_client, changes.clone(), &stop).await {
        Ok((manifest, ledger)) => Ok((State::Chunks(manifest), ledger)),
        Err(error) => Err(NotSent {
            error,
            changes: Some(changes),
        }),
    }
}

/// Passes the changes to the proxy in memory. Returns them if this machine has no `room` for a copy of them or the proxy
/// cannot be reached.
async fn hand_over(
    holder: Holder,
    key: HeldKey,
    changes: Changes,
    room: impl FnOnce() -> Room + Send + 'static,
    stop: &CancellationToken,
) -> Result<Result<(State, Ledger), Changes>, NotSent> {
    let (bundle, changes) = transfer::pack(changes, room, stop.clone()).await?;
    let enclosed = bundle.and_then(|bundle| Ok((bundle.enclose()?, bundle)));
    let (enclosed, bundle) = match enclosed {
        Ok(enclosed) => enclosed,
        Err(error) if error.is_lack_of_room() => {
            log_other_transport(&error, "the result moves");
            return Ok(Err(changes));
        }
        Err(error) => {
            return Err(NotSent {
                error: error.into(),
                changes: Some(changes),
            });
        }
    };
    let key = match enclosed {
        Some(_) => Ok(key),
        None => deposit(&holder, key, &bundle).await,
    };
    let key = match key {
        Ok(key) => key,
        Err(error) => {
            log_other_transport(&error, "the result moves");
            return Ok(Err(changes));
        }
    };
    let ledger = bundle.enter(changes.ledger)?;
    let state = State::Memory(HeldState {
        base: changes.base,
        bytes: bundle.file_bytes(),
        holder,
        key,
        enclosed,
    });
    Ok(Ok((state, ledger)))
}

/// The transfer of a state that is slower than this is given up, because it occupies a slot.
const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;

/// Tries again, because only the session has what the cell changed. The broker may soon have room for it, or this
/// machine memory.
pub(crate) async fn send_patiently(
    access: Access,
    transport: Transport,
    changes: Changes,
) -> Result<(State, Ledger), NotTransferred> {
    let seconds = changes.snapshot.bytes() / SLOWEST_BYTES_PER_SECOND;
    let longest = access.patience.saturating_add(Duration::from_secs(seconds));
    let sending = send_again_and_again(access, transport, changes);
    let too_slow = |_| NotTransferred::TooSlow(longest);
    Ok(timeout(longest, sending).await.map_err(too_slow)??)
}

async fn send_again_and_again(
    access: Access,
    transport: Transport,
    mut changes: Changes,
) -> Result<(State, Ledger), TransferError> {
    let mut attempts = Attempts::new(access.patience);
    loop {
        let not_sent = match send_back(&access, transport.clone(), changes).await {
            Ok(sent) => return Ok(sent),
            Err(not_sent) => not_sent,
        };
        let error = not_sent.error;
        let Some((again, delay)) = not_sent.changes.zip(attempts.delay_after(error.severity()))
        else {
            return Err(error);
        };
        changes = again;
        tracing::warn!(%error, "The changes of a cell could not be sent yet");
        tokio::time::sleep(delay).await;
    }
}

fn log_other_transport(error: &(dyn std::error::Error + 'static), what: &'static str) {
    tracing::info!(
        error,
        "The notebook's memory cannot be used, so {what} through the broker"
    );
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use baton_protocol::{
        StateVersion, TableId,
        shim::{SegmentView, Snapshot},
    };

    #[tokio::test]
    async fn without_room_for_a_copy_the_changes_can_still_be_uploaded() {
        let memory = vec![7_u8; 1 << 20];
        let changes = Changes {
            kernel: std::process::id().cast_signed(),
            base: StateVersion {
                table: TableId::random(),
                messages: 0,
            },
            snapshot: Snapshot {
                messages: 0,
                stream: Vec::new().into(),
                segments: vec![SegmentView {
                    number: 1,
                    address: memory.as_ptr() as u64,
                    bytes: memory.len() as u64,
                    fresh: true,
                    digests: None,
                }],
                dropped_segments: Vec::new(),
            },
            ledger: Ledger::default(),
        };
        let holder = Holder {
            host: String::new(),
            socket: String::new(),
        };
        for room in [
            Room {
                limit_bytes: 0,
                ..Room::UNLIMITED
            },
            Room {
                free_bytes: 0,
                ..Room::UNLIMITED
            },
        ] {
            let (holder, changes) = (holder.clone(), changes.clone());
            let stop = CancellationToken::new();
            let key = HeldKey::random();
            let handed_over = hand_over(holder, key, changes.clone(), move || room, &stop).await;
            let Ok(Err(not_handed_over)) = handed_over else {
                panic!("there is no room");
            };
            assert_eq!(not_handed_over.snapshot, changes.snapshot);
        }
    }
}
