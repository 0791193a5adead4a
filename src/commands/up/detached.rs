//! `baton up --detached`: starts the service as a separate process, waits until it answers, and returns.

use super::{DETACHED, IN_BACKGROUND};
use crate::{
    output::ERROR_PREFIX,
    service::{self, RuntimeFolder},
    settings::Settings,
};
use anyhow::Context;
use std::{
    ffi::OsString,
    fs,
    path::Path,
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
                let why = last_error(&path, before).unwrap_or_else(|| status.to_string());
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

/// The error that the service logged last, after the first `before` bytes of its log.
fn last_error(log: &Path, before: u64) -> Option<String> {
    let log = fs::read(log).ok()?;
    // The service empties a long log, which is then shorter than before.
    let own = usize::try_from(before)
        .ok()
        .and_then(|before| log.get(before..));
    error_in(&String::from_utf8_lossy(own.unwrap_or(&log)))
}

/// The last error in a log: it begins at the start of a line, and may have several lines.
fn error_in(log: &str) -> Option<String> {
    let start = log
        .rfind(&format!("\n{ERROR_PREFIX}"))
        .map_or(0, |newline| newline + 1);
    let error = log[start..].strip_prefix(ERROR_PREFIX)?;
    Some(error.trim_end().to_owned())
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

#[cfg(test)]
mod tests {
    use super::error_in;

    #[test]
    fn the_last_error_is_whole() {
        assert_eq!(error_in(""), None);
        assert_eq!(error_in("INFO begins\n"), None);
        let said = "No session starts\n  because: ImportError: No module named 'x'";
        for before in ["", "INFO begins\n", "Error: an earlier one\n"] {
            let log = format!("{before}Error: {said}\n");
            assert_eq!(error_in(&log).as_deref(), Some(said));
        }
    }
}
