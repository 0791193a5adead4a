//! `baton cancel`, `hold`, `release`, `front`, `drain`, `resume`, `course` and `audit`: actions
//! through the broker's API.

use super::{
    ask::{client, filters, find, find_if_any, list, run, shown, text},
    run::cancel_group,
};
use crate::settings::Settings;
use anyhow::Context;
use baton_protocol::api::{
    Act, Course, CourseChange, Deadline, Job, JobState, Lesson, LessonOutlook, Page, Why, Worker,
};
use baton_transport::Api;
use clap::ArgMatches;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::{collections::BTreeSet, process::ExitCode, time::Duration};

pub(crate) fn main(
    settings: &Settings,
    command: &str,
    matches: &ArgMatches,
) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(answer(&api, settings, command, matches))
}

async fn answer(
    api: &Api,
    settings: &Settings,
    command: &str,
    matches: &ArgMatches,
) -> anyhow::Result<String> {
    let json = matches.get_flag("json");
    let now_ms = Timestamp::now().as_millisecond();
    let named = |name: &str| matches.get_one::<String>(name).context("What?");
    match command {
        "cancel" => {
            let jobs = cancel(api, settings, named("job")?, &why(matches)).await?;
            shown(&jobs, json, |jobs| text::jobs(jobs, now_ms))
        }
        "hold" | "release" | "front" => {
            let job = find(api, named("job")?).await?.job;
            let path = format!("/v1/jobs/{job}/{command}");
            let job: Job = api.act(&path, &why(matches)).await?;
            shown(&[job], json, |jobs| text::jobs(jobs, now_ms))
        }
        "drain" | "resume" => {
            let path = format!("/v1/workers/{}/{command}", segment(named("worker")?));
            let worker: Worker = api.act(&path, &why(matches)).await?;
            shown(&[worker], json, |workers| text::workers(workers))
        }
        "course" => {
            let path = format!("/v1/courses/{}", segment(named("course")?));
            let change = change(matches)?;
            let enters_lessons = change.timetable.as_ref().is_some_and(|new| !new.is_empty());
            let course: Course = api.act(&path, &change).await?;
            let mut lessons = Vec::new();
            if enters_lessons && !json {
                let all: Page<LessonOutlook> = api.ask("/v1/timetable", &[]).await?;
                lessons.extend(all.items);
                lessons.retain(|lesson| lesson.course == course.course);
            }
            shown(&[course], json, |courses| {
                text::courses(courses) + &text::lessons(&lessons)
            })
        }
        "audit" => {
            let limit = *matches.get_one::<u32>("limit").expect("it has a default");
            let acts: Vec<Act> =
                list(api, "/v1/audit", filters(matches, &["course"]), limit).await?;
            shown(&acts, json, |acts| text::acts(acts))
        }
        other => anyhow::bail!("There is no command {other}"),
    }
}

/// Cancels a job, or all jobs of a group. Returns the jobs that it cancelled.
async fn cancel(api: &Api, settings: &Settings, end: &str, why: &Why) -> anyhow::Result<Vec<Job>> {
    // Do this first, so that no further job of the group is submitted after those that are cancelled below.
    let to_come = cancel_group(settings, end)?;
    if to_come.is_none()
        && let Some(job) = find_if_any(api, end).await?
    {
        return Ok(vec![cancel_one(api, &job, why).await?]);
    }
    let query = vec![
        ("group", end.to_owned()),
        ("state", "unfinished".to_owned()),
    ];
    let jobs: Vec<Job> = list(api, "/v1/jobs", query, u32::MAX).await?;
    let groups: BTreeSet<_> = jobs.iter().filter_map(|job| job.group).collect();
    anyhow::ensure!(
        groups.len() < 2,
        "Several groups end with {end}\nhint: give more digits"
    );
    if jobs.is_empty() {
        match to_come {
            // Fails with the message that there is no such job.
            None => return Ok(vec![find(api, end).await?]),
            Some(0) => anyhow::bail!("All jobs of this group have ended"),
            Some(_) => {}
        }
    }
    let mut cancelled = Vec::new();
    for job in &jobs {
        match cancel_one(api, job, why).await {
            Ok(job) => cancelled.push(job),
            // The job has ended meanwhile.
            Err(_) if find(api, &job.job.to_string()).await?.state == JobState::Finished => {}
            Err(error) => return Err(error),
        }
    }
    match to_come {
        Some(0) | None => {}
        Some(1) => eprintln!("1 job of this group will not be submitted"),
        Some(jobs) => eprintln!("{jobs} jobs of this group will not be submitted"),
    }
    Ok(cancelled)
}

async fn cancel_one(api: &Api, job: &Job, why: &Why) -> anyhow::Result<Job> {
    let path = format!("/v1/jobs/{}/cancel", job.job);
    Ok(api.act(&path, why).await?)
}

fn why(matches: &ArgMatches) -> Why {
    // Some actions do not take a reason.
    let reason = matches.try_get_one::<String>("reason").ok().flatten();
    Why {
        reason: reason.cloned(),
    }
}

pub(super) fn segment(name: &str) -> impl std::fmt::Display {
    utf8_percent_encode(name, NON_ALPHANUMERIC)
}

fn change(matches: &ArgMatches) -> anyhow::Result<CourseChange> {
    let limit = |name| {
        let given = matches.get_one::<Option<Duration>>(name)?;
        Some(given.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    };
    let text_or_none = |text, none| match matches.get_one::<String>(text) {
        Some(text) => Some(Some(text.clone())),
        None => matches.get_flag(none).then_some(None),
    };
    let change = CourseChange {
        weight: matches.get_one("weight").copied(),
        timeout_ms: limit("limit"),
        longest_timeout_ms: limit("longest"),
        paused: text_or_none("pause", "unpause"),
        message: text_or_none("message", "no-message"),
        deadlines: deadlines(matches)?,
        staff_see_outputs: matches.get_one("staff-see-outputs").copied(),
        timetable: lessons(matches),
    };
    anyhow::ensure!(
        change != CourseChange::default(),
        "There is nothing to change\nhint: baton course --help lists the settings"
    );
    Ok(change)
}

fn lessons(matches: &ArgMatches) -> Option<Vec<Lesson>> {
    if matches.get_flag("no-lessons") {
        return Some(Vec::new());
    }
    let lessons = matches.get_many::<(String, u32)>("lesson")?;
    let lessons = lessons.map(|(when, people)| Lesson {
        when: when.clone(),
        people: *people,
    });
    Some(lessons.collect())
}

/// Parses a local time, such as `2026-11-20T23:59`, to milliseconds since 1970.
pub(super) fn local_ms(when: &str) -> anyhow::Result<i64> {
    let time: DateTime = when
        .parse()
        .with_context(|| format!("{when:?} is not a time such as 2026-11-20T23:59"))?;
    Ok(TimeZone::system().to_timestamp(time)?.as_millisecond())
}

fn deadlines(matches: &ArgMatches) -> anyhow::Result<Option<Vec<Deadline>>> {
    if matches.get_flag("no-deadline") {
        return Ok(Some(Vec::new()));
    }
    let Some(when) = matches.get_one::<String>("deadline") else {
        return Ok(None);
    };
    let until_ms = local_ms(when)?;
    let before: &Duration = matches.get_one("before").expect("it has a default");
    let before_ms = i64::try_from(before.as_millis()).context("That is too long before")?;
    let weight = *matches
        .get_one("deadline-weight")
        .expect("it has a default");
    Ok(Some(vec![Deadline {
        from_ms: until_ms.saturating_sub(before_ms),
        until_ms,
        weight,
    }]))
}
