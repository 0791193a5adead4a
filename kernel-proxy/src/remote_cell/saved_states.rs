//! Saved states: the notebook's variables, stored under a name at the broker for a later kernel of
//! the same person. Also the list of jobs that an earlier kernel left.
//!
//! In: a snapshot that the shim made with a separate object table, or a name. Out: the state at the
//! broker, or the message that the shim applies. The notebook's session is not affected, but the
//! shim may apply deferred state of it meanwhile.
//!
//! **Invariant:** once the shim has `Released`, the kernel's memory is no longer read.

use super::{
    CONNECT_PATIENCE,
    deferred::Applied,
    failure,
    link::{Link, Status},
    session::Session,
    session_state::SessionState,
    transfer::{self, Transfer},
};
use baton_chunks::{Ledger, StateError};
use baton_humanize::with_causes;
use baton_jupyter_wire::shim::{ShimReader, ShimWriter};
use baton_protocol::{
    AboutState, CallId, JobId, JobKind, RemoteError, SavedState,
    shim::{FromNotebook, Snapshot, ToNotebook},
};
use baton_transport::{ChunkClient, LinkError, TransferError, frames::FrameError, states};
use std::{future::Future, os::fd::AsFd, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const AGAIN: &str = "try again; if it fails again, run `baton doctor` in a terminal";

/// What the shim asks of the broker, apart from cells.
pub(crate) enum StateRequest {
    Save(String, Box<(AboutState, Snapshot)>),
    Load(String),
    List,
    Delete(String),
    /// The jobs of earlier kernels.
    Jobs,
    Discard(JobId),
}

impl StateRequest {
    /// Returns the message if it is no such request.
    pub(crate) fn read(message: FromNotebook) -> Result<(CallId, Self), Box<FromNotebook>> {
        Ok(match message {
            FromNotebook::SaveState {
                call,
                name,
                about,
                state,
            } => (call, Self::Save(name, Box::new((about, state)))),
            FromNotebook::LoadState { call, name } => (call, Self::Load(name)),
            FromNotebook::ListStates { call } => (call, Self::List),
            FromNotebook::DeleteState { call, name } => (call, Self::Delete(name)),
            FromNotebook::ListJobs { call } => (call, Self::Jobs),
            FromNotebook::DiscardJob { call, job } => (call, Self::Discard(job)),
            other => return Err(Box::new(other)),
        })
    }
}

/// How long to wait after an interrupt for the broker's answer to a change.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// The error's name when an interrupted change may or may not have been made.
const INTERRUPTED: &str = "KeyboardInterrupt";

/// Why there is no answer.
enum Stop {
    /// Nothing was done.
    Cancelled,
    /// The broker was asked for a change, and did not answer before the interrupt or soon after it.
    Uncertain,
    Failed {
        value: String,
        hint: Option<String>,
    },
    /// The shim no longer waits.
    Next(Box<FromNotebook>),
    KernelGone,
    Shim(FrameError),
}

/// What the requests use of the notebook's cells.
pub(crate) struct SavedStates<'cells> {
    pub(super) link: &'cells mut Link,
    pub(super) transfer: &'cells Transfer,
    pub(super) session: &'cells mut Session,
    /// The notebook's name.
    pub(super) notebook: &'cells str,
}

