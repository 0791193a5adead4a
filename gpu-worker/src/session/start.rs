//! Starts a session.
//!
//! In: its Python, its folder, and how it is isolated. Out: a session whose kernel has sent its hello, or an error.

use super::{
    Keepers, LAST_BREATH, Session, SessionLog, StartError, environment,
    launch::{self, Confinement, Launch, Launched},
    life::Life,
    starting::PATIENCE,
    watching,
    zygote::Zygote,
};
use crate::{
    Config,
    batch::LARGEST_OUTPUT_BYTES,
    calls::Works,
    disk::Disk,
    gpu::{ExclusiveGpu, Hardware, Sharing},
    mirror::{Opened, SessionMirror},
    packages::SessionPackages,
    processes,
    sandbox::{Needs, Sandbox, without_guard},
};
use baton_chunks::scanner::{self, SCANNER};
use baton_jupyter_wire::{
    folder::PrivateFolder,
    shim::{ShimError, ShimPair, ShimReader, ShimWriter},
};
use baton_mirror::Root;
use baton_protocol::{
    NotebookId,
    shim::{FromSession, Hello},
};
use nix::unistd::Pid;
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};
use tokio::{process::Command, sync::mpsc::UnboundedReceiver};

/// The variables with the notebook's folder and the folder of its mirror. The shim translates paths between them.
const NOTEBOOK_FOLDER: &str = "BATON_NOTEBOOK_FOLDER";
const MIRROR_FOLDER: &str = "BATON_MIRROR_FOLDER";

/// The variable with the name of the session's environment.
const ENVIRONMENT: &str = "BATON_OFFERED_ENVIRONMENT";

/// The variable that lets a session run a cell of its own, to try whether cells work.
const TRIAL: &str = "BATON_TRIAL";

/// How many lines of output the error of a failed start contains.
const LINES: usize = 12;

/// A session's message is in the worker's memory, which no control group of the session limits. The largest messages
/// are outputs, and lists of segments: large parts of a state are read from the session's memory.
const LARGEST_MESSAGE_BYTES: u64 = LARGEST_OUTPUT_BYTES + (64 << 20);
/// The most elements in all lists of a session's message: one for each 48 bytes of the largest. The description of a
/// segment takes more.
const MOST_ELEMENTS: usize = 2 << 20;

pub(crate) struct StartRequest<'a> {
    /// The worker's environment to which the Python belongs, if notebooks can install this environment, too.
    pub(crate) environment: Option<&'a str>,
    pub(crate) notebook: NotebookId,
    pub(crate) python: PathBuf,
    /// The notebook's working directory, which may not exist on this machine.
    pub(crate) folder: PathBuf,
    /// The notebook's folder, if it has been proved that the session may work in it. It stays open until the session has
    /// started, because its path may lead to another folder by then.
    pub(crate) notebook_folder: Option<Root>,
    /// `None`: the session can do everything that the worker's user can do.
    pub(crate) sandbox: Option<&'a Sandbox>,
    /// The mirror in which the session works instead of the notebook's folder.
    pub(crate) mirror: Option<SessionMirror>,
    /// How sessions of this worker share its GPUs.
    pub(crate) sharing: &'a Sharing,
    pub(crate) exclusive: Option<ExclusiveGpu>,
    pub(crate) account: u64,
    pub(crate) config: &'a Config,
    /// Forks the session; `None` starts a fresh Python.
    pub(crate) zygote: Option<Arc<Zygote>>,
    /// Whether the session runs a cell of its own before it sends its hello.
    pub(crate) is_trial: bool,
}

/// Starts a session and waits for its hello. If the future is dropped, the started processes end.
pub(crate) async fn start(mut request: StartRequest<'_>) -> Result<Session, StartError> {
    let folder = create_folder(&request.config.runtime_folder)?;
    let packages = SessionPackages::create(request.config)?;
    let (pair, kernel_peer) = ShimPair::create().map_err(StartError::Pair)?;
    let mut command = command(&request, &packages);
    let gpu = request
        .sharing
        .join(
            request.account,
            request.exclusive.take(),
            &mut command,
            folder.path(),
        )
        .map_err(StartError::Gpu)?;
    let needs = needs(&request, folder.path(), &packages, gpu.hardware());
    let (launch, observed) = prepare(&request, command, needs, kernel_peer).await?;
    let Launched {
        mut life,
        log,
        starting,
    } = match &request.zygote {
        Some(zygote) if launch.may_fork() => launch::fork(launch, zygote).await?,
        _ => launch::fresh(launch).await?,
    };
    let opened = observed.begun().await?;
    if let Some(mirror) = &mut request.mirror {
        mirror.started(opened);
    }
    let (kernel, shim_reader, shim, hello) =
        greeted(pair, &mut life, &request.python, &log).await?;
    let mark = starting.finish();
    life.has_kernel(kernel);
    let mirror_root = request.mirror.as_ref().map(SessionMirror::root);
    let written = [Some(packages.folder()), mirror_root].into_iter().flatten();
    let written = written.map(Path::to_owned).chain(life.scratch()).collect();
    let limit_bytes = request.config.session_disk_bytes;
    Ok(Session {
        disk: limit_bytes.map(|limit_bytes| Disk::watch(written, life.roots(kernel), limit_bytes)),
        shim,
        hello,
        held: None,
        sent: None,
        keeps: false,
        keepers: Keepers::default(),
        mirror: request.mirror,
        gpu,
        shim_reader,
        broken_at: None,
        refused_bytes: None,
        life,
        kernel,
        mapped_pages: None,
        python: request.python,
        mark,
        log,
        _folder: folder,
        _packages: packages,
    })
}

