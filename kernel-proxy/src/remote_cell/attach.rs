//! Follows a job whose notebook kernel has ended: shows its output from the beginning, then fetches
//! its variables.
//!
//! In: events of the job. Out: output to the clients, and to the shim a state like that of
//! `%gpu_load`. The notebook's own session is not affected.
//!
//! **Invariant:** the job is over for the broker only once the shim has applied its state.

use super::{
    CONNECT_PATIENCE, RemoteCells,
    cell::RemoteCell,
    failure::Failure,
    file_changes,
    link::{JobUpdate, Step},
    status_line::Waiting,
    stop::Stop,
    transfer,
    waits::{applied, connect, connection, on_other, unless_stopped},
};
use baton_chunks::Ledger;
use baton_jupyter_wire::shim::{ShimReader, ShimWriter};
use baton_protocol::{
    AboutState, Finished, JobEvent, Manifest, SavedState,
    shim::{Attach, Delta, FromNotebook, ToNotebook},
};
use baton_transport::frames::FrameError;
use std::os::fd::{AsFd, OwnedFd};

/// How the job ended.
struct End {
    finished: Finished,
    /// `None`: the variables are lost, and the error gives the reason.
    left: Option<Box<SavedState>>,
}

/// Follows the job and reports its end to the shim. Returns the message that the shim sent
/// instead of waiting.
pub(crate) async fn attach(
    cells: &mut RemoteCells,
    attach: Attach,
    reader: &mut ShimReader,
    writer: &mut ShimWriter,
) -> Result<Option<FromNotebook>, FrameError> {
    let mut cell = RemoteCell::attaching(attach, reader, writer);
    let (call, job) = (cell.call, cell.job);
    let done = steps(cells, &mut cell).await;
    for (call, error) in std::mem::take(&mut cell.earlier_applied) {
        cells.session.on_applied(&cells.link, call, error).await;
    }
    let Err(stop) = done else { return Ok(None) };
    cells.link.detach(job).await;
    cells.display.close_comms(&mut cell);
    cells.display.end_status_line(&mut cell).await?;
    let error = match stop {
        Stop::KernelGone => return Ok(None),
        Stop::Shim(error) => return Err(error),
        Stop::Replaced(run) => return Ok(Some(FromNotebook::Run(*run))),
        Stop::Ending(call) => return Ok(Some(FromNotebook::Ending { call })),
        Stop::Cancelled | Stop::GivenUp => None,
        Stop::Failed(failure) | Stop::Detached(failure) => Some(failure.error),
    };
    cell.writer
        .send(&ToNotebook::StateFailed { call, error })
        .await?;
    Ok(None)
}

async fn steps(cells: &mut RemoteCells, cell: &mut RemoteCell<'_>) -> Result<(), Stop> {
    cells.link.wake().await;
    connect(cell, &mut cells.link, &mut cells.display, CONNECT_PATIENCE).await?;
    cells.link.attach(cell.job).await;
    let end = follow(cells, cell).await?;
    let files = files_left(cells, cell, &end).await?;
    let received = match end.left {
        Some(left) => Some(receive_left(cells, cell, left.manifest, left.about).await?),
        None => None,
    };
    let (file, about, delta) = match received {
        Some((file, about, delta)) => (Some(file), Some(about), Some(delta)),
        None => (None, None, None),
    };
    let summary = cells.display.summary(cell, end.finished.usage).await?;
    let attached = ToNotebook::Attached {
        call: cell.call,
        outcome: end.finished.outcome,
        error: end.finished.error,
        about,
        delta,
        summary,
    };
    match &file {
        Some(file) => cell.writer.send_with_file(&attached, file.as_fd()).await?,
        None => cell.writer.send(&attached).await?,
    }
    let applied = applied(cell, &cells.display).await;
    if !matches!(applied, Ok(true)) {
        file_changes::undo(files, &mut cells.display, cell).await;
        applied?;
        cells.link.detach(cell.job).await;
        let call = cell.call;
        cell.writer.send(&ToNotebook::Undone { call }).await?;
        return Ok(());
    }
    if let Some(files) = files {
        cells.files.keep(files).await;
    }
    cell.comms.clear();
    cells.link.applied(cell.job).await;
    Ok(())
}

