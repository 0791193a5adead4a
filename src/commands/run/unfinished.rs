//! Runs of this machine that have not ended: which files they write, and how they are cancelled.

use super::{
    RunError,
    record::{self, RunFolder, make_folder},
    request::OneJob,
    results,
};
use anyhow::Context;
use baton_protocol::JobId;
use std::{
    collections::HashMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

/// Locked while a job begins.
const BEGINNING: &str = "runs.lock";

/// Checks that each job writes a notebook that no other job of this machine writes. Until the returned file is closed,
/// no other job begins: by then, the jobs count as running.
///
/// # Errors
/// If two would write the same one, or one cannot be written.
pub(super) fn check_outputs(state_folder: &Path, jobs: &[OneJob]) -> anyhow::Result<File> {
    make_folder(state_folder)?;
    let alone = record::lock(&state_folder.join(BEGINNING))?;
    let mut outputs: HashMap<PathBuf, &OneJob> = HashMap::new();
    for job in jobs {
        // Scripts have none.
        let Some(output) = job.output.as_deref() else {
            continue;
        };
        if let Some(other) = outputs.insert(resolved(output), job) {
            let why = anyhow::anyhow!(
                "{} and {} would both write {}\nhint: put the names of the parameters in braces: -o 'out-{{seed}}.ipynb'",
                other.label,
                job.label,
                output.display()
            );
            return Err(RunError::WrongCommandLine(why).into());
        }
    }
    if !outputs.is_empty()
        && let Some((output, writer)) = written_by_another(state_folder, &outputs)
    {
        let why = anyhow::anyhow!(
            "Job {writer}, which has not ended, writes {}\nhint: name another file with -o, or end that job: baton cancel {writer}",
            output.display()
        );
        return Err(RunError::WrongCommandLine(why).into());
    }
    for output in jobs.iter().filter_map(|job| job.output.as_deref()) {
        baton_runner::check_replaceable(output)
            .with_context(|| format!("{} cannot be written", output.display()))?;
    }
    Ok(alone)
}

/// The same path for each way to name a file, which need not exist.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (
        absolute.parent().map(fs::canonicalize),
        absolute.file_name(),
    ) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => absolute,
    }
}

/// One of these notebooks that a run of this machine writes, and the run's job. A damaged record does not prevent other
/// runs.
fn written_by_another<'a>(
    state_folder: &Path,
    outputs: &HashMap<PathBuf, &'a OneJob>,
) -> Option<(&'a Path, JobId)> {
    record::runs(state_folder).find_map(|folder| {
        let record = folder.read().ok()?;
        if record.ended.is_some() || folder.will_not_begin() {
            return None;
        }
        let job = outputs.get(&resolved(&record.output?))?;
        let is_over = results::end_of(state_folder, &folder).ok()?.is_some();
        (!is_over).then_some((job.output.as_deref()?, record.job))
    })
}

/// Cancels a run of this machine, also if the broker does not know it yet or it only keeps variables. Returns whether
/// there is one.
pub(crate) fn cancel(state_folder: &Path, end: &str) -> anyhow::Result<bool> {
    let Some(folder) = record::find(state_folder, end)?.map(RunFolder) else {
        return Ok(false);
    };
    // With a damaged record, the broker may still know the job.
    let is_unfinished = folder.is_running().unwrap_or(false)
        || matches!(results::end_of(state_folder, &folder), Ok(None));
    if is_unfinished {
        folder.cancel()?;
    }
    Ok(is_unfinished)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn output(&self) -> PathBuf {
            self.0.path().join("out.ipynb")
        }

        /// A run that has begun to write the output.
        fn run(&self) -> RunFolder {
            let job = JobId::random();
            let record = json!({
                "job": job,
                "program": "train.ipynb",
                "output": self.output(),
                "started": "2026-01-01T00:00:00Z",
                "ended": null,
            });
            let folder = RunFolder::of(self.0.path(), job);
            folder
                .begin(&serde_json::from_value(record).unwrap())
                .unwrap();
            folder
        }

        /// Whether another run may write the output.
        fn is_free(&self) -> bool {
            let job = OneJob {
                id: JobId::random(),
                group: None,
                label: String::new(),
                parameters: Vec::new(),
                output: Some(self.output()),
            };
            check_outputs(self.0.path(), &[job]).is_ok()
        }
    }

    #[test]
    fn a_job_that_was_cancelled_before_it_began_writes_nothing() {
        let place = Place::new();
        let folder = place.run();
        let _running = folder.lock().unwrap();
        assert!(!place.is_free());
        folder.cancel().unwrap();
        assert!(place.is_free());
        fs::write(folder.notebook(), "").unwrap();
        assert!(!place.is_free(), "it has begun");
    }

    #[test]
    fn a_run_that_was_killed_writes_nothing() {
        let place = Place::new();
        let folder = place.run();
        let running = folder.lock().unwrap();
        assert!(!place.is_free());
        drop(running);
        assert!(place.is_free());
    }

    #[test]
    fn a_run_without_a_record_is_left_to_the_broker() {
        let place = Place::new();
        let folder = place.run();
        let name = folder.0.file_name().unwrap().to_string_lossy();
        let running = folder.lock().unwrap();
        fs::remove_file(folder.0.join("run.json")).unwrap();
        assert!(cancel(place.0.path(), &name).unwrap());
        drop(running);
        assert!(!cancel(place.0.path(), &name).unwrap());
        fs::remove_file(folder.log()).unwrap();
        assert!(!cancel(place.0.path(), &name).unwrap());
    }
}
