//! `baton cancel`, `hold`, `release`, `front`, `drain`, `resume` and `audit`: actions through the
//! broker's API.

use super::{
    ask::{ENTRIES, client, filters, find, find_if_any, list, run, shown, text},
    run::{cancel_group, cancel_run},
};
use crate::{
    arguments::{JobArgument, read_line},
    settings::Settings,
};
use baton_protocol::api::{Act, Job, JobState, Why, Worker};
use baton_transport::Api;
use clap::{Args, value_parser};
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::{collections::BTreeSet, process::ExitCode};

/// Stop a job: your own, or one of a course that you are staff of
#[derive(Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    which: JobArgument,
    /// The reason; the owner of the job reads it
    #[arg(long, value_name = "TEXT", value_parser = read_line)]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Put a waiting job on hold
#[derive(Args)]
pub(crate) struct Hold {
    #[command(flatten)]
    which: JobArgument,
    /// The reason; the owner of the job reads it
    #[arg(long, value_name = "TEXT", value_parser = read_line)]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Release a job that is on hold
#[derive(Args)]
pub(crate) struct Release {
    #[command(flatten)]
    which: JobArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Move a waiting job to the front
#[derive(Args)]
pub(crate) struct Front {
    #[command(flatten)]
    which: JobArgument,
    /// The reason; it is recorded
    #[arg(long, value_name = "TEXT", value_parser = read_line)]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Drain a worker: it accepts no new jobs and finishes the running ones
#[derive(Args)]
pub(crate) struct Drain {
    /// The name of the worker, as `baton workers` shows it
    worker: String,
    /// The reason; waiting people read it
    #[arg(long, value_name = "TEXT", value_parser = read_line)]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Let a drained worker accept jobs again (for a job: `baton run --resume`)
#[derive(Args)]
pub(crate) struct Resume {
    /// The name of the worker, as `baton workers` shows it
    worker: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List the actions of staff
#[derive(Args)]
pub(crate) struct Audit {
    /// Only for this course
    #[arg(long, value_name = "NAME")]
    course: Option<String>,
    /// The largest number of entries
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..), default_value_t = ENTRIES)]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn cancel(settings: &Settings, of: &Cancel) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    let reason = of.reason.clone();
    run(async {
        let jobs = cancel_all(&api, settings, &of.which.job, &Why { reason }).await?;
        shown(&jobs, of.json, jobs_text)
    })
}

pub(crate) fn hold(settings: &Settings, of: &Hold) -> anyhow::Result<ExitCode> {
    let reason = Some(of.reason.clone());
    act_on_job(settings, "hold", &of.which.job, Why { reason }, of.json)
}

pub(crate) fn release(settings: &Settings, of: &Release) -> anyhow::Result<ExitCode> {
    act_on_job(
        settings,
        "release",
        &of.which.job,
        Why { reason: None },
        of.json,
    )
}

pub(crate) fn front(settings: &Settings, of: &Front) -> anyhow::Result<ExitCode> {
    let reason = Some(of.reason.clone());
    act_on_job(settings, "front", &of.which.job, Why { reason }, of.json)
}

fn act_on_job(
    settings: &Settings,
    action: &str,
    end: &str,
    why: Why,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(async {
        let job = find(&api, end).await?.job;
        let job: Job = api.act(&format!("/v1/jobs/{job}/{action}"), &why).await?;
        shown(&[job], json, jobs_text)
    })
}

fn jobs_text(jobs: &(impl AsRef<[Job]> + ?Sized)) -> String {
    text::jobs(jobs.as_ref(), Timestamp::now().as_millisecond())
}

pub(crate) fn drain(settings: &Settings, of: &Drain) -> anyhow::Result<ExitCode> {
    let reason = Some(of.reason.clone());
    act_on_worker(settings, "drain", &of.worker, Why { reason }, of.json)
}

pub(crate) fn resume(settings: &Settings, of: &Resume) -> anyhow::Result<ExitCode> {
    act_on_worker(
        settings,
        "resume",
        &of.worker,
        Why { reason: None },
        of.json,
    )
}

fn act_on_worker(
    settings: &Settings,
    action: &str,
    name: &str,
    why: Why,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(async {
        let path = format!("/v1/workers/{}/{action}", segment(name));
        let worker: Worker = api.act(&path, &why).await?;
        shown(&[worker], json, |workers| text::workers(workers))
    })
}

pub(crate) fn audit(settings: &Settings, of: &Audit) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(async {
        let query = filters([("course", &of.course)]);
        let acts: Vec<Act> = list(&api, "/v1/audit", query, of.limit).await?;
        shown(&acts, of.json, |acts| text::acts(acts))
    })
}

/// Cancels a job, or all jobs of a group. Returns the jobs that it cancelled.
async fn cancel_all(
    api: &Api,
    settings: &Settings,
    end: &str,
    why: &Why,
) -> anyhow::Result<Vec<Job>> {
    // Do this first, so that no further job of the group is submitted after those that are cancelled below.
    let to_come = cancel_group(settings, end)?;
    if to_come.is_none() && cancel_run(&settings.state_folder, end)? {
        errln!("The run that was started here ends");
        // The broker may not know the job yet, may be away, or has seen its end.
        return match find_if_any(api, end).await {
            Ok(Some(job)) if job.state != JobState::Finished => {
                Ok(cancel_one(api, &job, why).await.into_iter().collect())
            }
            _ => Ok(Vec::new()),
        };
    }
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
        Some(1) => errln!("1 job of this group will not be submitted"),
        Some(jobs) => errln!("{jobs} jobs of this group will not be submitted"),
    }
    Ok(cancelled)
}

async fn cancel_one(api: &Api, job: &Job, why: &Why) -> anyhow::Result<Job> {
    let path = format!("/v1/jobs/{}/cancel", job.job);
    Ok(api.act(&path, why).await?)
}

pub(super) fn segment(name: &str) -> impl std::fmt::Display {
    utf8_percent_encode(name, NON_ALPHANUMERIC)
}
