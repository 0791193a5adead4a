//! Between a worker and the broker.
//!
//! After `Hello` and `Welcome` the broker assigns jobs. The worker numbers the events of each
//! assignment from 1 and keeps them until they are acknowledged. After a reconnect its `Hello`
//! lists what it still runs, the broker answers up to which number each was stored, and the worker
//! repeats the rest. Fencing numbers make a late worker harmless.
//!
//! An acknowledged [`JobEvent::Started`] is the permission to start the job. From then on no other
//! worker gets it.

use crate::{
    Answer, ComputeCapability, Environment, FencingNumber, JobEvent, JobId, Lock, Machine,
    NotebookId, Refusal, Submission, WorkerId,
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
        /// Identifies this process, which may replace its own connection. With the broker's own
        /// token it also identifies the worker; with a token of its own, the token does.
        worker: WorkerId,
        /// The worker's name for people, for example `cpu-0` or `gpu-2`. Empty: the name in its
        /// token, or else one that the broker chooses.
        name: String,
        devices: Vec<Device>,
        #[serde(default)]
        machine: Machine,
        /// The number of jobs that it runs at once.
        slots: u32,
        /// Notebooks that have a warm session here.
        sessions: Vec<NotebookId>,
        /// Those of them whose session holds objects that no other session can have.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keeping: Vec<NotebookId>,
        /// Assignments that it still holds, including finished ones that were not acknowledged.
        assignments: Vec<(JobId, FencingNumber)>,
        /// What the broker has acknowledged of them; an assignment without an entry has nothing acknowledged.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        acknowledged: Vec<Acknowledged>,
        /// Why sessions do not start here; absent if they do.
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
        /// Those of them whose session holds something that no other session can have, such as a generator.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keeping: Vec<NotebookId>,
    },
    /// Sent every few seconds, also as a heartbeat.
    Load {
        memory_bytes: u64,
        memory_total_bytes: u64,
        /// Resident memory of the session in which each job runs.
        jobs: Vec<(JobId, u64)>,
        /// Empty if the machine has no GPU, or its driver reports nothing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gpus: Vec<GpuLoad>,
    },
    /// A trial found that sessions do not start here. The broker assigns nothing until `Recovered`.
    Failing { why: String },
    /// Sessions start here again.
    Recovered {},
    /// All environments that it offers. Sent when the state of one has changed.
    Environments { environments: Vec<Environment> },
    /// The answer to [`ToWorker::LockWanted`].
    Lock { environment: String, lock: Lock },
    /// Assign no more jobs; the worker leaves when its jobs are done. Jobs whose `Started` did not
    /// precede this go to other workers.
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
        /// The worker's name.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
    },
    Refused(Refusal),
    Assign {
        fencing: FencingNumber,
        /// The account to which the arbiter gives the job's GPU leases: the same for all notebooks of
        /// a person while this broker runs. It does not reveal the person.
        account: u64,
        /// The worker's environment in which it runs; absent for the worker's own Python.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        environment: Option<String>,
        submission: Submission,
    },
    Cancel {
        job: JobId,
    },
    /// May be sent twice.
    Answer {
        job: JobId,
        question: u64,
        answer: Answer,
    },
    /// The notebook lacks the job's deferred state, even if some of it was sent before.
    DeferredWanted {
        job: JobId,
    },
    /// The job's notebook kernel has ended. The cell goes on without it, and its variables are sent
    /// as [`JobEvent::Salvaged`]. Idempotent.
    Salvage {
        job: JobId,
    },
    /// The job's notebook kernel is back, so nothing needs to be salvaged. Idempotent.
    Adopted {
        job: JobId,
    },
    /// Events of this assignment are stored up to this number.
    Acknowledge {
        job: JobId,
        fencing: FencingNumber,
        number: u64,
    },
    /// The worker no longer has this assignment: it must stop the job and send nothing more about it.
    Revoke {
        job: JobId,
        fencing: FencingNumber,
    },
    /// Asks for the lock from which an environment is built, for notebooks that want the same.
    LockWanted {
        environment: String,
    },
    /// The notebook is closed, so its session may end.
    EndSession {
        notebook: NotebookId,
    },
    /// People are expected, so a worker of a pool must not leave for lack of use before this time.
    /// Absent: it may.
    StayUntil {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_ms: Option<i64>,
    },
}

/// The last acknowledgement of an assignment that the worker received.
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
    /// The memory of the device, or of its slice (MIG).
    pub memory_bytes: u64,
    /// For example `8.0`; absent where the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub compute_capability: Option<ComputeCapability>,
}

/// A GPU's load, as its driver reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLoad {
    /// The index among the GPUs that this worker's sessions see.
    pub index: u32,
    /// For example `NVIDIA H200`.
    pub name: String,
    /// The share of the last moment in which the GPU computed, 0 to 100. Absent for a slice (MIG).
    pub utilisation_percent: Option<u32>,
    pub memory_used_bytes: u64,
    pub memory_total_bytes: u64,
    /// Empty if the driver does not report single processes.
    pub sessions: Vec<SessionLoad>,
}

/// One session's load on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionLoad {
    pub notebook: NotebookId,
    pub memory_bytes: u64,
    /// The share of the last moment in which the session computed, 0 to 100.
    pub utilisation_percent: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    Cpu,
    Cuda,
}
