//! Finds the broker, and starts one for this user if none is configured.
//!
//! Without configuration the broker is this user's `baton up` on this machine: a Unix socket and a
//! token in the runtime folder. The first `%%gpu` cell starts it, and it ends by itself when idle.
//! Several notebooks may start it at once, since `up` lets only one instance run.

use crate::config::BrokerChoice;
use baton_humanize::last_error;
use baton_protocol::address::BrokerAddress;
use baton_transport::{Dial, Token};
use std::{ffi::OsString, path::Path, process::Stdio, time::Duration};
use tokio::{
    process::{Child, Command},
    time::Instant,
};

const POLL: Duration = Duration::from_millis(10);
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Why there is no broker to dial.
pub(super) enum NoBroker {
    /// Another attempt may succeed soon.
    NotYet(String),
    /// The broker cannot serve until a person fixes it. Cells that have begun wait for that.
    Unable(String),
    /// Another attempt cannot succeed.
    Never(Obstacle),
}

/// Shown to the student unchanged.
#[derive(Debug, Clone)]
pub(super) struct Obstacle {
    pub(super) reason: String,
    pub(super) hint: &'static str,
}

/// Returns where to connect. If this is the user's own broker, it already accepts connections.
pub(super) async fn dial_or_start(choice: &BrokerChoice) -> Result<Dial, NoBroker> {
    match choice {
        BrokerChoice::Configured(dial) => Ok(dial.clone()),
        BrokerChoice::Misconfigured(reason) => Err(NoBroker::Never(Obstacle {
            reason: reason.clone(),
            hint: "correct the configuration (`baton config show` checks it), then restart the kernel",
        })),
        BrokerChoice::OfThisUser {
            runtime_folder,
            start_command,
        } => {
            let socket = runtime_folder.join("broker.sock");
            if !accepts(&socket).await {
                let Some(command) = start_command else {
                    return Err(NoBroker::Never(Obstacle {
                        reason: "no broker is configured, and `autostart` is off".into(),
                        hint: "run `baton up` in a terminal, or ask your course staff for the broker's address",
                    }));
                };
                start(command, &socket, &runtime_folder.join("up.log"))
                    .await
                    .map_err(NoBroker::NotYet)?;
            }
            let token = std::fs::read_to_string(runtime_folder.join("token"));
            Ok(Dial {
                address: BrokerAddress::Unix(socket),
                token: token.ok().map(|text| Token::new(&text)),
                ca_file: None,
            })
        }
    }
}

async fn accepts(socket: &Path) -> bool {
    tokio::net::UnixStream::connect(socket).await.is_ok()
}

async fn start(command: &[OsString], socket: &Path, log: &Path) -> Result<(), String> {
    let before = std::fs::metadata(log).map_or(0, |metadata| metadata.len());
    let mut child = spawn(command)?;
    let deadline = Instant::now() + START_TIMEOUT;
    while !accepts(socket).await {
        if let Ok(Some(status)) = child.try_wait()
            && !accepts(socket).await
        {
            let why = last_error(&std::fs::read(log).unwrap_or_default(), before);
            return Err(format!(
                "the GPU service for this user could not start ({}); its log is {}",
                why.map_or_else(|| status.to_string(), |why| in_one_line(&why)),
                log.display()
            ));
        }
        if Instant::now() > deadline {
            return Err(format!(
                "the GPU service for this user did not start within {} s",
                START_TIMEOUT.as_secs()
            ));
        }
        tokio::time::sleep(POLL).await;
    }
    // The service outlives this notebook. The instance that answers may have been started by another notebook.
    tokio::spawn(async move { child.wait().await });
    Ok(())
}

/// The error with its causes.
fn in_one_line(error: &str) -> String {
    error.replace("\n  because: ", ": ").replace('\n', " ")
}

fn spawn(command: &[OsString]) -> Result<Child, String> {
    let [program, arguments @ ..] = command else {
        return Err("the command that starts the GPU service is empty".to_owned());
    };
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Keep interrupts of the notebook's process group away from the broker.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{} could not be started: {error}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_reason_why_no_broker_starts_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, log) = (
            folder.path().join("broker.sock"),
            folder.path().join("up.log"),
        );
        std::fs::write(&log, "Error: an earlier one\n").unwrap();
        let said = "Error: The broker ended\\n  because: Another broker (process 7) uses x\\n";
        let script = format!("printf '{said}' >> {}; exit 1", log.display());
        let command = ["sh".into(), "-c".into(), script.into()];
        let why = start(&command, &socket, &log).await.unwrap_err();
        assert!(
            why.contains("could not start (The broker ended: Another broker (process 7) uses x);"),
            "{why}"
        );
    }
}
