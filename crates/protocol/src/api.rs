//! The JSON that the broker's `/v1` returns to programs.
//!
//! Times are milliseconds since 1970 and durations are milliseconds; the suffix of a name gives the unit.

mod pools;
mod timetable;

pub use pools::{
    JoinPool, Joined, Pool, PoolCommand, PoolTest, PoolWorker, PoolWorkerState, Scale,
};
pub use timetable::{Lesson, LessonDate, LessonOutlook, LessonWait, PastLesson};

use crate::{
    EnvironmentState, GroupId, JobId, JobKind, Lock, Machine, Outcome, Period, Priority,
    estimate::Estimate, worker::Device,
};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<Item> {
    pub items: Vec<Item>,
    /// The value of `after` for the next part; absent in the last one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits for a GPU.
    Queued,
    /// Its state is on the way to a worker.
    Assigned,
    /// Runs.
    Started,
    Finished,
}

/// One run of one `%%gpu` cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    #[schema(value_type = String, format = "uuid")]
    pub job: JobId,
    pub state: JobState,
    pub person: String,
    /// Absent when the notebook belongs to no course.
    pub course: Option<String>,
    /// The notebook's name, for example its file name.
    pub notebook: String,
    #[serde(default)]
    pub kind: JobKind,
    /// The group of jobs that were made together, such as an array.
    #[schema(value_type = Option<String>, format = "uuid")]
    #[serde(default)]
    pub group: Option<GroupId>,
    /// The number shown before the cell.
    pub execution_count: Option<u32>,
    /// The worker that has or had the job.
    pub worker: Option<String>,
    pub priority: Priority,
    /// The job's time limit.
    pub timeout_ms: Option<u64>,
    pub submitted_ms: i64,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    pub outcome: Option<Outcome>,
    /// Who or what stopped it and why, unless its owner did.
    #[serde(default)]
    pub stopped: Option<String>,
    pub run_ms: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    /// Present while the job is queued.
    pub waiting: Option<Waiting>,
}

/// A queued job's position, from the function that schedules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Waiting {
    /// 1 = next in line.
    pub position: u32,
    /// The largest position that the job is likely to have; equal to `position` if others are
    /// unlikely to overtake it.
    pub last_position: u32,
    /// Why it is further back than an earlier reported position.
    pub moved_back: Option<MovedBack>,
    /// The first rule that keeps it from running.
    pub rule: WaitingRule,
    /// The rule in words.
    pub sentence: String,
    /// The time until it starts; absent when no honest range can be given.
    pub estimate: Option<Estimate>,
    /// What the course's staff want waiting students to know.
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitingRule {
    JobsAhead,
    /// Some of the jobs ahead arrived later and belong to a course that has a deadline.
    BehindDeadline,
    /// Another cell of the same person runs.
    OwnJobRuns,
    /// No worker is connected.
    NoWorker,
    WorkersDrained,
    /// No connected worker can start sessions.
    WorkersFail,
    CoursePaused,
    /// Staff hold the job.
    Held,
    /// Staff moved one of the jobs ahead to the front.
    BehindMoved,
    /// The notebook's session holds objects that no other session can have, and its worker is busy.
    OwnSession,
    /// The workers that meet the job's requirements are busy; others are free.
    FittingWorkersBusy,
    /// No connected worker meets the job's requirements.
    NoWorkerFits,
    /// A worker that can run the job is starting.
    MachineStarting,
}

/// Why a job is in its state, or at its position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    pub job: Job,
    pub sentence: String,
    /// Present while the job is queued.
    pub queue: Option<QueueDetails>,
}

/// What determines a queued job's position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueDetails {
    pub ahead: Vec<Ahead>,
    pub precedence: Precedence,
    /// Jobs that workers have.
    pub running: u32,
    /// The number of jobs that the connected workers can run at once.
    pub slots: u32,
    /// Absent if the course has no budget.
    pub budget: Option<Budget>,
}

/// The number of jobs that are ahead for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ahead {
    pub because: AheadBecause,
    pub jobs: u32,
}

/// The number of people who got ahead of a job for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedBack {
    pub people: u32,
    pub because: AheadBecause,
}

/// The first rule by which one job is ahead of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AheadBecause {
    /// Staff hold the job behind.
    Held,
    /// The course of the job behind is paused.
    CoursePaused,
    /// Staff moved the job ahead to the front.
    MovedToFront,
    Deadline,
    /// The job behind is of low priority.
    LowPriority,
    /// The account ahead has recently used less GPU time in proportion to its course's weight.
    UsedLess,
    WaitedLonger,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Precedence {
    /// The account's recent use; its weight halves with each half-life.
    pub used_ms: u64,
    pub half_life_ms: u64,
    /// The course's weight. Twice the weight is twice the share.
    pub weight: f64,
    /// The factor by which a deadline in force multiplies the weight; 1 without one.
    pub boost: f64,
}

