//! How a running cell waits for the broker, and for its result. While it waits, its status line is refreshed, and the
//! shim can stop it.

use super::{
    cell::RemoteCell,
    display::Display,
    failure::Failure,
    link::{BrokerAccess, Link},
    stop::{Connection, Stop},
    transfer,
};
use baton_chunks::Ledger;
use baton_humanize::with_causes;
use baton_protocol::State;
use baton_transport::{Attempts, Received};
use std::time::Duration;
use tokio::time::Instant;

/// Waits until the broker is connected, unless further attempts cannot succeed.
pub(super) async fn connect(
    cell: &mut RemoteCell<'_>,
    link: &mut Link,
    display: &Display,
    patience: Duration,
) -> Result<BrokerAccess, Stop> {
    let since = Instant::now();
    loop {
        let reason = match cell.connection(link.status())? {
            Connection::Up(broker) => return Ok(broker),
            Connection::Down { reason } => reason,
        };
        if since.elapsed() > patience {
            return Err(Failure::no_answer(reason.as_deref(), cell.job, cell.started).into());
        }
        let refresh = cell.status_line.next_refresh(cell.now());
        tokio::select! {
            () = link.status_changed() => {}
            () = tokio::time::sleep(refresh) => display.refresh_status_line(cell).await?,
            stop = cell.stopped() => return Err(stop),
        }
    }
}

/// Retries until `patience` ends, because the result exists only on the worker.
pub(super) async fn receive_state(
    cell: &mut RemoteCell<'_>,
    link: &mut Link,
    display: &Display,
    mut state: State,
    mut ledger: Ledger,
    patience: Duration,
) -> Result<Received, Stop> {
    let mut attempts = Attempts::new(patience);
    let held = cell.held.take();
    loop {
        let broker = connect(cell, link, display, patience).await?;
        // State in memory can be fetched only once.
        let again = matches!(state, State::Chunks(_)).then(|| (state.clone(), ledger.clone()));
        let received = tokio::select! {
            received = transfer::receive(state, ledger, held.as_ref(), &broker.chunks) => received,
            stop = cell.stopped() => return Err(stop),
        };
        let error = match received {
            Ok(received) => {
                cell.held = held;
                return Ok(received);
            }
            Err(error) => error,
        };
        let Some((again, delay)) = again.zip(attempts.delay_after(&error)) else {
            return Err(Failure::result_lost(&error, cell.job).into());
        };
        tracing::info!(
            error = with_causes(&error),
            "A cell's result could not be fetched yet"
        );
        (state, ledger) = again;
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            stop = cell.stopped() => return Err(stop),
        }
    }
}