impl SavedStates<'_> {
    /// Carries out the request and answers the shim. Returns the message that the shim sent instead of waiting.
    pub(crate) async fn on_request(
        mut self,
        call: CallId,
        request: StateRequest,
        reader: &mut ShimReader,
        writer: &mut ShimWriter,
    ) -> Result<Option<FromNotebook>, FrameError> {
        let reads_memory = matches!(request, StateRequest::Save(..));
        let mut applied = Vec::new();
        let done = self.carry_out(call, request, reader, &mut applied).await;
        for (call, error) in applied {
            self.session.on_applied(self.link, call, error).await;
        }
        if reads_memory {
            writer.send(&ToNotebook::Released { call }).await?;
        }
        let (error, next) = match done {
            Ok((message, None)) => return writer.send(&message).await.map(|()| None),
            Ok((message, Some(file))) => {
                let sent = writer.send_with_file(&message, file.as_fd()).await;
                return sent.map(|()| None);
            }
            Err(Stop::KernelGone) => return Ok(None),
            Err(Stop::Shim(error)) => return Err(error),
            Err(Stop::Cancelled) => (None, None),
            Err(Stop::Next(message)) => (None, Some(*message)),
            Err(Stop::Uncertain) => {
                let error = RemoteError {
                    name: INTERRUPTED.to_owned(),
                    value: "The broker was asked for the change and did not answer".to_owned(),
                    traceback: Vec::new(),
                    hint: None,
                };
                (Some(error), None)
            }
            Err(Stop::Failed { value, hint }) => {
                tracing::warn!(error = %value, "A saved state was not saved or loaded");
                let hint = hint.unwrap_or_else(|| AGAIN.to_owned());
                let error = RemoteError::of_baton("GpuServiceError", value, hint);
                (Some(error), None)
            }
        };
        let failed = ToNotebook::StateFailed { call, error };
        writer.send(&failed).await?;
        Ok(next)
    }

    /// Work that reads the kernel's memory or changes something is not dropped after an interrupt, but ends by itself.
    ///
    /// `applied`: gets the calls whose deferred state the shim has applied meanwhile.
    async fn carry_out(
        &mut self,
        call: CallId,
        request: StateRequest,
        reader: &mut ShimReader,
        applied: &mut Vec<Applied>,
    ) -> Result<Done, Stop> {
        let ends_by_itself = matches!(
            request,
            StateRequest::Save(..) | StateRequest::Delete(_) | StateRequest::Discard(_)
        );
        self.link.wake().await;
        let notebook = Some(self.notebook.to_owned()).filter(|name| !name.is_empty());
        let cancel = CancellationToken::new();
        let transfer = self.transfer;
        let connected = connected(self.link);
        let work = async {
            let chunks = unless_cancelled(&cancel, connected).await??;
            act(call, request, notebook, transfer, &chunks, &cancel).await
        };
        tokio::pin!(work);
        let stop = tokio::select! {
            done = &mut work => return done,
            stop = stopped(call, reader, applied) => stop,
        };
        cancel.cancel();
        let ended = match ends_by_itself {
            true => Some(work.await),
            false => None,
        };
        match (stop, ended) {
            (Stop::Cancelled, Some(ended)) => ended,
            (stop, _) => Err(stop),
        }
    }
}

/// Waits for the broker, unless further attempts cannot succeed.
fn connected(link: &mut Link) -> impl Future<Output = Result<ChunkClient, Stop>> + '_ {
    let since = Instant::now();
    async move {
        loop {
            let reason = match link.status() {
                Status::Up(broker) => return Ok(broker.chunks),
                Status::Down { reason } => reason,
                Status::Unable { reason } => Some(reason),
                Status::Refused(obstacle) => {
                    return Err(Stop::Failed {
                        value: failure::cannot_use(&obstacle, JobKind::Cell),
                        hint: Some(obstacle.hint.to_owned()),
                    });
                }
            };
            let left = CONNECT_PATIENCE.saturating_sub(since.elapsed());
            let changed = tokio::time::timeout(left, link.status_changed()).await;
            if changed.is_err() {
                return Err(Stop::Failed {
                    value: failure::no_answer(reason.as_deref()),
                    hint: None,
                });
            }
        }
    }
}

type Done = (ToNotebook, Option<std::os::fd::OwnedFd>);

