//! Changes by staff, from a page or the API. They override the file and survive restarts of the broker.
//!
//! **Invariant:** pure.

use super::{Allowances, Course, Courses, Deadline, Lesson};
use baton_protocol::api::CourseChange;
use jiff::tz::TimeZone;
use std::collections::BTreeMap;

const LONGEST_TEXT: usize = 500;
const LARGEST_WEIGHT: f64 = 1000.0;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    pub courses: BTreeMap<String, CourseChange>,
    /// By name: why a worker accepts no new jobs; `None` if it accepts them, whatever the file says.
    pub workers: BTreeMap<String, Option<String>>,
    pub allowances: Allowances,
}

impl Courses {
    pub fn with(&self, changes: &Changes) -> Self {
        let mut changed = self.clone();
        for (name, change) in &changes.courses {
            let course = changed.of(name).with(change, &changed.zone());
            changed.named.insert(name.clone(), course);
        }
        for (name, paused) in &changes.workers {
            match paused {
                Some(why) => changed.paused_workers.insert(name.clone(), why.clone()),
                None => changed.paused_workers.remove(name),
            };
        }
        changed
    }
}

impl Course {
    fn with(&self, change: &CourseChange, zone: &TimeZone) -> Self {
        let change = change.clone();
        let deadlines = change.deadlines.map(|deadlines| {
            let deadlines = deadlines.into_iter().map(|deadline| Deadline {
                from_ms: deadline.from_ms,
                until_ms: deadline.until_ms,
                weight: deadline.weight,
            });
            deadlines.collect()
        });
        let time_limit_ms = change.timeout_ms.unwrap_or(self.time_limit_ms);
        let longest_ms = change.longest_timeout_ms.unwrap_or(self.longest_ms);
        Self {
            weight: change.weight.unwrap_or(self.weight),
            time_limit_ms,
            // `None` means no limit. A longest limit below the usual one cannot be meant, so it is raised.
            longest_ms: longest_ms.map(|longest| longest.max(time_limit_ms.unwrap_or(0))),
            paused: change.paused.unwrap_or_else(|| self.paused.clone()),
            message: change.message.unwrap_or_else(|| self.message.clone()),
            budget: self.budget.clone(),
            deadlines: deadlines.unwrap_or_else(|| self.deadlines.clone()),
            staff_see_outputs: change.staff_see_outputs.unwrap_or(self.staff_see_outputs),
            autosave: self.autosave,
            needs: self.needs.clone(),
            environment: self.environment.clone(),
            environments: self.environments.clone(),
            most_weight: self.most_weight,
            most_people: self.most_people,
            most_allowance_ms: self.most_allowance_ms,
            timetable: match &change.timetable {
                // They were checked when they were stored.
                Some(lessons) => lessons
                    .iter()
                    .filter_map(|lesson| Lesson::parse(lesson, zone).ok())
                    .collect(),
                None => self.timetable.clone(),
            },
        }
    }
}

impl Course {
    /// Checks a change by its staff, who must not take what other courses share with it.
    pub fn allows(&self, change: &CourseChange) -> Result<(), Wrong> {
        let weight = change.weight.unwrap_or(self.weight);
        let boosts: Vec<f64> = match &change.deadlines {
            Some(deadlines) => deadlines.iter().map(|deadline| deadline.weight).collect(),
            None => self
                .deadlines
                .iter()
                .map(|deadline| deadline.weight)
                .collect(),
        };
        let boost = boosts.into_iter().fold(1.0, f64::max);
        let sets_weight = change.weight.is_some() || change.deadlines.is_some();
        if sets_weight && weight * boost > self.most_weight {
            let says = format!(
                "times the weight of a deadline must be at most {}; an admin can allow more (most_weight)",
                self.most_weight
            );
            return Err(Wrong::new("weight", says));
        }
        let mut lessons = change.timetable.iter().flatten();
        if lessons.any(|lesson| lesson.people > self.most_people) {
            let says = format!(
                "may have lessons with at most {} people; an admin can allow more (most_people)",
                self.most_people
            );
            return Err(Wrong::new("timetable", says));
        }
        Ok(())
    }
}

/// Combines two changes: fields of `later` override those of `earlier`.
pub fn over(earlier: CourseChange, later: CourseChange) -> CourseChange {
    CourseChange {
        weight: later.weight.or(earlier.weight),
        timeout_ms: later.timeout_ms.or(earlier.timeout_ms),
        longest_timeout_ms: later.longest_timeout_ms.or(earlier.longest_timeout_ms),
        paused: later.paused.or(earlier.paused),
        message: later.message.or(earlier.message),
        deadlines: later.deadlines.or(earlier.deadlines),
        staff_see_outputs: later.staff_see_outputs.or(earlier.staff_see_outputs),
        timetable: later.timetable.or(earlier.timetable),
    }
}

/// A field with an invalid value, and what is wrong, such as `reason` and `is missing`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {says}")]
pub struct Wrong {
    pub field: &'static str,
    pub says: String,
}

impl Wrong {
    pub fn new(field: &'static str, says: impl Into<String>) -> Self {
        let says = says.into();
        Self { field, says }
    }
}

/// Checks a change.
pub fn check(change: &CourseChange) -> Result<(), Wrong> {
    let positive = |weight: f64| weight > 0.0 && weight <= LARGEST_WEIGHT;
    if change.weight.is_some_and(|weight| !positive(weight)) {
        let says = format!("must be above 0 and at most {LARGEST_WEIGHT}");
        return Err(Wrong::new("weight", says));
    }
    for (name, limit) in [
        ("timeout_ms", change.timeout_ms),
        ("longest_timeout_ms", change.longest_timeout_ms),
    ] {
        if limit.flatten() == Some(0) {
            return Err(Wrong::new(name, "must be above 0, or null for no limit"));
        }
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
        if !(1.0..=LARGEST_WEIGHT).contains(&deadline.weight) {
            let says = format!("must each have a weight from 1 to {LARGEST_WEIGHT}");
            return Err(Wrong::new("deadlines", says));
        }
    }
    for lesson in change.timetable.iter().flatten() {
        Lesson::parse(lesson, &TimeZone::UTC)
            .map_err(|error| Wrong::new("timetable", format!("is wrong: {error}")))?;
    }
    Ok(())
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
