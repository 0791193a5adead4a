//! How a run ended, for people and programs: at its end, and later with `baton logs` and `baton fetch`.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    thread::sleep,
    time::Duration,
};

use anyhow::Context;
use baton_protocol::JobId;
use clap::ArgMatches;
use serde_json::json;

use super::record::{Ended, Outcome, RunFolder};
use crate::settings::Settings;

/// Between two looks at a log that is followed.
const POLL: Duration = Duration::from_millis(200);

/// The exit code of a run that Baton could not run to its end.
const SERVICE_FAILED: u8 = 3;
/// As of `timeout`.
const TIMED_OUT: u8 = 124;
/// As a shell's, of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

pub(super) fn show_detached(job: JobId, json: bool) {
    match json {
        true => println!("{}", json!({ "job": job.to_string() })),
        false => println!(
            "Job {job}\nFollow it: baton logs -f {job}\nIts result: baton fetch {job}\nStop it: baton cancel {job}"
        ),
    }
}

pub(super) fn show(
    job: JobId,
    output: Option<&Path>,
    ended: &Ended,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if json {
        let shown = json!({ "job": job.to_string(), "notebook": output, "ended": ended });
        println!("{}", serde_json::to_string_pretty(&shown)?);
        return Ok(exit_code(ended));
    }
    for line in &ended.traceback {
        eprintln!("{line}");
    }
    match (&ended.error, output) {
        (Some(error), Some(output)) => {
            eprintln!("{error}\nThe notebook so far: {}", output.display())
        }
        (Some(error), None) => eprintln!("{error}"),
        (None, Some(output)) => println!("{}", output.display()),
        (None, None) => {}
    }
    Ok(exit_code(ended))
}

fn exit_code(ended: &Ended) -> ExitCode {
    match ended.outcome {
        Outcome::Ok => ExitCode::SUCCESS,
        // A script's own status where it has one that fits.
        Outcome::Failed => match ended.exit_status.map(u8::try_from) {
            Some(Ok(status)) if status != 0 => ExitCode::from(status),
            _ => ExitCode::FAILURE,
        },
        Outcome::Interrupted => ExitCode::from(INTERRUPTED),
        Outcome::TimedOut => ExitCode::from(TIMED_OUT),
        Outcome::ServiceFailed => ExitCode::from(SERVICE_FAILED),
    }
}

fn folder_of(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<RunFolder> {
    let job = matches.get_one::<String>("job").context("Which job?")?;
    RunFolder::find(&settings.state_folder, job)
}

/// How it ended; `None` while it runs.
fn end_of(folder: &RunFolder) -> anyhow::Result<Option<Ended>> {
    // First, because a run ends between the two looks.
    let is_running = folder.is_running().context("Failed to look at the run")?;
    let ended = folder.read()?.ended;
    Ok(match (ended, is_running) {
        (Some(ended), _) => Some(ended),
        (None, true) => None,
        (None, false) => Some(Ended::service_failed(
            "The process of the run was ended from outside, and its job with it\nhint: run it again".to_owned(),
        )),
    })
}

/// `baton logs JOB`: what the run has shown, and with `--follow` what it goes on to show.
pub(crate) fn logs(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let folder = folder_of(settings, matches)?;
    let follows = matches.get_flag("follow");
    let mut log = File::open(folder.log()).context("Failed to read the log of the run")?;
    loop {
        let ended = end_of(&folder)?;
        copy(&mut log)?;
        match ended {
            Some(ended) => {
                if let Some(error) = &ended.error {
                    eprintln!("{error}");
                }
                return Ok(if follows {
                    exit_code(&ended)
                } else {
                    ExitCode::SUCCESS
                });
            }
            None if follows => sleep(POLL),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn copy(log: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    log.read_to_end(&mut bytes)?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(&bytes)?;
    stdout.flush()
}

/// `baton fetch JOB`: the notebook as it has run so far. The exit code is the run's.
pub(crate) fn fetch(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let folder = folder_of(settings, matches)?;
    let ended = end_of(&folder)?;
    let record = folder.read()?;
    let own = record.output.with_context(|| {
        format!(
            "{} is a script: it has no notebook\nhint: baton logs {}",
            record.program.display(),
            record.job
        )
    })?;
    let output = matches.get_one::<PathBuf>("output").unwrap_or(&own);
    let notebook = std::fs::read(folder.notebook());
    let notebook = notebook.context("Failed to read the notebook of the run")?;
    baton_runner::replace(output, &notebook)
        .with_context(|| format!("Failed to write {}", output.display()))?;
    match ended {
        Some(ended) => show(record.job, Some(output), &ended, false),
        None => {
            println!("{}", output.display());
            eprintln!("The run goes on: this is the notebook so far");
            Ok(ExitCode::SUCCESS)
        }
    }
}
