//! Finds out a Python's version and packages.

use anyhow::Context;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const PROBE: &str = r#"
import json, sys
from importlib import import_module, metadata, util
providers = metadata.packages_distributions()
def version(name):
    if util.find_spec(name) is None:
        return None
    if name in providers:
        return metadata.version(providers[name][0])
    return str(import_module(name).__version__)
names = sys.argv[1:]
print(json.dumps({
    "executable": sys.executable,
    "prefix": sys.prefix,
    "version": ".".join(map(str, sys.version_info[:3])),
    "packages": {name: version(name) for name in names},
}))
"#;

#[derive(Debug, Deserialize)]
pub(crate) struct Python {
    pub(crate) executable: PathBuf,
    pub(crate) prefix: PathBuf,
    pub(crate) version: String,
    /// Packages with their versions; without a version if they are missing. None is imported,
    /// because some take ten seconds.
    pub(crate) packages: BTreeMap<String, Option<String>>,
}

impl Python {
    /// For example `(3, 11)` for 3.11.7.
    pub(crate) fn minor_version(&self) -> (u32, u32) {
        let mut numbers = self.version.split('.').map_while(|part| part.parse().ok());
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

/// Starts the Python. `-P` keeps it from importing files in the current folder.
pub(crate) fn probe(python: &Path, packages: &[&str]) -> anyhow::Result<Python> {
    let output = Command::new(python)
        .args(["-P", "-c", PROBE])
        .args(packages)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("Failed to start {}", python.display()))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.lines().last().unwrap_or_default();
    anyhow::ensure!(
        output.status.success(),
        "{} does not work as a Python: {last}",
        python.display()
    );
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} does not work as a Python", python.display()))
}

/// The Python beside this program, where a wheel installs both, or else the one on PATH.
pub(crate) fn default_python() -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.join("python")))
        .filter(|python| python.is_file());
    beside.unwrap_or_else(|| PathBuf::from("python3"))
}
