//! The result of a run, for people and programs: at its end, and later with `baton logs` and `baton fetch`.

use super::{
    arguments::{Fetch, Logs},
    group::GroupFolder,
    notebook::is_of,
    record::{Ended, Outcome, Record, RunFolder},
    request::OneJob,
};
use crate::{output, settings::Settings};
use anyhow::Context;
use baton_protocol::{GroupId, JobId};
use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read as _},
    path::Path,
    process::ExitCode,
    thread::sleep,
    time::Duration,
};

/// The pause between two looks at a log that is followed.
const POLL: Duration = Duration::from_millis(200);

/// The same as clap's.
pub(super) const WRONG_COMMAND_LINE: u8 = 2;
/// The exit code of a run that failed because of Baton.
pub(super) const SERVICE_FAILED: u8 = 3;
/// A cell failed, or a script without a status.
const FAILED: u8 = 1;
/// The same as `timeout`.
const TIMED_OUT: u8 = 124;
/// The same as a shell's for a program that was ended by Ctrl-C.
const INTERRUPTED: u8 = 130;

pub(super) fn show_detached(job: JobId, output: Option<&Path>, json: bool) {
    match json {
        true => outln!("{}", json!({ "job": job.to_string(), "notebook": output })),
        false => outln!(
            "Job {job}\nFollow it: baton logs -f {job}\nIts result: baton fetch {job}\nStop it: baton cancel {job}"
        ),
    }
}

pub(super) fn show_detached_group(group: GroupId, jobs: &[OneJob], json: bool) {
    if json {
        let of = |job: &OneJob| json!({ "job": job.id.to_string(), "parameters": job.parameters_as_json(), "notebook": job.output });
        let jobs: Vec<Value> = jobs.iter().map(of).collect();
        outln!("{}", json!({ "group": group.to_string(), "jobs": jobs }));
        return;
    }
    outln!(
        "{} jobs in group {group}\nList them: baton jobs --group {group}\nFollow them: baton logs -f {group}\nTheir results: baton fetch {group}\nStop them: baton cancel {group}",
        jobs.len()
    );
}

pub(super) fn show(
    job: JobId,
    output: Option<&Path>,
    ended: &Ended,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if json {
        let shown = json!({ "job": job.to_string(), "notebook": output, "ended": ended });
        outln!("{}", serde_json::to_string_pretty(&shown)?);
    } else {
        let is_written = |path: &&Path| ended.outcome == Outcome::Ok || is_of(path, job);
        show_end(output.filter(is_written), ended);
    }
    Ok(ExitCode::from(exit_code(ended)))
}

/// Explains how the run can be resumed.
pub(super) fn show_kept(folder: &RunFolder, record: &Record) {
    if let Some(kept) = &record.kept
        && kept.until > Timestamp::now()
        && folder.is_running().unwrap_or(false)
    {
        let job = record.job;
        errln!(
            "Its variables are kept until {}: `baton run --resume {job}` continues at cell {}, and `baton cancel {job}` drops them",
            kept.until.to_zoned(TimeZone::system()).strftime("%H:%M"),
            kept.cell
        );
    }
}

fn show_end(output: Option<&Path>, ended: &Ended) {
    for line in &ended.traceback {
        errln!("{line}");
    }
    match (&ended.error, output) {
        (Some(error), Some(output)) => {
            errln!("{error}\nThe notebook so far: {}", output.display())
        }
        (Some(error), None) => errln!("{error}"),
        (None, Some(output)) => outln!("{}", output.display()),
        (None, None) => {}
    }
}

/// A job of a group, for the output at the group's end.
#[derive(Serialize)]
pub(super) struct ShownJob<'a> {
    job: JobId,
    parameters: Value,
    notebook: Option<&'a Path>,
    ended: &'a Ended,
}

impl<'a> ShownJob<'a> {
    pub(super) fn of((job, ended): (&'a OneJob, &'a Ended)) -> Self {
        Self {
            job: job.id,
            parameters: job.parameters_as_json(),
            notebook: job.output.as_deref(),
            ended,
        }
    }
}

