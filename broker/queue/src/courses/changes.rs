//! Changes by staff, from a page or the API. They override the file and survive restarts of the broker.
//!
//! **Invariant:** pure.

use super::{Allowances, Course, Courses, Deadline, Lesson, Limits, Wrong};
use baton_humanize::duration;
use baton_protocol::api::{self, CourseChange};
use jiff::tz::TimeZone;
use std::{collections::BTreeMap, time::Duration};

const LONGEST_TEXT: usize = 500;
const LARGEST_WEIGHT: f64 = 1000.0;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    pub courses: BTreeMap<String, CourseChange>,
    /// By name: why a worker accepts no new jobs; `None` if it accepts them, whatever the file says.
    pub workers: BTreeMap<String, Option<String>>,
    pub allowances: Allowances,
}

pub(super) fn changed(course: &Course, change: &CourseChange, zone: &TimeZone) -> Course {
    let change = change.clone();
    let deadlines = change.deadlines.map(|deadlines| {
        let deadlines = deadlines.into_iter().map(|deadline| Deadline {
            from_ms: deadline.from_ms,
            until_ms: deadline.until_ms,
            weight: deadline.weight,
        });
        deadlines.collect()
    });
    let limits = Limits {
        usual_ms: course.time_limit_ms,
        longest_ms: course.longest_ms,
    };
    let limits = limits.with(change.timeout_ms, change.longest_timeout_ms);
    Course {
        weight: change.weight.unwrap_or(course.weight),
        time_limit_ms: limits.usual_ms,
        longest_ms: limits.longest_ms,
        paused: change.paused.unwrap_or_else(|| course.paused.clone()),
        message: change.message.unwrap_or_else(|| course.message.clone()),
        budget: course.budget.clone(),
        deadlines: deadlines.unwrap_or_else(|| course.deadlines.clone()),
        staff_see_outputs: change.staff_see_outputs.unwrap_or(course.staff_see_outputs),
        autosave: course.autosave,
        needs: course.needs.clone(),
        environment: course.environment.clone(),
        environments: course.environments.clone(),
        most_weight: course.most_weight,
        most_people: course.most_people,
        most_allowance_ms: course.most_allowance_ms,
        timetable: match &change.timetable {
            // They were checked when they were stored.
            Some(lessons) => lessons
                .iter()
                .filter_map(|lesson| Lesson::parse(lesson, zone).ok())
                .collect(),
            None => course.timetable.clone(),
        },
    }
}

/// Combines two changes: fields of `later` override those of `earlier`.
pub fn over(earlier: CourseChange, later: CourseChange) -> CourseChange {
    let limits = Limits {
        usual_ms: earlier.timeout_ms.flatten(),
        longest_ms: earlier.longest_timeout_ms.flatten(),
    };
    let limits = limits.with(later.timeout_ms, later.longest_timeout_ms);
    let is_set = |earlier: Option<_>, later: Option<_>| earlier.or(later).is_some();
    CourseChange {
        weight: later.weight.or(earlier.weight),
        timeout_ms: is_set(earlier.timeout_ms, later.timeout_ms).then_some(limits.usual_ms),
        longest_timeout_ms: is_set(earlier.longest_timeout_ms, later.longest_timeout_ms)
            .then_some(limits.longest_ms),
        paused: later.paused.or(earlier.paused),
        message: later.message.or(earlier.message),
        deadlines: later.deadlines.or(earlier.deadlines),
        staff_see_outputs: later.staff_see_outputs.or(earlier.staff_see_outputs),
        timetable: later.timetable.or(earlier.timetable),
    }
}

/// What a change sets, for the audit log. Times are in the time zone of the courses.
pub fn summary(change: &CourseChange, courses: &Courses) -> String {
    let CourseChange {
        weight,
        timeout_ms,
        longest_timeout_ms,
        paused,
        message,
        deadlines,
        staff_see_outputs,
        timetable,
    } = change;
    let limit = |name: &str, ms: Option<u64>| match ms {
        Some(ms) => format!("{name} {}", duration(Duration::from_millis(ms))),
        None => format!("no {name}"),
    };
    let deadline = |deadline: &api::Deadline| {
        let (from, until) = (
            courses.moment(deadline.from_ms),
            courses.moment(deadline.until_ms),
        );
        format!("weight times {} from {from} until {until}", deadline.weight)
    };
    let lesson = |lesson: &api::Lesson| format!("lesson {} for {}", lesson.when, lesson.people);
    let mut changes = Vec::new();
    changes.extend(weight.map(|weight| format!("weight {weight}")));
    changes.extend(timeout_ms.map(|ms| limit("time limit", ms)));
    changes.extend(longest_timeout_ms.map(|ms| limit("longest time limit", ms)));
    changes.extend(paused.as_ref().map(|why| match why {
        Some(why) => format!("paused: {why}"),
        None => "resumed".to_owned(),
    }));
    changes.extend(message.as_ref().map(|message| match message {
        Some(message) => format!("message: {message}"),
        None => "no message".to_owned(),
    }));
    match deadlines.as_deref() {
        Some([]) => changes.push("no deadlines".to_owned()),
        deadlines => changes.extend(deadlines.into_iter().flatten().map(deadline)),
    }
    changes.extend(staff_see_outputs.map(|see| match see {
        true => "staff see outputs".to_owned(),
        false => "staff do not see outputs".to_owned(),
    }));
    match timetable.as_deref() {
        Some([]) => changes.push("no lessons".to_owned()),
        lessons => changes.extend(lessons.into_iter().flatten().map(lesson)),
    }
    changes.join("; ")
}

