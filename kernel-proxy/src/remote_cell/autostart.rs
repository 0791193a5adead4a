//! Finds the broker, and starts one for this user if none is configured.
//!
//! Without configuration the broker is this user's `baton up` on this machine: a Unix socket and a
//! token in the runtime folder. The first `%%gpu` cell starts it, and it ends by itself when idle.
//! Several notebooks may start it at once, since `up` lets only one instance run.
//!
//! **Invariant:** a runtime folder that another user has made is never used.

use crate::config::BrokerChoice;
use baton_humanize::last_error;
use baton_protocol::address::BrokerAddress;
use baton_transport::{
    Dial, Token,
    own_service::{self, UnsafeFolder},
};
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
    /// Another attempt cannot succeed until someone removes the obstacle.
    Refused(Obstacle),
}

/// Shown to the student unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Obstacle {
    pub(super) reason: String,
    pub(super) hint: &'static str,
    /// Only another kernel can use the broker.
    pub(super) is_final: bool,
}

impl Obstacle {
    pub(super) fn new(reason: impl Into<String>, hint: &'static str) -> Self {
        Self {
            reason: reason.into(),
            hint,
            is_final: false,
        }
    }
}

/// Returns where to connect. If this is the user's own broker, it already accepts connections.
pub(super) async fn dial_or_start(choice: &BrokerChoice) -> Result<Dial, NoBroker> {
    match choice {
        BrokerChoice::Configured(dial) => Ok(dial.clone()),
        BrokerChoice::Misconfigured(reason) => Err(NoBroker::Refused(Obstacle::new(
            reason,
            "correct the configuration (`baton config show` checks it), then restart the kernel",
        ))),
        BrokerChoice::OfThisUser {
            runtime_folder,
            start_command,
        } => {
            let socket = runtime_folder.join("broker.sock");
            if !own_service::answers(runtime_folder, &socket)? {
                let Some(command) = start_command else {
                    return Err(NoBroker::Refused(Obstacle::new(
                        "no broker is configured, and `autostart` is off",
                        "run `baton up` in a terminal, or ask your course staff for the broker's address",
                    )));
                };
                start(command, runtime_folder, &socket).await?;
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

/// Someone must remove the folder or name another one.
impl From<UnsafeFolder> for NoBroker {
    fn from(problem: UnsafeFolder) -> Self {
        let reason = format!("{problem}, so nothing was sent there");
        Self::Refused(Obstacle::new(reason, problem.hint()))
    }
}

async fn start(command: &[OsString], folder: &Path, socket: &Path) -> Result<(), NoBroker> {
    let log = folder.join("up.log");
    let before = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let mut child = spawn(command).map_err(NoBroker::NotYet)?;
    let deadline = Instant::now() + START_TIMEOUT;
    while !own_service::answers(folder, socket)? {
        if let Ok(Some(status)) = child.try_wait()
            && !own_service::answers(folder, socket)?
        {
            let why = last_error(&std::fs::read(&log).unwrap_or_default(), before);
            return Err(NoBroker::NotYet(format!(
                "the GPU service for this user could not start ({}); its log is {}",
                why.map_or_else(|| status.to_string(), |why| in_one_line(&why)),
                log.display()
            )));
        }
        if Instant::now() > deadline {
            return Err(NoBroker::NotYet(format!(
                "the GPU service for this user did not start within {} s",
                START_TIMEOUT.as_secs()
            )));
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
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::{
        fs,
        os::unix::{
            fs::{PermissionsExt, symlink},
            net::UnixListener,
        },
    };

    fn choice(runtime_folder: &Path) -> BrokerChoice {
        BrokerChoice::OfThisUser {
            runtime_folder: runtime_folder.to_owned(),
            start_command: Some(vec!["false".into()]),
        }
    }

    async fn check_refused(folder: &Path, why: &str) {
        match dial_or_start(&choice(folder)).await {
            Err(NoBroker::Refused(obstacle)) => {
                assert!(obstacle.reason.contains(why), "{}", obstacle.reason);
            }
            Ok(dial) => panic!("the notebook trusts {}", dial.address),
            Err(_) => panic!("it tries again"),
        }
    }

    #[tokio::test]
    async fn a_service_in_a_folder_that_others_can_enter_is_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("baton");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("token"), "squatted").unwrap();
        let _squatter = UnixListener::bind(folder.join("broker.sock")).unwrap();
        let set_mode = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode));
        set_mode(0o755).unwrap();
        check_refused(&folder, "Other users can enter").await;

        set_mode(0o700).unwrap();
        let link = place.path().join("link");
        symlink(&folder, &link).unwrap();
        check_refused(&link, "is not a folder").await;

        let dial = dial_or_start(&choice(&folder)).await;
        assert!(dial.is_ok_and(|dial| dial.token.is_some()));
    }

    #[tokio::test]
    async fn the_reason_why_no_broker_starts_is_said() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let (socket, log) = (
            folder.path().join("broker.sock"),
            folder.path().join("up.log"),
        );
        fs::write(&log, "Error: an earlier one\n").unwrap();
        let said = "Error: The broker ended\\n  because: Another broker (process 7) uses x\\n";
        let script = format!("printf '{said}' >> {}; exit 1", log.display());
        let command = ["sh".into(), "-c".into(), script.into()];
        let Err(NoBroker::NotYet(why)) = start(&command, folder.path(), &socket).await else {
            panic!("no broker can have started");
        };
        assert!(
            why.contains("could not start (The broker ended: Another broker (process 7) uses x);"),
            "{why}"
        );
    }
}
