//! Receives a job's state and sends its result back, through the broker or from memory on one machine.
//!
//! In: what the proxy says about its state. Out: the file that a session maps, or what the job's last event says.
//!
//! **Invariant:** a result is where the proxy can have it before the session lets go of its memory.

use std::time::Duration;

use baton_chunks::{BlobError, Bundle, Collector, Ledger, is_quick, pack};
use baton_protocol::shim::Snapshot;
use baton_protocol::{HeldKey, HeldState, Holder, Manifest, State, StateVersion};
use baton_transport::{Backoff, ChunkClient, TransportChoice, Unreachable, deposit, fetch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::state::{Assembled, assemble, collect};
use crate::context::{Context, MoveError, blocking};

/// A state that can be had.
pub(crate) enum Source {
    Chunks(Manifest),
    Memory(Bundle),
}

/// How a result goes home.
#[derive(Clone)]
pub(crate) enum Transport {
    Chunks,
    Memory { holder: Holder, key: HeldKey },
}

/// Returns `None` if the proxy must send the state by another transport.
pub(crate) async fn open(context: &Context, state: State) -> Option<(Source, Transport)> {
    let HeldState {
        holder,
        key,
        enclosed,
        ..
    } = match state {
        State::Chunks(manifest) => return Some((Source::Chunks(manifest), Transport::Chunks)),
        State::Memory(held) => held,
    };
    if context.config.transport == TransportChoice::Http {
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

/// Brings together what a session maps.
pub(crate) async fn receive(
    context: &Context,
    source: Source,
    ledger: Ledger,
) -> Result<Assembled, MoveError> {
    match source {
        Source::Chunks(manifest) => assemble(context, manifest, ledger).await,
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
    context: &Context,
    state: State,
    ledger: Ledger,
) -> Result<Assembled, MoveError> {
    match open(context, state).await {
        Some((source, _)) => receive(context, source, ledger).await,
        None => Err(MoveError::Unreachable),
    }
}

/// What a cell changed, still in its session's memory.
pub(crate) struct Changes {
    pub(crate) kernel: i32,
    pub(crate) base: StateVersion,
    pub(crate) snapshot: Snapshot,
    pub(crate) ledger: Ledger,
}

/// What was changed is not where the proxy can have it.
pub(crate) struct NotSent {
    pub(crate) error: MoveError,
    /// To be tried again.
    pub(crate) changes: Option<Changes>,
}

impl From<MoveError> for NotSent {
    fn from(error: MoveError) -> Self {
        Self {
            error,
            changes: None,
        }
    }
}

/// Reads what changed and moves it to where the proxy can get it. Dropping the future stops the reading.
pub(crate) async fn send_back(
    chunk_client: ChunkClient,
    transport: Transport,
    changes: Changes,
) -> Result<(State, Ledger), NotSent> {
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
                    let ledger = bundle.enter(changes.ledger).map_err(MoveError::from)?;
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
    match collect(chunk_client, collector).await {
        Ok((manifest, ledger)) => Ok((State::Chunks(manifest), ledger)),
        Err(error) => Err(NotSent {
            error,
            changes: Some(changes),
        }),
    }
}

/// The session keeps what the cell changed, and nothing else does: where the broker has no room for it, or this
/// machine no memory, there may be some soon.
pub(crate) async fn send_patiently(
    patience: Duration,
    chunk_client: ChunkClient,
    transport: Transport,
    mut changes: Changes,
) -> Result<(State, Ledger), MoveError> {
    let (began, mut backoff) = (Instant::now(), Backoff::default());
    loop {
        let not_sent = match send_back(chunk_client.clone(), transport.clone(), changes).await {
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

async fn read(changes: Changes) -> Result<(Result<Bundle, BlobError>, Changes), MoveError> {
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
