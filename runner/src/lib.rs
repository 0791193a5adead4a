//! `baton run`: a notebook or a script as one job.
//!
//! [`Runner`] starts the kernel "Python (shared GPU)" like any client, and runs one `%%gpu` cell in
//! it. The cell's code runs the whole program in the session (`baton_shim.session.programs`), so
//! queue, limits, files and interrupts work as for every cell. The program's output returns as
//! [`Report`]s; a [`Document`] makes a notebook of them.
//!
//! **Invariant:** the notebook on disk is always complete: it is replaced, never overwritten in place.

mod document;
mod outputs;
mod parameters;
mod report;
mod streams;
mod value;

use baton_jupyter_client::{ClientError, Kernel, Kernelspec, ReplyStatus};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::{Notify, mpsc};

pub use document::{CodeCell, Document, DocumentError};
pub use outputs::Recorder;
pub use parameters::{Combination, Given, InvalidParameter, MOST_JOBS, Parameter, combinations};
pub use report::{Message, Report};
pub use value::ParameterValue;

/// The limit for the start of the kernel, which takes seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the job runs.
pub enum Program<'a> {
    Notebook(&'a Document),
    /// The script's path in the folder, and its arguments.
    Script(&'a [String]),
}

/// The options of `%%gpu` as text; the magic checks them.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub timeout: Option<String>,
    pub memory: Option<String>,
    pub gpu: Option<String>,
    pub environment: Option<String>,
    pub low_priority: bool,
}

/// How the job ended, apart from what the program itself reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Done,
    /// The program failed and has reported why.
    ProgramFailed(String),
    Interrupted,
    /// Course staff stopped it: who, and why.
    Stopped(String),
    /// The time limit of the job, or of cells in its course, was reached.
    TimedOut,
    /// The service could not run it, or could not finish it: the message and its hints.
    ServiceFailed(String),
}

/// The description of one job.
pub struct Job<'a> {
    /// Identifies the job to the kernel's proxy.
    pub message_id: String,
    pub program: Program<'a>,
    pub options: &'a Options,
    /// For a notebook whose variables stay in the session after a cell fails.
    pub keep: Option<Keep<'a>>,
}

/// How the variables of a notebook are kept.
#[derive(Clone, Copy)]
pub struct Keep<'a> {
    /// The same for all jobs that reuse them.
    pub name: &'a str,
    /// The number of code cells that the job can skip. It begins with the next one.
    pub begin: usize,
}

/// A kernel that runs programs, one after the other, as the jobs of one notebook.
///
/// The first of `interrupts` interrupts the running job; the second gives it up.
pub struct Runner {
    kernel: Kernel,
    /// Whether a job was given up, and the kernel with it.
    gave_up: bool,
}

