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
    /// The broker chose a worker. May happen again if the worker disappeared before `Started` was stored.
    Assigned {
        worker: String,
        /// Whether the worker has a GPU.
        gpu: bool,
        /// How long the cell may run there.
        timeout_ms: Option<u64>,
    },
    /// The worker does not hold the state that the manifest continues. The proxy answers with a
    /// complete one. Only before `Started`.
    StateWanted { question: u64 },
    /// The worker cannot reach the proxy's memory. The proxy answers with a complete state in
    /// chunks. Only before `Started`.
    BytesWanted { question: u64 },
    /// The worker asks to start the cell, which begins only once this event is stored and
    /// acknowledged. From then on the job is never assigned again.
    Started { worker: String },
    /// The worker cannot start sessions for anyone, so the job may be assigned to another one. Only
    /// before `Started`; the last event of its assignment, and not stored.
    NotStarted { error: RemoteError },
    /// An output of the session.
    Output(Output),
    /// The cell called `input()`.
    InputWanted {
        question: u64,
        prompt: String,
        password: bool,
    },
    /// A [`crate::files::FilesWanted`].
    FilesWanted { question: u64, wanted: Payload },
    /// The cell looks up names of the notebook that it did not get.
    NamesWanted { question: u64, names: Vec<String> },
    /// What the run left of the person's budget. Sent by the broker before the end, if there is a budget.
    Charged(BudgetLeft),
    /// The end of the run. Only deferred or salvaged state may follow.
    Finished(Finished),
    /// The bytes that [`Self::Finished`] left out. Sent again when the notebook sends
    /// [`crate::proxy::FromProxy::DeferredWanted`].
    DeferredState {
        /// None: it is lost, or its worker no longer has any of it. Then this is the last event.
        state: Option<State>,
        error: Option<RemoteError>,
    },
    /// The variables of a cell whose notebook kernel has ended, for another kernel. Follows
    /// [`Self::Finished`]; the answer to [`crate::worker::ToWorker::Salvage`].
    Salvaged {
        /// None: the variables are lost, and the error gives the reason.
        state: Option<Box<SavedState>>,
        /// The chunks of the files that [`Self::Finished`] lists.
        files: Vec<ChunkHash>,
        error: Option<RemoteError>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    pub outcome: Outcome,
    /// The exception that the cell raised; always present for [`Outcome::Error`].
    pub error: Option<RemoteError>,
    /// What changed, unless the state is lost.
    pub state: Option<State>,
    pub usage: Usage,
    /// A list of [`crate::files::Change`]s if the session works in a mirror.
    pub files: Option<Payload>,
    /// Bytes that the state names but does not include. They follow as [`JobEvent::DeferredState`].
    pub deferred_bytes: u64,
    /// The session can still return all variables of the cell, as [`JobEvent::Salvaged`], if the
    /// notebook kernel has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub salvageable: bool,
}

impl Finished {
    /// No state is returned to the notebook.
    #[must_use]
    pub fn without_state(outcome: Outcome, error: Option<RemoteError>) -> Self {
        Self {
            outcome,
            error,
            state: None,
            usage: Usage::default(),
            files: None,
            deferred_bytes: 0,
            salvageable: false,
        }
    }
}

impl JobEvent {
    /// The chunks that must be kept for as long as this event is needed.
    pub fn chunks(&self) -> Vec<ChunkHash> {
        match self {
            Self::Finished(Finished { state, .. }) | Self::DeferredState { state, .. } => {
                state.iter().flat_map(State::chunks).collect()
            }
            Self::Salvaged { state, files, .. } => {
                let state = state.iter().flat_map(|state| state.manifest.chunks());
                state.chain(files.iter().copied()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The number of the question that this event asks. An [`Answer`] with the same number ends it.
    #[must_use]
    pub fn question(&self) -> Option<u64> {
        match self {
            Self::StateWanted { question }
            | Self::BytesWanted { question }
            | Self::InputWanted { question, .. }
            | Self::FilesWanted { question, .. }
            | Self::NamesWanted { question, .. } => Some(*question),
            _ => None,
        }
    }

    /// Whether the worker sends no more events about the job.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            Self::NotStarted { .. }
                | Self::Finished(Finished {
                    deferred_bytes: 0,
                    salvageable: false,
                    ..
                })
                | Self::DeferredState { state: None, .. }
                | Self::Salvaged { .. }
        )
    }
}

/// The answer to a question of a job.
///
/// No number is used for two questions of one job. A worker asks its open questions again after it has
/// reconnected; a proxy then sends the same answer again, and also after it has reconnected itself. The
/// worker uses the first answer to each question, apart from [`Answer::Preparing`]. So an answer may be lost anywhere
/// on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`JobEvent::StateWanted`] and [`JobEvent::BytesWanted`]: a state that starts a new table.
    State(State),
    /// To [`JobEvent::InputWanted`]; `None` if the student interrupted the question.
    Input(Option<String>),
    /// To [`JobEvent::FilesWanted`]: a [`crate::files::FilesAnswer`].
    Files(Payload),
    /// To [`JobEvent::NamesWanted`].
    Names(State),
    /// To any question: the notebook is preparing the answer, which follows.
    Preparing {},
}

/// One iopub message of a session, without its header. The process that shows it adds the cell's parent header.
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

impl Output {
    /// An output without metadata and buffers.
    #[must_use]
    pub fn new(kind: &str, content: impl Into<Bytes>) -> Self {
        Self {
            kind: kind.to_owned(),
            content: content.into(),
            metadata: Bytes::from_static(b"{}"),
            buffers: Vec::new(),
        }
    }
}
