//! What the broker's `/v1` answers to programs, as JSON.
//!
//! Times are milliseconds since 1970 and durations are milliseconds, as the ends of their names say.

mod pools;
mod timetable;

pub use pools::{
    JoinPool, Joined, Pool, PoolCommand, PoolTest, PoolWorker, PoolWorkerState, Scale,
};
pub use timetable::{Lesson, LessonOutlook, LessonWait, PastLesson};

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
    /// What to give as `after` for the next part; absent in the last one.
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
    /// Absent when the notebook is for none.
    pub course: Option<String>,
    /// For example its file name.
    pub notebook: String,
    #[serde(default)]
    pub kind: JobKind,
    /// The jobs that were made together with this one, such as an array.
    #[schema(value_type = Option<String>, format = "uuid")]
    #[serde(default)]
    pub group: Option<GroupId>,
    /// The number in front of a cell.
    pub execution_count: Option<u32>,
    /// Who has it or had it.
    pub worker: Option<String>,
    pub priority: Priority,
    /// How long it may run.
    pub timeout_ms: Option<u64>,
    pub submitted_ms: i64,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    pub outcome: Option<Outcome>,
    pub run_ms: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    /// Of a queued job.
    pub waiting: Option<Waiting>,
}

/// Where a queued job stands, from the function that schedules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Waiting {
    /// 1 = next in line.
    pub position: u32,
    /// The last position that it is likely to have; the same if others are unlikely to overtake.
    pub last_position: u32,
    /// Why it is further back than it once was told to be.
    pub moved_back: Option<MovedBack>,
    /// The first rule that keeps it from running.
    pub rule: WaitingRule,
    /// The rule in words.
    pub sentence: String,
    /// In how many milliseconds it starts; absent when no honest range can be given.
    pub estimate: Option<Estimate>,
    /// What the course's staff want waiting students to know.
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitingRule {
    JobsAhead,
    /// Some of the jobs ahead came later and are for a course that has a deadline.
    BehindDeadline,
    /// Another cell of the same person runs.
    OwnJobRuns,
    /// None is connected.
    NoWorker,
    WorkersDrained,
    /// No worker that is connected can start sessions.
    WorkersFail,
    CoursePaused,
    /// Staff hold it back.
    Held,
    /// Staff moved one of the jobs ahead to the front.
    BehindMoved,
    /// Its notebook's session, on a worker that is busy, holds what no other can have.
    OwnSession,
    /// The workers that meet its requirements are busy; others are free.
    FittingWorkersBusy,
    /// No worker that is connected meets its requirements.
    NoWorkerFits,
    /// A worker that can run it is being started.
    MachineStarting,
}

/// Why a job is where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    pub job: Job,
    pub sentence: String,
    /// Of a queued job.
    pub queue: Option<QueueDetails>,
}

/// What the order of a queued job is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueDetails {
    pub ahead: Vec<Ahead>,
    pub precedence: Precedence,
    /// Jobs that workers have.
    pub running: u32,
    /// Jobs that the connected workers take at once.
    pub slots: u32,
    /// Absent where the course has none.
    pub budget: Option<Budget>,
}

/// So many jobs are ahead because of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ahead {
    pub because: AheadBecause,
    pub jobs: u32,
}

/// So many people came ahead of a job because of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedBack {
    pub people: u32,
    pub because: AheadBecause,
}

/// The first difference without which a job would not be ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AheadBecause {
    /// Staff hold the job behind.
    Held,
    /// The course of the job behind is paused.
    CoursePaused,
    /// Staff moved it to the front.
    MovedToFront,
    Deadline,
    /// The job behind is of low priority.
    LowPriority,
    /// Its account has used less GPU time of late, for its course's weight.
    UsedLess,
    WaitedLonger,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Precedence {
    /// What the account has used of late; half of it counts after each half-life.
    pub used_ms: u64,
    pub half_life_ms: u64,
    /// Of the course. Twice the weight is twice the share.
    pub weight: f64,
    /// What a deadline that is near multiplies the weight by; 1 without one.
    pub boost: f64,
}

/// What the caller may still use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    pub left_ms: u64,
    pub of_ms: u64,
    pub period: Period,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    pub name: String,
    pub state: WorkerState,
    /// Why it is paused.
    pub reason: Option<String>,
    pub devices: Vec<Device>,
    pub machine: Machine,
    pub jobs: u32,
    /// How many jobs it takes at once.
    pub slots: u32,
    pub warm_sessions: u32,
    pub memory_used_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Empty where its driver does not tell.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
}

/// What a GPU does now, by its driver's word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Its place among the GPUs of the worker.
    pub index: u32,
    /// For example `NVIDIA H200`.
    pub name: String,
    /// How much of the last moment it computed, 0 to 100. A slice (MIG) does not tell.
    pub utilisation_percent: Option<u32>,
    pub memory_used_bytes: u64,
    pub memory_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Connected,
    /// Sessions do not start there: it takes no cells until a trial passes.
    Failing,
    /// Staff want it to take nothing new.
    Drained,
    /// Ends its jobs, then goes.
    Leaving,
    /// Not connected; its jobs are not yet given up.
    Disconnected,
}

