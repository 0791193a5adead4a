//! One zygote: a process `python -m baton_shim.session.zygote` that forks sessions.
//!
//! In: a Python and libraries to load. Out: forks. Each fork waits for a request that says what it becomes. The zygote
//! itself reads no request.
//!
//! **Invariant:** the zygote has the environment of a session. Of the worker it has only the connection on which the
//! worker asks for forks.

use super::{Ground, Parked, Spare, parked::send, spare::SpareEnclosure};
use crate::{
    processes,
    sandbox::{Bubblewrap, ReadOnly, Sandbox, SandboxError, ignore_sigterm, inherit},
    session::{LAST_BREATH, SessionLog, environment},
};
use baton_jupyter_wire::folder::PrivateFolder;
use baton_protocol::NotebookId;
use nix::unistd::Pid;
use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Interest},
    net::UnixStream,
    process::{Child, Command},
    time::Instant,
};

/// How long one library may take to load, possibly from a slow network folder.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ZygoteError {
    #[error("{library} {why}")]
    Library { library: String, why: String },
    #[error("it said: {0}")]
    Unfit(String),
    #[error("it ended or took too long before it was ready: {0}")]
    Silent(String),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug)]
pub(crate) struct Zygote {
    control: UnixStream,
    /// Prepared for the next session.
    spare: Mutex<Option<Spare>>,
    /// When a session was last forked, or when this was made.
    used_at: Mutex<Instant>,
    process: Option<u32>,
    /// The zygote is killed when this is dropped. Its forks continue.
    _child: Child,
    /// The mounts through which its Python was started.
    _read_only: Option<ReadOnly>,
    _folder: PrivateFolder,
}

impl Zygote {
    pub(super) async fn start(
        ground: &Ground,
        python: &Path,
        libraries: &[String],
    ) -> Result<Self, ZygoteError> {
        let folder = PrivateFolder::create_in(&ground.config.runtime_folder, "zygote")
            .map_err(io::Error::other)?;
        let read_only = match ground.sandbox.as_deref() {
            Some(Sandbox::Bubblewrap(bubblewrap)) => {
                Some(ReadOnly::open(bubblewrap, python).await?)
            }
            Some(Sandbox::Landlock(_)) | None => None,
        };
        let mut command = command(ground, python, read_only.as_ref())?;
        ground.sharing.prepare(&mut command, folder.path())?;
        let (own, its) = StdUnixStream::pair()?;
        own.set_nonblocking(true)?;
        let its = OwnedFd::from(its);
        command
            .args(["-m", "baton_shim.session.zygote"])
            .arg(its.as_raw_fd().to_string())
            .args(libraries);
        inherit(&mut command, vec![its]);
        ignore_sigterm(&mut command);
        let mut child = command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        drop(command);
        let mut control = UnixStream::from_std(own)?;
        let log = SessionLog::default();
        if let Some(pipe) = child.stderr.take() {
            log.follow(child.id().unwrap_or_default(), pipe);
        }
        if let Err(error) = until_ready(&mut control).await {
            return Err(explained(error, &mut child, &log).await);
        }
        Ok(Self {
            control,
            spare: Mutex::default(),
            used_at: Mutex::new(Instant::now()),
            process: child.id(),
            _child: child,
            _read_only: read_only,
            _folder: folder,
        })
    }

    /// Makes a fork, which joins the control groups of these files and then waits for its request.
    pub(super) async fn park(&self, join_files: &[BorrowedFd<'_>]) -> io::Result<Parked> {
        let (own, its) = StdUnixStream::pair()?;
        own.set_nonblocking(true)?;
        let control = &self.control;
        control
            .async_io(Interest::WRITABLE, || send(control, b"!", &[its.as_fd()]))
            .await?;
        drop(its);
        let mut connection = UnixStream::from_std(own)?;
        connection
            .async_io(Interest::WRITABLE, || send(&connection, b"!", join_files))
            .await?;
        // The fork sends its process id when it has joined the groups.
        let number = connection.read_i32_le().await?;
        Ok(Parked::new(connection, Pid::from_raw(number)))
    }

    /// What the next session needs: prepared before, or else now.
    pub(crate) async fn spare(&self, sandbox: Option<&Sandbox>) -> Result<Spare, ZygoteError> {
        *self.lock_used_at() = Instant::now();
        let ready = self.take_spare().filter(Spare::is_ready);
        match ready {
            Some(spare) => Ok(spare),
            None => self.make_spare(sandbox).await,
        }
    }

    /// Prepares what the next session needs, unless that has been done.
    pub(super) async fn prepare_next(&self, sandbox: Option<&Sandbox>) -> Result<(), ZygoteError> {
        if self.lock_spare().is_none() {
            let spare = self.make_spare(sandbox).await?;
            self.lock_spare().get_or_insert(spare);
        }
        Ok(())
    }

    async fn make_spare(&self, sandbox: Option<&Sandbox>) -> Result<Spare, ZygoteError> {
        let enclosure = SpareEnclosure::make(sandbox)?;
        let join_files = enclosure.join_files()?;
        let borrowed: Vec<_> = join_files.iter().map(OwnedFd::as_fd).collect();
        let parked = self.park(&borrowed).await?;
        Ok(Spare { enclosure, parked })
    }

    /// How long no session has been forked.
    pub(super) fn idle(&self) -> Duration {
        self.lock_used_at().elapsed()
    }

    fn lock_used_at(&self) -> MutexGuard<'_, Instant> {
        self.used_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_spare(&self) -> Option<Spare> {
        self.lock_spare().take()
    }

    fn lock_spare(&self) -> MutexGuard<'_, Option<Spare>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.process
            .is_some_and(|process| Path::new(&format!("/proc/{process}/exe")).exists())
    }
}

