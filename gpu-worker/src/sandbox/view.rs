//! What of the machine's file system a session sees.
//!
//! **Invariant:** a folder is mounted before what lies in it, and the root is empty. A session writes only to mounts that
//! are for that, each of which has a size or lies on a disk.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Variable;

/// Programs and libraries.
const SYSTEM: &[&str] = &[
    "/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];

/// Settings that programs need, none of them a secret. The rest of `/etc` stays out of sight.
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

/// What libraries read about processors and devices. The interfaces for debugging and control groups are not here.
const HARDWARE: &[&str] = &[
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/kernel/mm",
    "/sys/module",
    "/var/cache/fontconfig",
];

/// Sockets of the GPU's services, by the variables that lead to them.
const SOCKETS: &[&str] = &[baton_interposer::wire::SOCKET, "CUDA_MPS_PIPE_DIRECTORY"];
/// Folders in which libraries keep what they may lose. A session has each for itself, in memory.
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
/// What bubblewrap makes in memory without a size.
const WITHOUT_SIZE: &[&str] = &["/dev", "/"];
/// Folders of libraries.
const LIBRARIES: &[&str] = &["LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "LD_PRELOAD"];

/// What a session may do with a file or folder, where it keeps its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    Read,
    Write,
    /// Connect with it or with what lies in it; it belongs to the worker.
    Connect,
    UseDevice,
}

/// What bubblewrap puts into a new `/dev` and cells need.
const BASIC_DEVICES: &[&str] = &["full", "null", "random", "urandom", "zero"];

#[derive(Debug, PartialEq, Eq)]
enum Mount {
    ReadOnly(PathBuf),
    Writable(PathBuf),
    /// Of a service of the machine.
    Sockets(PathBuf),
    Devices(PathBuf),
    /// In memory, and gone with the session.
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
            // Where `/bin` is a link, programs may rely on it.
            match fs::read_link(path) {
                Ok(target) => drop(view.mounts.insert(path.to_owned(), Mount::Link(target))),
                Err(_) => view.read_only(path),
            }
        }
        for name in SETTINGS {
            let path = Path::new("/etc").join(name);
            // A link says more than its file does: the name of the time zone.
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

    /// What every session sees, whatever system it has. The GPUs are not here.
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

    /// Device files of `folder`, by their names.
    pub(super) fn devices(&mut self, folder: &Path, names: &[OsString]) {
        for name in names {
            let mount = Mount::Devices(folder.join(name));
            self.mounts.insert(Path::new("/dev").join(name), mount);
        }
    }

    /// What is not there is left out.
    pub(super) fn read_only(&mut self, path: &Path) {
        if path.exists() {
            let mount = Mount::ReadOnly(path.to_owned());
            self.mounts.insert(path.to_owned(), mount);
        }
    }

    /// Shows a file, folder or link of an image at its place.
    pub(super) fn moved(&mut self, place: &Path, path: &Path) {
        let mount = match fs::read_link(path) {
            Ok(target) => Mount::Link(target),
            Err(_) => Mount::ReadOnly(path.to_owned()),
        };
        self.mounts.insert(place.to_owned(), mount);
    }

    /// Shows another file in its place.
    pub(super) fn replaced(&mut self, place: &Path, file: &Path) {
        let mount = Mount::ReadOnly(file.to_owned());
        self.mounts.insert(place.to_owned(), mount);
    }

    /// The notebook's own folder, unless it is one of the system's.
    pub(super) fn notebook_folder(&mut self, folder: &Path) {
        if folder.parent().is_some() && !self.mounts.contains_key(folder) {
            self.writable(folder, folder);
        }
    }

    pub(super) fn writable(&mut self, folder: &Path, place: &Path) {
        let mount = Mount::Writable(folder.to_owned());
        self.mounts.insert(place.to_owned(), mount);
    }

    /// Temporary folders and the home are private; what the variables name is visible.
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
                    // The notebook may be in the home itself.
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
        // Most of them are in the home, which is there now.
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

    /// An empty folder in memory with the files that `folder` has now.
    pub(super) fn private(&mut self, folder: &Path, bytes: u64) -> io::Result<()> {
        self.mounts
            .insert(folder.to_owned(), Mount::Empty { bytes });
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            self.mounts.insert(path.clone(), Mount::ReadOnly(path));
        }
        Ok(())
    }

    /// Covers a folder of the worker's that would be visible because it lies in a writable one.
    pub(super) fn hide_inside_writable(&mut self, path: &Path) {
        let around = self.mount_around(path);
        if path.is_dir() && matches!(around, Some((_, Mount::Writable(_)))) {
            let mount = Mount::Empty { bytes: 0 };
            self.mounts.entry(path.to_owned()).or_insert(mount);
        }
    }

    /// Whether a folder can be mounted there: no mount has to be made inside it, and its own place can be made.
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

    /// The mount in which a path lies, apart from one at the path itself.
    fn mount_around(&self, path: &Path) -> Option<(&PathBuf, &Mount)> {
        let mut above = path.ancestors().skip(1);
        above.find_map(|above| self.mounts.get_key_value(above))
    }

    /// For Landlock: what may be opened where it is. Nothing can be put in its place.
    pub(super) fn rules(&self) -> Vec<(PathBuf, May)> {
        let mut rules = Vec::new();
        for (place, mount) in &self.mounts {
            match mount {
                Mount::ReadOnly(path) => rules.push((path.clone(), May::Read)),
                Mount::Writable(path) => rules.push((path.clone(), May::Write)),
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

    /// For bubblewrap, in the order of the paths: what lies in a folder comes after it.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        for (place, mount) in &self.mounts {
            let is_there_already = matches!(mount, Mount::ReadOnly(path) if path == place);
            if is_there_already && self.is_inside_read_only(place) {
                continue;
            }
            let mut add = |words: &[&OsStr]| arguments.extend(words.iter().map(OsString::from));
            let place = place.as_os_str();
            match mount {
                Mount::ReadOnly(path) => add(&["--ro-bind".as_ref(), path.as_ref(), place]),
                Mount::Writable(path) | Mount::Sockets(path) => {
                    add(&["--bind".as_ref(), path.as_ref(), place]);
                }
                Mount::Devices(path) => add(&["--dev-bind".as_ref(), path.as_ref(), place]),
                Mount::Link(target) => add(&["--symlink".as_ref(), target.as_ref(), place]),
                Mount::Processes => add(&["--proc".as_ref(), place]),
                Mount::BasicDevices => add(&["--dev".as_ref(), place]),
                Mount::Empty { bytes } => {
                    // Zero would mean no limit.
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
        let words = view.arguments();
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
        let scratch = Mount::Empty { bytes: 1 << 20 };
        let found = |place: &str| view.mounts.get(Path::new(place));
        assert_eq!(found("/srv/ipython"), Some(&scratch));
        for place in ["/home/worker/hf", "/usr/share/matplotlib", "relative", "/"] {
            assert_eq!(found(place), None, "{place}");
        }
        let words = places(&view);
        let last = ["--remount-ro", "/dev", "--remount-ro", "/"];
        assert_eq!(words[words.len() - 4..], last);
    }

    #[test]
    fn no_notebook_takes_the_place_of_the_system() {
        let mut view = view();
        for folder in ["/", "/usr", "/proc", "/tmp"] {
            view.notebook_folder(Path::new(folder));
            let written = Mount::Writable(folder.into());
            assert_ne!(
                view.mounts.get(Path::new(folder)),
                Some(&written),
                "{folder}"
            );
        }
    }
}
