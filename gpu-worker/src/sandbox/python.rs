//! Finds the files and folders that a Python needs to run.

use super::SandboxError;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{process::Command, time::timeout};

/// How long a Python may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints one path per line: the installation, the folders from which it imports, and Baton's package. Links are
/// followed.
const QUESTION: &str = "
import importlib.util, os, sys
found = importlib.util.find_spec('baton_shim')
paths = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, sys.executable, sys._base_executable]
paths += [path for path in sys.path if path]
paths += [os.path.dirname(found.origin)] if found and found.origin else []
for path in paths:
    print(path)
    print(os.path.realpath(path))
";

/// The paths that each Python needs, by the path of the Python.
#[derive(Debug, Default)]
pub(super) struct Pythons(Mutex<HashMap<PathBuf, Vec<PathBuf>>>);

impl Pythons {
    /// The paths that this Python needs. Runs it, unless they are known. One that hangs delays no other.
    pub(super) async fn paths(&self, python: &Path) -> Result<Vec<PathBuf>, SandboxError> {
        let known = self.lock().get(python).cloned();
        if let Some(paths) = known {
            return Ok(paths);
        }
        let paths = paths(python).await?;
        self.lock().insert(python.to_owned(), paths.clone());
        Ok(paths)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Vec<PathBuf>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs this Python outside any sandbox, so the administrator must have chosen it.
async fn paths(python: &Path) -> Result<Vec<PathBuf>, SandboxError> {
    let asked = Command::new(python)
        .args(["-c", QUESTION])
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let failed = |said: String| SandboxError::Python {
        python: python.to_owned(),
        said,
    };
    let answer = timeout(PATIENCE, asked).await;
    let answer = answer.map_err(|_| failed("It did not answer within a minute".to_owned()))?;
    let output = answer.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let mut paths = hops(python);
    paths.extend(said.lines().map(PathBuf::from));
    paths.retain(|path| path.is_absolute() && path != Path::new("/") && path.exists());
    Ok(paths)
}

/// The path of the program, and each path to which its symbolic links lead.
fn hops(python: &Path) -> Vec<PathBuf> {
    let mut hops = vec![python.to_owned()];
    while let Some(target) = hops.last().and_then(|last| {
        let target = std::fs::read_link(last).ok()?;
        Some(last.parent()?.join(target))
    }) {
        if hops.contains(&target) {
            break;
        }
        hops.push(target);
    }
    hops
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn a_python_that_hangs_delays_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, script: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
            path
        };
        let (hangs, works) = (
            write("hangs", "exec sleep 600"),
            write("works", "echo /usr"),
        );
        let pythons = Pythons::default();
        tokio::select! {
            biased;
            found = pythons.paths(&hangs) => panic!("It answered: {found:?}"),
            found = pythons.paths(&works) => assert_eq!(found.unwrap(), [works.clone(), "/usr".into()]),
        }
    }
}
