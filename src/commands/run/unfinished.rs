//! Runs of this machine that have not ended: which files they write, and how they are cancelled.

use super::{
    RunError,
    record::{self, RunFolder, make_folder},
    request::OneJob,
    results,
};
use crate::settings::Settings;
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
    let writers = writers(state_folder);
    let mut outputs: HashMap<&Path, &OneJob> = HashMap::new();
    for job in jobs {
        // Scripts have none.
        let Some(output) = job.output.as_deref() else {
            continue;
        };
        let shown = output.display();
        if let Some(other) = outputs.insert(output, job) {
            let why = anyhow::anyhow!(
                "{} and {} would both write {shown}\nhint: put the names of the parameters in braces: -o 'out-{{seed}}.ipynb'",
                other.label,
                job.label
            );
            return Err(RunError::WrongCommandLine(why).into());
        }
        if let Some(writer) = writers.get(&resolved(output)) {
            let why = anyhow::anyhow!(
                "Job {writer}, which has not ended, writes {shown}\nhint: name another file with -o, or end that job: baton cancel {writer}"
            );
            return Err(RunError::WrongCommandLine(why).into());
        }
        baton_runner::check_replaceable(output)
            .with_context(|| format!("{shown} cannot be written"))?;
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

/// The notebooks that runs of this machine write. A damaged record does not prevent other runs.
fn writers(state_folder: &Path) -> HashMap<PathBuf, JobId> {
    let unfinished = record::runs(state_folder).filter_map(|folder| {
        let record = folder.read().ok()?;
        let output = record.output?;
        let ended = results::end_of(state_folder, &folder).ok()?;
        ended.is_none().then(|| (resolved(&output), record.job))
    });
    unfinished.collect()
}

/// Cancels a run of this machine, also if the broker does not know it yet or it only keeps variables. Returns whether
/// there is one.
pub(crate) fn cancel(settings: &Settings, end: &str) -> anyhow::Result<bool> {
    let Some(folder) = record::find(&settings.state_folder, end)?.map(RunFolder) else {
        return Ok(false);
    };
    let is_running = folder.is_running().context("Failed to check the run")?;
    let is_unfinished = is_running || results::end_of(&settings.state_folder, &folder)?.is_none();
    if is_unfinished {
        folder.cancel()?;
    }
    Ok(is_unfinished)
}
