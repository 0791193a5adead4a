//! The end of a cell that returns changes: receives them, and applies them to variables and files.
//!
//! In: the job's end. Out: the changed state to the shim, and the changed files in the notebook's folder.
//!
//! **Invariant:** variables and files are as the cell left them, or both as before it.

use super::{
    RemoteCells,
    cell::RemoteCell,
    deferred::DeferredState,
    failure::Failure,
    file_changes,
    session_state::SessionState,
    stop::Stop,
    waits::{applied, receive_state},
};
use baton_protocol::{Finished, Outcome, RemoteError, shim::ToNotebook};
use baton_transport::Received;
use std::os::fd::AsFd;

/// Gets the changed state, and applies it to variables and files together or not at all.
pub(super) async fn receive_and_apply(
    cells: &mut RemoteCells,
    cell: &mut RemoteCell<'_>,
    finished: Finished,
) -> Result<(), Stop> {
    let (Some(state), Some(session)) = (finished.state, cells.session.state.take()) else {
        return Err(end_without_state(cell, finished.outcome, finished.error));
    };
    if state.base() != session.version {
        return Err(match cell.kind.outlives_kernel() {
            true => Stop::Detached(Box::new(Failure::detached(cell.named_job()))),
            false => Failure::out_of_step(cell.named_job()).into(),
        });
    }
    let patience = cell.patience(cells.patience);
    let Received {
        file,
        delta,
        ledger,
    } = receive_state(
        cell,
        &mut cells.link,
        &mut cells.display,
        state,
        session.ledger,
        patience,
    )
    .await?;
    let (files, display, link) = (&mut cells.files, &mut cells.display, &mut cells.link);
    let changes = finished.files;
    let changed = file_changes::apply(files, display, cell, link, changes, patience).await?;
    let files = file_changes::or_wait(changed, display, cell).await?;
    let summary = cells.display.summary(cell, finished.usage).await?;
    let message = ToNotebook::Finished {
        call: cell.call,
        outcome: finished.outcome,
        error: finished.error,
        delta: Some(delta),
        table_kept: false,
        ran: Some(cell.ran()),
        summary,
    };
    cell.writer.send_with_file(&message, file.as_fd()).await?;
    let applied = applied(cell, &cells.display).await;
    if !matches!(applied, Ok(true)) {
        file_changes::undo(files.committed(), &mut cells.display, cell).await;
        applied?;
        return on_not_applied(cells, cell).await;
    }
    cells.files.end_cell(files).await;
    let session = SessionState::after(session.version, ledger);
    on_applied(cells, cell, session, finished.deferred_bytes).await;
    Ok(())
}

/// How a cell ends whose job returned no state. The error of a cancelled job names who else than the student stopped it.
fn end_without_state(cell: &RemoteCell<'_>, outcome: Outcome, error: Option<RemoteError>) -> Stop {
    match (outcome, error) {
        (Outcome::Cancelled, None) => Stop::Cancelled,
        (Outcome::Cancelled, Some(_)) if cell.cancelled_here => Stop::Cancelled,
        (outcome, Some(error)) => Failure::new(outcome, error, cell.job).into(),
        (_, None) => Failure::job_lost(cell.named_job(), cell.started).into(),
    }
}

/// The shim has applied the cell's changes.
async fn on_applied(
    cells: &mut RemoteCells,
    cell: &mut RemoteCell<'_>,
    session: SessionState,
    deferred_bytes: u64,
) {
    cell.comms.clear();
    cells.session.worker = cell.worker.take();
    cells.session.state = Some(session.clone());
    let deferred = match deferred_bytes {
        0 => {
            cells.link.applied(cell.job).await;
            None
        }
        _ => Some(DeferredState::new(
            cell.named_job(),
            cell.call,
            session,
            cell.held.take(),
        )),
    };
    let before = &mut cells.session.deferred;
    before.replace(&mut cells.link, deferred).await;
}

/// The shim kept everything as it was before the cell, and waits until that is also true of the files.
async fn on_not_applied(cells: &mut RemoteCells, cell: &mut RemoteCell<'_>) -> Result<(), Stop> {
    file_changes::warn_if_not_undone(&cells.files, &mut cells.display, cell).await;
    cells.display.close_comms(cell);
    let outcome = Some(Outcome::WorkerLost);
    cells.link.give_up(cell.job, outcome).await;
    cells.session.deferred.request(&cells.link).await;
    let call = cell.call;
    cell.writer.send(&ToNotebook::Undone { call }).await?;
    Ok(())
}
