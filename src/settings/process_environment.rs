//! What defaults depend on: the environment, the user and the machine.

use nix::{sys::utsname::uname, unistd::Uid};
use std::{collections::BTreeMap, path::PathBuf};

/// Read once at the start; tests make their own.
#[derive(Debug, Clone)]
pub(crate) struct ProcessEnvironment {
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) user_number: u32,
    pub(crate) host: String,
}

impl ProcessEnvironment {
    /// Ignores variables that are not valid text.
    pub(crate) fn here() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let host = uname()
            .ok()
            .and_then(|name| name.nodename().to_str().map(str::to_owned));
        let mut environment: BTreeMap<_, _> = std::env::vars_os().filter_map(text).collect();
        // Scheduled jobs may have none; the user database knows it.
        if let Some(home) =
            std::env::home_dir().and_then(|home| home.into_os_string().into_string().ok())
        {
            environment.entry("HOME".to_owned()).or_insert(home);
        }
        Self {
            environment,
            user_number: Uid::effective().as_raw(),
            host: host.unwrap_or_else(|| "localhost".to_owned()),
        }
    }

    /// A variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.environment.get(name)?;
        (!value.is_empty()).then_some(value.as_str())
    }

    /// A variable that JupyterHub sets for a person's notebook server, and so for its kernels; empty elsewhere.
    pub(crate) fn of_notebook_server(&self, variable: &str) -> String {
        self.said_with("JUPYTERHUB_USER", variable)
    }

    /// A variable that JupyterHub sets for a service that it starts; empty elsewhere.
    pub(crate) fn of_hub_service(&self, variable: &str) -> String {
        self.said_with("JUPYTERHUB_SERVICE_NAME", variable)
    }

    fn said_with(&self, mark: &str, variable: &str) -> String {
        let value = self.variable(mark).and_then(|_| self.variable(variable));
        value.unwrap_or_default().to_owned()
    }

    /// The file that systemd's `LoadCredential=` provides under this name; empty if there is none.
    pub(crate) fn credential(&self, name: &str) -> String {
        let file = self
            .folder("CREDENTIALS_DIRECTORY")
            .map(|folder| folder.join(name));
        let file = file.filter(|file| file.is_file());
        file.map_or_else(String::new, |file| file.display().to_string())
    }

    /// The folder for this user's sockets, lock and token. It lasts until logout or reboot.
    pub(crate) fn runtime_folder(&self) -> PathBuf {
        let private = self.folder("XDG_RUNTIME_DIR");
        private.map_or_else(
            || PathBuf::from(format!("/tmp/baton-{}", self.user_number)),
            |folder| folder.join("baton"),
        )
    }

    /// The folder for a broker's database and chunks.
    pub(crate) fn state_folder(&self) -> PathBuf {
        if let Some(folder) = self.folder("XDG_STATE_HOME") {
            return folder.join("baton");
        }
        if self.user_number == 0 {
            return PathBuf::from("/var/lib/baton");
        }
        self.home().join(".local/state/baton")
    }

    pub(crate) fn cache_folder(&self) -> PathBuf {
        let folder = self.folder("XDG_CACHE_HOME");
        folder
            .unwrap_or_else(|| self.home().join(".cache"))
            .join("baton")
    }

    /// The folder for lasting data other than settings: installed environments.
    pub(crate) fn data_folder(&self) -> PathBuf {
        let folder = self.folder("XDG_DATA_HOME");
        folder
            .unwrap_or_else(|| self.home().join(".local/share"))
            .join("baton")
    }

    /// The folder in which Jupyter looks for kernels of this user.
    pub(crate) fn jupyter_folder(&self) -> PathBuf {
        if let Some(folder) = self.folder("JUPYTER_DATA_DIR") {
            return folder;
        }
        let folder = self.folder("XDG_DATA_HOME");
        folder
            .unwrap_or_else(|| self.home().join(".local/share"))
            .join("jupyter")
    }

    pub(crate) fn user_configuration(&self) -> PathBuf {
        self.configuration_folder().join("config.toml")
    }

    /// The file in which `baton login` stores this user's token.
    pub(crate) fn login_token(&self) -> PathBuf {
        self.configuration_folder().join("token")
    }

    fn configuration_folder(&self) -> PathBuf {
        let folder = self.folder("XDG_CONFIG_HOME");
        folder
            .unwrap_or_else(|| self.home().join(".config"))
            .join("baton")
    }

    fn home(&self) -> PathBuf {
        self.folder("HOME").unwrap_or_else(|| PathBuf::from("/"))
    }

    /// Ignores paths that are not absolute, as the XDG rules require.
    fn folder(&self, variable: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.variable(variable)?);
        path.is_absolute().then_some(path)
    }
}