pub(super) fn show_group(
    group: GroupId,
    jobs: &[ShownJob<'_>],
    json: bool,
) -> anyhow::Result<ExitCode> {
    if json {
        let shown = json!({ "group": group.to_string(), "jobs": jobs });
        outln!("{}", serde_json::to_string_pretty(&shown)?);
    } else {
        errln!("{}", in_all(jobs.iter().map(|job| job.ended)));
    }
    Ok(ExitCode::from(exit_code_of_all(
        jobs.iter().map(|job| job.ended),
    )))
}

/// The number of jobs for each way to end.
fn in_all<'a>(ended: impl Iterator<Item = &'a Ended>) -> String {
    let mut counts = [0; 5];
    let mut all = 0;
    for ended in ended {
        all += 1;
        counts[ended.outcome as usize] += 1;
    }
    let names = [
        "ran",
        "failed",
        "cancelled",
        "stopped at the time limit",
        "could not run",
    ];
    let parts = counts.iter().zip(names).filter(|(count, _)| **count > 0);
    let parts: Vec<String> = parts
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    format!("Of {all} jobs, {}", parts.join(", "))
}

fn exit_code(ended: &Ended) -> u8 {
    match ended.outcome {
        Outcome::Ok => 0,
        // The script's own status, if it has one in the valid range.
        Outcome::Failed => match ended.exit_status.map(u8::try_from) {
            Some(Ok(status)) if status != 0 => status,
            _ => FAILED,
        },
        Outcome::Interrupted => INTERRUPTED,
        Outcome::TimedOut => TIMED_OUT,
        Outcome::ServiceFailed => SERVICE_FAILED,
    }
}

/// The common exit code of all jobs that did not succeed, if it is the same.
fn exit_code_of_all<'a>(ended: impl Iterator<Item = &'a Ended>) -> u8 {
    let codes: BTreeSet<u8> = ended.map(exit_code).filter(|code| *code != 0).collect();
    match (codes.len(), codes.first()) {
        (1, Some(code)) => *code,
        (0, _) => 0,
        _ => FAILED,
    }
}

/// How the run ended; `None` while it runs or has not begun.
pub(super) fn end_of(state_folder: &Path, folder: &RunFolder) -> anyhow::Result<Option<Ended>> {
    let group = folder.read()?.group;
    // Read this first, because a run may end between the two reads.
    let is_running = match group {
        Some(group) => GroupFolder::of(state_folder, group).is_running(),
        None => folder.is_running(),
    };
    let is_running = is_running.context("Failed to check the run")?;
    let ended = folder.read()?.ended;
    Ok(match (ended, is_running) {
        (Some(ended), _) => Some(ended),
        (None, true) => None,
        (None, false) => Some(Ended::service_failed(
            "The process of the run was killed, and its job ended with it\nhint: run it again"
                .to_owned(),
        )),
    })
}

/// How all jobs of a group ended; `None` while the group runs.
pub(super) fn ends_of(
    settings: &Settings,
    group: &GroupFolder,
) -> anyhow::Result<Option<Vec<Ended>>> {
    let is_running = group.is_running().context("Failed to check the group")?;
    if is_running {
        return Ok(None);
    }
    let ends = group.read()?.jobs.into_iter().map(|job| {
        let end = end_of(&settings.state_folder, &group.job(job))?;
        end.context("This group is running again\nhint: repeat the command")
    });
    ends.collect::<anyhow::Result<_>>().map(Some)
}

/// `baton logs JOB`: the run's output so far, and with `--follow` its further output.
pub(crate) fn logs(
    settings: &Settings,
    Logs {
        job,
        follow: follows,
    }: &Logs,
) -> anyhow::Result<ExitCode> {
    let follows = *follows;
    if let Some(group) = GroupFolder::find(&settings.state_folder, job)? {
        let ended = || {
            let ends = ends_of(settings, &group)?;
            Ok(ends.map(|ends| (in_all(ends.iter()), exit_code_of_all(ends.iter()))))
        };
        return follow(&group.log(), follows, ended);
    }
    let folder = RunFolder::find(&settings.state_folder, job)?;
    let ended = || {
        let ended = end_of(&settings.state_folder, &folder)?;
        Ok(ended.map(|ended| (ended.error.clone().unwrap_or_default(), exit_code(&ended))))
    };
    let code = follow(&folder.log(), follows, ended)?;
    show_kept(&folder, &folder.read()?);
    Ok(code)
}

