//! Finds the files and folders that a Python needs to run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::sync::Mutex;

use super::SandboxError;

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
    /// The paths that this Python needs. Runs each Python once.
    pub(super) async fn paths(&self, python: &Path) -> Result<Vec<PathBuf>, SandboxError> {
        let mut pythons = self.0.lock().await;
        if let Some(paths) = pythons.get(python) {
            return Ok(paths.clone());
        }
        let paths = paths(python).await?;
        pythons.insert(python.to_owned(), paths.clone());
        Ok(paths)
    }
}

/// Runs this Python outside any sandbox, so the administrator must have chosen it.
async fn paths(python: &Path) -> Result<Vec<PathBuf>, SandboxError> {
    let asked = Command::new(python)
        .args(["-c", QUESTION])
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await;
    let failed = |said: String| SandboxError::Python {
        python: python.to_owned(),
        said,
    };
    let output = asked.map_err(|error| failed(error.to_string()))?;
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
