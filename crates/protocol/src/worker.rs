//! Between a worker and the broker.
//!
//! After hello and welcome the broker assigns jobs. The worker numbers the events of each assignment from 1 and
//! keeps them until they are acknowledged; after a reconnect it says in its hello what it still runs, hears up to
//! which number each was stored, and repeats the rest. Fencing numbers make a late worker harmless.
//!
//! An acknowledged [`JobEvent::Started`] is the permission to start the job. No other worker gets it from then on.

use crate::{
    ComputeCapability, Environment, FencingNumber, JobEvent, JobId, Lock, Machine, NotebookId,
    Payload, Refusal, State, Submission, WorkerId,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "a message is encoded as soon as it is made"
)]
pub enum FromWorker {
    Hello {
        protocol_version: u32,
        /// Of this process, and of no other: it may replace its own connection. With the broker's own token also what
        /// the worker is known by; with a token of its own that follows from the token.
        worker: WorkerId,
        /// How people call it, for example `cpu-0` or `gpu-2`. Empty: as its token says, or else as the broker likes.
        name: String,
        devices: Vec<Device>,
        #[serde(default)]
        machine: Machine,
        /// How many jobs it takes at once.
        slots: u32,
        /// Notebooks that have a warm session here.
        sessions: Vec<NotebookId>,
        /// Those among them whose session holds what no other can have.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keeping: Vec<NotebookId>,
        /// Assignments that it still holds, also finished ones that were not acknowledged.
        assignments: Vec<(JobId, FencingNumber)>,
        /// What the broker has acknowledged of them; nothing where one is missing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        acknowledged: Vec<Acknowledged>,
        /// Sessions do not start here: why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failing: Option<String>,
    },
    /// Events `first`, `first + 1`, … of this assignment.
    Events {
        job: JobId,
        fencing: FencingNumber,
        first: u64,
        events: Vec<JobEvent>,
    },
    Sessions {
        warm: Vec<NotebookId>,
        /// Those among them whose session holds what no other can have, such as a generator.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keeping: Vec<NotebookId>,
    },
    /// Sent every few seconds, also as a sign of life.
    Load {
        memory_bytes: u64,
        memory_total_bytes: u64,
        /// Resident memory of the session in which each job runs.
        jobs: Vec<(JobId, u64)>,
        /// None where the machine has no GPU, or its driver says nothing of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gpus: Vec<GpuLoad>,
    },
    /// Sessions do not start here, as a trial has found: assign nothing until `Recovered`.
    Failing { why: String },
    /// Sessions start here again.
    Recovered {},
    /// All environments that it offers, whenever the state of one has changed.
    Environments { environments: Vec<Environment> },
    /// The answer to [`ToWorker::LockWanted`].
    Lock { environment: String, lock: Lock },
    /// Assign nothing more; the worker leaves when its jobs are done. Those whose `Started` did not come before this
    /// go to other workers.
    Drain {},
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "a message is encoded as soon as it is made"
)]
pub enum ToWorker {
    Welcome {
        broker_version: String,
        /// How the worker is called.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
    },
    Refused(Refusal),
    Assign {
        fencing: FencingNumber,
        /// Whose turn it is on a GPU: the same for all notebooks of a person while this broker runs, and of no use for
        /// finding out who that is.
        account: u64,
        /// In which of the worker's environments it runs; absent: in the worker's own Python.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        environment: Option<String>,
        submission: Submission,
    },
    /// The answer to [`JobEvent::StateWanted`] and [`JobEvent::BytesWanted`].
    State {
        job: JobId,
        state: State,
    },
    Cancel {
        job: JobId,
    },
    /// The answer to [`JobEvent::InputWanted`] with this number. May come twice.
    Input {
        job: JobId,
        question: u64,
        value: Option<String>,
    },
    /// The answer to [`JobEvent::FilesWanted`].
    Files {
        job: JobId,
        question: u64,
        answer: Payload,
    },
    /// The answer to [`JobEvent::NamesWanted`] with this number. May come twice.
    Names {
        job: JobId,
        number: u64,
        state: State,
    },
    /// The notebook lacks what the job left in its session, whatever was sent of it before.
    DeferredWanted {
        job: JobId,
    },
    /// The job's notebook kernel has ended. The cell goes on without it, and what it leaves is sent as
    /// [`JobEvent::Salvaged`]. Idempotent.
    Salvage {
        job: JobId,
    },
    /// Events up to this number of this assignment are stored.
    Acknowledge {
        job: JobId,
        fencing: FencingNumber,
        number: u64,
    },
    /// The assignment is no longer this worker's: stop it and say nothing more about it.
    Revoke {
        job: JobId,
        fencing: FencingNumber,
    },
    /// From what an environment is built, for notebooks that want the same.
    LockWanted {
        environment: String,
    },
    /// The notebook is gone: its session may end.
    EndSession {
        notebook: NotebookId,
    },
    /// People are expected: a worker of a pool does not leave before this time because nobody uses it. Absent: it may.
    StayUntil {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_ms: Option<i64>,
    },
}

/// How far a worker was told that the events of an assignment are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    pub job: JobId,
    pub number: u64,
    /// [`JobEvent::Started`] is among them, so the cell may have begun.
    pub started: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Device {
    pub kind: DeviceKind,
    /// For example `NVIDIA H200`, or the processor's name.
    pub model: String,
    /// Of the device, or of its slice (MIG).
    pub memory_bytes: u64,
    /// For example `8.0`; absent where the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub compute_capability: Option<ComputeCapability>,
}

/// What a GPU does, by its driver's word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLoad {
    /// Its place among the GPUs that this worker's sessions see.
    pub index: u32,
    /// For example `NVIDIA H200`.
    pub name: String,
    /// How much of the last moment it computed, 0 to 100. A slice (MIG) does not tell.
    pub utilisation_percent: Option<u32>,
    pub memory_used_bytes: u64,
    pub memory_total_bytes: u64,
    /// Where the driver tells processes apart.
    pub sessions: Vec<SessionLoad>,
}

/// What one session does on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionLoad {
    pub notebook: NotebookId,
    pub memory_bytes: u64,
    /// How much of the last moment it computed, 0 to 100.
    pub utilisation_percent: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    Cpu,
    Cuda,
}
