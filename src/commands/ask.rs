//! `baton jobs`, `workers`, `courses`, `usage` and `explain`: answers of the broker's API, as text or as JSON.

pub(super) mod text;

use super::run as run_command;
use crate::{arguments::JobArgument, service, settings::Settings};
use anyhow::Context;
use baton_protocol::api::{Course, Explanation, Job, Page, Usage, Worker};
use baton_transport::Api;
use clap::{Args, value_parser};
use jiff::{Timestamp, ToSpan, Zoned, tz::TimeZone};
use serde::{Serialize, de::DeserializeOwned};
use std::process::ExitCode;

/// The most items that the broker returns at once.
const PART: u32 = 500;

/// How many entries of a list are shown by default.
pub(super) const ENTRIES: u32 = 20;

pub(super) type Query = Vec<(&'static str, String)>;

/// List jobs, newest first
#[derive(Args)]
pub(crate) struct Jobs {
    /// Only in this state
    #[arg(long, value_parser = ["queued", "assigned", "started", "finished", "unfinished"])]
    state: Option<String>,
    /// Only for this person
    #[arg(long, value_name = "NAME")]
    person: Option<String>,
    /// Only for this course
    #[arg(long, value_name = "NAME")]
    course: Option<String>,
    /// Only the jobs of this group, by its last digits, as `baton run` prints them
    #[arg(long)]
    group: Option<String>,
    /// The largest number of entries [default: 20, or all of a group]
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List workers and what they run
#[derive(Args)]
pub(crate) struct Workers {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List courses and their limits
#[derive(Args)]
pub(crate) struct Courses {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show how much GPU time each person used
#[derive(Args)]
pub(crate) struct UsageArguments {
    /// Only for this person
    #[arg(long, value_name = "NAME")]
    person: Option<String>,
    /// Only for this course
    #[arg(long, value_name = "NAME")]
    course: Option<String>,
    /// For this many days, including today
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..), default_value_t = 7)]
    days: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Explain a job's queue position
#[derive(Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    which: JobArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn jobs(settings: &Settings, of: &Jobs) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    let all_or = match of.group {
        Some(_) => u32::MAX,
        None => ENTRIES,
    };
    let query = filters([
        ("state", &of.state),
        ("person", &of.person),
        ("course", &of.course),
        ("group", &of.group),
    ]);
    run(async {
        let jobs: Vec<Job> = list(&api, "/v1/jobs", query, of.limit.unwrap_or(all_or)).await?;
        if let Some(group) = &of.group {
            report_not_submitted(run_command::to_come_of_group(settings, group)?);
        }
        let now_ms = Timestamp::now().as_millisecond();
        shown(&jobs, of.json, |jobs| text::jobs(jobs, now_ms))
    })
}

pub(crate) fn workers(settings: &Settings, of: &Workers) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(async {
        let workers: Page<Worker> = api.ask("/v1/workers", &[]).await?;
        shown(&workers.items, of.json, |workers| text::workers(workers))
    })
}

pub(crate) fn courses(settings: &Settings, of: &Courses) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(async {
        let courses: Page<Course> = api.ask("/v1/courses", &[]).await?;
        shown(&courses.items, of.json, |courses| text::courses(courses))
    })
}

pub(crate) fn usage(settings: &Settings, of: &UsageArguments) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    let mut query = filters([("person", &of.person), ("course", &of.course)]);
    query.push(("from", first_day(of.days)?));
    run(async {
        let rows: Vec<Usage> = list(&api, "/v1/usage", query, u32::MAX).await?;
        shown(&rows, of.json, |rows| text::usage(rows, of.days))
    })
}

pub(crate) fn explain(settings: &Settings, of: &Explain) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(async {
        let job = find(&api, &of.which.job).await?.job;
        let path = format!("/v1/jobs/{job}/explanation");
        let explanation: Explanation = api.ask(&path, &[]).await?;
        let now_ms = Timestamp::now().as_millisecond();
        shown(&explanation, of.json, |explanation| {
            text::explanation(explanation, now_ms)
        })
    })
}

pub(super) fn client(settings: &Settings) -> anyhow::Result<Api> {
    let dial = service::dial(settings)?;
    let how = match settings.autostart {
        true => "the first %%gpu cell of a notebook or `baton up` starts a broker and a worker",
        false => "name the course's broker with BATON_BROKER_ADDRESS, or start one with `baton up`",
    };
    anyhow::ensure!(
        !service::is_yet_to_start(settings),
        "Nothing runs yet: no broker is configured, and you have not started one\nhint: {how}"
    );
    Ok(Api::new(&dial)?)
}

/// Prints the broker's answer.
pub(super) fn run(
    answer: impl Future<Output = anyhow::Result<String>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("Failed to prepare requests to the broker")?;
    out!("{}", runtime.block_on(answer)?);
    Ok(ExitCode::SUCCESS)
}

/// Reports jobs of an array that have not been submitted to the broker.
fn report_not_submitted(jobs: usize) {
    match jobs {
        0 => {}
        1 => errln!("1 job of this group has not been submitted yet"),
        jobs => errln!("{jobs} jobs of this group have not been submitted yet"),
    }
}

pub(super) fn shown<Answer: Serialize + ?Sized>(
    answer: &Answer,
    json: bool,
    text: impl Fn(&Answer) -> String,
) -> anyhow::Result<String> {
    if json {
        Ok(serde_json::to_string_pretty(answer)? + "\n")
    } else {
        Ok(text(answer))
    }
}

/// The filters that were given.
pub(super) fn filters<const COUNT: usize>(
    given: [(&'static str, &Option<String>); COUNT],
) -> Query {
    let given = given.into_iter();
    given
        .filter_map(|(name, text)| Some((name, text.clone()?)))
        .collect()
}

/// Fetches the parts of a list, up to `most` items.
pub(super) async fn list<Item: DeserializeOwned>(
    api: &Api,
    path: &str,
    query: Query,
    most: u32,
) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut after = None;
    loop {
        let left = most.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
        let mut query = query.clone();
        query.push(("limit", left.clamp(1, PART).to_string()));
        query.extend(after.take().map(|after| ("after", after)));
        let mut page: Page<Item> = api.ask(path, &query).await?;
        items.append(&mut page.items);
        after = page.next.filter(|_| items.len() < most as usize);
        if after.is_none() {
            return Ok(items);
        }
    }
}

/// The only job whose id ends with these digits.
pub(super) async fn find(api: &Api, end: &str) -> anyhow::Result<Job> {
    find_if_any(api, end).await?.with_context(|| {
        format!("There is no cell with an id ending in {end} that you can see\nhint: `baton jobs` lists those that you can see")
    })
}

/// The only job whose id ends with these digits, if there is one.
pub(super) async fn find_if_any(api: &Api, end: &str) -> anyhow::Result<Option<Job>> {
    let query = vec![("ends_with", end.to_owned())];
    let mut jobs: Vec<Job> = list(api, "/v1/jobs", query, 2).await?;
    anyhow::ensure!(
        jobs.len() < 2,
        "Several cells end with {end}\nhint: give more digits; `baton jobs` shows them"
    );
    Ok(jobs.pop())
}

/// The first of this many days, of which today is the last, in UTC.
fn first_day(days: u32) -> anyhow::Result<String> {
    let today = Zoned::now().with_time_zone(TimeZone::UTC).date();
    let before = i64::from(days).saturating_sub(1).days();
    let first = today.checked_sub(before).context("--days is too large")?;
    Ok(first.to_string())
}