async fn follow(cells: &mut RemoteCells, cell: &mut RemoteCell<'_>) -> Result<End, Stop> {
    cell.status_line.waits(Waiting::Starting { worker: None });
    let mut finished: Option<Finished> = None;
    loop {
        let refresh = cell.status_line.next_refresh(cell.now());
        let event = tokio::select! {
            step = cells.link.next_of(cell.job) => match step {
                Step::Update(JobUpdate::Lost) => {
                    return Err(Failure::not_attachable(cell.job).into());
                }
                Step::Update(JobUpdate::Event(event)) => *event,
                // An attached job is sent nothing that could be too large.
                Step::Update(
                    JobUpdate::Position(_) | JobUpdate::Cancelling | JobUpdate::TooLarge(_),
                ) => continue,
                Step::Status(status) => {
                    // The job continues, so this waits for a broker that is away for a while.
                    connection(cell, &mut cells.display, status).await?;
                    continue;
                }
            },
            message = cell.reader.receive() => {
                on_other(cell, &cells.display, message?).await?;
                continue;
            }
            () = tokio::time::sleep(refresh) => {
                cells.display.refresh_status_line(cell).await?;
                continue;
            }
        };
        cell.has_ended |= matches!(event, JobEvent::Finished(_));
        match (event, finished.take()) {
            (JobEvent::Finished(end), _) if end.salvageable => finished = Some(end),
            (JobEvent::Finished(end), _) => {
                return Ok(End {
                    finished: end,
                    left: None,
                });
            }
            (JobEvent::Salvaged { state, error, .. }, Some(end)) => {
                return Ok(End {
                    finished: Finished {
                        error: end.error.or(error),
                        ..end
                    },
                    left: state,
                });
            }
            // These requests were for the kernel that has ended, so they get no answer.
            (
                JobEvent::InputWanted { .. }
                | JobEvent::NamesWanted { .. }
                | JobEvent::FilesWanted { .. }
                | JobEvent::StateWanted { .. }
                | JobEvent::BytesWanted { .. },
                before,
            ) => finished = before,
            (event, before) => {
                finished = before;
                cells.on_event(cell, event).await?;
            }
        }
    }
}

async fn receive_left(
    cells: &mut RemoteCells,
    cell: &mut RemoteCell<'_>,
    manifest: Manifest,
    about: AboutState,
) -> Result<(OwnedFd, AboutState, Delta), Stop> {
    let broker = connect(cell, &mut cells.link, &mut cells.display, cells.patience).await?;
    let receiving = transfer::receive_chunks(manifest, Ledger::default(), &broker.chunks);
    let received = unless_stopped(cell, &cells.display, receiving).await?;
    let received = received.map_err(|error| Failure::not_attached(&error, cell.job))?;
    Ok((received.file, about, received.delta))
}

/// Applies file changes only in the folder in which the job's kernel started.
async fn files_left(
    cells: &mut RemoteCells,
    cell: &mut RemoteCell<'_>,
    end: &End,
) -> Result<Option<baton_mirror::Committed>, Stop> {
    let folder = end
        .left
        .as_ref()
        .and_then(|left| left.about.folder.as_deref());
    let Some(files) = &end.finished.files else {
        return Ok(None);
    };
    if folder.is_none() || folder != cells.files.folder() {
        let folder = folder.unwrap_or("another folder");
        let text =
            format!("The files that the cell changed are not here: its notebook was in {folder}");
        cells.display.warn(cell, &text).await?;
        return Ok(None);
    }
    file_changes::apply(
        &mut cells.files,
        &mut cells.display,
        cell,
        &mut cells.link,
        Some(files.clone()),
        cells.patience,
    )
    .await?
    .map_err(|not| Failure::files_not_attached(&not.error, cell.job).into())
}
