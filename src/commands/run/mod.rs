//! `baton run`: a notebook or a script as one job, or a notebook as an array of jobs.
//!
//! With `--detach` a process of its own goes on with the run; `baton logs` and `baton fetch` read what it records.

mod array;
mod group;
mod notebook;
mod progress;
mod record;
mod request;
mod results;
mod watched;

use std::{
    ffi::OsString,
    fs::File,
    process::{Command, ExitCode, Stdio},
};

use anyhow::Context;
use baton_protocol::JobId;
use clap::ArgMatches;
use nix::unistd;
use tokio::{runtime::Builder, sync::mpsc};

use self::{
    progress::Progress,
    record::{Ended, Record, RunFolder},
    request::{Loaded, Request},
    watched::Run,
};
use crate::{cli::IN_BACKGROUND, settings::Settings, signals::EndSignals};

pub(crate) use self::{
    group::{cancel as cancel_group, to_come as to_come_of_group},
    request::is_notebook,
    results::{fetch, logs},
};

pub(crate) fn main(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let request = Request::read(matches)?;
    // Of the process that began the run, in the one that goes on with it.
    let begun = matches.get_one::<String>(IN_BACKGROUND);
    if begun.is_some() {
        let _ = unistd::setsid();
    } else {
        record::forget_old(&settings.state_folder);
    }
    let detaches = matches.get_flag("detach");
    if request.is_array() {
        return array::main(settings, &request, begun, detaches);
    }
    let id = match begun {
        Some(job) => job.parse().context("Which job?")?,
        None => JobId::random(),
    };
    let job = request.only_job(id)?;
    let folder = RunFolder::of(&settings.state_folder, job.id);
    let loaded = Loaded::read(&request)?.with(&job);
    if begun.is_none() {
        // What can be wrong is said before anything is begun.
        folder.begin(&Record::new(&job, &request)?)?;
        folder.write_notebook(loaded.document())?;
        if detaches {
            go_on_in_background(&id.to_string(), folder.lock()?)?;
            results::show_detached(id, request.json);
            return Ok(ExitCode::SUCCESS);
        }
    }
    // In the background the process has it from the one that began the run.
    let lock = match begun {
        Some(_) => None,
        None => Some(folder.lock()?),
    };
    let runtime = crate::runtime::start(Builder::new_current_thread())?;
    let run = Run {
        request: &request,
        job: &job,
        loaded: &loaded,
        folder: &folder,
    };
    let ended = runtime.block_on(run_one(run, begun.is_some()));
    let ended = ended.unwrap_or_else(|error| Ended::service_failed(format!("{error:#}")));
    folder.end(&ended)?;
    drop(lock);
    results::show(&job, &ended, request.json)
}

/// Starts this program with the same arguments, to go on with what was begun.
fn go_on_in_background(begun: &str, lock: File) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("Failed to find this program's own path")?;
    let mut words = std::env::args_os().skip(1);
    let command = words.next().context("Which command?")?;
    let begun = OsString::from(format!("--{IN_BACKGROUND}={begun}"));
    Command::new(program)
        .args([command, begun])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(lock)
        .spawn()
        .context("Failed to start the run")?;
    Ok(())
}

async fn run_one(run: Run<'_>, in_background: bool) -> anyhow::Result<Ended> {
    let is_quiet = in_background || run.request.json;
    let progress = Progress::new(run.folder, run.loaded, is_quiet)?;
    let signals = EndSignals::listen().context("Failed to listen to signals")?;
    let (interrupt, interrupts) = mpsc::channel(1);
    let listening = tokio::spawn(pass_on(signals, interrupt, in_background));
    let ended = watched::run(run, progress, interrupts, || {}).await;
    listening.abort();
    ended
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
