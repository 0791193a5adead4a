//! Starts a session's first process, as a fresh Python or as a fork of a zygote.
//!
//! In: a command with the session's environment, and its sandbox. Out: the started process and its output. In both
//! cases the sandbox is built with the same arguments. A fresh Python is bubblewrap's command; a fork enters the
//! namespaces of bubblewrap's command, which only waits.
//!
//! **Invariant:** a fork runs no code and reads no file of its student before it is in its sandbox.

use super::{
    SessionLog, StartError,
    life::Life,
    starting::Starting,
    zygote::{ForkRequest, Parked, Spare, SpareEnclosure, Zygote, bytes, variables},
};
use crate::{
    calls::Watching,
    sandbox::{
        Bubblewrap, Confined, Group, Inside, Landlock, Occupied, Outermost, PreparedSandbox,
        Sandbox, Scratch, Wrapped, inherit, join,
    },
};
use baton_jupyter_wire::shim::SHIM_DESCRIPTOR;
use nix::{
    fcntl::OFlag,
    unistd::{Pid, pipe2},
};
use serde_bytes::ByteBuf;
use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::{
    net::{UnixStream, unix::pipe::Receiver},
    process::Command,
};

/// The variable with the descriptor of the connection on which a session's supervisor reports.
const SUPERVISOR: &str = "BATON_SUPERVISOR_DESCRIPTOR";

/// How the process is isolated, and what it can access.
pub(super) enum Confinement<'a> {
    Bubblewrap(&'a Bubblewrap, Inside),
    Landlock(&'a Landlock, Confined),
}

pub(super) struct Launch<'a> {
    pub(super) python: &'a Path,
    /// Bubblewrap with its arguments, or Python; it has the session's environment.
    pub(super) command: Command,
    pub(super) sandbox: Option<&'a Sandbox>,
    pub(super) confinement: Option<Confinement<'a>>,
    /// The Landlock rules and the filter that the process imposes on itself.
    pub(super) imposed: Option<[OwnedFd; 2]>,
    /// The working directory, as a path inside the session.
    pub(super) folder: PathBuf,
    /// The session's connection to its worker.
    pub(super) connection: OwnedFd,
    pub(super) watching: Option<Watching>,
    pub(super) mark: String,
}

impl Launch<'_> {
    /// Whether a fork may become this session. Its sandbox was started before the notebook's folder was known.
    pub(super) fn may_fork(&self) -> bool {
        match &self.confinement {
            Some(Confinement::Bubblewrap(_, inside)) => inside.can_be_checked(),
            Some(Confinement::Landlock(..)) | None => true,
        }
    }
}

pub(super) struct Launched {
    pub(super) life: Life,
    pub(super) log: SessionLog,
    pub(super) starting: Starting,
}

/// Starts a fresh Python.
pub(super) async fn fresh(launch: Launch<'_>) -> Result<Launched, StartError> {
    let Launch {
        python,
        mut command,
        watching,
        connection,
        ..
    } = launch;
    if let Some(watching) = watching {
        watching.before(&mut command);
    }
    let enclosure = enclose(&mut command, python, launch.folder, launch.confinement)?;
    inherit(&mut command, launch.imposed.into_iter().flatten().collect());
    command.env(SHIM_DESCRIPTOR, connection.as_raw_fd().to_string());
    inherit(&mut command, vec![connection]);
    command
        .args(["-m", "baton_shim.session.start"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut outermost = Outermost::spawn(&mut command).map_err(|source| StartError::Spawn {
        python: python.to_owned(),
        source,
    })?;
    drop(command);
    let child = outermost.child();
    // The id is known as long as nothing has waited for the child.
    let process = child.id().unwrap_or_default();
    let starting = Starting::new(Pid::from_raw(process.cast_signed()), launch.mark);
    let log = SessionLog::default();
    if let Some(pipe) = child.stdout.take() {
        log.follow(process, pipe);
    }
    if let Some(pipe) = child.stderr.take() {
        log.follow(process, pipe);
    }
    Ok(Launched {
        life: enclosure.hold(outermost).await?,
        log,
        starting,
    })
}

/// What is around a fresh Python, and the connection on which its supervisor reports.
enum Enclosure<'a> {
    Nothing,
    Bubblewrap(&'a Bubblewrap, Wrapped, UnixStream),
    Landlock(Option<Group>, Scratch, UnixStream),
}

/// Completes the command up to the arguments of the Python.
fn enclose<'a>(
    command: &mut Command,
    python: &Path,
    folder: PathBuf,
    confinement: Option<Confinement<'a>>,
) -> Result<Enclosure<'a>, StartError> {
    match confinement {
        Some(Confinement::Bubblewrap(sandbox, inside)) => {
            let wrapped = sandbox.wrap(command, &inside)?;
            command
                .arg("--chdir")
                .arg(folder)
                .arg("--")
                .arg(sandbox.inside(python));
            let report = supervised(command)?;
            Ok(Enclosure::Bubblewrap(sandbox, wrapped, report))
        }
        Some(Confinement::Landlock(landlock, confined)) => {
            // The process changes to its folder only after it has confined itself. Until then it must not find files of
            // a student, for example a module that it would import.
            command.current_dir("/");
            let report = supervised(command)?;
            let group = landlock.group().map_err(StartError::Group)?;
            if let Some(group) = &group {
                join(command, group.join_files().map_err(StartError::Group)?);
            }
            Ok(Enclosure::Landlock(group, confined.scratch, report))
        }
        None => {
            command.current_dir(folder);
            Ok(Enclosure::Nothing)
        }
    }
}

