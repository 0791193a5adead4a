//! Receives a job's state and sends its result back, through the broker or from memory on one machine.
//!
//! In: what the proxy reports about its state. Out: the file that a session maps, or what the job's last event
//! contains.
//!
//! **Invariant:** a result is where the proxy can fetch it before the session releases its memory.

use std::sync::Arc;
use std::time::Duration;

use baton_chunks::{
    BlobError, Bundle, ChunkDirectory, Collector, Ledger, check_size, is_quick, pack,
};
use baton_humanize::duration;
use baton_jupyter_wire::folder::FolderError;
use baton_mirror::FilesError;
use baton_protocol::shim::Snapshot;
use baton_protocol::{HeldKey, HeldState, Holder, Manifest, State, StateVersion};
use baton_transport::{
    Backoff, ChunkClient, LinkError, TransportChoice, Unreachable, deposit, fetch,
};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::host_memory;

mod state;

pub(crate) use self::state::Assembled;
use self::state::{assemble, collect};

/// How the state and the files of one notebook reach this machine.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) chunk_client: ChunkClient,
    pub(crate) cache: Arc<ChunkDirectory>,
    pub(crate) transport: TransportChoice,
    /// The memory limit of a session, which also limits a state.
    pub(crate) memory_limit_bytes: Option<u64>,
}

impl Access {
    /// How many bytes a cell's state may have now, on its way in or out.
    pub(crate) fn state_limit_bytes(&self) -> u64 {
        let allowed = self.memory_limit_bytes.unwrap_or(u64::MAX);
        allowed.min(host_memory::available_bytes())
    }

    /// The most that a session's memory can hold. What is free now does not matter, because a snapshot names all
    /// segments, also those that the notebook already has.
    fn snapshot_limit_bytes(&self) -> u64 {
        self.memory_limit_bytes
            .unwrap_or_else(host_memory::total_bytes)
    }
}

/// State could not be transferred.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("{reason}")]
    AtHome { reason: String },
    #[error("The notebook sent an unexpected answer")]
    Answer,
    #[error("The transfer of the state took longer than {}", duration(*.0))]
    TooSlow(Duration),
    #[error("The notebook's memory can no longer be reached")]
    Unreachable,
    #[error("The transfer of the state was aborted")]
    Join(#[from] JoinError),
}

impl TransferError {
    /// Whether the broker, or this machine, lacks something that it may have again.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Link(error) => error.may_pass(),
            Self::Blob(error) => error.may_pass(),
            _ => false,
        }
    }
}

/// Runs blocking work on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, TransferError> {
    Ok(spawn_blocking(work).await??)
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
            say(&error, "its state moves");
            None
        }
    }
}

/// Assembles the file that a session maps.
pub(crate) async fn receive(
    access: &Access,
    source: Source,
    ledger: Ledger,
) -> Result<Assembled, TransferError> {
    match source {
        Source::Chunks(manifest) => assemble(access, manifest, ledger).await,
        Source::Memory(bundle) => {
            let ledger = bundle.enter(ledger)?;
            let (file, delta) = bundle.into_parts();
            Ok(Assembled {
                file,
                delta,
                ledger,
            })
        }
    }
}

/// Receives what a running cell lacks. No other transport is possible: the notebook's table has advanced.
pub(crate) async fn receive_more(
    access: &Access,
    state: State,
    ledger: Ledger,
) -> Result<Assembled, TransferError> {
    match open(access, state).await {
        Some((source, _)) => receive(access, source, ledger).await,
        None => Err(TransferError::Unreachable),
    }
}

/// What a cell changed, still in its session's memory.
pub(crate) struct Changes {
    pub(crate) kernel: i32,
    pub(crate) base: StateVersion,
    pub(crate) snapshot: Snapshot,
    pub(crate) ledger: Ledger,
}

/// The changes are not where the proxy can fetch them.
pub(crate) struct NotSent {
    pub(crate) error: TransferError,
    /// For another attempt.
    pub(crate) changes: Option<Changes>,
}

