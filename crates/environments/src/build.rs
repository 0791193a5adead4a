//! The steps from a lock to an environment.
//!
//! In: a lock, Baton's own packages, and a runner for the steps. Beside a notebook the runner is
//! direct. On a worker it is a sandbox, because installing a package may run its code. Out: a
//! Python that can run as a notebook kernel or a session.
//!
//! Packages that Baton needs and the lock lacks are added in the versions of [`OWN_PINS`], so both
//! ends add the same. Packages of the lock are not changed.
//!
//! **Invariant:** after the first step that may run a package's code, nothing is written outside
//! the steps, except by functions that follow no links.

use crate::{
    BuildError, EnvironmentFolder, digest,
    lock::REQUIREMENTS,
    packages::{canonical, installed, site_packages},
};
use baton_protocol::{Lock, LockKind};
use baton_removal::remove_tree;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    process::Output,
};
use tokio::task::spawn_blocking;

/// The versions of all packages that Baton's packages need, directly or not.
const OWN_PINS: &str = include_str!("../../../requirements/runtime.txt");
/// The packages that Baton's packages need directly.
const OWN_NEEDS: &str = include_str!("../../../requirements/runtime.in");

/// Baton's own packages, which are copied into an environment, or mounted into an image: workers
/// and notebooks of one version have the same.
pub const OWN_PACKAGES: [&str; 2] = ["baton", "baton_shim"];

/// The environment variables of the administrator or the student that a build gets, such as where
/// packages come from.
const PASSED: &[&str] = &[
    "UV_",
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "all_proxy",
    "https_proxy",
    "http_proxy",
    "no_proxy",
    "SSL_CERT_",
    "LANG",
    "HOME",
    "TMPDIR",
    "XDG_",
];

/// How many lines of a failed step's output to report.
const LINES: usize = 8;

const CACHE: &str = "cache";
const SOURCE: &str = "lock";
const OWN: &str = "own.txt";

/// The inputs of a build that are not part of the lock.
#[derive(Debug, Clone)]
pub struct Builder {
    pub uv: PathBuf,
    /// The folder with `baton` and `baton_shim`.
    pub packages: PathBuf,
    /// The Python to use, as for `uv venv --python`; `None`: as the lock or its project says.
    pub python: Option<OsString>,
    /// Whether people who do not trust each other use the environment. Then downloads are kept for
    /// this build only, so that the code of one package reaches no other environment, and no Python
    /// is downloaded, because it would be outside the environment.
    pub is_shared: bool,
    /// The first Python to try if the lock does not name one.
    pub usual_python: Option<PathBuf>,
}

/// One run of a program.
#[derive(Debug, Clone)]
pub struct Step {
    /// Completes "uv could not …".
    pub what: &'static str,
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub folder: PathBuf,
}

/// Runs the steps of a build.
pub trait Runner: Sync {
    fn run(&self, step: &Step) -> impl Future<Output = Result<Output, BuildError>> + Send;
}

impl Builder {
    /// Identifies an environment: another lock, Baton version or Python makes another environment.
    #[must_use]
    pub fn key(&self, lock: &Lock) -> String {
        let parts = [
            digest(lock),
            env!("CARGO_PKG_VERSION").to_owned(),
            format!("{:?} {:?}", self.python, self.usual_python),
        ];
        let key = baton_chunks::hash(parts.join("\n").as_bytes()).to_string();
        key[..KEY_CHARACTERS].to_owned()
    }

    fn step(&self, what: &'static str, folder: &EnvironmentFolder, arguments: &[&OsStr]) -> Step {
        Step {
            what,
            program: self.uv.clone(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: self.environment(folder),
            folder: folder.work().join(SOURCE),
        }
    }

    fn environment(&self, folder: &EnvironmentFolder) -> Vec<(OsString, OsString)> {
        let passed = std::env::vars_os().filter(|(name, _)| {
            let name = name.to_string_lossy();
            PASSED.iter().any(|known| name.starts_with(known))
        });
        let own = self.usual_python.as_deref().and_then(Path::parent);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = own.map(Path::to_owned).into_iter();
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&path)));
        let set = [
            ("PATH", path.unwrap_or_default()),
            ("UV_PROJECT_ENVIRONMENT", folder.environment().into()),
            ("UV_COMPILE_BYTECODE", "1".into()),
            ("UV_NO_PROGRESS", "1".into()),
            ("UV_PYTHON_PREFERENCE", "system".into()),
            ("NO_COLOR", "1".into()),
        ];
        let shared = [
            ("UV_CACHE_DIR", folder.work().join(CACHE).into()),
            ("UV_PYTHON_DOWNLOADS", "never".into()),
        ];
        let shared = shared.into_iter().filter(|_| self.is_shared);
        let set = set.into_iter().chain(shared);
        let set = set.map(|(name, value)| (OsString::from(name), value));
        passed.chain(set).collect()
    }
}

/// Short, because it is part of a path that becomes part of the first line of programs.
const KEY_CHARACTERS: usize = 32;

