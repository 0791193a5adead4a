//! Bubblewrap around each session: what a cell cannot see it cannot reach.
//!
//! In: a command that starts a session, and which files it needs. Out: the same command inside namespaces of its own,
//! without capabilities, with a read-only system and no network.
//!
//! **Invariant:** nothing of the machine is visible to a session unless [`view`] or the administrator names it.

mod filter;
mod python;
mod sys;
mod view;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::sync::Mutex;

pub(crate) use self::sys::inherit;
use self::view::View;

/// What stands between sessions and the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SandboxChoice {
    /// Each session has a sandbox of its own; without the program `bwrap` the worker does not start.
    Bubblewrap,
    /// Sessions can do what the worker's user can do.
    #[default]
    None,
}

/// Which network sessions have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkChoice {
    /// Only a loopback of their own.
    #[default]
    None,
    /// That of the machine.
    Host,
}

const PROGRAM: &str = "bwrap";

/// What a session's `/tmp` and home may hold together with its `/dev/shm`, each.
const SCRATCH_BYTES: u64 = 8 << 30;
/// What a session's private folder may hold: sockets.
const SOCKETS_BYTES: u64 = 1 << 20;

/// Namespaces of its own, no way to gain rights, and an end together with the worker.
const WALLS: &[&str] = &[
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup",
    "--disable-userns",
    "--cap-drop",
    "ALL",
    "--new-session",
    "--die-with-parent",
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error(
        "worker.sandbox is bubblewrap, and the program bwrap is missing\n\
         hint: install bubblewrap 0.8 or later (`apt-get install bubblewrap`); or set worker.sandbox = \"none\", if all \
         people who use this worker may read each other's data"
    )]
    Missing,
    #[error(
        "worker.sandbox is bubblewrap, and bwrap cannot start a sandbox here: {said}\n\
         hint: the system must allow user namespaces (see docs/guides/operators.md, \"Sandbox\"); or set worker.sandbox \
         = \"none\", if all people who use this worker may read each other's data"
    )]
    Fails { said: String },
    #[error(
        "worker.sandbox is bubblewrap, and no Python of the worker's own is set\nhint: set worker.python"
    )]
    NoPython,
    #[error("{python} does not say where its packages are: {said}")]
    Python { python: PathBuf, said: String },
    #[error("Failed to prepare the sandbox")]
    Io(#[from] io::Error),
}

/// What a session needs of the machine.
pub(crate) struct Needs<'a> {
    pub(crate) python: &'a Path,
    /// Where sockets and libraries of this session lie.
    pub(crate) private_folder: &'a Path,
    /// The notebook's folder, where this machine sees it.
    pub(crate) notebook_folder: Option<&'a Path>,
    /// Where packages go that its cells install.
    pub(crate) packages: &'a Path,
    /// A folder, and the path at which the session finds it, to write to.
    pub(crate) mirror: Option<(PathBuf, PathBuf)>,
    /// Paths of the worker's own that must stay hidden where they lie in a writable folder.
    pub(crate) hidden: [&'a Path; 3],
}

#[derive(Debug)]
pub(crate) struct Bubblewrap {
    program: PathBuf,
    network: NetworkChoice,
    readable: Vec<PathBuf>,
    /// What each Python needs.
    pythons: Mutex<HashMap<PathBuf, Vec<PathBuf>>>,
}

impl Bubblewrap {
    /// Fails where no sandbox can be started.
    pub(crate) async fn open(
        network: NetworkChoice,
        readable: Vec<PathBuf>,
    ) -> Result<Self, SandboxError> {
        let bubblewrap = Self {
            program: find(PROGRAM).ok_or(SandboxError::Missing)?,
            network,
            readable,
            pythons: Mutex::default(),
        };
        bubblewrap.probe().await?;
        Ok(bubblewrap)
    }

    async fn probe(&self) -> Result<(), SandboxError> {
        let mut command = Command::new(&self.program);
        self.enter(&mut command, &View::of_the_system())?;
        let output = command
            .args(["--", "true"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        match output.status.success() {
            true => Ok(()),
            false => Err(SandboxError::Fails {
                said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Puts what `command` starts into a sandbox, with `environment` and what the command has been told so far. The
    /// session's own program and arguments follow. Returns the path at which the session finds its mirror.
    pub(crate) async fn wrap(
        &self,
        command: &mut Command,
        needs: Needs<'_>,
    ) -> Result<Option<PathBuf>, SandboxError> {
        let mut view = View::of_the_system();
        for path in &self.readable {
            view.read_only(path);
        }
        for path in self.paths_of_python(needs.python).await? {
            view.read_only(&path);
        }
        if let Some(folder) = needs.notebook_folder {
            view.notebook_folder(folder);
        }
        let environment: Vec<_> = command.as_std().get_envs().collect();
        view.of_environment(&environment, SCRATCH_BYTES);
        view.private(needs.private_folder, SOCKETS_BYTES)?;
        view.writable(needs.packages, needs.packages);
        for path in needs.hidden {
            view.hide_inside_writable(path);
        }
        let mirror = needs.mirror.map(|(root, wanted)| {
            let place = if view.has_room_at(&wanted) {
                wanted
            } else {
                root.clone()
            };
            view.writable(&root, &place);
            place
        });
        command
            .env("TMPDIR", "/tmp")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("JUPYTER_RUNTIME_DIR");
        self.enter(command, &view)?;
        Ok(mirror)
    }

    fn enter(&self, command: &mut Command, view: &View) -> io::Result<()> {
        let filter: OwnedFd = filter::file()?;
        command.args(WALLS);
        if self.network == NetworkChoice::None {
            command.arg("--unshare-net");
        }
        command
            .arg("--seccomp")
            .arg(filter.as_raw_fd().to_string())
            .args(view.arguments());
        inherit(command, vec![filter]);
        Ok(())
    }

    async fn paths_of_python(&self, python: &Path) -> Result<Vec<PathBuf>, SandboxError> {
        let mut pythons = self.pythons.lock().await;
        if let Some(paths) = pythons.get(python) {
            return Ok(paths.clone());
        }
        let paths = python::paths(python).await?;
        pythons.insert(python.to_owned(), paths.clone());
        Ok(paths)
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join(program))
        .find(|file| fs::metadata(file).is_ok_and(|found| found.is_file()))
}

/// One variable of a command that is about to be started.
type Variable<'a> = (&'a OsStr, Option<&'a OsStr>);