/// What a person may still use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    pub left_ms: u64,
    /// Includes `granted_ms`.
    pub of_ms: u64,
    /// What staff granted beyond the budget of the course.
    #[serde(default)]
    pub granted_ms: u64,
    pub period: Period,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    pub name: String,
    pub state: WorkerState,
    /// Why the worker is paused.
    pub reason: Option<String>,
    pub devices: Vec<Device>,
    pub machine: Machine,
    pub jobs: u32,
    /// The number of jobs that the worker runs at once.
    pub slots: u32,
    pub warm_sessions: u32,
    pub memory_used_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Empty if the driver reports nothing.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
}

/// The current load of a GPU, as its driver reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// The index among the worker's GPUs.
    pub index: u32,
    /// For example `NVIDIA H200`.
    pub name: String,
    /// The share of the last moment in which the GPU computed, 0 to 100. Absent for a slice (MIG).
    pub utilisation_percent: Option<u32>,
    pub memory_used_bytes: u64,
    pub memory_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Connected,
    /// Sessions do not start there: the worker gets no cells until a trial passes.
    Failing,
    /// Staff have drained the worker, so it gets no new jobs.
    Drained,
    /// The worker finishes its jobs, then leaves.
    Leaving,
    /// Not connected; its jobs are not given up yet.
    Disconnected,
}

/// A course's settings and current jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Course {
    pub course: String,
    pub weight: f64,
    /// The factor by which a deadline in force multiplies the weight; 1 without one.
    pub boost: f64,
    /// The time limit of a cell that asks for none.
    pub timeout_ms: Option<u64>,
    /// The longest time limit that a cell may ask for.
    pub longest_timeout_ms: Option<u64>,
    /// Why the course is paused; absent if it is not.
    pub paused: Option<String>,
    /// A message for people who wait.
    pub message: Option<String>,
    /// Each person's GPU time per period, and what the caller has left of it.
    pub budget: Option<Budget>,
    pub deadlines: Vec<Deadline>,
    /// The zone of times in the courses file, such as `Europe/Berlin`; null if it has no name.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// Whether staff can read the output of students' cells.
    pub staff_see_outputs: bool,
    /// The environment, offered by workers, in which its cells run; null for the workers' own Python.
    #[serde(default)]
    pub environment: Option<String>,
    /// Further environments that its cells can choose.
    #[serde(default)]
    pub environments: Vec<String>,
    /// The times at which its people work together.
    #[serde(default)]
    pub timetable: Vec<Lesson>,
    pub running: u32,
    pub waiting: u32,
}

/// Changes to a course's settings. A setting that is left out stays as it is; null removes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CourseChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    pub timeout_ms: Option<Option<u64>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    pub longest_timeout_ms: Option<Option<u64>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    pub paused: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    pub message: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Vec<Deadline>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staff_see_outputs: Option<bool>,
    /// Replaces all lessons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timetable: Option<Vec<Lesson>>,
}

/// GPU time that staff grant for a while, in addition to the budget of each period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Allowance {
    /// Absent for everyone in the course.
    pub person: Option<String>,
    pub gpu_time_ms: u64,
    pub until_ms: i64,
    /// Who granted it; absent for the broker's own token.
    pub by: Option<String>,
    /// What the person has left at the moment; absent for everyone.
    pub budget: Option<Budget>,
}

/// A request to grant GPU time. Replaces an earlier allowance of the same person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAllowance {
    /// Left out for everyone in the course.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub person: Option<String>,
    pub gpu_time_ms: u64,
    /// Left out for the end of the budget's present period.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub until_ms: Option<i64>,
}

/// A request to revoke an allowance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// Left out for the allowance of everyone in the course.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub person: Option<String>,
}

/// Distinguishes a field that is null from one that is absent.
fn given<'de, Value: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The reason for an action. The people whom it affects can read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Why {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(max_length = 500)]
    pub reason: Option<String>,
}

/// An action that a person or the broker's own token took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Act {
    pub at_ms: i64,
    /// Absent for the broker's own token.
    pub person: Option<String>,
    pub action: Action,
    /// Absent for workers, which belong to no course.
    pub course: Option<String>,
    /// The job, the worker or the course.
    pub subject: String,
    /// The reason, or the settings after the change.
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Cancel,
    Hold,
    Release,
    MoveToFront,
    Drain,
    Resume,
    ChangeCourse,
    Grant,
    Revoke,
    Publish,
    Withdraw,
}

