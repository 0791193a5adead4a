//! When people of a course work together, and how long they wait then.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A time at which people of a course work together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Lesson {
    /// `Mon 17:00-18:30`, `Mon,Wed 10:00-12:00` or `2026-12-01 09:00-11:00`.
    pub when: String,
    pub people: u32,
}

/// The next time that a lesson takes place, or the one that takes place now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LessonOutlook {
    pub course: String,
    /// As it was written.
    pub when: String,
    pub people: u32,
    pub starts_ms: i64,
    pub ends_ms: i64,
    /// Cells that run at once on the workers that are there now.
    pub slots_now: u32,
    /// With so many at once, 99 of 100 cells start within a minute.
    pub enough_slots: u32,
    /// With so many, if the pools are as large as they may be.
    pub most_slots: u32,
    /// For each of these numbers.
    pub waits: Vec<LessonWait>,
    /// What happened the last time; null: nothing in the last eight days.
    pub last: Option<PastLesson>,
}

/// How long cells would wait, by what people of the course did in the last weeks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LessonWait {
    pub slots: u32,
    /// One in a hundred waits longer.
    pub wait_99_ms: u64,
}

/// What a lesson was like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastLesson {
    pub starts_ms: i64,
    /// Who ran cells in it.
    pub people: u32,
    pub cells: u32,
    /// One in a hundred waited longer.
    pub wait_99_ms: u64,
}