async fn act(
    call: CallId,
    request: StateRequest,
    notebook: Option<String>,
    transfer: &Transfer,
    chunks: &ChunkClient,
    cancel: &CancellationToken,
) -> Result<Done, Stop> {
    let message = match request {
        StateRequest::Save(name, state) => {
            let (mut about, snapshot) = *state;
            about.notebook = notebook;
            let session = SessionState::new();
            let manifest = transfer.store(session, snapshot, chunks, cancel).await?;
            let state = SavedState { about, manifest };
            let saved = answered(cancel, states::save(chunks, &name, &state)).await?;
            ToNotebook::StateSaved { call, saved }
        }
        StateRequest::Load(name) => {
            let SavedState { about, manifest } = states::load(chunks, &name).await?;
            let received = transfer::receive_chunks(manifest, Ledger::default(), chunks).await?;
            let delta = received.delta;
            let loaded = ToNotebook::StateLoaded { call, about, delta };
            return Ok((loaded, Some(received.file)));
        }
        StateRequest::List => ToNotebook::States {
            call,
            states: states::all(chunks).await?,
        },
        StateRequest::Delete(name) => {
            answered(cancel, states::delete(chunks, &name)).await?;
            let states = unless_cancelled(cancel, states::all(chunks)).await;
            let states = states.map_err(|_| Stop::Uncertain)??;
            ToNotebook::States { call, states }
        }
        StateRequest::Jobs => ToNotebook::Jobs {
            call,
            jobs: states::attachable(chunks).await?,
        },
        StateRequest::Discard(job) => {
            answered(cancel, states::discard(chunks, job)).await?;
            let jobs = unless_cancelled(cancel, states::attachable(chunks)).await;
            let jobs = jobs.map_err(|_| Stop::Uncertain)??;
            ToNotebook::Jobs { call, jobs }
        }
    };
    Ok((message, None))
}

async fn unless_cancelled<Answer>(
    cancel: &CancellationToken,
    work: impl Future<Output = Answer>,
) -> Result<Answer, Stop> {
    let answer = cancel.run_until_cancelled(work).await;
    answer.ok_or(Stop::Cancelled)
}

/// Makes a change at the broker. After an interrupt the answer is awaited only briefly, so the
/// change may have been made.
async fn answered<Answer>(
    cancel: &CancellationToken,
    change: impl Future<Output = Result<Answer, LinkError>>,
) -> Result<Answer, Stop> {
    if cancel.is_cancelled() {
        return Err(Stop::Cancelled);
    }
    tokio::pin!(change);
    if let Some(answer) = cancel.run_until_cancelled(&mut change).await {
        return Ok(answer?);
    }
    let last = tokio::time::timeout(LAST_ANSWER, change).await;
    Ok(last.map_err(|_| Stop::Uncertain)??)
}

/// Waits until the shim ends this request.
async fn stopped(call: CallId, reader: &mut ShimReader, applied: &mut Vec<Applied>) -> Stop {
    loop {
        match reader.receive().await {
            Err(error) => return Stop::Shim(error),
            Ok(None) => return Stop::KernelGone,
            Ok(Some(FromNotebook::Cancel { call: of } | FromNotebook::GiveUp { call: of })) => {
                if of == call {
                    return Stop::Cancelled;
                }
            }
            Ok(Some(FromNotebook::Applied { call, error })) => applied.push((call, error)),
            Ok(Some(next)) => return Stop::Next(Box::new(next)),
        }
    }
}

impl From<LinkError> for Stop {
    fn from(error: LinkError) -> Self {
        TransferError::from(error).into()
    }
}

impl From<TransferError> for Stop {
    fn from(error: TransferError) -> Self {
        let (value, hint) = match &error {
            TransferError::State(StateError::Cancelled) => return Self::Cancelled,
            TransferError::Link(LinkError::Refused { problem }) => {
                (problem.detail.clone(), problem.hint.clone())
            }
            TransferError::Link(LinkError::StoreFull { text }) => (
                format!("The broker cannot store more: {text}"),
                Some("delete a saved state that you no longer need: %gpu_states lists them, %gpu_states --delete NAME deletes one; its space is freed within minutes. If you have none, tell the operator of the broker".to_owned()),
            ),
            TransferError::State(StateError::MemoryFull) => (
                format!("{error}"),
                Some("delete large variables that you do not need".to_owned()),
            ),
            _ => (
                format!("The state could not be transferred ({})", with_causes(&error)),
                None,
            ),
        };
        Self::Failed { value, hint }
    }
}
