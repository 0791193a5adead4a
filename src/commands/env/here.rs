//! What is installed beside the notebooks of this machine's user: environments, and the kernels that use them.
//!
//! **Invariant:** an environment counts as installed if a kernel uses it; the kernel says from which lock it was built.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use baton_environments::Folder;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    commands::install,
    settings::{Settings, Surroundings},
};

/// Of kernels, before the name of the environment.
const PREFIX: &str = "baton-";

pub(super) struct Here {
    folder: PathBuf,
    kernels: PathBuf,
}

/// What the kernel of an environment says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Installed {
    pub(super) environment: String,
    /// The hash of its lock.
    pub(super) lock: String,
    /// Of its folder.
    pub(super) key: String,
    /// Its packages with their versions, as they were installed.
    pub(super) packages: Vec<(String, String)>,
}

impl Here {
    pub(super) fn new(surroundings: &Surroundings, settings: &Settings) -> Self {
        Self {
            folder: settings.environments_folder.clone(),
            kernels: surroundings.jupyter_folder().join("kernels"),
        }
    }

    /// Where environments are built. Those of kernels stay.
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

    /// Makes the kernel of an environment use this Python from now on. Returns what people call the kernel.
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
