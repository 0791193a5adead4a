//! Bubblewrap around each session: what a cell cannot see it cannot reach.
//!
//! In: a command that starts a session, and which files it needs. Out: the same command inside namespaces and a control
//! group of its own, without capabilities, with a read-only system and no network.
//!
//! **Invariant:** nothing of the machine is visible to a session unless [`view`] or the administrator names it.

mod build;
mod devices;
mod egress;
mod filter;
mod groups;
mod holder;
mod image;
mod outermost;
mod probe;
mod python;
mod room;
mod sys;
mod view;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use tokio::process::Command;
use tokio::sync::Mutex;

pub(crate) use self::build::install_bare;
use self::devices::Devices;
use self::egress::Egress;
pub(crate) use self::egress::{Carrier, Gate};
pub(crate) use self::filter::bytes;
pub(crate) use self::groups::Group;
use self::groups::{Controller, Groups};
pub(crate) use self::holder::{Entrance, Holder, ReadOnly};
pub(crate) use self::image::Image;
pub(crate) use self::outermost::Outermost;
pub(crate) use self::probe::{PROGRAM as PROBE, Probe};
pub(crate) use self::room::{Occupied, Room};
pub(crate) use self::sys::inherit;
use self::sys::join;
use self::view::View;
use crate::Config;
use crate::gpu::Hardware;

/// What stands between sessions and the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxChoice {
    /// Each session has a sandbox of its own; without the program `bwrap` the worker does not start.
    Bubblewrap,
    /// Sessions can do what the worker's user can do.
    None,
}

/// Which network sessions have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkChoice {
    /// Only a loopback of their own.
    #[default]
    None,
    /// Connections to the internet, but not to private addresses, this machine or the broker.
    Egress,
    /// That of the machine.
    Host,
}

/// What one session may use of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: Option<u64>,
    /// Threads count, too.
    pub(crate) processes: u32,
    pub(crate) processors: Option<u32>,
    /// Of `/tmp`, `/var/tmp`, `/dev/shm` and the home, each.
    pub(crate) scratch_bytes: u64,
}

const PROGRAM: &str = "bwrap";

/// Tells the supervisor how many processes and threads there may be, where no control group limits them.
const PROCESS_LIMIT: &str = "BATON_PROCESS_LIMIT";

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
    #[error(
        "worker.sandbox is bubblewrap, and its walls have holes here. A probe inside reached: {reached}\n\
         hint: check worker.readable, worker.network and what the machine allows, or report it as a vulnerability"
    )]
    Leaks { reached: String },
    #[error(
        "worker.network is egress, and the program {name} is missing\n\
         hint: install slirp4netns and iproute2 (`apt-get install slirp4netns iproute2`), or set worker.network = \"none\""
    )]
    NoEgress { name: &'static str },
    #[error(
        "worker.network is egress, and slirp4netns does not work here: {said}\n\
         hint: it needs /dev/net/tun; or set worker.network = \"none\""
    )]
    Egress { said: String },
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
    /// `None`: all GPUs.
    pub(crate) hardware: Option<&'a Hardware>,
    /// Where packages go that its cells install.
    pub(crate) packages: &'a Path,
    /// A folder, and the path at which the session finds it, to write to.
    pub(crate) mirror: Option<(PathBuf, PathBuf)>,
    /// Paths of the worker's own that must stay hidden where they lie in a writable folder.
    pub(crate) hidden: [&'a Path; 3],
}

/// What a session will find inside, and where.
pub(crate) struct Inside {
    view: View,
    /// The path at which the session finds its mirror.
    pub(crate) mirror: Option<PathBuf>,
}

/// What the worker has of a session's sandbox.
#[derive(Debug)]
pub(crate) struct Wrapped {
    /// `None`: this worker may make no control groups.
    pub(crate) group: Option<Group>,
    /// What it waits at for its network.
    pub(crate) gate: Option<Gate>,
}

#[derive(Debug)]
pub(crate) struct Bubblewrap {
    program: PathBuf,
    network: NetworkChoice,
    /// With [`NetworkChoice::Egress`].
    egress: Option<Egress>,
    readable: Vec<PathBuf>,
    limits: Limits,
    groups: Groups,
    devices: Devices,
    /// Those in which sessions run.
    images: std::sync::Mutex<Vec<Image>>,
    /// What each Python needs.
    pythons: Mutex<HashMap<PathBuf, Vec<PathBuf>>>,
}

