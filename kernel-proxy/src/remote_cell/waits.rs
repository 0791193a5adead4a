//! How a running cell waits: for the broker, for its result, and for the shim. Meanwhile the shim can stop it. The
//! waits that may take long refresh its status line.
//!
//! **Invariant:** every wait answers the shim's requests for earlier output. The notebook kernel runs nothing else until
//! it has the answer.

use super::{
    cell::RemoteCell,
    display::Display,
    failure::{Absence, Failure, warn_of},
    link::{BrokerAccess, Link, Status},
    notebook_files::NotebookFiles,
    stop::{Connection, Stop},
    transfer,
};
use baton_chunks::Ledger;
use baton_humanize::with_causes;
use baton_protocol::{
    State,
    files::NotebookFolder,
    shim::{FromNotebook, Snapshot, ToNotebook},
};
use baton_transport::{Attempts, Received};
use std::{pin::pin, time::Duration};
use tokio::time::{Instant, sleep};

/// Handles a message that the present step of the cell does not expect.
pub(super) async fn on_other(
    cell: &mut RemoteCell<'_>,
    display: &Display,
    message: Option<FromNotebook>,
) -> Result<(), Stop> {
    match cell.stop_of(message) {
        Some(stop) => Err(stop),
        None => Ok(display.replay_wanted(cell).await?),
    }
}

/// Does this work, unless the shim ends the cell first.
pub(super) async fn unless_stopped<Done>(
    cell: &mut RemoteCell<'_>,
    display: &Display,
    work: impl Future<Output = Done>,
) -> Result<Done, Stop> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            message = cell.reader.receive() => on_other(cell, display, message?).await?,
        }
    }
}

/// Whether the cell can reach the broker. Shows that in its status line, and warns once of each obstacle.
pub(super) async fn connection(
    cell: &mut RemoteCell<'_>,
    display: &mut Display,
    status: Status,
) -> Result<Connection, Stop> {
    let connection = cell.connection(status)?;
    cell.status_line
        .is_offline(matches!(connection, Connection::Down(_)));
    match &connection {
        Connection::Up(_) => cell.warned_of = None,
        Connection::Down(Absence::Refused(obstacle))
            if cell.warned_of.as_ref() != Some(obstacle) =>
        {
            cell.warned_of = Some(obstacle.clone());
            let warning = warn_of(obstacle, cell.kind, cell.meanwhile());
            display.warn(cell, &warning).await?;
        }
        Connection::Down(_) => {}
    }
    Ok(connection)
}

/// Waits until the broker is connected, unless further attempts cannot succeed.
pub(super) async fn connect(
    cell: &mut RemoteCell<'_>,
    link: &mut Link,
    display: &mut Display,
    patience: Duration,
) -> Result<BrokerAccess, Stop> {
    let since = Instant::now();
    loop {
        let absence = match connection(cell, display, link.status()).await? {
            Connection::Up(broker) => return Ok(broker),
            Connection::Down(absence) => absence,
        };
        if since.elapsed() > patience {
            return Err(Failure::absent(&absence, cell.named_job(), cell.started).into());
        }
        let refresh = cell.status_line.next_refresh(cell.now());
        tokio::select! {
            () = link.status_changed() => {}
            () = sleep(refresh) => display.refresh_status_line(cell).await?,
            message = cell.reader.receive() => on_other(cell, display, message?).await?,
        }
    }
}

/// Retries until `patience` ends, because the result exists only on the worker.
pub(super) async fn receive_state(
    cell: &mut RemoteCell<'_>,
    link: &mut Link,
    display: &mut Display,
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
        let receiving = transfer::receive(state, ledger, held.as_ref(), &broker.chunks);
        let error = match unless_stopped(cell, display, receiving).await? {
            Ok(received) => {
                cell.held = held;
                return Ok(received);
            }
            Err(error) => error,
        };
        let Some((again, delay)) = again.zip(attempts.delay_after(error.severity())) else {
            return Err(Failure::result_lost(&error, cell.named_job()).into());
        };
        tracing::info!(
            error = with_causes(&error),
            "A cell's result could not be fetched yet"
        );
        (state, ledger) = again;
        unless_stopped(cell, display, sleep(delay)).await?;
    }
}

/// Describes the notebook's folder for the worker.
pub(super) async fn notebook_folder(
    cell: &mut RemoteCell<'_>,
    display: &Display,
    files: &mut NotebookFiles,
    broker: &BrokerAccess,
) -> Result<Option<Box<NotebookFolder>>, Stop> {
    let folder = unless_stopped(cell, display, files.for_cell(&broker.chunks)).await?;
    folder.map_err(|error| Failure::files(&error, cell.named_job()).into())
}

/// Waits for a complete state, which begins a new object table. Asks the shim for it, unless an answer is still due.
pub(super) async fn whole_state(
    cell: &mut RemoteCell<'_>,
    display: &Display,
) -> Result<Snapshot, Stop> {
    if cell.states_wanted.is_empty() {
        let wanted = ToNotebook::StateWanted { call: cell.call };
        cell.writer.send(&wanted).await?;
    }
    loop {
        let refresh = cell.status_line.next_refresh(cell.now());
        let message = tokio::select! {
            message = cell.reader.receive() => message?,
            () = sleep(refresh) => {
                display.refresh_status_line(cell).await?;
                continue;
            }
        };
        match message {
            Some(FromNotebook::State { call, state }) if call == cell.call => {
                cell.states_wanted.pop_front();
                // Of several answers, the last one is the state of the table.
                if cell.states_wanted.is_empty() {
                    return Ok(state);
                }
            }
            other => on_other(cell, display, other).await?,
        }
    }
}

/// Waits until the shim has applied the changes (true), or has kept everything as it was before the cell (false).
pub(super) async fn applied(cell: &mut RemoteCell<'_>, display: &Display) -> Result<bool, Stop> {
    loop {
        match cell.reader.receive().await? {
            Some(FromNotebook::Applied { call, error }) if call == cell.call => {
                if let Some(error) = &error {
                    tracing::warn!(job.id = %cell.job, error, "A cell's change could not be applied");
                }
                return Ok(error.is_none());
            }
            // Too late for an interrupt: the shim is already applying the changes.
            Some(FromNotebook::Cancel { .. }) => {}
            other => on_other(cell, display, other).await?,
        }
    }
}
