//! Between a Python shim (`python-shim`) and the Rust process that started its kernel or that a
//! plain program started.
//!
//! Each kernel has one Unix socket. A frame is a length (8 bytes, big endian) and one MessagePack
//! document. A frame that hands over memory carries exactly one file descriptor (`SCM_RIGHTS`, with
//! its first byte). The notebook kernel's shim talks to the proxy ([`FromNotebook`],
//! [`ToNotebook`]), a session's shim to the worker ([`FromSession`], [`ToSession`]).

pub use crate::snapshot::{
    Delta, Extent, MAPPED_BYTES, Patch, SegmentDelta, SegmentView, Snapshot, Stream, StreamPart,
};

use crate::{AboutState, CallId, JobId, JobKind, Output, RemoteError, api};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromNotebook {
    Hello(Hello),
    /// A `%%gpu` cell begins. The shim waits for `Finished` or `Failed` with this call's number.
    Run(Run),
    /// The answer to `StateWanted`.
    State {
        call: CallId,
        state: Snapshot,
    },
    /// The answer to `NamesWanted` while the cell runs: the values of these names that the session lacks.
    Names {
        call: CallId,
        state: Snapshot,
    },
    /// The student pressed interrupt.
    Cancel {
        call: CallId,
    },
    /// The cell will be submitted again as another call, once everything from earlier cells has
    /// arrived. Ends as after `Cancel`.
    Withdraw {
        call: CallId,
    },
    /// The student no longer waits. The notebook keeps its values from before the cell, and accepts
    /// nothing more from the call. Ends as after `Cancel`, but at once.
    GiveUp {
        call: CallId,
    },
    Input {
        call: CallId,
        value: Option<String>,
    },
    /// Asks for the output of this earlier call: it is repeated as `Publish`, then `OutputGiven` follows.
    OutputWanted {
        call: CallId,
    },
    /// Saves this state under a name. Ends with `StateSaved` or `StateFailed`.
    SaveState {
        call: CallId,
        name: String,
        about: AboutState,
        state: Snapshot,
    },
    /// Ends with `StateLoaded` or `StateFailed`.
    LoadState {
        call: CallId,
        name: String,
    },
    /// Ends with `States` or `StateFailed`.
    ListStates {
        call: CallId,
    },
    /// Ends with `States` (those that remain) or `StateFailed`.
    DeleteState {
        call: CallId,
        name: String,
    },
    /// The kernel is about to end, and asks whether to save its variables. A background cell goes
    /// on. Ends with `Autosave`.
    Ending {
        call: CallId,
    },
    /// Asks which jobs can be attached. Ends with `Jobs` or `StateFailed`.
    ListJobs {
        call: CallId,
    },
    /// Cancels the job if it runs, and deletes what it left. Ends with `Jobs` (those that remain)
    /// or `StateFailed`.
    DiscardJob {
        call: CallId,
        job: JobId,
    },
    /// Follows the job of an earlier kernel to its end. Ends with `Attached`, which is answered
    /// with `Applied`, or with `StateFailed`.
    Attach(Attach),
    /// The answer to `Finished` with a delta, to `Attached` and to `DeferredState`. With an error
    /// nothing was changed.
    Applied {
        call: CallId,
        error: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToNotebook {
    /// The snapshot's memory has been read.
    Released { call: CallId },
    /// No session holds the state that the snapshot continues. The shim starts a new table and
    /// sends everything.
    StateWanted { call: CallId },
    /// The cell looks up names of the notebook that it did not get.
    NamesWanted { call: CallId, names: Vec<String> },
    /// Publish this through the kernel, because code there captures output.
    Publish { call: CallId, output: Output },
    /// All output of the call that was kept has been sent.
    OutputGiven {
        call: CallId,
        /// The number of earlier outputs that were not kept.
        missing: u64,
    },
    /// Ask the student, as `input()` or `getpass()` would.
    InputWanted {
        call: CallId,
        prompt: String,
        password: bool,
    },
    /// The cell ran. With a delta, the frame carries its file; without one, nothing changes and the
    /// object table is void unless it is kept.
    Finished {
        call: CallId,
        outcome: crate::Outcome,
        error: Option<RemoteError>,
        delta: Option<Delta>,
        /// As in `Failed`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        table_kept: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran: Option<Ran>,
        /// The summary of the run, shown below all of the cell's output.
        summary: Option<Output>,
    },
    /// The answer if the shim could not apply the call's changes: its files are as they were, too.
    Undone { call: CallId },
    /// The bytes that the delta of this call left out; the frame carries their file. Useless once
    /// another call runs.
    DeferredState { call: CallId, delta: Delta },
    /// The state was saved. The snapshot's memory was read before.
    StateSaved {
        call: CallId,
        saved: api::SavedState,
    },
    /// The frame carries the delta's file.
    StateLoaded {
        call: CallId,
        about: AboutState,
        delta: Delta,
    },
    /// The job has ended. The delta, whose file the frame carries, is its state; without a delta it left none.
    Attached {
        call: CallId,
        outcome: crate::Outcome,
        error: Option<RemoteError>,
        about: Option<AboutState>,
        delta: Option<Delta>,
        summary: Option<Output>,
    },
    /// The person's saved states.
    States {
        call: CallId,
        states: Vec<api::SavedState>,
    },
    /// The name under which to save the variables; `None` if they are not to be saved.
    Autosave { call: CallId, name: Option<String> },
    /// The jobs that the person can attach.
    Jobs {
        call: CallId,
        jobs: Vec<api::AttachableJob>,
    },
    /// Nothing was saved, loaded or discarded. Without an error, the request was interrupted.
    StateFailed {
        call: CallId,
        error: Option<RemoteError>,
    },
    /// The session has ended between two cells.
    SessionEnded { worker: String },
    /// The first message to a plain program. A kernel knows these from its environment.
    Ready {
        /// The sender's folder. The sender removes it, or the program does if the sender was killed.
        folder: String,
        /// The library that detects changed memory.
        scanner: String,
    },
    /// The status line of the call, for a plain program, which has no other clients. Replaces the previous one.
    Status { call: CallId, line: Output },
    /// For a plain program: the call has left the queue.
    Started { call: CallId },
    /// The deferred state is lost. The notebook returns to its values from before the first call
    /// that lacks some.
    DeferredLost { call: CallId, error: RemoteError },
    /// The cell did not run, or its state is lost. The notebook keeps its values from before the
    /// cell. The object table is void unless it is kept.
    Failed {
        call: CallId,
        outcome: crate::Outcome,
        error: RemoteError,
        /// No session received the call's snapshot, so the next one continues what was before it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        table_kept: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran: Option<Ran>,
    },
}

/// What a call was for the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// The last digits of the job.
    pub job: String,
    /// The last worker that it was assigned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// What it left of the person's budget, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_time: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the package `baton_shim`. A worker refuses one other than its own; the proxy logs a warning.
    pub version: String,
    pub pid: u32,
    /// `sys.executable`.
    pub python: String,
    /// `major.minor`.
    pub python_version: String,
    /// Why the GPU's driver does not start in this session. Only a trial session waits for its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub call: CallId,
    pub code: String,
    /// The parent header of the running cell, as JSON text.
    pub parent_header: ByteBuf,
    pub message_id: String,
    /// The value of `session` in the headers of the kernel's messages.
    pub kernel_session: String,
    /// The id of the last message that the kernel had put on iopub. The cell's output must follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    pub execution_count: u32,
    pub silent: bool,
    pub allow_stdin: bool,
    /// Output must go through the kernel (`Publish`) instead of around it.
    pub captured: bool,
    /// The output of a background cell may follow the cell's `idle`.
    #[serde(default, skip_serializing_if = "JobKind::is_cell")]
    pub kind: JobKind,
    /// Show neither status line nor summary.
    pub quiet: bool,
    pub folder: String,
    /// The cell's time limit.
    pub timeout_ms: Option<u64>,
    /// The most GPU memory that the session may allocate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// The GPU that the cell asks for: words of its model, such as `a100`, or a label of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The environment of the course that the cell asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    pub priority: crate::Priority,
    pub state: Snapshot,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    pub call: CallId,
    pub job: JobId,
    /// The parent header of the running cell, as JSON text.
    pub parent_header: ByteBuf,
    pub message_id: String,
    /// The value of `session` in the headers of the kernel's messages.
    pub kernel_session: String,
    /// Output must go through the kernel (`Publish`) instead of around it.
    pub captured: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromSession {
    Hello(Hello),
    /// The state was applied, `Begin` has arrived, and the cell begins.
    Started {
        message_id: String,
    },
    /// The state could not be applied, and the cell does not run. The session cannot be used again.
    Refused {
        message_id: String,
        error: RemoteError,
    },
    /// The cell's code has ended. The session prepares what the cell has changed, and sends it with `Finished`.
    Ended {
        message_id: String,
    },
    /// A message that a kernel would publish on iopub. A cell's output precedes all other messages about it.
    Published {
        output: Output,
    },
    /// The cell called `input()` and waits for the answer with this number. Numbers only grow.
    InputWanted {
        message_id: String,
        question: u64,
        prompt: String,
        password: bool,
    },
    /// The cell looks up names of the notebook that it did not get.
    NamesWanted {
        message_id: String,
        names: Vec<String>,
    },
    Finished {
        message_id: String,
        outcome: crate::Outcome,
        error: Option<RemoteError>,
        state: Snapshot,
        /// Bytes that the state names but does not include. `DeferredReady` describes them, after `Released`.
        deferred_bytes: u64,
        /// The session holds an object that the notebook knows and that no other session can have.
        #[serde(default)]
        keeps: bool,
    },
    /// The deferred state, ready to be read. With `keeper` it is in the memory of that process and stays as it
    /// is now; without, it is in the session's own memory and is valid until the next `Run`.
    DeferredReady {
        message_id: String,
        state: Snapshot,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keeper: Option<u32>,
    },
    /// All variables after the last cell, as a message of a new table. Without a snapshot they
    /// cannot be read, and the error gives the reason.
    Salvaged {
        message_id: String,
        about: Box<AboutState>,
        state: Option<Snapshot>,
        error: Option<RemoteError>,
    },
}

impl FromSession {
    /// The message's name on the wire, for logs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Started { .. } => "started",
            Self::Ended { .. } => "ended",
            Self::Refused { .. } => "refused",
            Self::Published { .. } => "published",
            Self::InputWanted { .. } => "input_wanted",
            Self::NamesWanted { .. } => "names_wanted",
            Self::Finished { .. } => "finished",
            Self::DeferredReady { .. } => "deferred_ready",
            Self::Salvaged { .. } => "salvaged",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToSession {
    /// A cell, and the state that it needs. The frame carries the delta's file. The session applies
    /// the state and waits for `Begin`.
    Run {
        message_id: String,
        code: String,
        silent: bool,
        allow_stdin: bool,
        execution_count: u32,
        delta: Delta,
    },
    /// The broker has stored that the cell starts. May arrive before the state is applied.
    Begin { message_id: String },
    /// The answer to `InputWanted`. An answer to any question but the last is late, or was repeated
    /// after a reconnect.
    Input {
        question: u64,
        value: Option<String>,
    },
    /// The answer to `NamesWanted`; the frame carries the delta's file.
    Names { message_id: String, delta: Delta },
    /// The snapshot's memory has been read.
    Released { message_id: String },
    /// The notebook kernel has ended, so `NamesWanted` gets no answer. Sent while the cell waits for one.
    NoNames { message_id: String },
    /// The cell and its notebook kernel have ended. The session answers with `Salvaged`.
    Salvage { message_id: String },
}