impl Bubblewrap {
    /// Fails where no sandbox can be started for this Python, or where a probe inside reaches what it must not.
    pub(crate) async fn open(config: &Config, python: &Path) -> Result<Self, SandboxError> {
        let limits = Limits {
            memory_bytes: config.session_memory_bytes,
            processes: config.session_processes,
            processors: config.session_cpus,
            scratch_bytes: config.session_scratch_bytes,
        };
        let egress = (config.network == NetworkChoice::Egress)
            .then(|| Egress::open(&config.dial.address, &config.runtime_folder))
            .transpose()?;
        let bubblewrap = Self {
            program: find(PROGRAM).ok_or(SandboxError::Missing)?,
            network: config.network,
            egress,
            readable: config.readable.clone(),
            limits,
            groups: Groups::open(limits),
            devices: Devices::of_this_machine(),
            images: std::sync::Mutex::default(),
            pythons: Mutex::default(),
        };
        probe::run(&bubblewrap, python, &config.runtime_folder).await?;
        Ok(bubblewrap)
    }

    /// What sessions can take without a limit, and what to do about it.
    pub(crate) fn unlimited(&self) -> Option<String> {
        let unlimited = self.groups.unlimited();
        let names: Vec<_> = unlimited.iter().map(ToString::to_string).collect();
        let mut said = format!(
            "No control group limits what sessions use here: {}.",
            names.join(", ")
        );
        if unlimited.contains(&Controller::Memory) {
            said +=
                " Baton stops a cell only some time after it has exceeded worker.session_memory.";
        }
        if unlimited.contains(&Controller::Processes) {
            said += " The user's own limit of processes (RLIMIT_NPROC) takes their place, which does not bind root.";
        }
        let hint = "let the worker make control groups: `Delegate=yes` in its systemd unit, as in deploy/systemd";
        let _ = write!(said, "\nhint: {hint}");
        (!unlimited.is_empty()).then_some(said)
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// What the session is to find that `command` starts, with the environment that the command has so far. It gets
    /// variables that are different inside.
    pub(crate) async fn furnish(
        &self,
        command: &mut Command,
        needs: Needs<'_>,
    ) -> Result<Inside, SandboxError> {
        let mut view = self.view(needs.python).await?;
        if self.is_of_image(needs.python) {
            Image::settle(command, &self.inside(needs.python));
        }
        if let Some(folder) = needs.notebook_folder {
            view.notebook_folder(folder);
        }
        let environment: Vec<_> = command.as_std().get_envs().collect();
        view.of_environment(&environment, self.limits.scratch_bytes);
        view.devices(self.devices.folder(), &self.devices.of(needs.hardware));
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
        Self::settle(command);
        if !self.groups.has(Controller::Processes) {
            command.env(PROCESS_LIMIT, self.limits.processes.to_string());
        }
        Ok(Inside { view, mirror })
    }

    /// Puts what `command` starts into a sandbox. The session's own program and arguments follow.
    pub(crate) fn wrap(
        &self,
        command: &mut Command,
        inside: &Inside,
    ) -> Result<Wrapped, SandboxError> {
        let wrapped = self.around(command)?;
        command.args(inside.view.arguments());
        Ok(wrapped)
    }

    /// The same without a view.
    fn around(&self, command: &mut Command) -> Result<Wrapped, SandboxError> {
        self.walls(command)?;
        let gate = match &self.egress {
            Some(egress) => Some(egress.hold(command)?),
            None => None,
        };
        let group = self.groups.create()?;
        if let Some(group) = &group {
            join(command, group.join_files()?);
        }
        Ok(Wrapped { group, gate })
    }

    /// Variables that name folders which no sandbox has.
    pub(crate) fn settle(command: &mut Command) {
        let mut variables = command.as_std().get_envs();
        let home = variables.find_map(|(name, value)| (name == "HOME").then_some(value?));
        if home.is_none_or(|home| Path::new(home).parent().is_none()) {
            // A user without a home has the root, where nothing can be written.
            command.env("HOME", "/tmp");
        }
        command
            .env("TMPDIR", "/tmp")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("JUPYTER_RUNTIME_DIR");
    }

    /// Gives a sandbox that waits at its gate a network, and lets it begin.
    pub(crate) async fn connect(&self, gate: Gate) -> Result<Option<Carrier>, SandboxError> {
        match &self.egress {
            Some(egress) => egress.connect(gate).await.map(Some),
            None => Ok(None),
        }
    }

    /// Sessions of Pythons in this folder find its system from now on.
    ///
    /// # Errors
    /// If no sandbox starts with it, or a probe inside reaches something outside.
    pub(crate) async fn add_image(
        &self,
        config: &Config,
        image: Image,
        python: &Path,
    ) -> Result<(), SandboxError> {
        {
            let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            if !images.contains(&image) {
                images.push(image);
            }
        }
        probe::run(self, python, &config.runtime_folder).await
    }

    fn image_of(&self, python: &Path) -> Option<(Image, PathBuf)> {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        let mut images = images.iter();
        images.find_map(|image| Some((image.clone(), image.inside(python)?)))
    }

    pub(crate) fn is_of_image(&self, python: &Path) -> bool {
        self.image_of(python).is_some()
    }

    /// As a session calls its Python.
    pub(crate) fn inside(&self, python: &Path) -> PathBuf {
        let image = self.image_of(python);
        image.map_or_else(|| python.to_owned(), |(_, inside)| inside)
    }

    /// What every session with this Python sees, apart from GPUs.
    async fn view(&self, python: &Path) -> Result<View, SandboxError> {
        if let Some((image, _)) = self.image_of(python) {
            let mut view = image.view();
            for path in &self.readable {
                view.read_only(path);
            }
            if let Some(egress) = &self.egress {
                image.replaced(&mut view, "resolv.conf", &egress.resolver);
            }
            return Ok(view);
        }
        let mut view = View::of_the_system();
        for path in &self.readable {
            view.read_only(path);
        }
        for path in self.paths_of_python(python).await? {
            view.read_only(&path);
        }
        if let Some(egress) = &self.egress {
            view.replaced("/etc/resolv.conf".as_ref(), &egress.resolver);
        }
        Ok(view)
    }

    fn enter(&self, command: &mut Command, view: &View) -> io::Result<()> {
        self.walls(command)?;
        command.args(view.arguments());
        Ok(())
    }

    fn walls(&self, command: &mut Command) -> io::Result<()> {
        let filter: OwnedFd = filter::file()?;
        command.args(WALLS);
        if self.network != NetworkChoice::Host {
            command.arg("--unshare-net");
        }
        command.arg("--seccomp").arg(filter.as_raw_fd().to_string());
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
    let usual = ["/usr/bin", "/usr/local/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join(program))
        .find(|file| fs::metadata(file).is_ok_and(|found| found.is_file()))
}

/// One variable of a command that is about to be started.
type Variable<'a> = (&'a OsStr, Option<&'a OsStr>);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn bubblewrap(devices: Devices) -> Bubblewrap {
        let limits = Limits {
            memory_bytes: None,
            processes: 4096,
            processors: None,
            scratch_bytes: 1 << 20,
        };
        Bubblewrap {
            program: find(PROGRAM).expect("run scripts/install-system-packages sandbox"),
            network: NetworkChoice::None,
            egress: None,
            readable: Vec::new(),
            limits,
            groups: Groups::open(limits),
            devices,
            images: std::sync::Mutex::default(),
            pythons: Mutex::default(),
        }
    }

    /// The driver's files that a session finds, whether it is bubblewrap's own command or a fork that enters.
    async fn found(bubblewrap: &Bubblewrap, hardware: Option<&Hardware>) -> BTreeSet<String> {
        let folder = tempfile::tempdir().unwrap();
        let packages = tempfile::tempdir().unwrap();
        let needs = || Needs {
            python: "/usr/bin/python3".as_ref(),
            private_folder: folder.path(),
            notebook_folder: None,
            hardware,
            packages: packages.path(),
            mirror: None,
            hidden: [folder.path(); 3],
        };
        let mut command = Command::new(bubblewrap.program());
        let inside = bubblewrap.furnish(&mut command, needs()).await.unwrap();
        let _wrapped = bubblewrap.wrap(&mut command, &inside).unwrap();
        let look = "find /dev -name '*nvidia*' ! -type d";
        let printed = command.args(["--", "/bin/sh", "-c", look]).output().await;
        let printed = String::from_utf8(printed.unwrap().stdout).unwrap();
        let of_fresh: BTreeSet<_> = printed.lines().map(str::to_owned).collect();

        let room = bubblewrap.room().unwrap();
        let (entrance, _occupied) = room.occupy(bubblewrap, &inside).await.unwrap();
        let root = PathBuf::from(format!("/proc/{}/root", entrance.holder));
        let mut of_fork = BTreeSet::new();
        for place in ["dev", "dev/nvidia-caps"] {
            for entry in fs::read_dir(root.join(place)).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_file() && path.display().to_string().contains("nvidia") {
                    let path = path.strip_prefix(&root).unwrap();
                    of_fork.insert(format!("/{}", path.display()));
                }
            }
        }
        assert_eq!(of_fresh, of_fork);
        of_fresh
    }

    #[tokio::test]
    async fn other_gpus_have_no_files_in_a_sandbox() {
        let folder = tempfile::tempdir().unwrap();
        let bubblewrap = bubblewrap(devices::tests::machine(folder.path()));
        let of_all = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"];
        let with = |own: &[&str]| -> BTreeSet<String> {
            let all = of_all.iter().chain(own);
            all.map(|path| (*path).to_owned()).collect()
        };
        let one = devices::tests::gpu(1);
        assert_eq!(
            found(&bubblewrap, Some(&one)).await,
            with(&["/dev/nvidia1"])
        );
        let caps = "/dev/nvidia-caps/nvidia-cap";
        let (first, second) = (format!("{caps}75"), format!("{caps}76"));
        let slice = devices::tests::slice(8);
        assert_eq!(
            found(&bubblewrap, Some(&slice)).await,
            with(&["/dev/nvidia0", &first, &second])
        );
        let all = found(&bubblewrap, None).await;
        assert!(all.is_superset(&with(&["/dev/nvidia0", "/dev/nvidia1", &first])));
    }
}
