//! How to start a kernel: Jupyter's `kernel.json`.

use jupyter_protocol::JupyterKernelspec;
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};
use tokio::process::Command;

/// Placeholders that Jupyter replaces.
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
    /// The folder in which the kernel starts. `None`: this process's own.
    start_in: Option<PathBuf>,
}

impl Kernelspec {
    /// Reads a kernelspec. If it names only `python`, that is the Python in which Jupyter runs,
    /// given as `python`.
    ///
    /// # Errors
    /// If the file cannot be read, is not a kernelspec, or names no program.
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
            start_in: None,
        })
    }

    /// A kernelspec without a file. `{connection_file}` in an argument stands for the connection file's path.
    #[must_use]
    pub fn new(program: &Path, arguments: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            folder: PathBuf::new(),
            program: program.to_owned(),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            environment: HashMap::new(),
            start_in: None,
        }
    }

    /// The program to start. A bare name is looked up on the `PATH`.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Adds a variable to the kernel's environment.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Starts the kernel in the notebook's folder.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.start_in = Some(folder.to_owned());
        self
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
        if let Some(folder) = &self.start_in {
            command.current_dir(folder);
        }
        command
    }
}
