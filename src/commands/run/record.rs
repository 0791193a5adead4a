//! The record of each run, in a folder of the state folder: `run.json`, `log` and, for a notebook,
//! `notebook.ipynb`.

use super::request::{OneJob, Request};
use anyhow::{Context, anyhow};
use baton_protocol::{GroupId, JobId};
use baton_runner::Document;
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fmt::Display,
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

const FOLDER: &str = "runs";
const RECORD: &str = "run.json";
const REQUEST: &str = "resume";
/// Takes up room that the end of the run needs, in case the disk is full then.
const RESERVE: &str = "reserve";
const RESERVED: usize = 16 * 1024;
const CANCELLED: &str = "cancelled";
/// Locked by the process that runs the job.
pub(super) const LOG: &str = "log";
/// The pause between two looks at what was requested of a run.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// How long the record of a run is kept after its end.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) job: JobId,
    /// The array that the job belongs to.
    #[serde(default)]
    pub(super) group: Option<GroupId>,
    /// What distinguishes it from the other jobs of its array.
    #[serde(default)]
    pub(super) label: String,
    pub(super) program: PathBuf,
    /// Where the executed notebook is written; none for a script.
    pub(super) output: Option<PathBuf>,
    started: Timestamp,
    pub(super) ended: Option<Ended>,
    /// Present after the end, if the variables are still available.
    #[serde(default)]
    pub(super) kept: Option<Kept>,
    /// The arguments after `baton`, and the folder in which it was called.
    #[serde(default)]
    pub(super) command: Vec<String>,
    #[serde(default)]
    pub(super) called_in: PathBuf,
}

/// The variables of a run that failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) until: Timestamp,
    /// The cell at which the run can be resumed, counted from 1 among all cells of the notebook.
    pub(super) cell: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) error: Option<String>,
    /// The cell that failed, counted from 1 among all cells of the notebook.
    pub(super) cell: Option<usize>,
    /// With colours for a terminal.
    pub(super) traceback: Vec<String>,
    /// The exit status of a script that failed.
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
    /// Baton failed, not the program.
    ServiceFailed,
}

/// The part of an error that a front end shows.
#[derive(Debug, Deserialize)]
pub(super) struct CellError {
    pub(super) traceback: Vec<String>,
}

