//! What each course may use: the settings of order and budget, from a file.
//!
//! In: `courses.toml`, which is read again after each change. Out: a [`Course`] for any name. A
//! course that the file does not name has the settings of `[default]`.

use crate::Account;
use anyhow::Context;
use baton_protocol::{Requirement, api, is_environment_name};
use changes::{check_boost, check_weight};
use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};
use limits::Limits;
use std::collections::BTreeMap;

mod allowances;
mod calendar;
mod changes;
mod limits;
mod needs;
mod timetable;
mod wrong;
pub use allowances::{Allowance, Allowances, Extra, everyone};
pub use calendar::{Deadline, Reset, moment_ms};
pub use changes::{Changes, check, check_is_coming, check_text, over, summary};
pub use needs::{NeedsSection, bytes};
pub use timetable::{Lesson, Span};
pub use wrong::Wrong;

const HALF_LIFE_MS: i64 = 12 * 3600 * 1000;
/// Course weights are about 1; this includes a deadline's factor.
const MOST_WEIGHT: f64 = 16.0;
const MOST_PEOPLE: u32 = 500;
const BOOST: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug, Clone, PartialEq)]
pub struct Courses {
    /// The zone of its times, if the file names one.
    pub time_zone: Option<TimeZone>,
    pub half_life_ms: i64,
    pub jobs_per_person: u32,
    default: Course,
    named: BTreeMap<String, Course>,
    /// By name: why a worker accepts no new jobs.
    paused_workers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    pub weight: f64,
    /// For cells that do not ask for a time limit. `None` means the longest that they may ask for.
    pub time_limit_ms: Option<u64>,
    /// The longest time limit that a cell may ask for.
    pub longest_ms: Option<u64>,
    /// Why none of its cells is started, if it is paused.
    pub paused: Option<String>,
    /// A message that waiting students also see.
    pub message: Option<String>,
    pub budget: Option<Budget>,
    pub deadlines: Vec<Deadline>,
    /// Whether staff can read the output of students' cells. Otherwise only the owner can.
    pub staff_see_outputs: bool,
    /// Whether the variables of a notebook that has run `%%gpu` cells are saved when its kernel ends.
    pub autosave: bool,
    /// What its cells require of workers.
    pub needs: Vec<Requirement>,
    /// The environment in which its cells run; `None` for the worker's own Python.
    pub environment: Option<String>,
    /// Further environments that a cell can choose.
    pub environments: Vec<String>,
    /// When its people work at the same time.
    pub timetable: Vec<Lesson>,
    /// The largest weight that its staff may set, with a deadline's factor. The weight takes effect
    /// in all courses, so only the file and admins may exceed this.
    pub most_weight: f64,
    /// The most people for whom a lesson of its staff lets pools start workers.
    pub most_people: u32,
    /// The most GPU time that its staff may grant one person beyond the budget; `None` for as much as the budget.
    pub most_allowance_ms: Option<u64>,
}

impl Course {
    /// What its cells require, including the environment.
    pub fn requirements(&self) -> Vec<Requirement> {
        let environment = self.environment.clone();
        let environment = environment.map(|name| Requirement::Environment { name });
        self.needs.iter().cloned().chain(environment).collect()
    }

    /// The environments in which its cells may run; the first one is that of a cell that asks for none.
    pub fn all_environments(&self) -> impl Iterator<Item = &str> {
        let own = self.environment.iter();
        let others = self.environments.iter();
        let others = others.filter(|name| self.environment.as_ref() != Some(name));
        own.chain(others).map(String::as_str)
    }

    /// The factor on the weight: the largest weight of all deadlines that are near.
    pub fn boost(&self, now_ms: i64) -> f64 {
        let near = self
            .deadlines
            .iter()
            .filter(|deadline| deadline.is_near(now_ms));
        near.map(|deadline| deadline.weight).fold(1.0, f64::max)
    }

    /// Checks a change by its staff, who must not take what other courses share with it.
    pub fn allows(&self, change: &api::CourseChange) -> Result<(), Wrong> {
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

    /// Checks an allowance that its staff grant.
    pub fn allows_extra(
        &self,
        allowances: &Allowances,
        account: &Account,
        extra_ms: u64,
        now_ms: i64,
    ) -> Result<(), Wrong> {
        let budget_ms = self.budget.as_ref().map_or(0, |budget| budget.of_ms);
        let most_ms = self.most_allowance_ms.unwrap_or(budget_ms);
        if allowances.most_with(account, extra_ms, now_ms) <= most_ms {
            return Ok(());
        }
        let says = format!(
            "and other allowances of a person must be at most {} together; an admin can grant more (most_allowance)",
            baton_humanize::whole_seconds(std::time::Duration::from_millis(most_ms))
        );
        Err(Wrong::new("gpu_time_ms", says))
    }
}

/// The GPU time of one person between two resets.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    pub of_ms: u64,
    pub reset: Reset,
}