/// Isolates the session, and lets its system calls wait for the worker. `connection`: the session's end of the
/// connection to its worker.
async fn prepare<'a>(
    request: &'a StartRequest<'_>,
    mut command: Command,
    needs: Needs<'_>,
    connection: OwnedFd,
) -> Result<(Launch<'a>, Observed), StartError> {
    let scanner = scanner::install(needs.private_folder).map_err(StartError::Library)?;
    let mark = processes::new_mark(request.notebook);
    let mut place = Workplace::of(request, needs.private_folder)?;
    let confinement = match request.sandbox {
        Some(sandbox) => Some(isolate(sandbox, &mut command, needs, &mut place).await?),
        None => None,
    };
    if let (Some(mirror), Some(root)) = (&request.mirror, &place.mirror) {
        command
            .env(NOTEBOOK_FOLDER, mirror.notebook_folder())
            .env(MIRROR_FOLDER, root);
    }
    command
        .env(SCANNER, scanner)
        .env(processes::MARK, &mark)
        .env("JPY_PARENT_PID", std::process::id().to_string());
    let (imposed, guard) = match &confinement {
        Some(Confinement::Landlock(landlock, confined)) => {
            let imposed = landlock.impose(&mut command, confined, &place.folder)?;
            (Some(imposed.descriptors), Some(imposed.guard))
        }
        _ => (None, None),
    };
    let (observer, opened) = request.mirror.as_ref().map(SessionMirror::observe).unzip();
    let is_guarded = guard.is_some();
    let watch = watching::watch(observer, guard).map_err(StartError::Watch)?;
    let (works, watching) = watch.unzip();
    let launch = Launch {
        python: &request.python,
        command,
        sandbox: request.sandbox,
        confinement,
        imposed,
        folder: place.folder,
        connection,
        watching,
        mark,
    };
    let observed = Observed {
        works,
        is_guarded,
        opened,
    };
    Ok((launch, observed))
}

/// What the worker learns from the session's system calls.
struct Observed {
    works: Option<Works>,
    /// The session must not continue if its calls do not wait.
    is_guarded: bool,
    opened: Option<UnboundedReceiver<Opened>>,
}

impl Observed {
    /// The files that the session opens. `None` if they are not observed.
    async fn begun(self) -> Result<Option<UnboundedReceiver<Opened>>, StartError> {
        let calls_wait = match self.works {
            Some(works) => works.known().await,
            None => false,
        };
        if self.is_guarded && !calls_wait {
            return Err(without_guard().into());
        }
        Ok(self.opened.filter(|_| calls_wait))
    }
}

fn create_folder(runtime_folder: &Path) -> Result<PrivateFolder, StartError> {
    std::fs::create_dir_all(runtime_folder).map_err(|source| StartError::RuntimeFolder {
        path: runtime_folder.to_owned(),
        source,
    })?;
    Ok(PrivateFolder::create_in(runtime_folder, "session")?)
}

/// The command that starts the session's Python, with the environment of every session.
fn command(request: &StartRequest<'_>, packages: &SessionPackages) -> Command {
    let program = request
        .sandbox
        .map(|sandbox| sandbox.program(&request.python));
    let mut command = Command::new(program.unwrap_or(&request.python));
    command
        .env_clear()
        .envs(environment::inherited(
            std::env::vars_os(),
            &request.config.session_environment,
        ))
        .envs(packages.environment());
    if request.is_trial {
        command.env(TRIAL, "1");
    }
    if let Some(environment) = request.environment {
        command.env(ENVIRONMENT, environment);
    }
    command
}

/// Where the session works, by the paths that it uses itself.
struct Workplace {
    folder: PathBuf,
    /// The root of its mirror.
    mirror: Option<PathBuf>,
}

