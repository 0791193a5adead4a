//! Images: root file systems in folders. A session of an image sees the image's system instead of the machine's.
//!
//! In: the folder of an image. Out: what a session sees of it, and the environment in which its programs work.
//!
//! **Invariant:** of the machine, a session of an image sees only what every session sees of the hardware, the
//! driver's own libraries, Baton's package, and the settings of the network.

use super::view::View;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tokio::process::Command;

/// Where Baton's package and the driver's libraries are inside the sandbox.
const PACKAGES: &str = "/baton/packages";
const DRIVER: &str = "/baton/driver";

/// What a session does not get from the image, but has of its own or from the machine.
const NOT_OF_THE_IMAGE: &[&str] = &[
    "baton",
    "boot",
    "dev",
    "home",
    "lost+found",
    "media",
    "mnt",
    "proc",
    "root",
    "run",
    "srv",
    "sys",
    "tmp",
    "var",
];

/// The machine's settings that depend on its network.
const NETWORK_SETTINGS: &[&str] = &["hosts", "resolv.conf"];

/// Where an image may have its Python, the most specific place first.
const PYTHONS: &[&str] = &[
    "/opt/venv/bin/python",
    "/opt/conda/bin/python",
    "/usr/local/bin/python3",
    "/usr/bin/python3",
];

/// Where systems keep the libraries that the driver installs, and how the names of these begin.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
];
const DRIVER_LIBRARIES: &[&str] = &[
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-",
    "libnvcuvid.so",
];

/// Names, or beginnings of names, of variables that are for the machine's programs and libraries and would mislead
/// those of an image.
const NOT_INHERITED: &[&str] = &[
    "CONDA_",
    "CUDA_HOME",
    "CUDA_PATH",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHON",
    "VIRTUAL_ENV",
];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    root: PathBuf,
    /// The folder in which the worker's own Python has Baton's packages.
    packages: PathBuf,
}

impl Image {
    pub(crate) fn new(root: PathBuf, packages: PathBuf) -> Self {
        Self { root, packages }
    }

    /// The path of its Python on this machine: the one at the `named` place inside, or else at a usual place.
    pub(crate) fn python(root: &Path, named: Option<&Path>) -> Option<PathBuf> {
        let usual = PYTHONS.iter().map(Path::new).filter(|_| named.is_none());
        let places = named.into_iter().chain(usual);
        let mut outside = places.map(|place| root.join(place.strip_prefix("/").unwrap_or(place)));
        // A link may lead to something that exists only inside the image.
        outside.find(|python| python.symlink_metadata().is_ok())
    }

    /// The path of an image's program inside a session.
    pub(super) fn inside(&self, program: &Path) -> Option<PathBuf> {
        let below = program.strip_prefix(&self.root).ok()?;
        Some(Path::new("/").join(below))
    }

    pub(super) fn view(&self) -> View {
        let mut view = View::of_hardware();
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if !NOT_OF_THE_IMAGE.iter().any(|other| name == **other) {
                view.moved(&Path::new("/").join(&name), &entry.path());
            }
        }
        for name in NETWORK_SETTINGS {
            self.replaced(&mut view, name, &Path::new("/etc").join(name));
        }
        for package in baton_environments::OWN_PACKAGES {
            view.replaced(
                &Path::new(PACKAGES).join(package),
                &self.packages.join(package),
            );
        }
        for library in driver_libraries() {
            if let Some(name) = library.file_name() {
                view.replaced(&Path::new(DRIVER).join(name), &library);
            }
        }
        view
    }

    /// Shows `file` instead of a setting of the image, if the image has that setting.
    pub(super) fn replaced(&self, view: &mut View, name: &str, file: &Path) {
        let own = self.root.join("etc").join(name);
        if own.symlink_metadata().is_ok_and(|found| found.is_file()) && file.exists() {
            view.replaced(&Path::new("/etc").join(name), file);
        }
    }

    /// Gives a command the environment that programs of the image expect. `program` is its path inside.
    pub(super) fn set_variables(command: &mut Command, program: &Path) {
        let names: Vec<_> = command
            .as_std()
            .get_envs()
            .map(|(name, _)| name.to_owned())
            .filter(|name| {
                let name = name.to_string_lossy();
                NOT_INHERITED.iter().any(|start| name.starts_with(start))
            })
            .collect();
        for name in names {
            command.env_remove(name);
        }
        let own = program.parent().unwrap_or(Path::new("/"));
        command
            .env("PATH", format!("{}:{PATH}", own.display()))
            .env("PYTHONPATH", PACKAGES)
            .env("LD_LIBRARY_PATH", DRIVER);
    }
}

fn driver_libraries() -> impl Iterator<Item = PathBuf> {
    let folders = LIBRARY_FOLDERS
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok());
    let files = folders.flatten().flatten().map(|entry| entry.path());
    files.filter(|file| {
        let name = file
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        DRIVER_LIBRARIES.iter().any(|start| name.starts_with(start))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_its_own_system_and_none_of_its_homes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in ["usr/bin", "etc", "home/ada", "var/log", "opt/venv/bin"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
        std::os::unix::fs::symlink("/usr/bin/python3", root.join("opt/venv/bin/python")).unwrap();
        let image = Image::new(root.to_owned(), "/packages".into());
        let arguments = image
            .view()
            .arguments(|_| unreachable!("it has no notebook"));
        let words: Vec<String> = arguments
            .iter()
            .map(|word| word.display().to_string())
            .collect();
        let has = |words_wanted: [&str; 3]| words.windows(3).any(|three| three == words_wanted);
        let outside = |path: &str| root.join(path).display().to_string();
        assert!(has(["--ro-bind", &outside("usr"), "/usr"]), "{words:?}");
        assert!(has(["--symlink", "usr/bin", "/bin"]), "{words:?}");
        assert!(
            has([
                "--ro-bind",
                "/packages/baton_shim",
                "/baton/packages/baton_shim"
            ]),
            "{words:?}"
        );
        assert!(
            !words
                .iter()
                .any(|word| word == "/home" || word == "/var" || *word == outside("var"))
        );
        assert!(
            !words.contains(&"/etc/resolv.conf".to_owned()),
            "the image has none to replace"
        );
        let python = Image::python(root, None).unwrap();
        assert_eq!(
            image.inside(&python).unwrap(),
            Path::new("/opt/venv/bin/python")
        );
        assert_eq!(Image::python(root, Some(Path::new("/nowhere"))), None);
    }
}
