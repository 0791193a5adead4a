//! `baton jobs`, `workers`, `courses`, `usage` and `explain`: answers of the broker's API, as text or as JSON.

pub(super) mod text;

use super::run as run_command;
use crate::{service, settings::Settings};
use anyhow::Context;
use baton_protocol::api::{Course, Explanation, Job, Page, Usage, Worker};
use baton_transport::Api;
use clap::{ArgMatches, parser::ValueSource};
use jiff::{ToSpan, Zoned, tz::TimeZone};
use serde::{Serialize, de::DeserializeOwned};
use std::process::ExitCode;

/// The most items that the broker returns at once.
const PART: u32 = 500;

pub(super) type Query = Vec<(&'static str, String)>;

pub(crate) fn main(
    settings: &Settings,
    command: &str,
    matches: &ArgMatches,
) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(answer(&api, settings, command, matches))
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
        .context("Failed to start")?;
    print!("{}", runtime.block_on(answer)?);
    Ok(ExitCode::SUCCESS)
}

async fn answer(
    api: &Api,
    settings: &Settings,
    command: &str,
    matches: &ArgMatches,
) -> anyhow::Result<String> {
    let json = matches.get_flag("json");
    let now_ms = jiff::Timestamp::now().as_millisecond();
    Ok(match command {
        "jobs" => {
            let group = matches.get_one::<String>("group");
            let limit = match matches.value_source("limit") {
                Some(ValueSource::DefaultValue) if group.is_some() => u32::MAX,
                _ => *matches.get_one("limit").expect("it has a default"),
            };
            let query = filters(matches, &["state", "person", "course", "group"]);
            let jobs: Vec<Job> = list(api, "/v1/jobs", query, limit).await?;
            if let Some(group) = group {
                report_not_submitted(run_command::to_come_of_group(settings, group)?);
            }
            shown(&jobs, json, |jobs| text::jobs(jobs, now_ms))?
        }
        "workers" => {
            let workers: Page<Worker> = api.ask("/v1/workers", &[]).await?;
            shown(&workers.items, json, |workers| text::workers(workers))?
        }
        "courses" => {
            let courses: Page<Course> = api.ask("/v1/courses", &[]).await?;
            shown(&courses.items, json, |courses| text::courses(courses))?
        }
        "usage" => {
            let days = *matches.get_one::<u32>("days").expect("it has a default");
            let mut query = filters(matches, &["person", "course"]);
            query.push(("from", first_day(days)?));
            let rows: Vec<Usage> = list(api, "/v1/usage", query, u32::MAX).await?;
            shown(&rows, json, |rows| text::usage(rows, days))?
        }
        "explain" => {
            let job = matches.get_one::<String>("job").context("Which job?")?;
            let job = find(api, job).await?.job;
            let path = format!("/v1/jobs/{job}/explanation");
            let explanation: Explanation = api.ask(&path, &[]).await?;
            shown(&explanation, json, |explanation| {
                text::explanation(explanation, now_ms)
            })?
        }
        other => anyhow::bail!("There is no command {other}"),
    })
}

/// Reports jobs of an array that have not been submitted to the broker.
fn report_not_submitted(jobs: usize) {
    match jobs {
        0 => {}
        1 => eprintln!("1 job of this group has not been submitted yet"),
        jobs => eprintln!("{jobs} jobs of this group have not been submitted yet"),
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

pub(super) fn filters(matches: &ArgMatches, names: &[&'static str]) -> Query {
    let given = |name: &&'static str| Some((*name, matches.get_one::<String>(name)?.clone()));
    names.iter().filter_map(given).collect()
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
    let first = today.checked_sub(before).context("That is too long ago")?;
    Ok(first.to_string())
}