impl From<TransferError> for NotSent {
    fn from(error: TransferError) -> Self {
        Self {
            error,
            changes: None,
        }
    }
}

/// Reads what changed and moves it to where the proxy can get it. Dropping the future stops the reading.
pub(crate) async fn send_back(
    access: &Access,
    transport: Transport,
    changes: Changes,
) -> Result<(State, Ledger), NotSent> {
    check_size(&changes.snapshot, access.snapshot_limit_bytes()).map_err(TransferError::from)?;
    let changes = match transport {
        Transport::Chunks => changes,
        Transport::Memory { holder, key } => {
            let (bundle, changes) = read(changes).await?;
            let enclosed = bundle.and_then(|bundle| Ok((bundle.enclose()?, bundle)));
            let (enclosed, bundle) = match enclosed {
                Ok(enclosed) => enclosed,
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
            match key {
                Ok(key) => {
                    let ledger = bundle.enter(changes.ledger).map_err(TransferError::from)?;
                    let state = State::Memory(HeldState {
                        base: changes.base,
                        bytes: bundle.file_bytes(),
                        holder,
                        key,
                        enclosed,
                    });
                    return Ok((state, ledger));
                }
                Err(error) => {
                    say(&error, "the result moves");
                    changes
                }
            }
        }
    };
    let Changes {
        kernel,
        base,
        snapshot,
        ledger,
    } = &changes;
    let collector = Collector::new(*kernel, *base, snapshot.clone(), ledger.clone());
    match collect(&access.chunk_client, collector).await {
        Ok((manifest, ledger)) => Ok((State::Chunks(manifest), ledger)),
        Err(error) => Err(NotSent {
            error,
            changes: Some(changes),
        }),
    }
}

/// The transfer of a state that is slower than this is given up, because it occupies a slot.
const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;

/// Tries again for as long as `patience` allows, because only the session has what the cell changed. The broker may
/// soon have room for it, or this machine memory.
pub(crate) async fn send_patiently(
    patience: Duration,
    access: Access,
    transport: Transport,
    changes: Changes,
) -> Result<(State, Ledger), TransferError> {
    let seconds = changes.snapshot.bytes() / SLOWEST_BYTES_PER_SECOND;
    let longest = patience.saturating_add(Duration::from_secs(seconds));
    let sending = send_again_and_again(patience, access, transport, changes);
    let too_slow = |_| TransferError::TooSlow(longest);
    timeout(longest, sending).await.map_err(too_slow)?
}

async fn send_again_and_again(
    patience: Duration,
    access: Access,
    transport: Transport,
    mut changes: Changes,
) -> Result<(State, Ledger), TransferError> {
    let (began, mut backoff) = (Instant::now(), Backoff::default());
    loop {
        let not_sent = match send_back(&access, transport.clone(), changes).await {
            Ok(sent) => return Ok(sent),
            Err(not_sent) => not_sent,
        };
        let error = not_sent.error;
        changes = match not_sent.changes {
            Some(changes) if error.may_pass() && began.elapsed() < patience => changes,
            _ => return Err(error),
        };
        tracing::warn!(%error, "The changes of a cell could not be sent yet");
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

async fn read(changes: Changes) -> Result<(Result<Bundle, BlobError>, Changes), TransferError> {
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();
    let quick = is_quick(&changes.snapshot);
    let read = move || {
        let Changes {
            kernel,
            snapshot,
            ledger,
            ..
        } = &changes;
        let bundle = pack(*kernel, snapshot, ledger, &|| stop.is_cancelled());
        (bundle, changes)
    };
    match quick {
        true => Ok(read()),
        false => blocking(move || Ok(read())).await,
    }
}

fn say(error: &Unreachable, what: &'static str) {
    tracing::info!(%error, "The notebook's memory cannot be reached, so {what} through the broker");
}