impl Courses {
    /// The settings without a file: no limits.
    pub fn unlimited(jobs_per_person: u32) -> Self {
        Self {
            time_zone: None,
            half_life_ms: HALF_LIFE_MS,
            jobs_per_person,
            default: Course {
                weight: 1.0,
                time_limit_ms: None,
                longest_ms: None,
                paused: None,
                message: None,
                budget: None,
                deadlines: Vec::new(),
                staff_see_outputs: false,
                autosave: false,
                needs: Vec::new(),
                environment: None,
                environments: Vec::new(),
                timetable: Vec::new(),
                most_weight: MOST_WEIGHT,
                most_people: MOST_PEOPLE,
                most_allowance_ms: None,
            },
            named: BTreeMap::new(),
            paused_workers: BTreeMap::new(),
        }
    }

    pub fn with(&self, changes: &Changes) -> Self {
        let mut changed = self.clone();
        for (name, change) in &changes.courses {
            let course = changes::changed(changed.of(name), change, &changed.zone());
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

    pub fn of(&self, course: &str) -> &Course {
        self.named.get(course).unwrap_or(&self.default)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// The zone of the file's times.
    pub fn zone(&self) -> TimeZone {
        self.time_zone.clone().unwrap_or_else(TimeZone::system)
    }

    /// For people: `Friday 2026-11-20 23:59`.
    pub fn moment(&self, ms: i64) -> String {
        let time = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX);
        let time = time.to_zoned(self.zone());
        time.strftime("%A %Y-%m-%d %H:%M").to_string()
    }

    /// All lessons, each with the name of its course and its index in the timetable of the course.
    pub fn lessons(&self) -> impl Iterator<Item = (&str, usize, &Lesson)> {
        self.named.iter().flat_map(|(name, course)| {
            let lessons = course.timetable.iter().enumerate();
            lessons.map(move |(number, lesson)| (name.as_str(), number, lesson))
        })
    }

    pub fn worker_paused(&self, name: &str) -> Option<&str> {
        self.paused_workers.get(name).map(String::as_str)
    }

    /// Parses the contents of `courses.toml`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let file: File = toml::from_str(text)?;
        let time_zone = match &file.time_zone {
            Some(name) => Some(TimeZone::get(name).with_context(|| format!("time_zone {name}"))?),
            None => None,
        };
        let zone = time_zone.clone().unwrap_or_else(TimeZone::system);
        let jobs_per_person = file.jobs_per_person.unwrap_or(1);
        anyhow::ensure!(jobs_per_person > 0, "jobs_per_person must be above 0");
        for (name, section) in &file.worker {
            check_text("paused", &section.paused).with_context(|| format!("[worker.{name}]"))?;
        }
        let unlimited = Self::unlimited(jobs_per_person);
        let default = file
            .default
            .over(&unlimited.default, &zone)
            .context("[default]")?;
        let named = file.course.into_iter().map(|(name, section)| {
            let course = section.over(&default, &zone);
            Ok((
                name.clone(),
                course.with_context(|| format!("[course.{name}]"))?,
            ))
        });
        let named = named.collect::<anyhow::Result<_>>()?;
        let workers = file.worker.into_iter();
        Ok(Self {
            time_zone,
            half_life_ms: match file.half_life {
                Some(text) => milliseconds(&text).context("half_life")?.cast_signed(),
                None => unlimited.half_life_ms,
            },
            jobs_per_person: unlimited.jobs_per_person,
            default,
            named,
            paused_workers: workers
                .map(|(name, section)| (name, section.paused))
                .collect(),
        })
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    time_zone: Option<String>,
    half_life: Option<String>,
    jobs_per_person: Option<u32>,
    #[serde(default)]
    default: Section,
    #[serde(default)]
    course: BTreeMap<String, Section>,
    #[serde(default)]
    worker: BTreeMap<String, WorkerSection>,
}

/// A missing setting is taken from `[default]`.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    weight: Option<f64>,
    time_limit: Option<String>,
    longest_time_limit: Option<String>,
    paused: Option<String>,
    message: Option<String>,
    budget: Option<BudgetSection>,
    #[serde(default)]
    deadline: Vec<DeadlineSection>,
    staff_see_outputs: Option<bool>,
    autosave: Option<bool>,
    needs: Option<NeedsSection>,
    environment: Option<String>,
    environments: Option<Vec<String>>,
    #[serde(default)]
    lesson: Vec<api::Lesson>,
    most_weight: Option<f64>,
    most_people: Option<u32>,
    most_allowance: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetSection {
    gpu_time: String,
    reset: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct DeadlineSection {
    until: String,
    weight: f64,
    before: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerSection {
    paused: String,
}

impl Section {
    fn over(self, default: &Course, zone: &TimeZone) -> anyhow::Result<Course> {
        let weight = self.weight.unwrap_or(default.weight);
        check_weight("weight", weight)?;
        let most_weight = self.most_weight.unwrap_or(default.most_weight);
        check_weight("most_weight", most_weight)?;
        for (name, text) in [("paused", &self.paused), ("message", &self.message)] {
            if let Some(text) = text {
                check_text(name, text)?;
            }
        }
        let limit = |text: Option<String>, key| {
            let limit = text.map(|text| milliseconds(&text).context(key));
            limit.transpose()
        };
        let time_limit = limit(self.time_limit, "time_limit")?;
        let longest = limit(self.longest_time_limit, "longest_time_limit")?;
        anyhow::ensure!(
            longest.is_none_or(|longest| time_limit.is_none_or(|limit| limit <= longest)),
            "time_limit is above longest_time_limit"
        );
        let limits = Limits {
            usual_ms: default.time_limit_ms,
            longest_ms: default.longest_ms,
        };
        let limits = limits.with(time_limit.map(Some), longest.map(Some));
        let budget = match self.budget {
            Some(section) => Some(Budget {
                of_ms: milliseconds(&section.gpu_time).context("budget.gpu_time")?,
                reset: Reset::parse(&section.reset, zone).context("budget.reset")?,
            }),
            None => default.budget.clone(),
        };
        let most_allowance_ms = match self.most_allowance {
            Some(text) => Some(span_ms(&text).context("most_allowance")?),
            None => default.most_allowance_ms,
        };
        let needs = match self.needs {
            Some(section) => section.read().context("needs")?,
            None => default.needs.clone(),
        };
        let environment = match self.environment {
            Some(name) => environment(name).context("environment")?,
            None => default.environment.clone(),
        };
        let environments = match self.environments {
            Some(names) => {
                let names = names.into_iter().map(environment_name);
                names
                    .collect::<anyhow::Result<_>>()
                    .context("environments")?
            }
            None => default.environments.clone(),
        };
        let lessons = self.lesson.iter().map(|lesson| Lesson::parse(lesson, zone));
        let timetable = lessons.collect::<anyhow::Result<_>>().context("lesson")?;
        let deadlines = self.deadline.into_iter().map(|section| section.read(zone));
        Ok(Course {
            weight,
            time_limit_ms: limits.usual_ms,
            // The usual limit is the longest one if no other is set.
            longest_ms: limits.longest_ms.or(limits.usual_ms),
            paused: self.paused.or_else(|| default.paused.clone()),
            message: self.message.or_else(|| default.message.clone()),
            budget,
            deadlines: deadlines.collect::<anyhow::Result<_>>()?,
            staff_see_outputs: self.staff_see_outputs.unwrap_or(default.staff_see_outputs),
            autosave: self.autosave.unwrap_or(default.autosave),
            needs,
            environment,
            environments,
            timetable,
            most_weight,
            most_people: self.most_people.unwrap_or(default.most_people),
            most_allowance_ms,
        })
    }
}

impl DeadlineSection {
    fn read(self, zone: &TimeZone) -> anyhow::Result<Deadline> {
        check_boost(self.weight)?;
        let before = match self.before {
            Some(text) => milliseconds(&text)
                .context("deadline.before")?
                .cast_signed(),
            None => i64::try_from(BOOST.as_millis()).unwrap_or(i64::MAX),
        };
        let until_ms = moment_ms(&self.until, zone).context("deadline.until")?;
        Ok(Deadline {
            from_ms: until_ms.saturating_sub(before),
            until_ms,
            weight: self.weight,
        })
    }
}

/// Parses a local time of this machine, such as `2026-11-25T14:00:00`, to milliseconds since 1970.
pub fn local_time(text: &str) -> Option<i64> {
    let time: civil::DateTime = text.parse().ok()?;
    let timestamp = TimeZone::system().to_timestamp(time).ok()?;
    Some(timestamp.as_millisecond())
}

/// An empty name means no environment, whatever the default is.
fn environment(name: String) -> anyhow::Result<Option<String>> {
    match name.is_empty() {
        true => Ok(None),
        false => environment_name(name).map(Some),
    }
}

fn environment_name(name: String) -> anyhow::Result<String> {
    anyhow::ensure!(
        is_environment_name(&name),
        "{name:?} is not a valid environment name: use letters, digits, `-`, `_` and `.`"
    );
    Ok(name)
}

/// Parses `10m`, `1h30m` or `12 hours`.
pub fn milliseconds(text: &str) -> anyhow::Result<u64> {
    let milliseconds = span_ms(text)?;
    anyhow::ensure!(milliseconds > 0, "{text:?} is not above 0");
    Ok(milliseconds)
}

/// The same, and `0s`.
fn span_ms(text: &str) -> anyhow::Result<u64> {
    let duration: SignedDuration = text
        .parse()
        .with_context(|| format!("{text:?} is not a duration such as 30s, 10m or 2h"))?;
    u64::try_from(duration.as_millis()).with_context(|| format!("{text:?} is below 0"))
}

#[cfg(test)]
mod tests;
