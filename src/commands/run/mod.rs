//! `baton run`: a notebook or a script as one job.
//!
//! With `--detach` a process of its own goes on with the run; `baton logs` and `baton fetch` read what it records.

mod notebook;
mod progress;
mod record;
mod request;
mod results;

use std::{
    ffi::OsString,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::Context;
use baton_protocol::JobId;
use baton_runner::{End, Message, Report};
use clap::ArgMatches;
use nix::unistd;
use tokio::{
    runtime::Builder,
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use self::{
    notebook::WrittenNotebook,
    progress::Progress,
    record::{Ended, Outcome, Record, RunFolder},
    request::{Loaded, Request},
};
use crate::{cli::IN_BACKGROUND, settings::Settings, signals::EndSignals};

pub(crate) use self::{
    request::{JOB_VARIABLE, is_notebook},
    results::{fetch, logs},
};

/// How often the notebook is written while it runs.
const WRITE_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn main(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let request = Request::read(matches)?;
    let begun = matches.get_one::<String>(IN_BACKGROUND);
    let job = match begun {
        Some(job) => job.parse().context("Which job?")?,
        None => JobId::random(),
    };
    let folder = RunFolder::of(&settings.state_folder, job);
    if begun.is_some() {
        let _ = unistd::setsid();
    } else {
        // What can be wrong is said before anything is begun.
        let loaded = Loaded::read(&request)?;
        record::forget_old(&settings.state_folder);
        folder.begin(&Record::new(job, &request)?, loaded.document())?;
        if matches.get_flag("detach") {
            return detach(job, &folder, request.json);
        }
    }
    // In the background the process has it from the one that began the run.
    let lock = match begun {
        Some(_) => None,
        None => Some(folder.lock()?),
    };
    let runtime = crate::runtime::start(Builder::new_current_thread())?;
    let ended = runtime.block_on(run(&request, job, &folder, begun.is_some()));
    let ended = ended.unwrap_or_else(|error| Ended::service_failed(format!("{error:#}")));
    folder.end(&ended)?;
    drop(lock);
    results::show(job, request.output().as_deref(), &ended, request.json)
}

/// Starts this program with the same arguments, to go on with what was begun.
fn detach(job: JobId, folder: &RunFolder, json: bool) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("Failed to find this program's own path")?;
    let mut words = std::env::args_os().skip(1);
    let command = words.next().context("Which command?")?;
    let begun = OsString::from(format!("--{IN_BACKGROUND}={job}"));
    Command::new(program)
        .args([command, begun])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(folder.lock()?)
        .spawn()
        .context("Failed to start the run")?;
    results::show_detached(job, json);
    Ok(ExitCode::SUCCESS)
}

async fn run(
    request: &Request,
    job: JobId,
    folder: &RunFolder,
    in_background: bool,
) -> anyhow::Result<Ended> {
    let loaded = Loaded::read(request)?;
    let kernelspec = request.kernelspec(job)?;
    let signals = EndSignals::listen().context("Failed to listen to signals")?;
    let (interrupt, interrupts) = mpsc::channel(1);
    let listening = tokio::spawn(pass_on(signals, interrupt, in_background));
    let mut watched = Watched {
        notebook: loaded
            .document()
            .map(|document| {
                let paths = [Some(folder.notebook()), request.output()];
                WrittenNotebook::create(
                    document.clone(),
                    job,
                    paths.into_iter().flatten().collect(),
                )
            })
            .transpose()?,
        progress: Progress::new(folder, &loaded, in_background || request.json)?,
        error: None,
        exit_status: None,
    };
    let (reports, mut reported) = mpsc::unbounded_channel();
    let (program, options) = (loaded.program(), &request.options);
    let running = baton_runner::run(&kernelspec, &program, options, interrupts, reports);
    tokio::pin!(running);
    let mut due = interval(WRITE_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = loop {
        tokio::select! {
            biased;
            Some(report) = reported.recv() => watched.on_report(&report),
            end = &mut running => break end,
            _ = due.tick() => watched.write(),
        }
    };
    listening.abort();
    while let Ok(report) = reported.try_recv() {
        watched.on_report(&report);
    }
    watched.end(end?)
}

/// The terminal of a run in the background may go.
async fn pass_on(mut signals: EndSignals, interrupt: mpsc::Sender<()>, in_background: bool) {
    loop {
        match in_background {
            true => signals.received_without_terminal().await,
            false => signals.received().await,
        }
        if interrupt.send(()).await.is_err() {
            return;
        }
    }
}

/// What becomes of the reports of a run.
struct Watched {
    notebook: Option<WrittenNotebook>,
    progress: Progress,
    /// The last error that a cell raised.
    error: Option<record::CellError>,
    exit_status: Option<i64>,
}

impl Watched {
    fn on_report(&mut self, report: &Report) {
        if let Some(notebook) = &mut self.notebook {
            notebook.record(report);
        }
        if let Report::Program(Message {
            msg_type, content, ..
        }) = report
        {
            match msg_type.as_str() {
                "error" => self.error = serde_json::from_value(content.clone()).ok(),
                "exit" => self.exit_status = content["status"].as_i64(),
                _ => {}
            }
        }
        self.progress.show(report);
    }

    fn write(&mut self) {
        if let Some(notebook) = &mut self.notebook {
            notebook.write_if_changed();
        }
    }

    /// Says how it ended, and writes the notebook a last time.
    fn end(self, end: End) -> anyhow::Result<Ended> {
        let cell = self.notebook.as_ref().and_then(WrittenNotebook::running);
        let ended = match end {
            End::Done => Ended::new(Outcome::Ok),
            End::Interrupted => Ended {
                error: Some("The run was interrupted".to_owned()),
                ..Ended::new(Outcome::Interrupted)
            },
            End::TimedOut => Ended {
                error: Some("Stopped at the time limit of the run".to_owned()),
                cell: cell.map(|cell| cell + 1),
                ..Ended::new(Outcome::TimedOut)
            },
            End::ServiceFailed { name, value } => Ended::service_failed(format!("{name}: {value}")),
            End::ProgramFailed(why) => Ended {
                error: Some(why),
                cell: cell.map(|cell| cell + 1),
                traceback: self.error.map_or_else(Vec::new, |error| error.traceback),
                exit_status: self.exit_status,
                ..Ended::new(Outcome::Failed)
            },
        };
        if let Some(notebook) = self.notebook {
            notebook.finish(&ended)?;
        }
        Ok(ended)
    }
}
