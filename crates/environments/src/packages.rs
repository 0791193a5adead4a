//! The installed packages of a Python, as far as environments depend on them.

use crate::BuildError;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::process::Command;

/// Prints the folder of Baton's packages.
const QUESTION: &str = "import os, baton_shim; print(os.path.dirname(os.path.dirname(os.path.abspath(baton_shim.__file__))))";

/// The folder of Baton's packages in this Python.
///
/// # Errors
/// If it does not have them.
pub async fn packages_of(python: &Path) -> Result<PathBuf, BuildError> {
    let asked = Command::new(python)
        .args(["-P", "-c", QUESTION])
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = asked.await?;
    let said = String::from_utf8_lossy(&output.stdout);
    let folder = PathBuf::from(said.trim_end());
    match output.status.success() && folder.is_absolute() {
        true => Ok(folder),
        false => Err(BuildError::NoBaton {
            python: python.to_owned(),
        }),
    }
}

/// The packages in a folder with their versions, by the names that requirements use.
#[must_use]
pub fn installed(site: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(site).into_iter().flatten().flatten();
    let packages = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (name, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
        Some((canonical(name), version.to_owned()))
    });
    packages.collect()
}

/// The folder of an environment's packages.
#[must_use]
pub fn site_packages(environment: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(environment.join("lib")).ok()?.flatten();
    let is_python = |name: &OsStr| name.as_encoded_bytes().starts_with(b"python");
    let folders = entries.filter(|entry| is_python(&entry.file_name()));
    let mut folders = folders.map(|entry| entry.path().join("site-packages"));
    folders.find(|folder| folder.is_dir())
}

pub(crate) fn canonical(name: &str) -> String {
    name.to_lowercase().replace(['_', '.'], "-")
}
