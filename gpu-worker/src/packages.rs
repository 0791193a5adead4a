//! Where a session puts the packages that its cells install.
//!
//! The session itself creates a virtual environment there (`packages.py` in the shim).
//!
//! **Invariant:** the folder is removed when its session ends. If the worker was killed, the next one removes it.

use crate::{Config, NetworkChoice, SandboxChoice, mirror::this_machine};
use baton_jupyter_wire::folder::{self, FolderError, PrivateFolder};
use std::{ffi::OsString, path::Path};

const FOLDER: &str = "BATON_PACKAGES_FOLDER";
const MAY_INSTALL: &str = "BATON_PACKAGES_MAY_INSTALL";
const HAS_NETWORK: &str = "BATON_PACKAGES_HAS_NETWORK";

pub(crate) struct SessionPackages {
    folder: PrivateFolder,
    may_install: bool,
    has_network: bool,
}

impl SessionPackages {
    pub(crate) fn create(config: &Config) -> Result<Self, FolderError> {
        let base = &config.mirrors;
        let folder = std::fs::create_dir_all(base)
            .map_err(|source| FolderError::Create {
                base: base.clone(),
                source,
            })
            .and_then(|()| PrivateFolder::create_in(base, &purpose()))?;
        Ok(Self {
            folder,
            may_install: config.install_packages,
            has_network: matches!(config.sandbox, SandboxChoice::None)
                || config.network != NetworkChoice::None,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn environment(&self) -> [(&'static str, OsString); 3] {
        let said = |yes| OsString::from(if yes { "1" } else { "0" });
        [
            (FOLDER, self.folder.path().join("packages").into()),
            (MAY_INSTALL, said(self.may_install)),
            (HAS_NETWORK, said(self.has_network)),
        ]
    }
}

pub(crate) fn remove_leftovers(base: &Path) {
    folder::sweep(base, &purpose());
}

fn purpose() -> String {
    format!("packages-{}", this_machine())
}
