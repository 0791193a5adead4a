//! How a kernel is started: Jupyter's `kernel.json`.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

use jupyter_protocol::JupyterKernelspec;
use tokio::process::Command;

/// What Jupyter puts in their place.
const CONNECTION_FILE: &str = "{connection_file}";
const RESOURCE_FOLDER: &str = "{resource_dir}";

#[derive(Debug, thiserror::Error)]
pub enum KernelspecError {
    #[error("Failed to read {path}: {error}")]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{path} is not a kernelspec: {error}")]
    Invalid {
        path: PathBuf,
        error: serde_json::Error,
    },
    #[error("{path} names no program")]
    Empty { path: PathBuf },
}

pub struct Kernelspec {
    folder: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    environment: HashMap<String, String>,
}

impl Kernelspec {
    /// A kernelspec that names just `python` means the one that Jupyter runs in, which is `python`.
    ///
    /// # Errors
    /// When the file cannot be read, is not a kernelspec, or names no program.
    pub fn read(path: &Path, python: &Path) -> Result<Self, KernelspecError> {
        let path = path.to_owned();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) => return Err(KernelspecError::Unreadable { path, error }),
        };
        let specification: JupyterKernelspec = match serde_json::from_slice(&text) {
            Ok(specification) => specification,
            Err(error) => return Err(KernelspecError::Invalid { path, error }),
        };
        let mut words = specification.argv.into_iter();
        let Some(program) = words.next() else {
            return Err(KernelspecError::Empty { path });
        };
        Ok(Self {
            folder: path.parent().unwrap_or(&path).to_owned(),
            program: match program.as_str() {
                "python" | "python3" => python.to_owned(),
                _ => program.into(),
            },
            arguments: words.collect(),
            environment: specification.env.unwrap_or_default(),
        })
    }

    /// A bare name is looked for on the `PATH`.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    pub(crate) fn command(&self, connection_file: &Path) -> Command {
        let filled_in = |argument: &String| {
            argument
                .replace(CONNECTION_FILE, &connection_file.to_string_lossy())
                .replace(RESOURCE_FOLDER, &self.folder.to_string_lossy())
        };
        let mut command = Command::new(&self.program);
        command
            .args(self.arguments.iter().map(filled_in))
            .envs(&self.environment);
        command
    }
}
