//! Between a Python shim (`python-shim`) and the Rust process that started its kernel, or that a plain program started.
//!
//! One Unix socket for each kernel. A frame is a length (8 bytes, big endian) and one MessagePack document.
//! A frame that hands over memory carries exactly one file descriptor (`SCM_RIGHTS`, with its first byte).
//! The notebook kernel's shim talks to the proxy ([`FromNotebook`], [`ToNotebook`]),
//! a session's shim to the worker ([`FromSession`], [`ToSession`]).

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
    /// A `%%gpu` cell begins. The shim waits until `Finished` or `Failed` with this call's number.
    Run(Run),
    /// The answer to `StateWanted`.
    State {
        call: CallId,
        state: Snapshot,
    },
    /// The answer to `NamesWanted`: what the session lacks to have them, in the middle of the cell.
    Names {
        call: CallId,
        state: Snapshot,
    },
    /// The student pressed interrupt.
    Cancel {
        call: CallId,
    },
    /// The cell is sent anew as another call, once everything of earlier cells is here. Ends as after `Cancel`.
    Withdraw {
        call: CallId,
    },
    /// The student no longer waits: the notebook has what it had before the cell, and takes nothing of the call from
    /// here on. Ends as after `Cancel`, but at once.
    GiveUp {
        call: CallId,
    },
    Input {
        call: CallId,
        value: Option<String>,
    },
    /// What the session showed in this earlier call, once more: as `Publish`, and then `OutputGiven`.
    OutputWanted {
        call: CallId,
    },
    /// Keep this under a name. Ends with `StateSaved` or `StateFailed`.
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
    /// Ends with `States`, of those that are left, or `StateFailed`.
    DeleteState {
        call: CallId,
        name: String,
    },
    /// The kernel is about to end: are its variables to be saved? A cell in the background is left to itself. Ends with
    /// `Autosave`.
    Ending {
        call: CallId,
    },
    /// Which jobs can be attached? Ends with `Jobs` or `StateFailed`.
    ListJobs {
        call: CallId,
    },
    /// Cancel it if it runs, and forget what it left. Ends with `Jobs`, those that are left, or `StateFailed`.
    DiscardJob {
        call: CallId,
        job: JobId,
    },
    /// Follow the job of an earlier kernel to its end. Ends with `Attached`, whose answer is `Applied`, or with `Failed`.
    Attach(Attach),
    /// The answer to `Finished` with a delta, to `Attached` and to `Rest`. With an error nothing was changed.
    Applied {
        call: CallId,
        error: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToNotebook {
    /// The memory of the snapshot was read.
    Released { call: CallId },
    /// No session holds the state that the snapshot continues: start a new table and send everything.
    StateWanted { call: CallId },
    /// The cell looks up names of the notebook that it was not given.
    NamesWanted { call: CallId, names: Vec<String> },
    /// Publish this through the kernel, because something there captures output.
    Publish { call: CallId, output: Output },
    /// All is said that is still kept of what the call showed.
    OutputGiven {
        call: CallId,
        /// How many outputs before it are not.
        missing: u64,
    },
    /// Ask the student, as `input()` or `getpass()` would.
    InputWanted {
        call: CallId,
        prompt: String,
        password: bool,
    },
    /// The cell ran. With a delta the frame carries its file; without one nothing changes and the object table is
    /// void.
    Finished {
        call: CallId,
        outcome: crate::Outcome,
        error: Option<RemoteError>,
        delta: Option<Delta>,
        /// The line that says where the cell ran, to be shown below all that it shows.
        summary: Option<Output>,
    },
    /// The bytes that the delta of this call left out; the frame carries their file. Of no use once another call runs.
    DeferredState { call: CallId, delta: Delta },
    /// The memory of the snapshot was read before.
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
    /// The job has ended. What it leaves is in the delta, whose file the frame carries; without one it leaves nothing.
    Attached {
        call: CallId,
        outcome: crate::Outcome,
        error: Option<RemoteError>,
        about: Option<AboutState>,
        delta: Option<Delta>,
        summary: Option<Output>,
    },
    /// The states that the person has.
    States {
        call: CallId,
        states: Vec<api::SavedState>,
    },
    /// Under this name; `None`: not at all.
    Autosave { call: CallId, name: Option<String> },
    /// The jobs that the person can attach.
    Jobs {
        call: CallId,
        jobs: Vec<api::AttachableJob>,
    },
    /// Nothing was saved, loaded or discarded. Without an error it was interrupted.
    StateFailed {
        call: CallId,
        error: Option<RemoteError>,
    },
    /// The session has ended between two cells.
    SessionEnded { worker: String },
    /// The first message to a plain program. A kernel knows these from its environment.
    Ready {
        /// Of the sender, which removes it; to be removed by the program if the sender was killed.
        folder: String,
        /// The library that finds changed memory.
        scanner: String,
    },
    /// The line that says what the call waits for or how long it has run, for a plain program, which has no other
    /// clients. It replaces the one before.
    Status { call: CallId, line: Output },
    /// For a plain program: the call has left the queue.
    Started { call: CallId },
    /// They are lost: the notebook goes back to before the first call of which something is missing.
    DeferredLost { call: CallId, error: RemoteError },
    /// The cell did not run, or its state is lost: the notebook has the values from before the cell.
    /// The object table is void.
    Failed {
        call: CallId,
        outcome: crate::Outcome,
        error: RemoteError,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the package `baton_shim`; it must equal the binary's.
    pub version: String,
    pub pid: u32,
    /// `sys.executable`.
    pub python: String,
    /// `major.minor`.
    pub python_version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub call: CallId,
    pub code: String,
    /// The parent header of the running cell, as JSON text.
    pub parent_header: ByteBuf,
    pub message_id: String,
    /// What the kernel writes as `session` into the headers of its messages.
    pub kernel_session: String,
    /// The id of the last message that the kernel had put on iopub: the cell's output stands below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    pub execution_count: u32,
    pub silent: bool,
    pub allow_stdin: bool,
    /// Output must go through the kernel (`Publish`), not past it.
    pub captured: bool,
    /// Output of one in the background may come after the cell's `idle`.
    #[serde(default, skip_serializing_if = "JobKind::is_cell")]
    pub kind: JobKind,
    /// No waiting line and no summary line.
    pub quiet: bool,
    pub folder: String,
    /// How long the cell may run.
    pub timeout_ms: Option<u64>,
    /// How much of a GPU's memory the session may have allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// The GPU that the cell asks for: words of its model, such as `a100`, or a label of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
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
    /// What the kernel writes as `session` into the headers of its messages.
    pub kernel_session: String,
    /// Output must go through the kernel (`Publish`), not past it.
    pub captured: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromSession {
    Hello(Hello),
    /// The state was applied, `Begin` has come, and the cell begins.
    Started {
        message_id: String,
    },
    /// The state could not be applied; the cell does not run. The session is of no further use.
    Refused {
        message_id: String,
        error: RemoteError,
    },
    /// What a kernel would publish on iopub. All that a cell publishes comes before what else the session says of it.
    Published {
        output: Output,
    },
    /// The cell called `input()`, which waits for the answer with this number. Numbers only grow.
    InputWanted {
        message_id: String,
        question: u64,
        prompt: String,
        password: bool,
    },
    /// The cell looks up names of the notebook that it was not given.
    NamesWanted {
        message_id: String,
        names: Vec<String>,
    },
    Finished {
        message_id: String,
        outcome: crate::Outcome,
        error: Option<RemoteError>,
        state: Snapshot,
        /// Memory that the state names and leaves out. It is told of in `Settled`, after `Released`.
        deferred_bytes: u64,
        /// The session holds something that the notebook knows and that no other session can have.
        #[serde(default)]
        keeps: bool,
    },
    /// What was left out, ready to be read: in the memory of the process `keeper`, where it stays as it is now, or
    /// without one in the session's own until the next `Run`.
    Settled {
        message_id: String,
        state: Snapshot,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keeper: Option<u32>,
    },
    /// What the last cell had and left, as a message of a new table. Without a snapshot it cannot be read, and the
    /// error says why.
    Salvaged {
        message_id: String,
        about: Box<AboutState>,
        state: Option<Snapshot>,
        error: Option<RemoteError>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToSession {
    /// A cell, and the state that it needs; the frame carries the delta's file. The session applies the state and
    /// waits for `Begin`.
    Run {
        message_id: String,
        code: String,
        silent: bool,
        allow_stdin: bool,
        execution_count: u32,
        delta: Delta,
    },
    /// The broker has stored that the cell starts. May come before the state is applied.
    Begin { message_id: String },
    /// An answer to another question than the last is late, or comes again after a cut.
    Input {
        question: u64,
        value: Option<String>,
    },
    /// The answer to `NamesWanted`; the frame carries the delta's file.
    Names { message_id: String, delta: Delta },
    /// The memory of the snapshot was read.
    Released { message_id: String },
    /// The notebook kernel has ended: there is no answer to `NamesWanted`. Comes while the cell waits for one.
    NoNames { message_id: String },
    /// The cell has ended, and so has its notebook kernel: say `Salvaged`.
    Salvage { message_id: String },
}
