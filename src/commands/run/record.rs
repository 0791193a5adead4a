//! What is kept of each run, in a folder of the state folder: `run.json`, `log` and, of a notebook, `notebook.ipynb`.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use baton_protocol::JobId;
use baton_runner::Document;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::request::Request;

const FOLDER: &str = "runs";
/// After this time a run that has ended is forgotten.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) job: JobId,
    pub(super) program: PathBuf,
    /// Where the notebook goes; none for a script.
    pub(super) output: Option<PathBuf>,
    started: Timestamp,
    pub(super) ended: Option<Ended>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) error: Option<String>,
    /// The cell that failed, from 1, among all cells of the notebook.
    pub(super) cell: Option<usize>,
    /// With a terminal's colours.
    pub(super) traceback: Vec<String>,
    /// Of a script that failed.
    pub(super) exit_status: Option<i64>,
    pub(super) at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Ok,
    /// A cell raised an exception, or the script's exit status is not 0.
    Failed,
    Interrupted,
    TimedOut,
    /// Something of Baton failed, not the program.
    ServiceFailed,
}

/// What a front end shows of an error.
#[derive(Debug, Deserialize)]
pub(super) struct CellError {
    pub(super) traceback: Vec<String>,
}

impl Record {
    pub(super) fn new(job: JobId, request: &Request) -> anyhow::Result<Self> {
        let absolute = |path: &Path| std::path::absolute(path).context("This folder is gone");
        Ok(Self {
            job,
            program: absolute(&request.program)?,
            output: request.output().as_deref().map(absolute).transpose()?,
            started: Timestamp::now(),
            ended: None,
        })
    }
}

impl Ended {
    pub(super) fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            error: None,
            cell: None,
            traceback: Vec::new(),
            exit_status: None,
            at: Timestamp::now(),
        }
    }

    pub(super) fn service_failed(error: String) -> Self {
        Self {
            error: Some(error),
            ..Self::new(Outcome::ServiceFailed)
        }
    }
}

#[derive(Debug)]
pub(super) struct RunFolder(PathBuf);

impl RunFolder {
    pub(super) fn of(state_folder: &Path, job: JobId) -> Self {
        Self(state_folder.join(FOLDER).join(job.to_string()))
    }

    /// The only one whose job ends so.
    pub(super) fn find(state_folder: &Path, end: &str) -> anyhow::Result<Self> {
        let digits = end.replace('-', "");
        let ends = |folder: &PathBuf| {
            let name = folder.file_name().unwrap_or_default();
            name.to_string_lossy().ends_with(&digits)
        };
        let mut found = folders(state_folder).filter(ends);
        let folder = found.next().with_context(|| {
            format!("No run that was started here ends with {end}\nhint: `baton run --detach` prints the job")
        })?;
        anyhow::ensure!(
            found.next().is_none(),
            "Several runs end with {end}\nhint: give more digits"
        );
        Ok(Self(folder))
    }

    /// With the notebook, which is as it was before the run.
    pub(super) fn begin(&self, record: &Record, notebook: Option<&Document>) -> anyhow::Result<()> {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0);
        made.with_context(|| format!("Failed to make {}", self.0.display()))?;
        self.open_log()?;
        if let Some(notebook) = notebook {
            let path = self.notebook();
            let written = notebook.write(&path);
            written.with_context(|| format!("Failed to write {}", path.display()))?;
        }
        self.write(record)
    }

    pub(super) fn end(&self, ended: &Ended) -> anyhow::Result<()> {
        let mut record = self.read()?;
        record.ended = Some(ended.clone());
        self.write(&record)
    }

    pub(super) fn read(&self) -> anyhow::Result<Record> {
        let path = self.0.join("run.json");
        let text = fs::read(&path).with_context(|| format!("Failed to read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    fn write(&self, record: &Record) -> anyhow::Result<()> {
        let path = self.0.join("run.json");
        let text = serde_json::to_vec_pretty(record)?;
        baton_runner::replace(&path, &text)
            .with_context(|| format!("Failed to write {}", path.display()))
    }

    pub(super) fn notebook(&self) -> PathBuf {
        self.0.join("notebook.ipynb")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    pub(super) fn open_log(&self) -> anyhow::Result<File> {
        let path = self.log();
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path);
        opened.with_context(|| format!("Failed to open {}", path.display()))
    }

    /// Held by the process that runs it.
    pub(super) fn lock(&self) -> anyhow::Result<File> {
        let log = self.open_log()?;
        log.lock().context("Failed to lock the log of the run")?;
        Ok(log)
    }

    /// Whether a process runs it.
    pub(super) fn is_running(&self) -> io::Result<bool> {
        match File::open(self.log())?.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

fn folders(state_folder: &Path) -> impl Iterator<Item = PathBuf> {
    let found = fs::read_dir(state_folder.join(FOLDER));
    found
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// Removes what is kept of runs that ended long ago.
pub(super) fn forget_old(state_folder: &Path) {
    let now = SystemTime::now();
    for folder in folders(state_folder) {
        let changed = fs::metadata(&folder).and_then(|folder| folder.modified());
        let age = changed
            .ok()
            .and_then(|changed| now.duration_since(changed).ok());
        if age.is_some_and(|age| age > KEPT)
            && !RunFolder(folder.clone()).is_running().unwrap_or(false)
        {
            let _ = fs::remove_dir_all(&folder);
        }
    }
}
