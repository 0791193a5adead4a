//! `baton worker`: runs cells on this machine.

use super::join;
use crate::{
    notify,
    runtime::{self, on_its_threads},
    service::{self, RuntimeFolder},
    settings::{LeavesAt, Settings},
    signals::EndSignals,
};
use anyhow::Context;
use baton_gpu_worker::{Config, SandboxChoice, Stop};
use baton_protocol::WorkerId;
use baton_transport::Dial;
use jiff::Timestamp;
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime},
};
use tokio::{runtime::Builder, sync::watch};

pub(crate) fn main(settings: &Settings) -> anyhow::Result<ExitCode> {
    check_end(settings)?;
    let folder = RuntimeFolder::create(&settings.runtime_folder)?;
    let dial = service::dial(settings)?;
    let place = folder.worker(settings.worker_name.as_deref())?;
    let mut config = config(settings, place.id, dial, &folder);
    runtime::allow_many_open_files();
    let runtime = runtime::start(Builder::new_multi_thread())?;
    runtime.block_on(async {
        let mut signals = EndSignals::listen().context("Failed to listen for signals")?;
        if let Some(pool) = &settings.worker_pool {
            notify::serves(&format!("Joining pool {pool}"));
            tokio::select! {
                joined = join::as_worker(&mut config, pool) => joined?,
                () = signals.received() => return Ok(()),
            }
        }
        let stop = watch::Sender::default();
        let mut status = config.status.subscribe();
        let run = on_its_threads(baton_gpu_worker::run(config, stop.subscribe()));
        notify::serves("Looking for the broker");
        let tell = async {
            while status.changed().await.is_ok() {
                notify::does(&status.borrow_and_update().to_string());
            }
            std::future::pending().await
        };
        let ask = async {
            signals.received().await;
            notify::ends();
            Stop::WhenCellsEnd.ask(&stop);
            signals.received().await;
            Stop::Now.ask(&stop);
            std::future::pending().await
        };
        tokio::select! {
            ended = run => ended,
            () = ask => Ok(()),
            () = tell => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A worker that must have left already would accept no cell.
pub(crate) fn check_end(settings: &Settings) -> anyhow::Result<()> {
    let end = settings.worker_leaves_at.map(LeavesAt::time);
    if let Some(end) = end.filter(|end| *end <= SystemTime::now()) {
        let end = Timestamp::try_from(end)?.strftime("%Y-%m-%d %H:%M:%S");
        anyhow::bail!(
            "worker.leaves_at is in the past: {end} UTC\nhint: a number is in seconds since 1970; a duration has a unit, such as 2h"
        );
    }
    Ok(())
}

/// With a sandbox, no notebook may choose the Python: the default is the one that this program was
/// installed for.
fn python(settings: &Settings, sandbox: SandboxChoice) -> Option<PathBuf> {
    match sandbox {
        SandboxChoice::None => settings.worker_python.clone(),
        SandboxChoice::Bubblewrap | SandboxChoice::Landlock => {
            settings.worker_python.clone().or_else(python_beside)
        }
    }
}

fn python_beside() -> Option<PathBuf> {
    let python = std::env::current_exe().ok()?.with_file_name("python");
    python.exists().then_some(python)
}

/// A notebook that prepares an answer says so more often (`kernel-proxy/src/remote_cell/preparing.rs`). If its connection
/// falls silent, the broker cancels the job earlier, after 75 s (`Graces`), so a shorter outage ends no job.
const ANSWER_PATIENCE: Duration = Duration::from_secs(90);
/// The default for `baton up`.
const SHORT_STOP_GRACE: Duration = Duration::from_secs(10);

/// For a worker that is shared by people who do not trust each other.
pub(crate) fn config(
    settings: &Settings,
    id: WorkerId,
    dial: Dial,
    folder: &RuntimeFolder,
) -> Config {
    let sandbox = settings.worker_sandbox.unwrap_or(SandboxChoice::Bubblewrap);
    Config {
        sandbox,
        python: python(settings, sandbox),
        stop_grace: settings.worker_stop_grace,
        idle_exit: settings.worker_idle_exit,
        ..config_for_one_person(settings, id, dial, folder)
    }
}

/// For the worker of `baton up`.
pub(crate) fn config_for_one_person(
    settings: &Settings,
    id: WorkerId,
    dial: Dial,
    folder: &RuntimeFolder,
) -> Config {
    let sandbox = settings.worker_sandbox.unwrap_or(SandboxChoice::None);
    let mirrors = settings.worker_mirrors.clone();
    Config {
        id,
        dial,
        transport: settings.transport,
        patience: settings.broker_patience,
        name: settings.worker_name.clone(),
        labels: settings.worker_labels.0.clone(),
        leaves_at: settings.worker_leaves_at.map(LeavesAt::time),
        slots: settings.worker_slots,
        python: python(settings, sandbox),
        usual_python: python_beside(),
        environments: settings.environment.0.clone(),
        environments_folder: settings.worker_environments.clone(),
        cache: settings.worker_cache.clone(),
        cache_limit_bytes: settings.worker_cache_limit.bytes,
        session_idle: settings.worker_session_idle,
        idle_exit: None,
        session_memory_bytes: settings.worker_session_memory.map(|size| size.bytes),
        session_disk_bytes: settings.worker_session_disk.map(|size| size.bytes),
        session_processes: settings.worker_session_processes,
        session_cpus: settings.worker_session_cpus,
        session_scratch_bytes: settings.worker_session_scratch.bytes,
        answer_patience: ANSWER_PATIENCE,
        cancel_grace: settings.worker_cancel_grace,
        stop_grace: Some(settings.worker_stop_grace.unwrap_or(SHORT_STOP_GRACE)),
        files: settings.worker_files,
        mirrors: mirrors.unwrap_or_else(|| settings.state_folder.join("mirrors")),
        install_packages: settings.worker_install_packages,
        files_limit_bytes: settings.worker_files_limit.bytes,
        gpu_mode: settings.worker_gpu_mode,
        gpu_memory_bytes: settings.worker_gpu_memory.map(|size| size.bytes),
        baton: std::env::current_exe().ok(),
        session_environment: settings.worker_session_environment.0.clone(),
        sandbox,
        network: settings.worker_network,
        warm_starts: settings.worker_warm_starts,
        preload: settings.worker_preload.0.clone(),
        readable: settings.worker_readable.0.clone(),
        runtime_folder: folder.path().to_owned(),
        status: watch::Sender::default(),
    }
}
