//! What happens to a job, as a numbered log.

use crate::{BudgetLeft, ChunkHash, Outcome, Payload, RemoteError, SavedState, State, Usage};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Events of one job are numbered from 1 without gaps, in the order in which the broker stored them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedEvent {
    pub number: u64,
    pub event: JobEvent,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEvent {
    /// The broker chose a worker. May happen again when the worker vanished before `Started` was stored.
    Assigned {
        worker: String,
        /// Whether the worker has a GPU.
        gpu: bool,
        /// How long the cell may run there.
        timeout_ms: Option<u64>,
    },
    /// The worker does not hold the state that the manifest continues: the proxy sends a whole one.
    /// Comes before `Started` only.
    StateWanted {},
    /// The worker cannot reach the memory of the proxy: the proxy sends a whole state in chunks.
    /// Comes before `Started` only.
    BytesWanted {},
    /// The worker asks to start the cell, which begins only once this event is stored and acknowledged.
    /// From here on the job is never assigned again.
    Started { worker: String },
    /// Sessions do not start on this worker, whoever's they are: the job may go to another one. Comes before `Started`
    /// only, is the last event of its assignment, and is not stored.
    NotStarted { error: RemoteError },
    /// Something that the session published.
    Output(Output),
    /// The cell called `input()`; it waits for the answer with this number, [`crate::proxy::FromProxy::Input`].
    /// A session numbers its questions.
    InputWanted {
        question: u64,
        prompt: String,
        password: bool,
    },
    /// A [`crate::files::FilesWanted`]; the answer goes back as [`crate::proxy::FromProxy::Files`].
    FilesWanted { question: u64, wanted: Payload },
    /// The cell looks up names of the notebook that it was not given; it waits for the answer with this number,
    /// [`crate::proxy::FromProxy::Names`]. Questions of one run are numbered from 1.
    NamesWanted { number: u64, names: Vec<String> },
    /// What the run left of the person's budget. Comes from the broker, before the end, where there is a budget.
    Charged(BudgetLeft),
    /// The end of the run. Nothing follows, unless something was left out or may be salvaged.
    Finished {
        outcome: Outcome,
        /// What the cell raised; always there for [`Outcome::Error`].
        error: Option<RemoteError>,
        /// What changed, unless the state is lost.
        state: Option<State>,
        usage: Usage,
        /// A list of [`crate::files::Change`]s, where the session works in a mirror.
        files: Option<Payload>,
        /// Memory that the state names and does not bring: it follows as [`Self::Rest`].
        deferred_bytes: u64,
        /// The session can still give all that the cell had, as [`Self::Salvaged`], if the notebook kernel has ended.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        salvageable: bool,
    },
    /// What [`Self::Finished`] left out. It comes again when the notebook says
    /// [`crate::proxy::FromProxy::DeferredWanted`].
    DeferredState {
        /// None: it is lost, or its worker has nothing of it any more. This is the last event.
        state: Option<State>,
        error: Option<RemoteError>,
    },
    /// The variables of a cell whose notebook kernel has ended, for another kernel. Follows [`Self::Finished`]; the
    /// answer to [`crate::worker::ToWorker::Salvage`].
    Salvaged {
        /// None: they are lost, and the error says why.
        state: Option<Box<SavedState>>,
        /// What the files have that [`Self::Finished`] lists.
        files: Vec<ChunkHash>,
        error: Option<RemoteError>,
    },
}

impl JobEvent {
    /// Those that must stay until nobody wants this event any more.
    pub fn chunks(&self) -> Vec<ChunkHash> {
        match self {
            Self::Finished { state, .. } | Self::DeferredState { state, .. } => {
                state.iter().flat_map(State::chunks).collect()
            }
            Self::Salvaged { state, files, .. } => {
                let state = state.iter().flat_map(|state| state.manifest.chunks());
                state.chain(files.iter().copied()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The worker has nothing more to say of the job.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            Self::NotStarted { .. }
                | Self::Finished {
                    deferred_bytes: 0,
                    salvageable: false,
                    ..
                }
                | Self::DeferredState { state: None, .. }
                | Self::Salvaged { .. }
        )
    }
}

/// One iopub message of a session, without its header: whoever shows it gives it the cell's parent header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The Jupyter message type, for example `stream` or `display_data`.
    pub kind: String,
    /// The content, as the JSON text that the session wrote.
    pub content: Bytes,
    /// The metadata, as JSON text.
    pub metadata: Bytes,
    pub buffers: Vec<Bytes>,
}