/// What a course may use, and what it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Course {
    pub course: String,
    pub weight: f64,
    /// What a deadline that is near multiplies the weight by; 1 without one.
    pub boost: f64,
    /// Of a cell that asks for nothing.
    pub timeout_ms: Option<u64>,
    /// What a cell may ask for.
    pub longest_timeout_ms: Option<u64>,
    /// Why none of its cells is started.
    pub paused: Option<String>,
    /// For those who wait.
    pub message: Option<String>,
    /// The GPU time of each person in a period, and what is left of the caller's.
    pub budget: Option<Budget>,
    pub deadlines: Vec<Deadline>,
    /// Staff can read the output of students' cells.
    pub staff_see_outputs: bool,
    /// In which of the workers' environments its cells run; null: in the workers' own Python.
    #[serde(default)]
    pub environment: Option<String>,
    /// When its people work at the same time.
    #[serde(default)]
    pub timetable: Vec<Lesson>,
    pub running: u32,
    pub waiting: u32,
}

/// What is to be otherwise in a course. What is left out stays as it is, and null stands for none.
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
    /// All of its lessons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timetable: Option<Vec<Lesson>>,
}

/// What is there, be it null.
fn given<'de, Value: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Why somebody acts. Those whom it concerns read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Why {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(max_length = 500)]
    pub reason: Option<String>,
}

/// Somebody acted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Act {
    pub at_ms: i64,
    /// Absent for the broker's own token.
    pub person: Option<String>,
    pub action: Action,
    /// Absent for workers, which are of no course.
    pub course: Option<String>,
    /// The job, the worker or the course.
    pub subject: String,
    /// Why, or what the settings are now.
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
    Publish,
    Withdraw,
}

impl Action {
    const ALL: [Self; 9] = [
        Self::Cancel,
        Self::Hold,
        Self::Release,
        Self::MoveToFront,
        Self::Drain,
        Self::Resume,
        Self::ChangeCourse,
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
            Self::Publish => "publish",
            Self::Withdraw => "withdraw",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// From `from_ms` to `until_ms` the weight is so many times as large.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Deadline {
    pub from_ms: i64,
    pub until_ms: i64,
    pub weight: f64,
}

/// What one person used for one course on one day.
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

/// Data that everybody in a course may name, so that it is brought once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublicFile {
    pub name: String,
    /// Of its chunks, each counted once.
    pub bytes: u64,
    pub chunks: u64,
    /// Who published it; absent for the broker's own token.
    pub person: Option<String>,
    pub published_ms: i64,
}

/// A file to be made public, whose chunks were brought before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    pub name: String,
    /// The BLAKE3 hashes of its chunks, 64 hexadecimal digits each, in any order.
    pub chunks: Vec<String>,
    /// Who brought them, where no token tells.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Withdrawal {
    pub name: String,
}

/// A state of a notebook that its person saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SavedState {
    pub name: String,
    /// The notebook that it was saved in.
    pub notebook: Option<String>,
    pub saved_ms: i64,
    /// Of its chunks, each counted once.
    pub bytes: u64,
    /// How many it has.
    pub variables: u64,
}

/// A job that goes on, or has ended, after its notebook kernel did, and waits for another kernel of its person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachableJob {
    #[schema(value_type = String, format = "uuid")]
    pub job: JobId,
    pub kind: JobKind,
    pub notebook: String,
    /// The number in front of the cell.
    pub execution_count: Option<u32>,
    pub submitted_ms: i64,
    /// Absent while it runs.
    pub outcome: Option<Outcome>,
}

/// An environment that workers offer or have offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentOverview {
    pub environment: String,
    /// The hash of the lock that notebooks are given; null where no worker has told one.
    pub lock: Option<String>,
    /// By name, as far as they are known to the broker now.
    pub workers: Vec<EnvironmentOffer>,
}

/// What one worker has of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentOffer {
    pub worker: String,
    /// The hash of its lock.
    pub lock: Option<String>,
    /// For example `3.13`.
    pub python_version: Option<String>,
    pub state: EnvironmentState,
}

/// From what an environment is built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentLock {
    pub environment: String,
    /// The hash of the lock.
    pub digest: String,
    pub lock: Lock,
    /// When a worker told it.
    pub seen_ms: i64,
    /// Of the workers that have it ready, for example `3.13`; null while there is none.
    pub python_version: Option<String>,
}

/// What an estimate of a course's needs is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// Those that were submitted last, the newest first.
    pub cells: Vec<PastCell>,
    /// When it was asked.
    pub now_ms: i64,
    /// Of the workers that are connected.
    pub gpus: u32,
    /// How many cells these workers take at once.
    pub slots: u32,
}

/// One cell, without its notebook and without its person's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastCell {
    /// The same number is the same person; in another answer it may be another.
    pub person: u32,
    pub submitted_ms: i64,
    /// When it was given to a worker, and took one of its slots.
    pub assigned_ms: Option<i64>,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    /// Neither stopped nor lost.
    pub ended_itself: bool,
}

/// A refusal in the form of RFC 9457, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Names the kind of refusal, for programs.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// What happened.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
}
