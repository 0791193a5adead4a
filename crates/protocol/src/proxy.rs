//! Between a proxy and the broker.
//!
//! The proxy says hello and is welcomed or refused. Then it submits jobs and receives their events. After a reconnect
//! it sends `Resume` for each job that it waits for; the broker repeats all events after the given number.

pub use crate::estimate::Estimate;

use crate::{
    JobId, NotebookId, NumberedEvent, Outcome, Payload, Refusal, Requirement, State, Submission,
    api::MovedBack,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "a message is encoded as soon as it is made"
)]
pub enum FromProxy {
    Hello {
        protocol_version: u32,
        notebook: NotebookId,
        /// The notebook's owner, if no token names one.
        owner: String,
        /// The course that the notebook is for. Not needed by a person of one course.
        course: Option<String>,
    },
    /// Idempotent: the same job may be sent again after a reconnect.
    Submit(Submission),
    /// The answer to [`crate::JobEvent::StateWanted`] and [`crate::JobEvent::BytesWanted`]: a state that continues
    /// nothing.
    State {
        job: JobId,
        state: State,
    },
    /// Send all events with a number above `after`, then what is new.
    Resume {
        job: JobId,
        after: u64,
    },
    /// The same for a job of the same person whose notebook kernel has ended. Ends with `Applied` or `Detach`.
    Attach {
        job: JobId,
        after: u64,
    },
    /// The student no longer waits for a job that the proxy attached; it goes on.
    Detach {
        job: JobId,
    },
    Cancel {
        job: JobId,
    },
    /// The answer to [`crate::JobEvent::InputWanted`] with this number; `None`: the student interrupted the question.
    /// Idempotent: sent again after a reconnect.
    Input {
        job: JobId,
        question: u64,
        value: Option<String>,
    },
    /// A [`crate::files::FilesAnswer`]. Sent again after a reconnect; the worker takes the first.
    Files {
        job: JobId,
        question: u64,
        answer: Payload,
    },
    /// The answer to [`crate::JobEvent::NamesWanted`] with this number. Idempotent: sent again after a reconnect.
    Names {
        job: JobId,
        number: u64,
        state: State,
    },
    /// The job's deferred state has not arrived or could not be used: send it, or send it again. Idempotent.
    DeferredWanted {
        job: JobId,
    },
    /// The changes are applied, or never will be: the broker may forget the job's state and events.
    /// Idempotent: sent again after a reconnect until `Closed` or `UnknownJob`.
    Applied {
        job: JobId,
    },
    /// The notebook does not use the job's result, whether it has ended or not, and told the student this outcome. With
    /// `None` it submits the cell again, so a job that has not started leaves no trace. Idempotent like `Applied`.
    GivenUp {
        job: JobId,
        outcome: Option<Outcome>,
    },
    /// The notebook is closed: its session may end at once, and its remaining jobs are cancelled, except those in the
    /// background that have started.
    Goodbye {},
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToProxy {
    Welcome {
        broker_version: String,
        /// The course wants the notebook's variables to be saved when its kernel ends.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        autosave: bool,
    },
    Refused(Refusal),
    /// The job's position in the queue. Sent when it changes, from the function that schedules.
    QueuePosition {
        job: JobId,
        /// 1 = next.
        position: u32,
        /// The last position that it is likely to have; the same if others are unlikely to overtake.
        last_position: u32,
        /// Why it is further back than an earlier position.
        moved_back: Option<MovedBack>,
        waiting: WaitingReason,
        /// Whether it waits for a GPU: the workers of some services have none.
        gpu: bool,
        /// Absent when no honest range can be given.
        estimate: Option<Estimate>,
        /// What the course's staff want waiting students to know.
        message: Option<String>,
    },
    Events {
        job: JobId,
        events: Vec<NumberedEvent>,
    },
    /// The cancellation has arrived; its end is an event like any other.
    Cancelling {
        job: JobId,
    },
    /// The notebook's session on this worker, which held objects that no other can have, has ended.
    SessionEnded {
        worker: String,
    },
    /// The answer to `Applied` and `GivenUp` once it is stored: the proxy need not repeat it.
    Closed {
        job: JobId,
    },
    /// The broker has no such job (it was never acknowledged, or is forgotten): submit it again or give up.
    UnknownJob {
        job: JobId,
    },
}

/// The first rule that keeps a job from running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingReason {
    /// Jobs ahead of this one.
    JobsAhead,
    /// Jobs ahead of this one, some of which came later and are for a course that has a deadline.
    BehindDeadline { course: String },
    /// Another cell of the same person runs, in this notebook.
    OwnJobRuns { notebook: String },
    /// No worker is connected.
    NoWorker,
    /// The workers that are connected take nothing new; staff may have said why.
    WorkersPaused { why: Option<String> },
    /// No worker that is connected can start sessions; why one of them cannot.
    WorkersFail { worker: String, why: String },
    /// Staff paused the course and said why.
    CoursePaused { why: String },
    /// Staff hold this job back and said why.
    Held { why: String },
    /// Jobs ahead of this one, one of which staff moved to the front.
    BehindMoved {},
    /// The notebook's session, on a worker that is busy, holds what no other can have.
    OwnSession { worker: String },
    /// The workers that meet this requirement are busy; others are free.
    FittingWorkersBusy { requirement: Requirement },
    /// A worker that can run it is being started.
    MachineStarting {
        /// How long a start takes; absent before the first one.
        usual: Option<Estimate>,
        /// When the batch system expects it to begin.
        expected_in_ms: Option<u64>,
    },
    /// No worker that is connected meets this requirement.
    NoWorkerFits {
        requirement: Requirement,
        /// What the connected workers are, each kind once.
        connected: Vec<String>,
    },
}
