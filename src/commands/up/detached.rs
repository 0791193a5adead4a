//! `baton up --detached`: starts the service as a separate process, waits until it answers, and returns.

use super::{DETACHED, IN_BACKGROUND};
use crate::{
    service::{self, RuntimeFolder},
    settings::Settings,
};
use anyhow::Context;
use std::{
    ffi::OsString,
    fs,
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

pub(super) fn start(settings: &Settings) -> anyhow::Result<ExitCode> {
    let folder = RuntimeFolder::create(&settings.runtime_folder)?;
    let path = folder.log();
    let log = path.display();
    let before = fs::metadata(&path).map_or(0, |metadata| metadata.len());
    let mut service = in_background()?;
    let deadline = Instant::now() + START_TIMEOUT;
    let process = loop {
        let ended = service.try_wait().context("Failed to watch the service")?;
        // A service that finds another one ends by itself. Until it has ended, it would take over
        // if the other one ended.
        match (folder.holder(), ended) {
            (Some(process), _) if process == service.id() => break process,
            (Some(process), Some(_)) => break process,
            (None, Some(status)) => {
                let log_bytes = fs::read(&path).unwrap_or_default();
                let why = baton_humanize::last_error(&log_bytes, before);
                let why = why.unwrap_or_else(|| status.to_string());
                anyhow::bail!("The service could not start: {why}\nhint: its log is {log}")
            }
            (_, None) => {}
        }
        if Instant::now() >= deadline {
            end(&mut service);
            anyhow::bail!(
                "The service did not answer within {} s, and was ended\nhint: its log is {log}",
                START_TIMEOUT.as_secs()
            );
        }
        std::thread::sleep(POLL);
    };
    let said = match process == service.id() {
        true => "Running in the background",
        false => "Already running",
    };
    outln!("{said}: unix:{}", folder.socket().display());
    if let Some(url) = service::dashboard(settings) {
        outln!("Dashboard: {url}");
    }
    outln!("Log: {log}");
    outln!("Stop it with: kill {process}");
    Ok(ExitCode::SUCCESS)
}

/// Leaves no process behind if the command failed.
fn end(service: &mut Child) {
    // It may already have ended.
    let _ = service.kill();
    let _ = service.wait();
}

/// Starts this program with the same arguments, so that it reads the same settings.
fn in_background() -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("Failed to find this program's own path")?;
    let detached = format!("--{DETACHED}");
    let in_background = OsString::from(format!("--{IN_BACKGROUND}"));
    let arguments = std::env::args_os().skip(1).map(|argument| {
        if argument == *detached {
            in_background.clone()
        } else {
            argument
        }
    });
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("Failed to start the service")
}
