//! Every type that crosses a process or machine boundary.
//!
//! There are four boundaries: proxy and worker to the broker ([`proxy`], [`worker`]), a Python shim to the
//! process that started it ([`shim`]), and a worker to a proxy on the same machine ([`memory`]). Proxy and
//! worker exchange [`files`] through a broker that does not read them. All of these use MessagePack with named
//! fields and externally tagged enums (`{"submit": {…}}`), so that a reader in any language needs one map
//! look-up and unknown fields do no harm. Other programs read JSON ([`api`]).
//!
//! **Invariant:** no I/O, no clock, and no dependency on another crate of this repository except `humanize`.

pub mod address;
pub mod api;
mod bound;
mod chunk;
mod codec;
mod environment;
mod estimate;
pub mod files;
mod grant;
mod ids;
mod job;
mod machine;
mod manifest;
pub mod memory;
pub mod outbox;
mod output;
pub mod proxy;
mod queue_position;
mod saved_state;
pub mod shim;
mod snapshot;
mod state;
pub mod wording;
pub mod worker;

pub use bound::{Bound, Excess};
pub use chunk::{
    CHUNK_BYTES, ChunkHash, ChunkHashError, INLINE_BYTES, LEAST_COUNTED_BYTES, counted_bytes,
};
pub use codec::{DecodeError, decode, decode_bounded, encode, encoded_bytes};
pub use environment::{
    Environment, EnvironmentState, LARGEST_LOCK_BYTES, LONGEST_ENVIRONMENT_NAME, Lock, LockFile,
    LockKind, is_environment_name,
};
pub use files::Payload;
pub use grant::{Grant, Grants};
pub use ids::{CallId, FencingNumber, GroupId, HeldKey, JobId, NotebookId, TableId, WorkerId};
pub use job::{
    BudgetLeft, Cell, CellKey, ClientJob, ClientJobError, GpuUsage, JobKind, Outcome, Period,
    Priority, RemoteError, Submission, Usage,
};
pub use machine::{ComputeCapability, ComputeCapabilityError, Machine, Requirement};
pub use manifest::{Manifest, Piece, SegmentPart, StateVersion};
pub use output::{Answer, Finished, JobEvent, NumberedEvent, Output};
pub use queue_position::in_line;
pub use saved_state::{AboutState, SavedState};
pub use state::{HeldState, Holder, State};

/// Proxy, worker and broker must agree on this number. [`Refusal::ProtocolVersion`] refuses any other.
pub const PROTOCOL_VERSION: u32 = 6;

/// Why the broker does not serve a peer that sent `Hello`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    #[error("The broker speaks protocol version {broker}, this program speaks {peer}")]
    ProtocolVersion { broker: u32, peer: u32 },
    #[error("The first message was not a hello")]
    NoHello {},
    #[error("You are not in the course {course}; yours: {}", listed(courses))]
    NotInCourse {
        course: String,
        courses: Vec<String>,
    },
    #[error(
        "You are in several courses, and the notebook does not name one of them: {}",
        listed(courses)
    )]
    WhichCourse { courses: Vec<String> },
    #[error("This notebook belongs to another person")]
    NotYours {},
    #[error(
        "The token belongs to the worker {token}, but this worker calls itself {said}\nhint: leave worker.name out, or use the token that was made for {said}"
    )]
    NotYourName { token: String, said: String },
    #[error(
        "Another worker with the token of {name} is connected or was connected a moment ago\nhint: each worker needs a token of its own: baton people add NAME --worker"
    )]
    WorkerConnected { name: String },
    #[error("A later connection of the worker {name} replaced this one")]
    Replaced { name: String },
    #[error("{reason}")]
    OutOfBounds { reason: String },
    /// A temporary refusal: the broker lacks something that it needs. It serves again without help
    /// from the peer.
    #[error("{reason}")]
    Unable { reason: String },
}

fn listed(courses: &[String]) -> String {
    match courses {
        [] => "none".to_owned(),
        courses => courses.join(", "),
    }
}
