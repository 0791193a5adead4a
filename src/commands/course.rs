//! `baton course`: the settings of a course.

use super::{
    act::segment,
    ask::{client, run, shown, text},
    when::read_end,
};
use crate::{
    arguments::{LessonArgument, Limit, read_line},
    settings::{Settings, Value},
};
use anyhow::Context;
use baton_protocol::api::{Course, CourseChange, Deadline, Lesson, LessonOutlook, Page};
use baton_transport::Api;
use clap::Args;
use std::{process::ExitCode, time::Duration};

/// Change the settings of a course; others stay unchanged
#[derive(Args)]
pub(crate) struct CourseArguments {
    /// The name of the course
    course: String,
    /// Twice the weight means twice the share
    #[arg(long, value_name = "NUMBER")]
    weight: Option<f64>,
    /// The time limit of cells without --timeout, or none
    #[arg(long, value_name = "TIME")]
    limit: Option<Limit>,
    /// The longest time limit that a cell may ask for, or none
    #[arg(long, value_name = "TIME")]
    longest: Option<Limit>,
    /// The course has priority until this time, such as 2026-11-20T23:59; replaces all other deadlines
    #[arg(long, value_name = "WHEN", conflicts_with = "no_deadline")]
    deadline: Option<String>,
    /// The factor by which the deadline multiplies the weight
    #[arg(long, value_name = "NUMBER", default_value_t = 3.0)]
    deadline_weight: f64,
    /// How long before the deadline the priority begins
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "24h")]
    before: Duration,
    /// Remove all deadlines
    #[arg(long)]
    no_deadline: bool,
    /// Pause the course: its cells do not start, and waiting people read this reason
    #[arg(long, value_name = "WHY", value_parser = read_line, conflicts_with = "unpause")]
    pause: Option<String>,
    /// End the pause
    #[arg(long)]
    unpause: bool,
    /// A message for waiting people
    #[arg(long, value_name = "TEXT", value_parser = read_line, conflicts_with = "no_message")]
    message: Option<String>,
    /// Remove the message
    #[arg(long)]
    no_message: bool,
    /// Whether staff can read the output of students' cells
    #[arg(long, value_name = "YES")]
    staff_see_outputs: Option<bool>,
    /// When people of the course work together, and how many: "Mon 17:00-18:30 350"; repeat it for
    /// several lessons; they replace the earlier ones
    #[arg(long, value_name = "WHEN PEOPLE", conflicts_with = "no_lessons")]
    lesson: Vec<LessonArgument>,
    /// Remove all lessons
    #[arg(long)]
    no_lessons: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(settings: &Settings, of: &CourseArguments) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    let path = format!("/v1/courses/{}", segment(&of.course));
    run(async {
        let change = of.change(&api).await?;
        let enters_lessons = change.timetable.as_ref().is_some_and(|new| !new.is_empty());
        let course: Course = api.act(&path, &change).await?;
        let mut lessons = Vec::new();
        if enters_lessons && !of.json {
            let all: Page<LessonOutlook> = api.ask("/v1/timetable", &[]).await?;
            lessons.extend(all.items);
            lessons.retain(|lesson| lesson.course == course.course);
        }
        shown(&[course], of.json, |courses| {
            text::courses(courses) + &text::lessons(&lessons)
        })
    })
}

impl CourseArguments {
    async fn change(&self, api: &Api) -> anyhow::Result<CourseChange> {
        let text_or_none = |text: &Option<String>, none: bool| match text {
            Some(text) => Some(Some(text.clone())),
            None => none.then_some(None),
        };
        let change = CourseChange {
            weight: self.weight,
            timeout_ms: self.limit.map(Limit::ms),
            longest_timeout_ms: self.longest.map(Limit::ms),
            paused: text_or_none(&self.pause, self.unpause),
            message: text_or_none(&self.message, self.no_message),
            deadlines: self.deadlines(api).await?,
            staff_see_outputs: self.staff_see_outputs,
            timetable: self.lessons(),
        };
        anyhow::ensure!(
            change != CourseChange::default(),
            "There is nothing to change\nhint: baton course --help lists the settings"
        );
        Ok(change)
    }

    fn lessons(&self) -> Option<Vec<Lesson>> {
        let lessons = self.lesson.iter().map(|lesson| Lesson {
            when: lesson.when.clone(),
            people: lesson.people,
        });
        (self.no_lessons || !self.lesson.is_empty()).then(|| lessons.collect())
    }

    async fn deadlines(&self, api: &Api) -> anyhow::Result<Option<Vec<Deadline>>> {
        if self.no_deadline {
            return Ok(Some(Vec::new()));
        }
        let Some(when) = &self.deadline else {
            return Ok(None);
        };
        let before_ms = i64::try_from(self.before.as_millis()).context("--before is too long")?;
        anyhow::ensure!(before_ms > 0, "--before must be above 0");
        let courses: Page<Course> = api.ask("/v1/courses", &[]).await?;
        let until_ms = read_end(&courses.items, "--deadline", when)?;
        Ok(Some(vec![Deadline {
            from_ms: until_ms.saturating_sub(before_ms),
            until_ms,
            weight: self.deadline_weight,
        }]))
    }
}
