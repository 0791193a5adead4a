//! How a session starts.
//!
//! In: which Python, and where. Out: a session whose kernel has said hello, or why there is none.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use baton_chunks::scanner::{self, SCANNER};
use baton_jupyter_wire::connection::{ConnectionError, ConnectionFile};
use baton_jupyter_wire::folder::{FolderError, PrivateFolder};
use baton_jupyter_wire::shim::{SHIM_SOCKET, ShimError, ShimListener, ShimReader, ShimWriter};
use baton_protocol::NotebookId;
use baton_protocol::shim::{FromSession, Hello};
use baton_transport::frames::FrameError;
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::{Keepers, Session, SessionLog, environment};
use crate::Config;
use crate::gpu::{Place, Sharing};
use crate::mirror::SessionMirror;
use crate::packages::SessionPackages;
use crate::processes;

/// Python on a slow network folder needs its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tell a session's shim that the one stands for the other.
const NOTEBOOK_FOLDER: &str = "BATON_NOTEBOOK_FOLDER";
const MIRROR_FOLDER: &str = "BATON_MIRROR_FOLDER";

/// Tells a session to try a cell.
const TRIAL: &str = "BATON_TRIAL";

/// How many lines of a failed start are told.
const LINES: usize = 12;

pub(crate) struct StartOrder<'a> {
    pub(crate) notebook: NotebookId,
    pub(crate) python: PathBuf,
    /// The working directory, where it exists here.
    pub(crate) folder: PathBuf,
    /// Where it works instead.
    pub(crate) mirror: Option<SessionMirror>,
    /// How it shares the GPU: what it has of it for itself, or whose turns it takes.
    pub(crate) sharing: &'a Sharing,
    pub(crate) place: Option<Place>,
    pub(crate) account: u64,
    /// How much a message of the session may have.
    pub(crate) largest_message_bytes: u64,
    pub(crate) config: &'a Config,
    /// It runs a cell of its own before it says hello.
    pub(crate) is_trial: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("Failed to make {path}")]
    RuntimeFolder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("Failed to write into the session's private folder")]
    Library(#[source] std::io::Error),
    #[error("The session could not get its part of the GPU")]
    Gpu(#[source] std::io::Error),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("Failed to watch the files that the session opens")]
    Watch(#[source] std::io::Error),
    #[error("Failed to start {python}")]
    Spawn {
        python: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{python} ended with {status} while the session started")]
    Ended {
        python: PathBuf,
        status: ExitStatus,
        last_lines: Vec<String>,
    },
    #[error("{python} did not answer within {} s", PATIENCE.as_secs())]
    Silent {
        python: PathBuf,
        last_lines: Vec<String>,
    },
    #[error("{python} has baton_shim {found}, this worker needs {}", env!("CARGO_PKG_VERSION"))]
    Version { python: PathBuf, found: String },
    #[error("The session closed its connection before its first message")]
    NoHello,
    #[error(transparent)]
    Shim(#[from] ShimError),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl StartError {
    /// Whether the next start may go well on the same machine.
    pub(crate) fn may_pass(&self) -> bool {
        !matches!(self, Self::Version { .. })
    }
}

/// Dropping the future ends what was started.
pub(crate) async fn start(order: StartOrder<'_>) -> Result<Session, StartError> {
    let runtime_folder = &order.config.runtime_folder;
    std::fs::create_dir_all(runtime_folder).map_err(|source| StartError::RuntimeFolder {
        path: runtime_folder.clone(),
        source,
    })?;
    let folder = PrivateFolder::create_in(runtime_folder, "session")?;
    let packages = SessionPackages::create(order.config)?;
    let listener = ShimListener::bind(folder.path())?;
    let scanner = scanner::install(folder.path()).map_err(StartError::Library)?;
    let connection = ConnectionFile::create(folder.path());
    let connection_file = folder.path().join("connection.json");
    connection.write(&connection_file)?;

    let mark = processes::new_mark(order.notebook);
    let mut mirror = order.mirror;
    let working_folder = match &mirror {
        Some(mirror) => mirror
            .make_working_folder(&order.folder)
            .map_err(|source| StartError::RuntimeFolder {
                path: mirror.root().to_owned(),
                source,
            })?,
        None if order.folder.is_dir() => order.folder.clone(),
        None => folder.path().to_owned(),
    };
    let mut command = Command::new(&order.python);
    command
        .env_clear()
        .envs(environment::inherited(
            std::env::vars_os(),
            &order.config.session_environment,
        ))
        .envs(packages.environment());
    if order.is_trial {
        command.env(TRIAL, "1");
    }
    let mut watch = None;
    if let Some(mirror) = &mirror {
        watch = Some(mirror.watch(&mut command).map_err(StartError::Watch)?);
        command
            .env(NOTEBOOK_FOLDER, mirror.notebook_folder())
            .env(MIRROR_FOLDER, mirror.root());
    }
    let gpu = order
        .sharing
        .join(order.account, order.place, &mut command, folder.path())
        .map_err(StartError::Gpu)?;
    let mut child = command
        .args(["-m", "baton_shim.session.start", "-f"])
        .arg(&connection_file)
        .current_dir(working_folder)
        .env(SHIM_SOCKET, listener.path())
        .env(SCANNER, scanner)
        .env(processes::MARK, &mark)
        .env("JPY_PARENT_PID", std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| StartError::Spawn {
            python: order.python.clone(),
            source,
        })?;
    drop(command);
    if let Some(mirror) = &mut mirror {
        mirror.started(watch).await;
    }
    let starting = Starting::new(&mut child, mark);
    let log = follow_output(&mut child);

    let (shim_reader, shim, hello) = tokio::select! {
        said = accept_shim(&listener, starting.process, order.largest_message_bytes) => said?,
        status = child.wait() => return Err(ended(order.python, status, &log).await),
        () = tokio::time::sleep(PATIENCE) => {
            let last_lines = log.last_lines(LINES);
            return Err(StartError::Silent { python: order.python, last_lines });
        }
    };
    if hello.version != env!("CARGO_PKG_VERSION") {
        let found = hello.version;
        return Err(StartError::Version {
            python: order.python,
            found,
        });
    }
    let (kernel, mark) = starting.finish();
    Ok(Session {
        shim,
        hello,
        held: None,
        sent: None,
        keeps: false,
        keepers: Keepers::default(),
        mirror,
        gpu,
        shim_reader,
        broken_at: None,
        child,
        kernel,
        mark,
        log,
        _folder: folder,
        _packages: packages,
    })
}

/// Ends the processes of a start that fails or is given up.
struct Starting {
    process: u32,
    mark: Option<String>,
}

impl Starting {
    fn new(child: &mut Child, mark: String) -> Self {
        Self {
            // A child that nobody waited for has its number.
            process: child.id().unwrap_or_default(),
            mark: Some(mark),
        }
    }

    fn kernel(&self) -> Pid {
        Pid::from_raw(self.process.cast_signed())
    }

    fn finish(mut self) -> (Pid, String) {
        (self.kernel(), self.mark.take().unwrap_or_default())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mark) = &self.mark {
            processes::end_all(self.kernel(), mark, &[]);
        }
    }
}

async fn accept_shim(
    listener: &ShimListener,
    process: u32,
    largest_message_bytes: u64,
) -> Result<(ShimReader, ShimWriter, Hello), StartError> {
    let (reader, writer) = listener.accept(process).await?;
    let mut reader = reader.within(largest_message_bytes);
    match reader.receive().await? {
        Some(FromSession::Hello(hello)) => Ok((reader, writer, hello)),
        _ => Err(StartError::NoHello),
    }
}

fn follow_output(child: &mut Child) -> SessionLog {
    let log = SessionLog::default();
    let process = child.id().unwrap_or_default();
    if let Some(pipe) = child.stdout.take() {
        log.follow(process, pipe);
    }
    if let Some(pipe) = child.stderr.take() {
        log.follow(process, pipe);
    }
    log
}

async fn ended(
    python: PathBuf,
    status: std::io::Result<ExitStatus>,
    log: &SessionLog,
) -> StartError {
    // The last lines may still be on their way through the pipe.
    tokio::time::sleep(Duration::from_millis(50)).await;
    match status {
        Ok(status) => StartError::Ended {
            python,
            status,
            last_lines: log.last_lines(LINES),
        },
        Err(source) => StartError::Spawn { python, source },
    }
}
