//! What is installed for notebooks of this user on this machine: environments, and the kernels that use them.
//!
//! **Invariant:** an environment counts as installed if a kernel uses it; the kernel records the
//! lock from which it was built.

use crate::{
    commands::install,
    settings::{ProcessEnvironment, Settings},
};
use anyhow::Context;
use baton_environments::Folder;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The prefix of a kernel's name, followed by that of the environment.
const PREFIX: &str = "baton-";

pub(super) struct Here {
    folder: PathBuf,
    kernels: PathBuf,
}

/// What a kernel records about its environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Installed {
    pub(super) environment: String,
    /// The hash of its lock.
    pub(super) lock: String,
    /// The name of the environment's folder.
    pub(super) key: String,
    /// Its packages and their versions when it was installed.
    pub(super) packages: Vec<(String, String)>,
}

impl Here {
    pub(super) fn new(process: &ProcessEnvironment, settings: &Settings) -> Self {
        Self {
            folder: settings.environments_folder.clone(),
            kernels: process.jupyter_folder().join("kernels"),
        }
    }

    /// The folder in which environments are built. Environments that kernels use are kept.
    pub(super) fn folder(&self) -> Folder {
        let kernels = fs::read_dir(&self.kernels).into_iter().flatten().flatten();
        let used = kernels.filter_map(|entry| read(&entry.path()));
        let used: BTreeSet<String> = used.map(|installed| installed.key).collect();
        Folder::new(self.folder.clone()).keeping(used)
    }

    pub(super) fn installed(&self, environment: &str) -> Option<Installed> {
        let installed = read(&self.kernel(environment))?;
        let is_there = self.folder().complete(&installed.key).is_some();
        (is_there && installed.environment == environment).then_some(installed)
    }

    /// Makes the kernel of an environment use this Python from now on. Returns the kernel's display name.
    pub(super) fn install(&self, installed: &Installed, python: &Path) -> anyhow::Result<String> {
        let name = format!("Python (shared GPU) - {}", installed.environment);
        let mut specification = install::specification(python)?;
        specification["display_name"] = json!(name);
        specification["metadata"]["baton"] = json!(installed);
        let folder = self.kernel(&installed.environment);
        install::write(&folder, &install::shown(specification))
            .with_context(|| format!("Failed to write the kernel into {}", folder.display()))?;
        Ok(name)
    }

    fn kernel(&self, environment: &str) -> PathBuf {
        self.kernels.join(format!("{PREFIX}{environment}"))
    }
}

fn read(kernel: &Path) -> Option<Installed> {
    let text = fs::read(kernel.join("kernel.json")).ok()?;
    let specification: Value = serde_json::from_slice(&text).ok()?;
    serde_json::from_value(specification["metadata"]["baton"].clone()).ok()
}
