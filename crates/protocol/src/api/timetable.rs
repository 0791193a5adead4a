//! The times at which people of a course work together, and how long their cells wait then.

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

/// The next occurrence of a lesson, or the current one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LessonOutlook {
    pub course: String,
    /// As written in the timetable.
    pub when: String,
    pub people: u32,
    /// The people of other lessons at the same time that share workers with this one. The prediction
    /// includes them.
    #[serde(default)]
    pub other_people: u32,
    pub starts_ms: i64,
    pub ends_ms: i64,
    /// How many cells of the lesson can run at once on the connected workers.
    pub slots_now: u32,
    /// How many of them can run at once when it begins: on workers outside the pools, and on those that
    /// the pools start beforehand.
    #[serde(default)]
    pub ready_slots: u32,
    /// With this many slots, 99 of 100 cells start within a minute.
    pub enough_slots: u32,
    /// The number of slots if the pools grow to their largest size.
    pub most_slots: u32,
    /// One entry for each of these numbers.
    pub waits: Vec<LessonWait>,
    /// When it takes place this week, from Monday on.
    #[serde(default)]
    pub week: Vec<LessonDate>,
    /// The last occurrence; null if there was none in the last eight days.
    pub last: Option<PastLesson>,
}

/// One occurrence of a lesson.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LessonDate {
    pub starts_ms: i64,
    pub ends_ms: i64,
    /// What has happened in it so far; null if no cell has started.
    pub was: Option<PastLesson>,
}

/// How long cells would wait, judged by what people of the course did in the last weeks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LessonWait {
    pub slots: u32,
    /// One in a hundred waits longer.
    pub wait_99_ms: u64,
}

/// What happened in a past lesson.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastLesson {
    pub starts_ms: i64,
    /// The number of people who ran cells in it.
    pub people: u32,
    pub cells: u32,
    /// One in a hundred waited longer.
    pub wait_99_ms: u64,
}