/// Shows a log until the run ends, then the last words and the exit code that `ended` returns.
fn follow(
    log: &Path,
    follows: bool,
    ended: impl Fn() -> anyhow::Result<Option<(String, u8)>>,
) -> anyhow::Result<ExitCode> {
    let mut log = File::open(log).context("Failed to read the log of the run")?;
    loop {
        let ended = ended()?;
        if !copy(&mut log)? {
            return Ok(ExitCode::SUCCESS);
        }
        match ended {
            Some((words, code)) => {
                if !words.is_empty() {
                    errln!("{words}");
                }
                return Ok(match follows {
                    true => ExitCode::from(code),
                    false => ExitCode::SUCCESS,
                });
            }
            None if follows => sleep(POLL),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Prints what is new in a log. Returns whether the reader may read more of it.
pub(super) fn copy(log: &mut File) -> io::Result<bool> {
    let mut bytes = Vec::new();
    log.read_to_end(&mut bytes)?;
    Ok(output::bytes_to_stdout(&bytes))
}

/// `baton fetch JOB`: the notebook as executed so far, or those of a group. The exit code is the run's.
pub(crate) fn fetch(
    settings: &Settings,
    Fetch { job, output }: &Fetch,
) -> anyhow::Result<ExitCode> {
    if let Some(group) = GroupFolder::find(&settings.state_folder, job)? {
        anyhow::ensure!(
            output.is_none(),
            "-o names one notebook, and {job} is a group\nhint: baton fetch JOB -o FILE fetches one of its jobs"
        );
        return fetch_group(settings, &group);
    }
    let folder = RunFolder::find(&settings.state_folder, job)?;
    let ended = end_of(&settings.state_folder, &folder)?;
    let record = folder.read()?;
    let own = record.output.as_ref().with_context(|| {
        format!(
            "{} is a script: it has no notebook\nhint: baton logs {}",
            record.program.display(),
            record.job
        )
    })?;
    let output = output.as_ref().unwrap_or(own);
    if !write_notebook(&folder, output)? {
        match ended.and_then(|ended| ended.error) {
            Some(error) => errln!("{error}"),
            None => {
                errln!("This job has not started: earlier jobs of its array are waiting or running")
            }
        }
        return Ok(ExitCode::from(SERVICE_FAILED));
    }
    match ended {
        Some(ended) => {
            show_end(Some(output), &ended);
            show_kept(&folder, &record);
            Ok(ExitCode::from(exit_code(&ended)))
        }
        None => {
            outln!("{}", output.display());
            errln!("The run continues: this is the notebook so far");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns whether there is one: a job of an array may not have begun.
fn write_notebook(folder: &RunFolder, output: &Path) -> anyhow::Result<bool> {
    let notebook = match std::fs::read(folder.notebook()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        notebook => notebook.context("Failed to read the notebook of the run")?,
    };
    baton_runner::replace(output, &notebook)
        .with_context(|| format!("Failed to write {}", output.display()))?;
    Ok(true)
}

fn fetch_group(settings: &Settings, group: &GroupFolder) -> anyhow::Result<ExitCode> {
    let ends = ends_of(settings, group)?;
    let jobs = group.read()?.jobs;
    let mut missing = 0;
    for job in &jobs {
        let folder = group.job(*job);
        let output = folder.read()?.output.context("This job has no notebook")?;
        match write_notebook(&folder, &output)? {
            true => outln!("{}", output.display()),
            false => missing += 1,
        }
    }
    if missing > 0 {
        errln!("{missing} of {} jobs have not started", jobs.len());
    }
    match ends {
        Some(ends) => {
            errln!("{}", in_all(ends.iter()));
            Ok(ExitCode::from(exit_code_of_all(ends.iter())))
        }
        None => {
            errln!("The group continues: these are the notebooks so far");
            Ok(ExitCode::SUCCESS)
        }
    }
}
