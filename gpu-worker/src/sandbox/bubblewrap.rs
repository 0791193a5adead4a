//! Runs a session in a sandbox of bubblewrap: namespaces of its own, in which it sees only what [`View`] shows.
//!
//! In: a command that starts a session, and the files that it needs. Out: the same command inside the sandbox.
//!
//! **Invariant:** a session sees a file of the machine only if [`View`] or the administrator names it.

use super::{
    Carrier, Gate, INSIDE, Image, Limits, Needs, NetworkChoice, SandboxError, Wrapped,
    devices::Devices, egress::Egress, filter, find, groups::Groups, inherit, python::Pythons,
    sys::join, view::View,
};
use crate::Config;
use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::PoisonError,
};
use tokio::process::Command;

const PROGRAM: &str = "bwrap";

/// The size of a session's private folder inside. A session without a folder of its notebook works there.
const PRIVATE_BYTES: u64 = 1 << 20;

/// Gives the session namespaces of its own and no way to gain rights, and ends it with the worker.
const ISOLATION: &[&str] = &[
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

/// What a session sees inside its sandbox.
pub(crate) struct Inside {
    pub(super) view: View,
    /// The path at which the session finds its mirror.
    pub(crate) mirror: Option<PathBuf>,
}

impl Inside {
    /// Whether a sandbox can be checked after it has shown the notebook's folder ([`View::check`]).
    pub(crate) fn can_be_checked(&self) -> bool {
        self.view.can_be_checked()
    }
}

#[derive(Debug)]
pub(crate) struct Bubblewrap {
    pub(super) program: PathBuf,
    pub(super) network: NetworkChoice,
    /// Only with [`NetworkChoice::Egress`].
    pub(super) egress: Option<Egress>,
    readable: Vec<PathBuf>,
    pub(super) limits: Limits,
    pub(super) groups: Groups,
    pub(super) devices: Devices,
    /// Images that the environments use.
    images: std::sync::Mutex<Vec<Image>>,
    pythons: Pythons,
}

impl Bubblewrap {
    /// # Errors
    /// If a program that the sandbox needs is missing.
    pub(super) fn open(config: &Config) -> Result<Self, SandboxError> {
        let limits = Limits::of(config);
        let egress = (config.network == NetworkChoice::Egress)
            .then(|| Egress::open(&config.dial.address, &config.runtime_folder))
            .transpose()?;
        Ok(Self {
            program: find(PROGRAM).ok_or(SandboxError::Missing)?,
            network: config.network,
            egress,
            readable: config.readable.clone(),
            limits,
            groups: Groups::open(limits),
            devices: Devices::of_this_machine(),
            images: std::sync::Mutex::default(),
            pythons: Pythons::default(),
        })
    }

    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Decides what the session that `command` starts will see, also from the variables that the command has so far.
    /// Changes those whose values are different inside.
    pub(crate) async fn furnish(
        &self,
        command: &mut Command,
        needs: Needs<'_>,
    ) -> Result<Inside, SandboxError> {
        let mut view = self.view(needs.python).await?;
        if self.is_of_image(needs.python) {
            Image::set_variables(command, &self.inside(needs.python));
        }
        if let Some(folder) = needs.notebook_folder {
            view.notebook_folder(folder);
        }
        let environment: Vec<_> = command.as_std().get_envs().collect();
        view.of_environment(&environment, self.limits.scratch_bytes);
        view.devices(self.devices.folder(), &self.devices.of(needs.hardware));
        view.private(needs.private_folder, PRIVATE_BYTES)?;
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
        Self::set_variables(command);
        command.env(INSIDE.0, INSIDE.1);
        self.limits.set_process_limit(command, &self.groups);
        Ok(Inside { view, mirror })
    }

    /// Adds bubblewrap's arguments to `command`. The caller adds the session's program and its arguments.
    pub(crate) fn wrap(
        &self,
        command: &mut Command,
        inside: &Inside,
    ) -> Result<Wrapped, SandboxError> {
        let wrapped = self.around(command)?;
        show(command, &inside.view);
        Ok(wrapped)
    }

    /// Like [`wrap`](Self::wrap), but without the arguments for the view.
    pub(super) fn around(&self, command: &mut Command) -> Result<Wrapped, SandboxError> {
        self.isolate(command)?;
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

    /// Changes the variables that name folders which do not exist in a sandbox.
    pub(crate) fn set_variables(command: &mut Command) {
        let mut variables = command.as_std().get_envs();
        let home = variables.find_map(|(name, value)| (name == "HOME").then_some(value?));
        if home.is_none_or(|home| Path::new(home).parent().is_none()) {
            // The home of a user without one is often the root, where nothing can be written.
            command.env("HOME", "/tmp");
        }
        command
            .env("TMPDIR", "/tmp")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("JUPYTER_RUNTIME_DIR");
    }

    /// Connects a sandbox that waits for its network, and lets it start. `None` if cells have no such network.
    pub(crate) async fn connect(&self, gate: Gate) -> Result<Option<Carrier>, SandboxError> {
        match &self.egress {
            Some(egress) => egress.connect(gate).await.map(Some),
            None => Ok(None),
        }
    }

    /// From now on, sessions whose Python is in this image see the image's system.
    pub(super) fn add_image(&self, image: Image) {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if !images.contains(&image) {
            images.push(image);
        }
    }

    fn image_of(&self, python: &Path) -> Option<(Image, PathBuf)> {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        let mut images = images.iter();
        images.find_map(|image| Some((image.clone(), image.inside(python)?)))
    }

    pub(crate) fn is_of_image(&self, python: &Path) -> bool {
        self.image_of(python).is_some()
    }

    /// The path of this Python inside a session.
    pub(crate) fn inside(&self, python: &Path) -> PathBuf {
        let image = self.image_of(python);
        image.map_or_else(|| python.to_owned(), |(_, inside)| inside)
    }

    /// What every session with this Python sees, apart from GPUs.
    pub(super) async fn view(&self, python: &Path) -> Result<View, SandboxError> {
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
        for path in self.pythons.paths(python).await? {
            view.read_only(&path);
        }
        if let Some(egress) = &self.egress {
            view.replaced("/etc/resolv.conf".as_ref(), &egress.resolver);
        }
        Ok(view)
    }

    pub(super) fn enter(&self, command: &mut Command, view: &View) -> io::Result<()> {
        self.isolate(command)?;
        show(command, view);
        Ok(())
    }

    fn isolate(&self, command: &mut Command) -> io::Result<()> {
        let filter: OwnedFd = filter::file(filter::Isolation::Namespaces)?;
        command.args(ISOLATION);
        if self.network != NetworkChoice::Host {
            command.arg("--unshare-net");
        }
        command.arg("--seccomp").arg(filter.as_raw_fd().to_string());
        inherit(command, vec![filter]);
        Ok(())
    }
}

/// Adds the arguments for a view. Bubblewrap inherits the notebook's folder, and mounts this folder or fails.
fn show(command: &mut Command, view: &View) {
    let mut folders = Vec::new();
    let arguments = view.arguments(|root| {
        let folder = root.folder().clone();
        let number = folder.as_fd().as_raw_fd().to_string();
        folders.push(folder);
        ["--bind-fd".into(), number.into()]
    });
    command.args(arguments);
    inherit(command, folders);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::gpu::Hardware;
    use crate::sandbox::{PreparedSandbox, devices};
    use baton_mirror::Root;

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
            pythons: Pythons::default(),
        }
    }

    /// The driver's device files in a sandbox. Checks that bubblewrap's own command and a fork find the same ones.
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

        let prepared = PreparedSandbox::start(bubblewrap).unwrap();
        let (entrance, _occupied) = prepared.occupy(bubblewrap, &inside).await.unwrap();
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
    async fn no_other_folder_takes_the_place_of_the_notebooks() {
        let devices = tempfile::tempdir().unwrap();
        let bubblewrap = bubblewrap(devices::tests::machine(devices.path()));
        let [above, private] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [course, moved, other] =
            ["course", "moved", "other"].map(|name| above.path().join(name));
        fs::create_dir(&course).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(course.join("own"), "").unwrap();
        fs::write(other.join("secret"), "").unwrap();
        let notebook = Root::open(&course).unwrap();
        let needs = || Needs {
            python: "/usr/bin/python3".as_ref(),
            private_folder: private.path(),
            notebook_folder: Some(&notebook),
            hardware: None,
            packages: private.path(),
            mirror: None,
            hidden: [private.path(); 3],
        };
        for is_replaced in [false, true] {
            if is_replaced {
                fs::rename(&course, &moved).unwrap();
                std::os::unix::fs::symlink(&other, &course).unwrap();
            }
            let mut command = Command::new(bubblewrap.program());
            let inside = bubblewrap.furnish(&mut command, needs()).await.unwrap();
            let _wrapped = bubblewrap.wrap(&mut command, &inside).unwrap();
            let look = "ls \"$1\"; ls -l /proc/self/fd";
            command.args(["--", "/bin/sh", "-c", look, "sh"]);
            let printed = command.arg(&course).output().await.unwrap();
            let printed = String::from_utf8(printed.stdout).unwrap();
            assert!(printed.starts_with("own\ntotal 0\n"), "{printed}");
            // It is mounted, but no descriptor leads to it.
            assert!(
                !printed.contains(above.path().to_str().unwrap()),
                "{printed}"
            );

            let prepared = PreparedSandbox::start(&bubblewrap).unwrap();
            let occupied = prepared.occupy(&bubblewrap, &inside).await;
            match is_replaced {
                false => drop(occupied.unwrap()),
                true => assert!(matches!(occupied, Err(SandboxError::Replaced { .. }))),
            }
        }
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