/// Checks a change.
pub fn check(change: &CourseChange) -> Result<(), Wrong> {
    if let Some(weight) = change.weight {
        check_weight("weight", weight)?;
    }
    for (name, limit) in [
        ("timeout_ms", change.timeout_ms),
        ("longest_timeout_ms", change.longest_timeout_ms),
    ] {
        if limit.flatten() == Some(0) {
            return Err(Wrong::new(name, "must be above 0, or null for no limit"));
        }
    }
    if let (Some(Some(usual)), Some(Some(longest))) = (change.timeout_ms, change.longest_timeout_ms)
        && usual > longest
    {
        let says = "must be at most the longest time limit";
        return Err(Wrong::new("timeout_ms", says));
    }
    for (name, text) in [("paused", &change.paused), ("message", &change.message)] {
        if let Some(Some(text)) = text {
            check_text(name, text)?;
        }
    }
    for deadline in change.deadlines.iter().flatten() {
        if deadline.until_ms <= deadline.from_ms {
            let says = "must each begin to count before they end";
            return Err(Wrong::new("deadlines", says));
        }
        check_boost(deadline.weight)?;
    }
    for lesson in change.timetable.iter().flatten() {
        Lesson::parse(lesson, &TimeZone::UTC)
            .map_err(|error| Wrong::new("timetable", format!("is wrong: {error}")))?;
    }
    Ok(())
}

/// Checks that what a change adds to the course is not over yet.
pub fn check_is_coming(
    course: &Course,
    change: &CourseChange,
    zone: &TimeZone,
    now_ms: i64,
) -> Result<(), Wrong> {
    for deadline in change.deadlines.iter().flatten() {
        let mut known = course.deadlines.iter();
        let is_known = known.any(|known| known.until_ms == deadline.until_ms);
        if deadline.until_ms <= now_ms && !is_known {
            return Err(Wrong::new("deadlines", "must end in the future"));
        }
    }
    for lesson in change.timetable.iter().flatten() {
        let mut known = course.timetable.iter();
        let is_known = known.any(|known| known.shown().when == lesson.when.trim());
        let read = Lesson::parse(lesson, zone).ok();
        if !is_known && read.is_none_or(|lesson| lesson.next(now_ms).is_none()) {
            let says = format!("has a lesson in the past: {}", lesson.when);
            return Err(Wrong::new("timetable", says));
        }
    }
    Ok(())
}

/// Checks a weight of a course, with or without a deadline.
pub(super) fn check_weight(name: &'static str, weight: f64) -> Result<(), Wrong> {
    match weight > 0.0 && weight <= LARGEST_WEIGHT {
        true => Ok(()),
        false => {
            let says = format!("must be above 0 and at most {LARGEST_WEIGHT}");
            Err(Wrong::new(name, says))
        }
    }
}

/// Checks the factor by which a deadline multiplies the weight.
pub(super) fn check_boost(weight: f64) -> Result<(), Wrong> {
    match (1.0..=LARGEST_WEIGHT).contains(&weight) {
        true => Ok(()),
        false => {
            let says = format!("must each have a weight from 1 to {LARGEST_WEIGHT}");
            Err(Wrong::new("deadlines", says))
        }
    }
}

/// Checks a text that students read on one line in their notebook.
pub fn check_text(name: &'static str, text: &str) -> Result<(), Wrong> {
    if text.trim().is_empty() {
        return Err(Wrong::new(name, "is missing"));
    }
    if text.chars().count() > LONGEST_TEXT {
        let says = format!("is longer than {LONGEST_TEXT} characters");
        return Err(Wrong::new(name, says));
    }
    if text.chars().any(char::is_control) {
        return Err(Wrong::new(name, "must be one line of text"));
    }
    Ok(())
}