/// Builds an environment in an empty folder.
///
/// # Errors
/// If a step fails, or the disk is full.
pub async fn build(
    builder: &Builder,
    lock: &Lock,
    folder: &EnvironmentFolder,
    runner: &impl Runner,
) -> Result<(), BuildError> {
    let source = folder.work().join(SOURCE);
    let full = |error: io::Error| full_or(error.into(), folder);
    write_lock(lock, &source).map_err(full)?;
    let (environment, python) = (folder.environment(), folder.python());
    let (environment, python) = (environment.as_os_str(), python.as_os_str());
    let mut create: Vec<&OsStr> = ["venv", "--quiet", "--allow-existing"]
        .map(OsStr::new)
        .into();
    if let Some(python) = &builder.python {
        create.extend(["--python".as_ref(), python.as_os_str()]);
    }
    create.push(environment);
    let step = builder.step("create the environment", folder, &create);
    run(runner, &step, folder).await?;
    let none = || io::Error::other("it has no folder for packages");
    let site = site_packages(&folder.environment()).ok_or_else(none)?;
    for package in OWN_PACKAGES {
        copy(&builder.packages.join(package), &site.join(package)).map_err(full)?;
    }
    let install: &[&str] = match lock.kind {
        LockKind::Uv => &[
            "sync",
            "--quiet",
            "--frozen",
            "--no-install-project",
            "--inexact",
        ],
        LockKind::Requirements => &["pip", "sync", "--quiet", "--require-hashes"],
    };
    let mut install: Vec<&OsStr> = install.iter().map(OsStr::new).collect();
    if lock.kind == LockKind::Requirements {
        install.extend(["--python".as_ref(), python, REQUIREMENTS.as_ref()]);
    }
    // If a project pins its Python, the previous step has used that.
    let step = builder.step("install the lock", folder, &install);
    run(runner, &step, folder).await?;
    let pins = folder.work().join(OWN);
    let needs = OWN_NEEDS.lines().filter(|line| !line.starts_with('#'));
    let mut add: Vec<&OsStr> = ["pip", "install", "--quiet"].map(OsStr::new).into();
    let options = locked_options(lock);
    add.extend(options.iter().map(OsStr::new));
    add.extend([
        "--python".as_ref(),
        python,
        "--constraint".as_ref(),
        pins.as_os_str(),
    ]);
    add.extend(needs.map(OsStr::new));
    write_new(&pins, &own_pins(&installed(&site))).map_err(full)?;
    let step = builder.step("add what Baton needs", folder, &add);
    run(runner, &step, folder).await?;
    let cache = folder.work().join(CACHE);
    let _ = spawn_blocking(move || remove_tree(&cache)).await;
    Ok(())
}

async fn run(
    runner: &impl Runner,
    step: &Step,
    folder: &EnvironmentFolder,
) -> Result<(), BuildError> {
    let output = runner.run(step).await?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(step, &output, folder)),
    }
}

fn write_lock(lock: &Lock, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for file in &lock.files {
        let name = Path::new(&file.name).file_name();
        let name = name.ok_or_else(|| io::Error::other("a file of the lock has no name"))?;
        fs::write(folder.join(name), &file.text)?;
    }
    Ok(())
}

/// Writes a file without following links, because a package's code has run in the folder.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

/// The requirements file's options about package sources, for packages that it does not list.
fn locked_options(lock: &Lock) -> Vec<String> {
    let options = [
        "--index-url",
        "--extra-index-url",
        "--find-links",
        "--no-index",
        "-i",
        "-f",
    ];
    let requirements = lock.files.iter().filter(|file| file.name == REQUIREMENTS);
    let lines = requirements.flat_map(|file| file.text.lines().map(str::trim));
    let lines = lines.filter(|line| {
        let word = line.split([' ', '=']).next().unwrap_or_default();
        options.contains(&word)
    });
    lines
        .flat_map(|line| {
            line.splitn(2, [' ', '='])
                .map(|word| word.trim().to_owned())
        })
        .collect()
}

/// The pins, except those of packages that the lock installs itself.
fn own_pins(installed: &BTreeMap<String, String>) -> String {
    let is_open = |line: &&str| {
        let name = line.split("==").next().unwrap_or_default();
        !installed.contains_key(&canonical(name))
    };
    let pins = OWN_PINS.lines().filter(is_open);
    pins.map(|line| format!("{line}\n")).collect()
}

/// Copies sources only: compiled files belong to another Python.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        if path.is_dir() {
            if name != "__pycache__" {
                copy(&path, &to.join(name))?;
            }
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

fn failed(step: &Step, output: &Output, folder: &EnvironmentFolder) -> BuildError {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    let said = match last.is_empty() {
        true => format!("it ended with {}", output.status),
        false => last.join(" "),
    };
    let error = BuildError::Step {
        what: step.what,
        said,
    };
    full_or(error, folder)
}

fn full_or(error: BuildError, folder: &EnvironmentFolder) -> BuildError {
    let is_full = match &error {
        BuildError::Io(error) => error.kind() == io::ErrorKind::StorageFull,
        BuildError::Step { said, .. } => said.contains("No space left on device"),
        _ => false,
    };
    match is_full {
        true => BuildError::DiskFull {
            path: folder.work(),
        },
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use baton_protocol::LockFile;

    use super::*;

    #[test]
    fn what_the_lock_has_is_not_pinned_again() {
        let installed = ["ipykernel", "jupyter-core"].map(|name| (name.to_owned(), "1".to_owned()));
        let installed = BTreeMap::from(installed);
        let pins = own_pins(&installed);
        assert!(
            !pins.contains("ipykernel==") && !pins.contains("jupyter-core=="),
            "{pins}"
        );
        assert!(pins.contains("\ncloudpickle=="), "{pins}");
    }

    #[test]
    fn what_baton_adds_comes_from_where_the_lock_comes_from() {
        let lock = Lock {
            kind: LockKind::Requirements,
            files: vec![LockFile {
                name: REQUIREMENTS.to_owned(),
                text: "--no-index\n--find-links /wheels\n--index-url=https://a.example/?a=b\n# -i x\nnumpy==1 --hash=sha256:0\n".to_owned(),
            }],
        };
        let expected = [
            "--no-index",
            "--find-links",
            "/wheels",
            "--index-url",
            "https://a.example/?a=b",
        ];
        assert_eq!(locked_options(&lock), expected);
    }
}