impl Runner {
    /// Starts the kernel. Returns none if it is interrupted meanwhile.
    ///
    /// # Errors
    /// If the kernel does not start.
    pub async fn start(
        kernelspec: &Kernelspec,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<Option<Self>, ClientError> {
        tokio::select! {
            kernel = Kernel::start(kernelspec, PATIENCE) => {
                let kernel = kernel?;
                Ok(Some(Self { kernel, gave_up: false }))
            }
            Some(()) = interrupts.recv() => Ok(None),
        }
    }

    /// Runs a program as a job, and sends its reports to `reports`.
    ///
    /// # Errors
    /// If the kernel ends.
    pub async fn run(
        &mut self,
        job: Job<'_>,
        interrupts: &mut mpsc::Receiver<()>,
        reports: &mpsc::UnboundedSender<Report>,
    ) -> Result<End, ClientError> {
        let interrupter = self.kernel.interrupter();
        let code = cell(&job);
        // An interrupt between two cells is lost, so send it only after this cell's first output.
        let begun = Notify::new();
        let (mut is_interrupted, mut is_sent) = (false, false);
        let running = self.kernel.run_as(job.message_id, &code, |output| {
            begun.notify_one();
            if let Some(report) = Report::of(output) {
                let _ = reports.send(report); // the receiver may be gone
            }
        });
        tokio::pin!(running);
        let reply = loop {
            tokio::select! {
                reply = &mut running => break reply?,
                Some(()) = interrupts.recv() => match std::mem::replace(&mut is_interrupted, true) {
                    false => {}
                    true => {
                        self.gave_up = true;
                        return Ok(End::Interrupted);
                    }
                },
                () = begun.notified(), if is_interrupted && !is_sent => {
                    is_sent = true;
                    interrupter.interrupt();
                }
            }
        };
        let error = reply.error.filter(|_| reply.status != ReplyStatus::Ok);
        Ok(match error {
            None => End::Done,
            Some(error) => match error.ename.as_str() {
                "ProgramFailed" => End::ProgramFailed(error.evalue),
                "KeyboardInterrupt" if error.evalue.is_empty() => End::Interrupted,
                "KeyboardInterrupt" => End::Stopped(error.evalue),
                "CellStopped" => End::Stopped(with_hints(&error.evalue, &error.traceback)),
                "CellTimeout" => End::TimedOut,
                name => {
                    let why = with_hints(&error.evalue, &error.traceback);
                    End::ServiceFailed(format!("{name}: {why}"))
                }
            },
        })
    }

    /// Ends the kernel, and with it the session.
    pub async fn end(self) {
        if !self.gave_up {
            self.kernel.shut_down().await;
        }
    }
}

/// The service's message with its hints.
fn with_hints(message: &str, traceback: &[String]) -> String {
    let hints = traceback.iter().map(String::as_str);
    let hints = hints.filter(|line| line.starts_with("hint: "));
    std::iter::once(message)
        .chain(hints)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The cell that runs the program. It defines no variables.
fn cell(job: &Job<'_>) -> String {
    let options = job.options;
    let mut code = "%%gpu".to_owned();
    // No variables return to the kernel, and the next cell has another session.
    if job.keep.is_none() {
        code += " --no-return";
    }
    for (option, value) in [
        ("--timeout", &options.timeout),
        ("--mem", &options.memory),
        ("--gpu", &options.gpu),
        ("--env", &options.environment),
    ] {
        if let Some(value) = value {
            code += &format!(" {option} {value}");
        }
    }
    if options.low_priority {
        code += " --priority low";
    }
    let (module, function, mut arguments) = match &job.program {
        Program::Notebook(document) => {
            let cells = document.code_cells();
            let cells = cells.iter().map(|cell| {
                let may_fail = if cell.may_fail { "True" } else { "False" };
                let source = value::python_text(&cell.source);
                format!("({}, {source}, {may_fail})", cell.number)
            });
            ("notebook", "run_notebook", list(cells))
        }
        Program::Script(arguments) => {
            let arguments = arguments.iter().map(|text| value::python_text(text));
            ("script", "run_script", list(arguments))
        }
    };
    if let Some(keep) = job.keep {
        let name = value::python_text(keep.name);
        arguments += &format!(", keep={name}, begin={}", keep.begin);
    }
    format!(
        "{code}\n__import__(\"baton_shim.session.programs.{module}\", fromlist=[\"{function}\"]).{function}({arguments})"
    )
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// Replaces a file atomically by one with these bytes.
///
/// A symbolic link stays, and the file to which it leads is replaced.
///
/// # Errors
/// If it cannot be written, or is a folder, a device or anything else but a file. What exists is
/// preserved.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    let path = file_behind(path)?;
    let mode = fs::metadata(&path).map_or(0o644, |file| file.permissions().mode());
    let mut file = tempfile::Builder::new()
        .prefix(".baton-")
        .permissions(fs::Permissions::from_mode(mode & 0o777))
        .tempfile_in(folder_of(&path))?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// Checks that [`replace`] can write this file, and leaves it as it is.
///
/// # Errors
/// As for [`replace`].
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    tempfile::tempfile_in(folder_of(&file_behind(path)?)).map(drop)
}

/// The file to which the path leads through symbolic links. It need not exist.
fn file_behind(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Ok(real) if real.is_file() => Ok(real),
        Ok(_) => Err(io::Error::other("It exists, and is not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::read_link(path) {
            Ok(target) => file_behind(&folder_of(path).join(target)),
            Err(_) => Ok(path.to_owned()),
        },
        Err(error) => Err(error),
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::{fs::symlink, net::UnixListener};

    #[test]
    fn a_link_stays_and_its_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("results")).unwrap();
        symlink("results/new", path("link")).unwrap();
        symlink("link", path("second")).unwrap();
        for text in ["one", "two"] {
            check_replaceable(&path("second")).unwrap();
            replace(&path("second"), text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(path("results/new")).unwrap(), text);
            assert!(path("link").is_symlink() && path("second").is_symlink());
        }
    }

    #[test]
    fn only_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let _socket = UnixListener::bind(path("socket")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        symlink("socket", path("link")).unwrap();
        symlink("loop", path("loop")).unwrap();
        symlink("missing/file", path("nowhere")).unwrap();
        let long = "x".repeat(300);
        for name in ["socket", "folder", "link", "loop", "nowhere", &long] {
            assert!(check_replaceable(&path(name)).is_err(), "{name}");
            assert!(replace(&path(name), b"").is_err(), "{name}");
        }
        assert!(!fs::symlink_metadata(path("socket")).unwrap().is_file());
        assert!(path("link").is_symlink());
    }
}
