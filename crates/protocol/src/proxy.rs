//! Between a proxy and the broker.
//!
//! The proxy sends `Hello` and gets `Welcome` or `Refused`. Then it submits jobs and receives their
//! events. After a reconnect it sends `Resume` for each job that it waits for, and the broker
//! repeats all events after the given number.

pub use crate::estimate::Estimate;

use crate::{
    Answer, JobId, NotebookId, NumberedEvent, Outcome, Refusal, Requirement, Submission,
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
        /// The course that the notebook belongs to. Not needed for a person with one course.
        course: Option<String>,
    },
    /// Idempotent: the same job may be sent again after a reconnect.
    Submit(Submission),
    /// Requests all events with a number above `after`, then new ones.
    Resume {
        job: JobId,
        after: u64,
    },
    /// Like `Resume`, for a job of the same person whose notebook kernel has ended. Ended by
    /// `Applied` or `Detach`.
    Attach {
        job: JobId,
        after: u64,
    },
    /// The notebook no longer waits for the job, which goes on and can be attached: an attached job, or a job of its
    /// own that outlives its kernel. Idempotent: sent again after a reconnect until `Closed` or `UnknownJob`.
    Detach {
        job: JobId,
    },
    Cancel {
        job: JobId,
    },
    /// Idempotent: sent again after a reconnect, and when the worker repeats the question.
    Answer {
        job: JobId,
        question: u64,
        answer: Answer,
    },
    /// The job's deferred state has not arrived or could not be used. Asks to send it, or to send
    /// it again. Idempotent.
    DeferredWanted {
        job: JobId,
    },
    /// The changes are applied, or never will be, so the broker may forget the job's state and
    /// events. Idempotent: sent again after a reconnect until `Closed` or `UnknownJob`.
    Applied {
        job: JobId,
    },
    /// The notebook does not use the job's result, whether it has ended or not, and showed the
    /// student this outcome. With `None` it submits the cell again, so a job that has not started
    /// leaves no trace. Idempotent like `Applied`.
    GivenUp {
        job: JobId,
        outcome: Option<Outcome>,
    },
    /// The notebook is closed. Its session may end at once, and its remaining jobs are cancelled,
    /// except background jobs that have started.
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
        /// The course of the notebook. The proxy names it from now on, because its person may join other courses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        course: Option<String>,
    },
    Refused(Refusal),
    /// The job's position in the queue, from the function that schedules. Sent when it changes.
    QueuePosition {
        job: JobId,
        /// 1 = next.
        position: u32,
        /// The largest position that the job is likely to have; equal to `position` if others are
        /// unlikely to overtake it.
        last_position: u32,
        /// Why it is further back than an earlier reported position.
        moved_back: Option<MovedBack>,
        waiting: WaitingReason,
        /// Whether the job waits for a GPU: the workers of some services have none.
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
    /// The broker has received the cancellation. The job's end is an event like any other.
    Cancelling {
        job: JobId,
    },
    /// The notebook's session on this worker has ended, and objects that only it held are lost.
    SessionEnded {
        worker: String,
    },
    /// The answer to `Applied`, `GivenUp` and `Detach` once they are stored: the proxy need not repeat them.
    Closed {
        job: JobId,
    },
    /// The broker has no such job (it never confirmed it, or has forgotten it): submit it again or give up.
    UnknownJob {
        job: JobId,
    },
}

/// The first rule that keeps a job from running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingReason {
    /// Other jobs are ahead.
    JobsAhead,
    /// Other jobs are ahead; some of them arrived later and belong to a course that has a deadline.
    BehindDeadline { course: String },
    /// Another cell of the same person runs in this notebook.
    OwnJobRuns { notebook: String },
    /// No worker is connected.
    NoWorker,
    /// The connected workers take no new jobs; staff may have given a reason.
    WorkersPaused { why: Option<String> },
    /// No connected worker can start sessions; `why` is the reason of one of them.
    WorkersFail { worker: String, why: String },
    /// Staff paused the course and gave a reason.
    CoursePaused { why: String },
    /// Staff hold this job and gave a reason.
    Held { why: String },
    /// Other jobs are ahead; staff moved one of them to the front.
    BehindMoved {},
    /// The notebook's session holds objects that no other session can have, and its worker is busy.
    OwnSession { worker: String },
    /// The workers that meet this requirement are busy; others are free.
    FittingWorkersBusy { requirement: Requirement },
    /// A worker that can run the job is starting.
    MachineStarting {
        /// How long a start takes; absent before the first one.
        usual: Option<Estimate>,
        /// When the batch system expects it to start.
        expected_in_ms: Option<u64>,
    },
    /// No connected worker meets this requirement, and no pool would start one that does.
    NoWorkerFits {
        requirement: Requirement,
        /// The kinds of connected workers and of pools without one, each once.
        connected: Vec<String>,
    },
}
