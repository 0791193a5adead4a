//! The part of the machine's file system that a session sees.
//!
//! In: the system, the session's folders and its variables. Out: arguments for bubblewrap, or rules for Landlock.
//!
//! **Invariant:** with bubblewrap, the root contains only mount points, and a folder is mounted before the mounts
//! inside it. A session can write only to mounts made for that purpose; each of them has a size limit or is on a disk.

use super::{SandboxError, Variable};
use baton_mirror::{Handle, Root};
use nix::unistd::Pid;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

/// Programs and libraries.
const SYSTEM: &[&str] = &[
    "/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];

/// Settings in `/etc` that programs need, and that contain no secret. The rest of `/etc` is hidden.
const SETTINGS: &[&str] = &[
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "machine-id",
    "magic",
    "matplotlibrc",
    "mime.types",
    "nsswitch.conf",
    "nvidia",
    "OpenCL",
    "os-release",
    "passwd",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "redhat-release",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vulkan",
];

/// What libraries read about processors, devices and fonts. The interfaces for debugging and control groups are left
/// out.
const HARDWARE: &[&str] = &[
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/kernel/mm",
    "/sys/module",
    "/var/cache/fontconfig",
];

/// Variables that name sockets of the GPU's services, or folders of such sockets.
const SOCKETS: &[&str] = &[baton_interposer::wire::SOCKET, "CUDA_MPS_PIPE_DIRECTORY"];
/// Variables that name folders in which libraries keep caches and settings. With bubblewrap, each session has its own
/// empty folder in memory there.
pub(super) const CACHES: &[&str] = &[
    "CUDA_CACHE_PATH",
    "HF_HOME",
    "HF_HUB_CACHE",
    "IPYTHONDIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "KERAS_HOME",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];
/// File systems that bubblewrap creates in memory without a size. They are made read-only in the end.
const WITHOUT_SIZE: &[&str] = &["/dev", "/"];
/// Variables that name libraries or folders of libraries.
const LIBRARIES: &[&str] = &["LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "LD_PRELOAD"];

/// What a session under Landlock may do with a file, or with everything in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    Read,
    Write,
    /// Connect to the socket, or to the sockets in the folder. It is a service, so the session may not change it.
    Connect,
    UseDevice,
}

/// The devices that cells need of those in bubblewrap's `/dev`.
const BASIC_DEVICES: &[&str] = &["full", "null", "random", "urandom", "zero"];

#[derive(Debug)]
enum Mount {
    ReadOnly(PathBuf),
    Writable(PathBuf),
    /// The notebook's own folder. Other people can put another folder at its path at any time.
    Notebook(Root),
    /// Sockets of the GPU's services, which other sessions use too.
    Sockets(PathBuf),
    Devices(PathBuf),
    /// In memory. It ends with the session.
    Empty {
        bytes: u64,
    },
    Link(PathBuf),
    Processes,
    BasicDevices,
}

pub(super) struct View {
    mounts: BTreeMap<PathBuf, Mount>,
}

impl View {
    pub(super) fn of_the_system() -> Self {
        let mut view = Self::of_hardware();
        for path in SYSTEM.iter().map(Path::new) {
            // If `/bin` is a link, programs may rely on that.
            match fs::read_link(path) {
                Ok(target) => drop(view.mounts.insert(path.to_owned(), Mount::Link(target))),
                Err(_) => view.read_only(path),
            }
        }
        for name in SETTINGS {
            let path = Path::new("/etc").join(name);
            // Programs read the link itself, for example to learn the name of the time zone.
            match fs::read_link(&path) {
                Ok(target)
                    if path
                        .canonicalize()
                        .is_ok_and(|file| file.starts_with("/usr")) =>
                {
                    view.mounts.insert(path, Mount::Link(target));
                }
                _ => view.read_only(&path),
            }
        }
        view
    }

    /// What every session sees, with the machine's system or with that of an image. GPUs are not included.
    pub(super) fn of_hardware() -> Self {
        let mut view = Self {
            mounts: BTreeMap::from([
                ("/proc".into(), Mount::Processes),
                ("/dev".into(), Mount::BasicDevices),
            ]),
        };
        // Bubblewrap leaves it writable for a worker that runs as root.
        view.read_only(Path::new("/proc/sys"));
        for path in HARDWARE {
            view.read_only(Path::new(path));
        }
        view
    }

    /// Shows the device files in `folder` with these names.
    pub(super) fn devices(&mut self, folder: &Path, names: &[OsString]) {
        for name in names {
            let mount = Mount::Devices(folder.join(name));
            self.mounts.insert(Path::new("/dev").join(name), mount);
        }
    }

    /// Shows a file or folder for reading, if it exists.
    pub(super) fn read_only(&mut self, path: &Path) {
        if path.exists() {
            let mount = Mount::ReadOnly(path.to_owned());
            self.mounts.insert(path.to_owned(), mount);
        }
    }

    /// Shows a file, folder or link of an image at the place that it has inside.
    pub(super) fn moved(&mut self, place: &Path, path: &Path) {
        let mount = match fs::read_link(path) {
            Ok(target) => Mount::Link(target),
            Err(_) => Mount::ReadOnly(path.to_owned()),
        };
        self.mounts.insert(place.to_owned(), mount);
    }

    /// Shows `file` at the path `place`.
    pub(super) fn replaced(&mut self, place: &Path, file: &Path) {
        let mount = Mount::ReadOnly(file.to_owned());
        self.mounts.insert(place.to_owned(), mount);
    }

    /// Lets the session write to the notebook's folder, unless the path is the root or is already used.
    pub(super) fn notebook_folder(&mut self, folder: &Root) {
        let place = folder.path();
        if place.parent().is_some() && !self.mounts.contains_key(place) {
            let mount = Mount::Notebook(folder.clone());
            self.mounts.insert(place.to_owned(), mount);
        }
    }

    pub(super) fn writable(&mut self, folder: &Path, place: &Path) {
        let mount = Mount::Writable(folder.to_owned());
        self.mounts.insert(place.to_owned(), mount);
    }

    /// Gives the session temporary folders, a home and cache folders of its own, and shows the sockets and libraries
    /// that its variables name. `scratch_bytes`: the size of each of these folders.
    pub(super) fn of_environment(&mut self, variables: &[Variable<'_>], scratch_bytes: u64) {
        let scratch = || Mount::Empty {
            bytes: scratch_bytes,
        };
        for folder in ["/tmp", "/var/tmp", "/dev/shm"] {
            self.mounts.insert(folder.into(), scratch());
        }
        for (name, value) in variables {
            let Some(value) = value else { continue };
            let is = |names: &[&str]| names.iter().any(|known| OsStr::new(known) == *name);
            if *name == "HOME" {
                let home = PathBuf::from(value);
                if home.is_absolute() && home.parent().is_some() && !self.is_inside_read_only(&home)
                {
                    // The notebook's folder may be the home.
                    self.mounts.entry(home).or_insert_with(scratch);
                }
            } else if is(SOCKETS) {
                let mount = Mount::Sockets(value.into());
                self.mounts.insert(value.into(), mount);
            } else if is(LIBRARIES) {
                for path in std::env::split_paths(value).filter(|path| path.parent().is_some()) {
                    self.read_only(&path);
                }
            }
        }
        // Most caches are in the home, whose mount is known only now.
        for (name, value) in variables {
            let is_cache = CACHES.iter().any(|known| OsStr::new(known) == *name);
            if let (true, Some(value)) = (is_cache, value) {
                let folder = Path::new(value);
                if self.mount_around(folder).is_none() && self.has_room_at(folder) {
                    self.mounts.entry(folder.to_owned()).or_insert_with(scratch);
                }
            }
        }
    }

    /// Shows `folder` as a folder in memory, with the files that it contains now.
    pub(super) fn private(&mut self, folder: &Path, bytes: u64) -> io::Result<()> {
        self.mounts
            .insert(folder.to_owned(), Mount::Empty { bytes });
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            self.mounts.insert(path.clone(), Mount::ReadOnly(path));
        }
        Ok(())
    }

    /// Covers a folder of the worker that would be visible because it is inside a writable folder.
    pub(super) fn hide_inside_writable(&mut self, path: &Path) {
        let around = self.mount_around(path);
        let is_writable = matches!(around, Some((_, Mount::Writable(_) | Mount::Notebook(_))));
        if path.is_dir() && is_writable {
            let mount = Mount::Empty { bytes: 0 };
            self.mounts.entry(path.to_owned()).or_insert(mount);
        }
    }

    /// Whether a folder can be mounted at `place`: there are no mounts inside it, and the mount point can be created.
    pub(super) fn has_room_at(&self, place: &Path) -> bool {
        let has_mounts_inside = self
            .mounts
            .keys()
            .any(|mounted| mounted.starts_with(place) && mounted != place);
        let can_be_made = match (self.mounts.get(place), self.mount_around(place)) {
            (Some(mount), _) => matches!(mount, Mount::Empty { .. }),
            (None, around) => matches!(around, None | Some((_, Mount::Empty { .. }))),
        };
        place.is_absolute() && place.parent().is_some() && !has_mounts_inside && can_be_made
    }

    fn is_inside_read_only(&self, path: &Path) -> bool {
        matches!(self.mount_around(path), Some((_, Mount::ReadOnly(_))))
    }

    /// The innermost mount that contains a path. A mount at the path itself does not count.
    fn mount_around(&self, path: &Path) -> Option<(&PathBuf, &Mount)> {
        let mut above = path.ancestors().skip(1);
        above.find_map(|above| self.mounts.get_key_value(above))
    }

    /// For Landlock: the files and folders that the session may open, at the paths that they have on the machine.
    /// Landlock cannot show a file at another path.
    pub(super) fn rules(&self) -> Vec<(PathBuf, May)> {
        let mut rules = Vec::new();
        for (place, mount) in &self.mounts {
            match mount {
                Mount::ReadOnly(path) => rules.push((path.clone(), May::Read)),
                Mount::Writable(path) => rules.push((path.clone(), May::Write)),
                Mount::Notebook(root) => rules.push((root.path_of_descriptor(), May::Write)),
                Mount::Sockets(path) => rules.push((path.clone(), May::Connect)),
                Mount::Devices(path) => rules.push((path.clone(), May::UseDevice)),
                Mount::Processes => rules.push((place.clone(), May::Read)),
                Mount::BasicDevices => {
                    let names = BASIC_DEVICES.iter();
                    rules.extend(names.map(|name| (place.join(name), May::UseDevice)));
                }
                Mount::Empty { .. } | Mount::Link(_) => {}
            }
        }
        rules
    }

    /// Whether only bubblewrap decides where the notebook's folder is in the sandbox. Otherwise its mount point is in a
    /// folder of the machine, in which a student may be able to rename folders.
    pub(super) fn can_be_checked(&self) -> bool {
        let mut places = self.notebook_folders().map(|(place, _)| place);
        places.all(|place| {
            matches!(
                self.mount_around(place),
                None | Some((_, Mount::Empty { .. }))
            )
        })
    }

    /// Checks that the sandbox in which this process runs shows the notebook's own folder. Nothing of the session may
    /// run before.
    pub(super) fn check(&self, holder: Pid) -> Result<(), SandboxError> {
        let machine = PathBuf::from(format!("/proc/{holder}/root"));
        for (place, root) in self.notebook_folders() {
            let found = Handle::find_in(&machine, place).and_then(|found| found.status());
            if !found.is_ok_and(|found| root.is(&found)) {
                return Err(SandboxError::Replaced {
                    folder: place.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn notebook_folders(&self) -> impl Iterator<Item = (&Path, &Root)> {
        let mounts = self.mounts.iter();
        mounts.filter_map(|(place, mount)| match mount {
            Mount::Notebook(root) => Some((place.as_path(), root)),
            _ => None,
        })
    }

    /// The arguments for bubblewrap, in the order of the paths, so that a folder comes before its contents.
    ///
    /// `bound`: bubblewrap's option for the notebook's folder, and its source.
    pub(super) fn arguments(&self, mut bound: impl FnMut(&Root) -> [OsString; 2]) -> Vec<OsString> {
        let mut arguments = Vec::new();
        for (place, mount) in &self.mounts {
            let is_there_already = matches!(mount, Mount::ReadOnly(path) if path == place);
            if is_there_already && self.is_inside_read_only(place) {
                continue;
            }
            let mut add = |words: &[&OsStr]| arguments.extend(words.iter().map(OsString::from));
            let place = place.as_os_str();
            match mount {
                // A read-only mount allows connections to sockets and opening pipes for writing.
                Mount::ReadOnly(path) | Mount::Sockets(path) => {
                    add(&["--ro-bind".as_ref(), path.as_ref(), place]);
                }
                Mount::Writable(path) => add(&["--bind".as_ref(), path.as_ref(), place]),
                Mount::Notebook(root) => {
                    let [option, source] = bound(root);
                    add(&[&option, &source, place]);
                }
                Mount::Devices(path) => add(&["--dev-bind".as_ref(), path.as_ref(), place]),
                Mount::Link(target) => add(&["--symlink".as_ref(), target.as_ref(), place]),
                Mount::Processes => add(&["--proc".as_ref(), place]),
                Mount::BasicDevices => add(&["--dev".as_ref(), place]),
                Mount::Empty { bytes } => {
                    // For tmpfs, zero means no limit.
                    let bytes = (*bytes).max(4096).to_string();
                    add(&["--size".as_ref(), bytes.as_ref(), "--tmpfs".as_ref(), place]);
                }
            }
        }
        for place in WITHOUT_SIZE {
            arguments.extend(["--remount-ro", place].map(OsString::from));
        }
        arguments
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn view() -> View {
        let mut view = View::of_the_system();
        view.read_only(Path::new("/usr/bin"));
        let home = OsStr::new("/home/worker");
        view.of_environment(&[(OsStr::new("HOME"), Some(home))], 1 << 20);
        view
    }

    fn places(view: &View) -> Vec<String> {
        let words = view.arguments(|root| ["--bind".into(), root.path().into()]);
        words
            .iter()
            .map(|word| word.display().to_string())
            .collect()
    }

    #[test]
    fn a_folder_is_mounted_before_what_lies_in_it() {
        let mut view = view();
        view.writable(Path::new("/var/mirror"), Path::new("/home/worker/course"));
        let words = places(&view);
        let place = |path: &str| words.iter().position(|word| word == path).unwrap();
        assert!(place("/home/worker") < place("/home/worker/course"));
        assert!(place("/dev") < place("/dev/shm"));
        assert!(!words.contains(&"/usr/bin".to_owned()), "it is in /usr");
        assert!(!words.contains(&"/etc/shadow".to_owned()));
    }

    #[test]
    fn a_mirror_lies_only_where_nothing_else_is_touched() {
        let view = view();
        let check = |place: &str, expected: bool| {
            assert_eq!(view.has_room_at(Path::new(place)), expected, "{place}");
        };
        check("/home/ada/course", true);
        check("/home/worker", true);
        check("/home/worker/course", true);
        check("/home", false);
        check("/usr/share/course", false);
        check("/proc/course", false);
        check("/", false);
    }

    #[test]
    fn a_session_can_write_only_where_there_is_a_size() {
        let mut view = view();
        let variables = [
            ("HF_HOME", "/home/worker/hf"),
            ("IPYTHONDIR", "/srv/ipython"),
            ("MPLCONFIGDIR", "/usr/share/matplotlib"),
            ("XDG_CACHE_HOME", "relative"),
            ("XDG_DATA_HOME", "/"),
        ];
        let variables = variables.map(|(name, value)| (OsStr::new(name), Some(OsStr::new(value))));
        view.of_environment(&variables, 1 << 20);
        let found = |place: &str| view.mounts.get(Path::new(place));
        let ipython = found("/srv/ipython").unwrap();
        assert!(matches!(ipython, Mount::Empty { bytes } if *bytes == 1 << 20));
        for place in ["/home/worker/hf", "/usr/share/matplotlib", "relative", "/"] {
            assert!(found(place).is_none(), "{place}");
        }
        let words = places(&view);
        let last = ["--remount-ro", "/dev", "--remount-ro", "/"];
        assert_eq!(words[words.len() - 4..], last);
    }

    #[test]
    fn a_rule_for_the_notebooks_folder_is_about_the_folder_that_was_opened() {
        let above = tempfile::tempdir().unwrap();
        let [course, other] = ["course", "other"].map(|name| above.path().join(name));
        fs::create_dir(&course).unwrap();
        fs::create_dir(&other).unwrap();
        let notebook = Root::open(&course).unwrap();
        let mut view = view();
        view.notebook_folder(&notebook);
        fs::rename(&course, above.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&other, &course).unwrap();
        let rules = view.rules();
        let (path, _) = rules.iter().find(|(_, may)| *may == May::Write).unwrap();
        assert!(notebook.is(&(&fs::metadata(path).unwrap()).into()));
        assert_eq!(path.canonicalize().unwrap(), above.path().join("moved"));
    }

    #[test]
    fn a_fork_is_used_only_if_its_sandbox_can_be_checked() {
        let above = tempfile::tempdir().unwrap();
        let notebook = Root::open(above.path()).unwrap();
        let mut view = view();
        view.notebook_folder(&notebook);
        assert!(view.can_be_checked());
        view.read_only(above.path().parent().unwrap());
        assert!(!view.can_be_checked());
    }

    #[test]
    fn no_notebook_takes_the_place_of_the_system() {
        let mut view = view();
        for folder in ["/", "/usr", "/proc", "/tmp"] {
            view.notebook_folder(&Root::open(Path::new(folder)).unwrap());
            assert_eq!(view.notebook_folders().count(), 0, "{folder}");
        }
    }
}
