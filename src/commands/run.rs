//! `baton run`: runs a notebook or a script as one job, or a notebook as an array of jobs.
//!
//! With `--detach` a separate process continues the run; `baton logs` and `baton fetch` read what it records.

mod arguments;
mod array;
mod group;
mod limits;
mod notebook;
mod progress;
mod record;
mod request;
mod results;
mod resume;
mod unfinished;
mod watched;

use self::{
    arguments::IN_BACKGROUND,
    progress::Progress,
    record::{Ended, Record, RunFolder},
    request::{Loaded, OneJob, Request},
    results::{SERVICE_FAILED, WRONG_COMMAND_LINE},
    unfinished::check_outputs,
    watched::Run,
};
use crate::{output, settings::Settings, signals::EndSignals};
use anyhow::Context;
use baton_protocol::{GroupId, JobId};
use nix::unistd;
use std::{
    ffi::OsString,
    fs::File,
    pin::pin,
    process::{Command, ExitCode, Stdio},
};
use tokio::{runtime::Builder, sync::mpsc};

type Parse = fn(&[OsString]) -> Option<RunArguments>;

pub(crate) use self::{
    arguments::{Fetch, Logs, RunArguments},
    group::{cancel as cancel_group, to_come as to_come_of_group},
    results::{fetch, logs},
    unfinished::cancel as cancel_run,
};

/// An error of `baton run`, `baton logs` or `baton fetch`, by its exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    WrongCommandLine(anyhow::Error),
    #[error(transparent)]
    NotRun(anyhow::Error),
}

impl RunError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::WrongCommandLine(_) => WRONG_COMMAND_LINE,
            Self::NotRun(_) => SERVICE_FAILED,
        }
    }
}

/// Runs a command that exits with a run's exit code. An error of its own has another code, also if its output could not
/// be written.
pub(crate) fn with_exit_code(
    settings: anyhow::Result<Settings>,
    command: impl FnOnce(&Settings) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let code = settings.and_then(|settings| command(&settings));
    let code = output::or_missing(code);
    code.map_err(|error| match error.is::<RunError>() {
        true => error,
        false => RunError::NotRun(error).into(),
    })
}

/// `parse` reads the arguments of an earlier run.
pub(crate) fn main(
    settings: &Settings,
    of: &RunArguments,
    parse: Parse,
) -> anyhow::Result<ExitCode> {
    if let Some(run) = &of.resume {
        return resume::main(settings, of, run, parse);
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let request = Request::read(of, &words).map_err(RunError::WrongCommandLine)?;
    if let Some(begun) = &of.in_background {
        let _ = unistd::setsid();
        let job: JobId = begun.parse().context("`--in-background` needs a job id")?;
        let folder = RunFolder::of(&settings.state_folder, job);
        return match folder.read_if_any()? {
            Some(record) => {
                let job = request.job(job, None, &record.label)?;
                continue_job(&folder, &request, &job)
            }
            None => array::continue_group(settings, &request, GroupId(job.0)),
        };
    }
    record::forget_old(&settings.state_folder);
    match request.is_array() {
        true => array::begin(settings, &request, &request.labels(), of.detach),
        false => {
            let job = request.job(JobId::random(), None, "")?;
            begin(settings, &request, &job, of.detach)
        }
    }
}

/// Begins a single job. Runs it to its end, or leaves it to a process in the background if `detaches`.
fn begin(
    settings: &Settings,
    request: &Request,
    job: &OneJob,
    detaches: bool,
) -> anyhow::Result<ExitCode> {
    let folder = RunFolder::of(&settings.state_folder, job.id);
    let loaded = Loaded::read(request)?.with(job);
    // Errors must appear before anything is begun.
    let beginning = check_outputs(&settings.state_folder, std::slice::from_ref(job))?;
    folder.begin(&Record::new(job, request)?)?;
    folder.write_notebook(loaded.document())?;
    let lock = folder.lock()?;
    drop(beginning);
    if detaches {
        continue_in_background(&request.command, &job.id.to_string(), lock)?;
        results::show_detached(job.id, job.output.as_deref(), request.json);
        return Ok(ExitCode::SUCCESS);
    }
    let run = Run {
        request,
        job,
        loaded: &loaded,
        folder: &folder,
    };
    let ended = run_to_end(run, false)?;
    drop(lock);
    results::show(job.id, job.output.as_deref(), &ended, request.json)
}

/// Continues a single job that another process began. This process has inherited its lock.
fn continue_job(folder: &RunFolder, request: &Request, job: &OneJob) -> anyhow::Result<ExitCode> {
    let loaded = Loaded::read(request)?.with(job);
    let run = Run {
        request,
        job,
        loaded: &loaded,
        folder,
    };
    let ended = run_to_end(run, true)?;
    results::show(job.id, job.output.as_deref(), &ended, request.json)
}

/// Runs a single job, and records its end.
fn run_to_end(run: Run<'_>, in_background: bool) -> anyhow::Result<Ended> {
    let folder = run.folder;
    let runtime = crate::runtime::start(Builder::new_current_thread())?;
    let ended = runtime.block_on(run_one(run, in_background));
    let ended = ended.unwrap_or_else(|error| Ended::service_failed(format!("{error:#}")));
    folder.end(&ended, None)?;
    Ok(ended)
}

/// Starts this program again with the same arguments, to continue what was begun.
fn continue_in_background(command: &[OsString], begun: &str, lock: File) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("Failed to find this program's own path")?;
    let (command, words) = command.split_first().context("The command line is empty")?;
    Command::new(program)
        .arg(command)
        .arg(format!("--{IN_BACKGROUND}={begun}"))
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
    let signals = EndSignals::listen().context("Failed to listen for signals")?;
    let (interrupt, interrupts) = mpsc::channel(1);
    let folder = run.folder.clone();
    let cancelled = async move { folder.cancelled().await };
    let listening = tokio::spawn(pass_on(signals, cancelled, interrupt, in_background));
    let ended = match in_background && run.request.is_notebook() && !run.request.keep.is_zero() {
        true => resume::run(run, progress, interrupts).await,
        false => watched::run(run, progress, interrupts, |_| {}).await,
    };
    listening.abort();
    ended
}

/// Passes interrupts on, and that the run is `cancelled`. A background run may outlive its terminal.
async fn pass_on(
    mut signals: EndSignals,
    cancelled: impl Future<Output = ()>,
    interrupt: mpsc::Sender<()>,
    in_background: bool,
) {
    let mut cancelled = pin!(cancelled);
    let mut is_cancelled = false;
    loop {
        let signal = async {
            match in_background {
                true => signals.received_without_terminal().await,
                false => signals.received().await,
            }
        };
        tokio::select! {
            () = signal => {}
            () = &mut cancelled, if !is_cancelled => is_cancelled = true,
        }
        if interrupt.send(()).await.is_err() {
            return;
        }
    }
}