impl Record {
    pub(super) fn new(job: &OneJob, request: &Request) -> anyhow::Result<Self> {
        let absolute = |path: &Path| std::path::absolute(path).context("This folder is gone");
        Ok(Self {
            job: job.id,
            group: job.group,
            label: job.label.clone(),
            program: absolute(&request.program)?,
            output: job.output.as_deref().map(absolute).transpose()?,
            started: Timestamp::now(),
            ended: None,
            kept: None,
            command: request
                .command
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            called_in: std::env::current_dir().context("This folder is gone")?,
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

    /// For people who have already read the traceback.
    pub(super) fn without_traceback(self) -> Self {
        Self {
            traceback: Vec::new(),
            ..self
        }
    }

    /// The executed notebook could not be written where the user wants it, or not into the run's folder.
    pub(super) fn with_unwritten_notebook(self, why: &anyhow::Error) -> Self {
        let hint = "hint: `baton fetch` with -o writes the executed notebook to another place";
        self.without_result(why, hint)
    }

    /// Output of a script is missing in its log, and was not shown.
    pub(super) fn with_unwritten_log(self, why: &io::Error) -> Self {
        let why = anyhow!("The log lacks some of the output: {why}");
        self.without_result(
            &why,
            "hint: make room on the disk, and run the script again",
        )
    }

    fn without_result(self, why: &anyhow::Error, hint: &str) -> Self {
        let outcome = match self.outcome {
            Outcome::Ok => Outcome::ServiceFailed,
            outcome => outcome,
        };
        let lines = self
            .error
            .into_iter()
            .chain([format!("{why:#}"), hint.to_owned()]);
        Self {
            outcome,
            error: Some(lines.collect::<Vec<_>>().join("\n")),
            ..self
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct RunFolder(pub(super) PathBuf);

impl RunFolder {
    pub(super) fn of(state_folder: &Path, job: JobId) -> Self {
        Self(folder_of(state_folder, &job))
    }

    /// The only run whose job id ends with these digits.
    pub(super) fn find(state_folder: &Path, end: &str) -> anyhow::Result<Self> {
        let found = find(state_folder, end)?;
        found.map(Self).with_context(|| {
            format!("No run that was started here ends with {end}\nhint: `baton run --detach` prints the job")
        })
    }

    pub(super) fn begin(&self, record: &Record) -> anyhow::Result<()> {
        make_folder(&self.0)?;
        self.open_log()?;
        self.reserve()?;
        self.write(record)
    }

    fn reserve(&self) -> anyhow::Result<()> {
        let reserved = fs::write(self.0.join(RESERVE), [0; RESERVED]);
        reserved.with_context(|| format!("Failed to write into {}", self.0.display()))
    }

    /// Writes the notebook as it is before the run.
    pub(super) fn write_notebook(&self, notebook: Option<&Document>) -> anyhow::Result<()> {
        let Some(notebook) = notebook else {
            return Ok(());
        };
        let path = self.notebook();
        let written = notebook.write(&path);
        written.with_context(|| format!("Failed to write {}", path.display()))
    }

    pub(super) fn end(&self, ended: &Ended, kept: Option<Kept>) -> anyhow::Result<()> {
        let mut record = self.read()?;
        record.ended = Some(ended.clone());
        record.kept = kept;
        let _ = fs::remove_file(self.0.join(RESERVE));
        self.write(&record)
    }

    /// Continues as another job. From then on the run is found by the new id as well as by the earlier ones.
    pub(super) fn resume(&self, job: JobId) -> anyhow::Result<()> {
        let mut record = self.read()?;
        record.job = job;
        record.ended = None;
        record.kept = None;
        let alias = self.0.with_file_name(job.to_string());
        let name = self.0.file_name().context("The run's folder has no name")?;
        symlink(name, alias).context("Failed to record the job")?;
        self.reserve()?;
        self.write(&record)
    }

    pub(super) fn read(&self) -> anyhow::Result<Record> {
        read_json(&self.0.join(RECORD))
    }

    /// None if there is no such run.
    pub(super) fn read_if_any(&self) -> anyhow::Result<Option<Record>> {
        match self.0.join(RECORD).exists() {
            true => self.read().map(Some),
            false => Ok(None),
        }
    }

    /// Asks the process that keeps the variables of this job to resume it.
    pub(super) fn request(&self, job: JobId) -> anyhow::Result<()> {
        fs::write(self.request_file(job), []).context("Failed to ask the run to continue")
    }

    /// Whether a resumption of this job was requested. Each request is returned once.
    pub(super) fn take_request(&self, job: JobId) -> bool {
        fs::remove_file(self.request_file(job)).is_ok()
    }

    /// It names the job: if two people request the same, the second request may come after the run
    /// has continued as another job, and must not repeat that one when it fails.
    fn request_file(&self, job: JobId) -> PathBuf {
        self.0.join(format!("{REQUEST}-{job}"))
    }

    pub(super) fn cancel(&self) -> anyhow::Result<()> {
        fs::write(self.0.join(CANCELLED), []).context("Failed to cancel the run")
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.join(CANCELLED).exists()
    }

    /// Whether it is a job of an array that was cancelled before it began.
    pub(super) fn will_not_begin(&self) -> bool {
        self.is_cancelled() && !self.has_begun()
    }

    /// Whether a job of an array has begun. From then on there is its notebook.
    pub(super) fn has_begun(&self) -> bool {
        self.notebook().exists()
    }

    /// Completes when the run has been cancelled.
    pub(super) async fn cancelled(&self) {
        while !self.is_cancelled() {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn write(&self, record: &Record) -> anyhow::Result<()> {
        write_json(&self.0.join(RECORD), record)
    }

    pub(super) fn notebook(&self) -> PathBuf {
        self.0.join("notebook.ipynb")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.0.join(LOG)
    }

    pub(super) fn open_log(&self) -> anyhow::Result<File> {
        open_log(&self.log())
    }

    /// Held by the process that runs the job.
    pub(super) fn lock(&self) -> anyhow::Result<File> {
        lock(&self.log())
    }

    /// Whether a process runs the job.
    pub(super) fn is_running(&self) -> io::Result<bool> {
        is_locked(&self.log())
    }
}

pub(super) fn make_folder(path: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.with_context(|| format!("Failed to create {}", path.display()))
}

pub(super) fn open_log(path: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path);
    opened.with_context(|| format!("Failed to open {}", path.display()))
}

pub(super) fn lock(log: &Path) -> anyhow::Result<File> {
    let log = open_log(log)?;
    log.lock().context("Failed to lock the log of the run")?;
    Ok(log)
}

pub(super) fn is_locked(log: &Path) -> io::Result<bool> {
    match File::open(log)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

pub(super) fn read_json<Value: DeserializeOwned>(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read(path).with_context(|| format!("Failed to read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_vec_pretty(value)?;
    baton_runner::replace(path, &text)
        .with_context(|| format!("Failed to write {}", path.display()))
}

/// The folder of the run or group with this complete identifier.
pub(super) fn folder_of(state_folder: &Path, id: &impl Display) -> PathBuf {
    state_folder.join(FOLDER).join(id.to_string())
}

/// The only folder of a run or group whose identifier ends with these digits.
pub(super) fn find(state_folder: &Path, end: &str) -> anyhow::Result<Option<PathBuf>> {
    let digits = end.replace('-', "");
    if digits.is_empty() {
        return Ok(None);
    }
    let ends = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default();
        name.to_string_lossy().ends_with(&digits)
    };
    let mut found = folders(state_folder).filter(ends);
    let folder = found.next();
    anyhow::ensure!(
        found.next().is_none(),
        "Several runs end with {end}\nhint: give more digits"
    );
    Ok(folder)
}

/// All runs of this machine.
pub(super) fn runs(state_folder: &Path) -> impl Iterator<Item = RunFolder> {
    let runs = folders(state_folder).filter(|folder| folder.join(RECORD).exists());
    runs.map(RunFolder)
}

fn folders(state_folder: &Path) -> impl Iterator<Item = PathBuf> {
    let found = fs::read_dir(state_folder.join(FOLDER));
    found
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// Removes the records of runs that ended long ago.
pub(super) fn forget_old(state_folder: &Path) {
    let now = SystemTime::now();
    for folder in folders(state_folder) {
        // A link from an earlier id to a run that no longer exists.
        if !folder.exists() {
            let _ = fs::remove_file(&folder);
        }
        let changed = fs::metadata(&folder).and_then(|folder| folder.modified());
        let age = changed
            .ok()
            .and_then(|changed| now.duration_since(changed).ok());
        if age.is_some_and(|age| age > KEPT) && !is_locked(&folder.join(LOG)).unwrap_or(false) {
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_request_that_comes_second_resumes_no_later_job() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder(place.path().to_owned());
        let (job, next) = (JobId::random(), JobId::random());
        folder.request(job).unwrap();
        assert!(folder.take_request(job));
        folder.request(job).unwrap();
        assert!(!folder.take_request(next));
        folder.request(next).unwrap();
        assert!(folder.take_request(next));
    }
}