fn supervised(command: &mut Command) -> Result<UnixStream, StartError> {
    let (report, report_peer) = report().map_err(StartError::Pair)?;
    command.env(SUPERVISOR, report_peer.as_raw_fd().to_string());
    inherit(command, vec![report_peer]);
    Ok(report)
}

impl Enclosure<'_> {
    async fn hold(self, outermost: Outermost) -> Result<Life, StartError> {
        Ok(match self {
            Self::Nothing => Life::bare(outermost),
            Self::Landlock(group, scratch, report) => {
                Life::confined(Some(outermost), report, group, scratch)
            }
            Self::Bubblewrap(sandbox, wrapped, report) => {
                let mut life = Life::inside(outermost, report, wrapped.group);
                if let Some(gate) = wrapped.gate {
                    life.has_network(sandbox.connect(gate).await?);
                }
                life
            }
        })
    }
}

/// Starts the session's process as a fork of a zygote.
pub(super) async fn fork(launch: Launch<'_>, zygote: &Zygote) -> Result<Launched, StartError> {
    let (report, report_peer) = report().map_err(StartError::Pair)?;
    let (output, output_peer) = pipe().map_err(StartError::Fork)?;
    let (errors, errors_peer) = pipe().map_err(StartError::Fork)?;
    let (connection, supervisor) = (launch.connection.as_raw_fd(), report_peer.as_raw_fd());
    let mut command = launch.command;
    command
        .env(SUPERVISOR, supervisor.to_string())
        .env(SHIM_DESCRIPTOR, connection.to_string());
    let mut fork = Fork {
        request: ForkRequest {
            program: None,
            arguments: Vec::new(),
            environment: variables(&command),
            folder: bytes(launch.folder),
            descriptors: vec![1, 2, connection, supervisor],
            namespaces: 0,
            filter: ByteBuf::new(),
            watched: ByteBuf::new(),
        },
        files: vec![output_peer, errors_peer, launch.connection, report_peer],
    };
    let Spare { enclosure, parked } = zygote
        .spare(launch.sandbox)
        .await
        .map_err(StartError::Spare)?;
    // Bubblewrap lives as long as the session. The parked process ends when a child of it has entered the sandbox.
    let process = match &enclosure {
        SpareEnclosure::Bubblewrap(prepared) => prepared.process(),
        SpareEnclosure::Landlock(_) | SpareEnclosure::None => None,
    };
    let starting = Starting::new(process.unwrap_or(parked.process()), launch.mark);
    let life = match (launch.confinement, enclosure) {
        (Some(Confinement::Bubblewrap(sandbox, inside)), SpareEnclosure::Bubblewrap(prepared)) => {
            let (holder, occupied) = fork.enter(sandbox, &inside, *prepared).await?;
            Life::entered(occupied, holder, report)
        }
        (Some(Confinement::Landlock(_, confined)), SpareEnclosure::Landlock(group)) => {
            fork.impose(launch.imposed);
            Life::confined(None, report, group, confined.scratch)
        }
        (None, _) => Life::forked(report),
        (Some(_), _) => return Err(StartError::Unconfined),
    };
    if let Some(watching) = launch.watching {
        fork.watch(watching);
    }
    let process = fork.begin(parked).await.map_err(StartError::Fork)?;
    let log = SessionLog::default();
    let number = process.as_raw().cast_unsigned();
    log.follow(number, output);
    log.follow(number, errors);
    Ok(Launched {
        life,
        log,
        starting,
    })
}

/// What a fork is sent.
struct Fork {
    request: ForkRequest,
    files: Vec<OwnedFd>,
}

impl Fork {
    /// Lets the fork enter this sandbox. Returns the process that holds the sandbox open.
    async fn enter(
        &mut self,
        sandbox: &Bubblewrap,
        inside: &Inside,
        prepared: PreparedSandbox,
    ) -> Result<(Pid, Occupied), StartError> {
        // Bubblewrap sets this variable for its own command.
        let folder = self.request.folder.clone();
        self.request.environment.push((bytes("PWD"), folder));
        let (entrance, occupied) = prepared.occupy(sandbox, inside).await?;
        self.request.namespaces = entrance.namespaces;
        self.request.filter = ByteBuf::from(entrance.filter);
        self.files.push(entrance.process);
        Ok((entrance.holder, occupied))
    }

    fn impose(&mut self, imposed: Option<[OwnedFd; 2]>) {
        for file in imposed.into_iter().flatten() {
            self.request.descriptors.push(file.as_raw_fd());
            self.files.push(file);
        }
    }

    fn watch(&mut self, watching: Watching) {
        let (program, place) = watching.into_parts();
        self.request.watched = ByteBuf::from(program);
        self.files.push(place);
    }

    async fn begin(self, parked: Parked) -> io::Result<Pid> {
        let files: Vec<_> = self.files.iter().map(|file| file.as_fd()).collect();
        parked.become_session(&self.request, &files).await
    }
}

fn report() -> io::Result<(UnixStream, OwnedFd)> {
    let (own, supervisor) = std::os::unix::net::UnixStream::pair()?;
    own.set_nonblocking(true)?;
    Ok((UnixStream::from_std(own)?, supervisor.into()))
}

fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (own, its) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((Receiver::from_owned_fd(own)?, its))
}