impl Action {
    const ALL: [Self; 11] = [
        Self::Cancel,
        Self::Hold,
        Self::Release,
        Self::MoveToFront,
        Self::Drain,
        Self::Resume,
        Self::ChangeCourse,
        Self::Grant,
        Self::Revoke,
        Self::Publish,
        Self::Withdraw,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::MoveToFront => "move_to_front",
            Self::Drain => "drain",
            Self::Resume => "resume",
            Self::ChangeCourse => "change_course",
            Self::Grant => "grant",
            Self::Revoke => "revoke",
            Self::Publish => "publish",
            Self::Withdraw => "withdraw",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// Multiplies a course's weight from `from_ms` to `until_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Deadline {
    pub from_ms: i64,
    pub until_ms: i64,
    pub weight: f64,
}

/// One person's use in one course on one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// In UTC, for example `2026-11-20`.
    #[schema(format = "date")]
    pub day: String,
    pub person: String,
    pub course: Option<String>,
    pub run_ms: u64,
    pub runs: u64,
}

/// Data that everyone in a course may use by its name, so that it is uploaded only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublicFile {
    pub name: String,
    /// The size of its chunks, each counted once.
    pub bytes: u64,
    pub chunks: u64,
    /// Who published it; absent for the broker's own token.
    pub person: Option<String>,
    pub published_ms: i64,
}

/// A request to make a file public. Its chunks must already be uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    pub name: String,
    /// The BLAKE3 hashes of its chunks, 64 hexadecimal digits each, in any order.
    pub chunks: Vec<String>,
    /// The owner of the chunks, if the token does not say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Withdrawal {
    pub name: String,
}

/// A state of a notebook that a person saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SavedState {
    pub name: String,
    /// The notebook that it was saved in.
    pub notebook: Option<String>,
    pub saved_ms: i64,
    /// The size of its chunks, each counted once.
    pub bytes: u64,
    /// The number of variables.
    pub variables: u64,
}

/// A job whose notebook kernel has ended. It runs on, or has ended, and waits for another kernel of
/// the same person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachableJob {
    #[schema(value_type = String, format = "uuid")]
    pub job: JobId,
    pub kind: JobKind,
    pub notebook: String,
    /// The number shown before the cell.
    pub execution_count: Option<u32>,
    pub submitted_ms: i64,
    /// Absent while the job runs.
    pub outcome: Option<Outcome>,
}

/// An environment that workers offer or have offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentOverview {
    pub environment: String,
    /// The hash of the lock that notebooks get; null if no worker has reported one.
    pub lock: Option<String>,
    /// Sorted by name; only workers that the broker knows at the moment.
    pub workers: Vec<EnvironmentOffer>,
}

/// One worker's copy of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentOffer {
    pub worker: String,
    /// The hash of its lock.
    pub lock: Option<String>,
    /// For example `3.13`.
    pub python_version: Option<String>,
    pub state: EnvironmentState,
}

/// The lock from which an environment is built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentLock {
    pub environment: String,
    /// The hash of the lock.
    pub digest: String,
    pub lock: Lock,
    /// When a worker reported it.
    pub seen_ms: i64,
    /// The Python version of the workers that have it ready, for example `3.13`; null if there are none.
    pub python_version: Option<String>,
}

/// The data for an estimate of a course's needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The cells that were submitted last, newest first.
    pub cells: Vec<PastCell>,
    /// The time of the request.
    pub now_ms: i64,
    /// The number of GPUs of the connected workers.
    pub gpus: u32,
    /// The number of cells that these workers run at once.
    pub slots: u32,
}

/// One cell, without its notebook and the name of its person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastCell {
    /// The same number means the same person, but only within one answer.
    pub person: u32,
    pub submitted_ms: i64,
    /// When it was assigned to a worker and took one of its slots.
    pub assigned_ms: Option<i64>,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    /// The cell was neither stopped nor lost.
    pub ended_itself: bool,
}

/// A refusal in the form of RFC 9457, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Identifies the kind of refusal for programs.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// What happened.
    pub detail: String,
    /// What the caller can do about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
}

impl Problem {
    /// The caller is known, but may not do this.
    pub const FORBIDDEN: &str = "urn:baton:forbidden";
    /// A worker connects with a token that is not for workers.
    pub const NOT_A_WORKER: &str = "urn:baton:not-a-worker";
    /// Another program than a worker connects with a worker's token.
    pub const NOT_A_PERSON: &str = "urn:baton:not-a-person";
    /// The broker has run out of descriptors.
    pub const NO_DESCRIPTORS: &str = "urn:baton:no-descriptors";
    /// A chunk does not exist, or the account does not hold it.
    pub const UNKNOWN_CHUNK: &str = "urn:baton:unknown-chunk";
    /// Bytes of chunks go to the object store, and the broker does not accept them.
    pub const IN_OBJECT_STORE: &str = "urn:baton:in-object-store";
}
