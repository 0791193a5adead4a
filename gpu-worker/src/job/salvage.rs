//! Saves what a cell was given and what it left for another kernel: its notebook kernel has ended, and with it the
//! object table that the session shared with the notebook.
//!
//! The session is asked once, between two cells, for a message of a new table, which is sent to the broker in
//! chunks.
//!
//! **Invariant:** a job whose end promised this sends it, or the reason why it cannot, unless the job is revoked.

use super::Job;
use crate::{
    gpu::Cell,
    messages,
    report::PromisedEvent,
    session::{Session, SessionEvent},
    transfer::{Access, Transport, send_patiently},
};
use baton_chunks::Ledger;
use baton_protocol::{
    AboutState, Bound, ChunkHash, JobEvent, JobKind, Manifest, RemoteError, SavedState, State,
    StateVersion, TableId,
    shim::{FromSession, ToSession},
};
use baton_transport::Changes;
use tokio::sync::watch;

pub(crate) struct Salvage {
    kind: JobKind,
    answer: PromisedEvent,
    orphaned: watch::Receiver<bool>,
    /// The cell's message id.
    message_id: String,
    /// The folder in which its notebook kernel was started.
    folder: Option<String>,
    /// Chunks of the files that the cell changed.
    file_chunks: Vec<ChunkHash>,
}

impl Salvage {
    pub(crate) fn of(job: &Job, file_chunks: Vec<ChunkHash>) -> Self {
        let cell = &job.submission.cell;
        let folder = cell.notebook_folder.as_ref();
        Self {
            kind: cell.kind,
            answer: PromisedEvent::new(
                job.events.clone(),
                job.revoked.clone(),
                salvaged(
                    cell.kind,
                    Err(messages::not_salvaged(cell.kind)),
                    file_chunks.clone(),
                ),
            ),
            orphaned: job.orphaned.clone(),
            message_id: cell.message_id.clone(),
            folder: folder.map(|folder| folder.path.clone()),
            file_chunks,
        }
    }

    /// Completes when the notebook kernel has ended. Cancel safe.
    pub(crate) async fn wanted(salvage: Option<&Self>) {
        match salvage {
            Some(salvage) => {
                let mut orphaned = salvage.orphaned.clone();
                if orphaned.wait_for(|orphaned| *orphaned).await.is_err() {
                    // The job is over.
                    std::future::pending::<()>().await;
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Returns the session, unless the job was revoked meanwhile.
    pub(crate) async fn take(mut self, mut session: Session, access: Access) -> Option<Session> {
        let saved = tokio::select! {
            saved = salvage(self.kind, &mut session, &self.message_id, access) => saved,
            () = self.answer.revoked() => return None,
        };
        let folder = self.folder;
        let state = saved.map(|(about, manifest)| {
            let about = AboutState { folder, ..about };
            Box::new(SavedState { about, manifest })
        });
        self.answer
            .send(salvaged(self.kind, state, self.file_chunks));
        Some(session)
    }
}

fn salvaged(
    kind: JobKind,
    state: Result<Box<SavedState>, RemoteError>,
    files: Vec<ChunkHash>,
) -> JobEvent {
    let (state, error) = match state {
        Ok(state) => (Some(state), None),
        Err(error) => (None, Some(error)),
    };
    let event = JobEvent::Salvaged {
        state,
        files,
        error,
    };
    match Bound::EVENT.allows(&event) {
        true => event,
        false => salvaged(kind, Err(messages::state_too_large(kind)), Vec::new()),
    }
}

async fn salvage(
    kind: JobKind,
    session: &mut Session,
    message_id: &str,
    access: Access,
) -> Result<(AboutState, Manifest), RemoteError> {
    if let Err(error) = session.wake().await {
        tracing::warn!("A session could not return to the GPU: {error}");
        return Err(messages::not_salvaged(kind));
    }
    // The variables may be in memory on the GPU.
    let report = |session: &Session, cell| {
        if let Some(gpu) = session.gpu() {
            gpu.cell(cell);
        }
    };
    report(session, Cell::Started);
    let message_id = message_id.to_owned();
    let ask = ToSession::Salvage {
        message_id: message_id.clone(),
    };
    session.answer(ask).await;
    let answer = loop {
        match session.next().await {
            SessionEvent::Message(FromSession::Salvaged {
                about,
                state,
                error,
                ..
            }) => break state.map(|state| (about, state)).ok_or(error),
            SessionEvent::Message(_) => {}
            SessionEvent::Ended(death) => {
                return Err(messages::session_died(
                    kind,
                    death.status,
                    &death.last_lines,
                    0,
                ));
            }
        }
    };
    report(session, Cell::Ended);
    let (about, snapshot) =
        answer.map_err(|error| error.unwrap_or_else(|| messages::not_salvaged(kind)))?;
    let changes = Changes {
        kernel: session.kernel().as_raw(),
        base: StateVersion {
            table: TableId::random(),
            messages: 0,
        },
        snapshot,
        ledger: Ledger::default(),
    };
    let sent = send_patiently(access, Transport::Chunks, changes).await;
    session.answer(ToSession::Released { message_id }).await;
    match sent {
        Ok((State::Chunks(manifest), _)) => Ok((*about, manifest)),
        Ok((State::Memory(_), _)) => Err(messages::not_salvaged(kind)),
        Err(error) => Err(messages::state_lost(kind, &error)),
    }
}
