//! One zygote: `python -m baton_shim.session.zygote`, which forks sessions.
//!
//! In: a Python and libraries to load. Out: forks, which wait until they get an order, each its own. The zygote itself never
//! reads one.
//!
//! **Invariant:** the zygote has a session's environment and nothing of the worker but the connection on which it is
//! asked for forks.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_jupyter_wire::folder::PrivateFolder;
use baton_protocol::NotebookId;
use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::Pid;
use serde::Serialize;
use serde_bytes::ByteBuf;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::processes;
use crate::sandbox::{Bubblewrap, ReadOnly, Sandbox, SandboxError, inherit};
use crate::session::{LAST_BREATH, SessionLog, environment};

use super::{Ground, Spare};

/// How long one library may take to load, also from a slow network folder.
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
    /// The next session's.
    spare: Mutex<Option<Spare>>,
    process: Option<u32>,
    /// Killed when dropped. Its forks live on.
    _child: Child,
    /// Through its mounts the Python was started.
    _read_only: Option<ReadOnly>,
    _folder: PrivateFolder,
}

/// What a fork becomes. `baton_shim/session/zygote.py` reads it.
#[derive(Serialize)]
pub(crate) struct Order {
    /// Python's source to run instead of a session.
    pub(crate) program: Option<&'static str>,
    pub(crate) arguments: Vec<ByteBuf>,
    pub(crate) environment: Vec<(ByteBuf, ByteBuf)>,
    pub(crate) folder: ByteBuf,
    /// The numbers at which the fork has the first descriptors that come with the order. The way into a sandbox follows,
    /// then the place for the listener of watched system calls.
    pub(crate) descriptors: Vec<i32>,
    /// Zero: no sandbox.
    pub(crate) namespaces: libc::c_int,
    pub(crate) filter: ByteBuf,
    pub(crate) watched: ByteBuf,
}

pub(crate) fn bytes(text: impl AsRef<OsStr>) -> ByteBuf {
    ByteBuf::from(text.as_ref().as_bytes())
}

/// Those of a command, for the order.
pub(crate) fn variables(command: &Command) -> Vec<(ByteBuf, ByteBuf)> {
    let variables = command.as_std().get_envs();
    variables
        .filter_map(|(name, value)| Some((bytes(name), bytes(value?))))
        .collect()
}

impl Zygote {
    pub(super) async fn start(
        ground: &Ground,
        python: &Path,
        libraries: &[String],
    ) -> Result<Self, ZygoteError> {
        let folder = PrivateFolder::create_in(&ground.config.runtime_folder, "zygote")
            .map_err(io::Error::other)?;
        let sandbox = ground.sandbox.as_deref();
        let read_only = match sandbox {
            Some(Sandbox::Bubblewrap(bubblewrap)) => {
                Some(ReadOnly::open(bubblewrap, python).await?)
            }
            Some(Sandbox::Landlock(_)) | None => None,
        };
        let mut command = Command::new(program(python, read_only.as_ref())?);
        command
            .arg0(python)
            .env_clear()
            .envs(environment::inherited(
                std::env::vars_os(),
                &ground.config.session_environment,
            ))
            .env(processes::MARK, place_of_mark());
        if let Some(Sandbox::Bubblewrap(_)) = sandbox {
            Bubblewrap::settle(&mut command);
        }
        ground.sharing.prepare(&mut command, folder.path())?;
        let (own, its) = StdUnixStream::pair()?;
        own.set_nonblocking(true)?;
        let its = OwnedFd::from(its);
        command
            .args(["-m", "baton_shim.session.zygote"])
            .arg(its.as_raw_fd().to_string())
            .args(libraries);
        inherit(&mut command, vec![its]);
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
            // The last line may still be on its way through the pipe.
            let _ = tokio::time::timeout(LAST_BREATH, child.wait()).await;
            return Err(match error {
                ZygoteError::Silent(_) => ZygoteError::Silent(log.last_lines(1).concat()),
                error => error,
            });
        }
        Ok(Self {
            control,
            spare: Mutex::default(),
            process: child.id(),
            _child: child,
            _read_only: read_only,
            _folder: folder,
        })
    }

    /// A fork that waits in the control groups of these files, and knows nothing.
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
        let number = connection.read_i32_le().await?;
        // It says so when it has joined the groups.
        connection.read_u8().await?;
        Ok(Parked {
            connection,
            process: Pid::from_raw(number),
        })
    }

    /// For the next session: what was prepared, or else what is prepared now.
    pub(crate) async fn spare(&self, sandbox: Option<&Sandbox>) -> Result<Spare, ZygoteError> {
        let ready = self.take_spare().filter(Spare::is_ready);
        match ready {
            Some(spare) => Ok(spare),
            None => Spare::make(self, sandbox).await,
        }
    }

    /// Prepares what the next session needs, unless there is such.
    pub(super) async fn prepare_next(&self, sandbox: Option<&Sandbox>) -> Result<(), ZygoteError> {
        if self.lock_spare().is_none() {
            let spare = Spare::make(self, sandbox).await?;
            self.lock_spare().get_or_insert(spare);
        }
        Ok(())
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

/// A fork that waits for its order. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Parked {
    connection: UnixStream,
    process: Pid,
}

impl Parked {
    /// Of one that will enter a sandbox, the process that leads it there.
    pub(crate) fn process(&self) -> Pid {
        self.process
    }

    pub(super) fn is_alive(&self) -> bool {
        Path::new(&format!("/proc/{}/exe", self.process)).exists()
    }

    /// Makes it the process that the order describes. Returns its number.
    pub(crate) async fn become_session(
        mut self,
        order: &Order,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<Pid> {
        let connection = &self.connection;
        let text = baton_protocol::encode(order);
        let sent = connection
            .async_io(Interest::WRITABLE, || send(connection, &text, files))
            .await?;
        self.connection.write_all(&text[sent..]).await?;
        self.connection.shutdown().await?;
        Ok(self.process)
    }
}

fn program(python: &Path, read_only: Option<&ReadOnly>) -> io::Result<PathBuf> {
    Ok(match read_only {
        // A session could otherwise change the worker's Python through `/proc/self/exe`.
        Some(read_only) => read_only.path(&python.canonicalize()?),
        None => python.to_owned(),
    })
}

/// A fork writes its own mark there, where other programs find it, so the place must be as long.
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
            // It is left out, and a session that wants it is told so by Python.
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

fn send(socket: &UnixStream, text: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let files: Vec<_> = files.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&files)];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    Ok(sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(text)],
        &rights,
        flags,
        None,
    )?)
}
