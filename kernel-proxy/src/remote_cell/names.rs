//! Names that a running cell looks up: values that the session lacks are sent while the cell waits.
//!
//! Sending runs alongside everything else that may happen to the job. So an interrupt is passed on
//! at once, and the state that the cell has made is returned, including these names.
//!
//! **Invariant:** once the shim has answered, the notebook's object table has advanced, so the
//! answer must arrive or the cell fails.

use super::{
    cell::RemoteCell,
    failure::Failure,
    link::{BrokerAccess, Link},
    session_state::SessionState,
    stop::Stop,
    transfer::{Sent, Transfer},
};
use baton_protocol::{Answer, StateVersion, shim::Snapshot};
use baton_transport::TransferError;
use std::pin::Pin;
use tokio_util::sync::CancellationToken;

/// A transfer of names. Dropping it stops reading the kernel's memory.
pub(super) type Sending = Pin<Box<dyn Future<Output = SentNames> + Send>>;

/// The state that the names follow, and the transfer's result.
pub(super) type SentNames = (StateVersion, Result<Sent, TransferError>);

pub(super) fn send(
    transfer: Transfer,
    broker: impl Future<Output = BrokerAccess> + Send + 'static,
    session: SessionState,
    snapshot: Snapshot,
) -> Sending {
    let (base, cancel) = (session.version, CancellationToken::new());
    Box::pin(async move {
        let _stop_when_dropped = cancel.clone().drop_guard();
        let sent = transfer
            .send(session, snapshot, &broker.await, &cancel)
            .await;
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

/// Answers the cell with the names. Returns what the session holds then.
pub(super) async fn answer(
    cell: &mut RemoteCell<'_>,
    link: &Link,
    (base, sent): SentNames,
) -> Result<SessionState, Stop> {
    let sent = sent.map_err(|error| Failure::transfer(&error, cell.named_job()))?;
    cell.names_held = sent.held;
    if let Some(question) = cell.names_question {
        let answer = Answer::Names(sent.state);
        link.answer(cell.job, question, answer).await;
    }
    cell.release().await?;
    Ok(SessionState::after(base, sent.ledger))
}