impl Workplace {
    /// Without a sandbox. `private`: the session's own folder, for a session that has no other.
    fn of(request: &StartRequest<'_>, private: &Path) -> Result<Self, StartError> {
        let folder = match &request.mirror {
            Some(mirror) => mirror
                .make_working_folder(&request.folder)
                .map_err(|source| StartError::RuntimeFolder {
                    path: mirror.root().to_owned(),
                    source,
                })?,
            None if is_visible(request) => request.folder.clone(),
            None => private.to_owned(),
        };
        let mirror = request
            .mirror
            .as_ref()
            .map(|mirror| mirror.root().to_owned());
        Ok(Self { folder, mirror })
    }

    /// The sandbox shows the mirror at another path.
    fn move_mirror(&mut self, to: PathBuf) {
        if let Some(from) = self.mirror.replace(to.clone())
            && let Ok(below) = self.folder.strip_prefix(from)
        {
            self.folder = to.join(below);
        }
    }
}

fn needs<'a>(
    request: &'a StartRequest<'_>,
    private_folder: &'a Path,
    packages: &'a SessionPackages,
    hardware: Option<&'a Hardware>,
) -> Needs<'a> {
    let config = request.config;
    Needs {
        python: &request.python,
        private_folder,
        notebook_folder: request.notebook_folder.as_ref(),
        hardware,
        packages: packages.folder(),
        mirror: request.mirror.as_ref().map(|mirror| {
            let (root, folder) = (mirror.root(), mirror.notebook_folder());
            (root.to_owned(), folder.to_owned())
        }),
        hidden: [&config.runtime_folder, &config.mirrors, &config.cache],
    }
}

async fn isolate<'a>(
    sandbox: &'a Sandbox,
    command: &mut Command,
    needs: Needs<'_>,
    place: &mut Workplace,
) -> Result<Confinement<'a>, StartError> {
    Ok(match sandbox {
        Sandbox::Bubblewrap(bubblewrap) => {
            let mut inside = bubblewrap.furnish(command, needs).await?;
            match inside.mirror.take() {
                Some(mirror) => place.move_mirror(mirror),
                None => place.mirror = None,
            }
            Confinement::Bubblewrap(bubblewrap, inside)
        }
        Sandbox::Landlock(landlock) => {
            let confined = landlock.furnish(command, &needs).await?;
            Confinement::Landlock(landlock, confined)
        }
    })
}

/// Waits for the hello of the session's kernel.
async fn greeted(
    pair: ShimPair,
    life: &mut Life,
    python: &Path,
    log: &SessionLog,
) -> Result<(Pid, ShimReader, ShimWriter, Hello), StartError> {
    let greeting = tokio::select! {
        said = accept_shim(pair) => match said {
            // The process has ended, or is about to end.
            Err(StartError::Shim(ShimError::Closed)) => {
                let status = tokio::time::timeout(LAST_BREATH, life.ended()).await;
                return Err(ended(python, status.ok().flatten(), log).await);
            }
            said => said?,
        },
        status = life.ended() => return Err(ended(python, status, log).await),
        () = tokio::time::sleep(PATIENCE) => {
            let last_lines = log.last_lines(LINES);
            return Err(StartError::Silent { python: python.to_owned(), last_lines });
        }
    };
    let found = &greeting.3.version;
    match found == env!("CARGO_PKG_VERSION") {
        true => Ok(greeting),
        false => Err(StartError::Version {
            python: python.to_owned(),
            found: found.clone(),
        }),
    }
}

/// Whether the session can work in the notebook's working directory itself. A sandboxed session may access this
/// directory only if it is in a notebook's folder that the notebook has proved to be its own.
fn is_visible(request: &StartRequest<'_>) -> bool {
    let is_allowed = match (request.sandbox, &request.notebook_folder) {
        (None, _) => true,
        (Some(_), Some(notebook_folder)) => request.folder.starts_with(notebook_folder.path()),
        (Some(_), None) => false,
    };
    is_allowed && request.folder.is_dir()
}

async fn accept_shim(pair: ShimPair) -> Result<(Pid, ShimReader, ShimWriter, Hello), StartError> {
    let (kernel, reader, writer) = pair.greeted().await?;
    let mut reader = reader
        .within(LARGEST_MESSAGE_BYTES)
        .with_at_most(MOST_ELEMENTS);
    match reader.receive().await? {
        Some(FromSession::Hello(hello)) => Ok((kernel, reader, writer, hello)),
        Some(_) => Err(StartError::NoHello),
        None => Err(ShimError::Closed.into()),
    }
}

async fn ended(python: &Path, status: Option<ExitStatus>, log: &SessionLog) -> StartError {
    // The last lines may not have been read from the pipe yet.
    tokio::time::sleep(Duration::from_millis(50)).await;
    StartError::Ended {
        python: python.to_owned(),
        status,
        last_lines: log.last_lines(LINES),
    }
}