/// The command that starts the zygote's Python, with the environment of a session.
fn command(
    ground: &Ground,
    python: &Path,
    read_only: Option<&ReadOnly>,
) -> Result<Command, ZygoteError> {
    let mut command = Command::new(program(python, read_only)?);
    command
        .arg0(python)
        .env_clear()
        .envs(environment::inherited(
            std::env::vars_os(),
            &ground.config.session_environment,
        ))
        .env(processes::MARK, place_of_mark());
    if let Some(Sandbox::Bubblewrap(_)) = ground.sandbox.as_deref() {
        Bubblewrap::set_variables(&mut command);
    }
    Ok(command)
}

/// The error, with the last line of a zygote that did not say what is wrong.
async fn explained(error: ZygoteError, child: &mut Child, log: &SessionLog) -> ZygoteError {
    // The last line may not have been read from the pipe yet.
    let _ = tokio::time::timeout(LAST_BREATH, child.wait()).await;
    match error {
        ZygoteError::Silent(_) => ZygoteError::Silent(log.last_lines(1).concat()),
        error => error,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
impl Zygote {
    /// A process that forks nothing.
    pub(super) fn idle_process(folder: &Path) -> Self {
        let mut command = Command::new("sleep");
        let child = command.arg("600").kill_on_drop(true).spawn().unwrap();
        Self {
            control: UnixStream::pair().unwrap().0,
            spare: Mutex::default(),
            used_at: Mutex::new(Instant::now()),
            process: child.id(),
            _child: child,
            _read_only: None,
            _folder: PrivateFolder::create_in(folder, "zygote").unwrap(),
        }
    }
}

fn program(python: &Path, read_only: Option<&ReadOnly>) -> io::Result<PathBuf> {
    Ok(match read_only {
        // A session could otherwise change the worker's Python through `/proc/self/exe`.
        Some(read_only) => read_only.path(&python.canonicalize()?),
        None => python.to_owned(),
    })
}

/// A placeholder for the session's mark in the zygote's environment. A fork overwrites it with its own mark, which has
/// the same length, so that other processes find that mark in `/proc`.
fn place_of_mark() -> OsString {
    let mark = processes::new_mark(NotebookId::random());
    "0".repeat(mark.len()).into()
}

async fn until_ready(control: &mut UnixStream) -> Result<(), ZygoteError> {
    let mut lines = BufReader::new(control).lines();
    let mut loading: Option<String> = None;
    loop {
        let line = match tokio::time::timeout(PATIENCE, lines.next_line()).await {
            Ok(Ok(Some(line))) => line,
            silent => {
                let why = match silent {
                    Err(_elapsed) => "took too long to load",
                    Ok(_) => "ended the process that loaded it",
                };
                return Err(match loading {
                    Some(library) => ZygoteError::Library {
                        library,
                        why: why.to_owned(),
                    },
                    None => ZygoteError::Silent(String::new()),
                });
            }
        };
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let of_library = || rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "ready" => return Ok(()),
            "loading" => loading = Some(rest.to_owned()),
            // The zygote continues without it. In a session that imports it, Python will report the error.
            "failed" => {
                let (library, why) = of_library();
                tracing::warn!("Sessions cannot be prepared with {library}: {why}");
            }
            "unfit" if loading.is_some() => {
                let (library, why) = of_library();
                return Err(ZygoteError::Library {
                    library: library.to_owned(),
                    why: why.to_owned(),
                });
            }
            _ => return Err(ZygoteError::Unfit(rest.to_owned())),
        }
    }
}
