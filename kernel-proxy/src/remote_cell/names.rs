//! Names that a running cell looks up: the values that it lacks are sent while it waits.
//!
//! Sending runs beside everything else that may happen to the job. So an interrupt is passed on at once, and the
//! state that the cell has made is returned, names included.
//!
//! **Invariant:** the notebook's object table has advanced once its shim has answered, so the answer arrives or the
//! cell fails.

use std::pin::Pin;

use baton_protocol::StateVersion;
use tokio_util::sync::CancellationToken;

use super::link::Transports;
use super::transfer::{Outgoing, Sent, Transfer, TransferError};

/// Dropping this stops reading the kernel's memory.
pub(super) type Sending = Pin<Box<dyn Future<Output = SentNames> + Send>>;

/// The state that the names continue, and the transfer's result.
pub(super) type SentNames = (StateVersion, Result<Sent, TransferError>);

pub(super) fn send(
    transfer: Transfer,
    transports: impl Future<Output = Transports> + Send + 'static,
    outgoing: Outgoing,
) -> Sending {
    let (base, cancel) = (outgoing.base, CancellationToken::new());
    Box::pin(async move {
        let _stop_when_dropped = cancel.clone().drop_guard();
        let sent = transfer.send(outgoing, &transports.await, &cancel).await;
        (base, sent)
    })
}

/// Waits for the transfer, if one is running.
pub(super) async fn sent(names: &mut Option<Sending>) -> SentNames {
    match names {
        Some(sending) => sending.await,
        None => std::future::pending().await,
    }
}
