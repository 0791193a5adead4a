//! `baton worker`: runs cells on this machine.

use std::process::ExitCode;

use anyhow::Context;
use baton_gpu_worker::Config;
use baton_link::Dial;
use baton_protocol::WorkerId;

use crate::{
    runtime::on_its_threads,
    service::{self, RuntimeFolder},
    settings::Settings,
    signals::EndSignals,
};

pub(crate) fn main(settings: &Settings) -> anyhow::Result<ExitCode> {
    let folder = RuntimeFolder::create(&settings.runtime_folder)?;
    let dial = service::dial(settings)?;
    let config = config(settings, WorkerId::random(), dial, &folder);
    let runtime = tokio::runtime::Runtime::new().context("Failed to start")?;
    runtime.block_on(async {
        let signals = EndSignals::listen().context("Failed to listen for signals")?;
        on_its_threads(baton_gpu_worker::run(config, signals.received())).await
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn config(
    settings: &Settings,
    id: WorkerId,
    dial: Dial,
    folder: &RuntimeFolder,
) -> Config {
    let mirrors = settings.worker_mirrors.clone();
    Config {
        id,
        dial,
        lane: settings.lane,
        patience: settings.broker_patience,
        name: settings.worker_name.clone(),
        slots: settings.worker_slots,
        python: settings.worker_python.clone(),
        cache: settings.worker_cache.clone(),
        cache_limit_bytes: settings.worker_cache_limit.bytes,
        session_idle: settings.worker_session_idle,
        session_memory_bytes: settings.worker_session_memory.map(|size| size.bytes),
        cancel_grace: settings.worker_cancel_grace,
        files: settings.worker_files,
        mirrors: mirrors.unwrap_or_else(|| settings.state_folder.join("mirrors")),
        files_limit_bytes: settings.worker_files_limit.bytes,
        gpu_mode: settings.worker_gpu_mode,
        gpu_memory_bytes: settings.worker_gpu_memory.map(|size| size.bytes),
        baton: std::env::current_exe().ok(),
        session_environment: settings.worker_session_environment.0.clone(),
        runtime_folder: folder.path().to_owned(),
    }
}
