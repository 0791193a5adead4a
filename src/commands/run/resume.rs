//! `baton run --resume`: resumes a run at the cell that failed.
//!
//! After a cell has failed, the process of a background run stays for a time. It keeps the session,
//! which holds the notebook's kernel. The run continues there if a resumption is requested and the
//! earlier cells are unchanged. Everything else runs from the top.

use super::{
    Parse,
    arguments::RunArguments,
    array,
    group::GroupFolder,
    progress::Progress,
    record::{Ended, Kept, LOOK, Outcome, Record, RunFolder},
    request::{Loaded, OneJob, Request},
    results,
    unfinished::check_outputs,
    watched::{Run, Watched},
};
use crate::{arguments::is_notebook, settings::Settings};
use anyhow::Context;
use baton_protocol::JobId;
use baton_runner::{Document, End, Keep, Runner};
use jiff::Timestamp;
use std::{
    ffi::OsString,
    fs::File,
    io::{Seek as _, SeekFrom},
    path::Path,
    process::ExitCode,
    thread::sleep,
};
use tokio::sync::mpsc;

// ---- in the process of the run

/// Runs the job, and resumes it on request for as long as its variables are kept.
pub(super) async fn run(
    first: Run<'_>,
    progress: Progress,
    mut interrupts: mpsc::Receiver<()>,
) -> anyhow::Result<Ended> {
    let mut watched = Watched::begin(first, progress)?;
    let kernelspec = first.request.kernelspec(first.job)?;
    let Some(mut runner) = Runner::start(&kernelspec, &mut interrupts).await? else {
        return watched.end(End::Interrupted);
    };
    let name = first.job.id.to_string();
    let mut begin = 0;
    let mut resumed: Option<(OneJob, Loaded)> = None;
    let ended = loop {
        let run = match &resumed {
            None => first,
            Some((job, loaded)) => Run {
                job,
                loaded,
                ..first
            },
        };
        let keep = Some(Keep { name: &name, begin });
        let end = watched
            .follow(run, &mut runner, keep, &mut interrupts, |_| {})
            .await?;
        let stays = watched.is_kept() && matches!(end, End::ProgramFailed(_) | End::TimedOut);
        let cells = watched.cells_before(run);
        let ended = watched.end(end)?;
        let Some(cell) = ended.cell.filter(|_| stays) else {
            break ended;
        };
        let until = Timestamp::now().checked_add(run.request.keep)?;
        run.folder.end(&ended, Some(Kept { until, cell }))?;
        if !is_asked(run, until, &mut interrupts).await {
            break ended;
        }
        let job = OneJob {
            id: JobId::random(),
            ..run.job.clone()
        };
        let loaded = Loaded::read(run.request)?.with(&job);
        let (cells, why) = same_cells(run.loaded, &loaded, cells);
        begin = cells;
        let next = Run {
            job: &job,
            loaded: &loaded,
            ..run
        };
        watched.resume(next, begin, &format!("Job {} continues: {why}", job.id));
        run.folder.resume(job.id)?;
        resumed = Some((job, loaded));
    };
    runner.end().await;
    Ok(ended)
}

async fn is_asked(run: Run<'_>, until: Timestamp, interrupts: &mut mpsc::Receiver<()>) -> bool {
    loop {
        if run.folder.take_request(run.job.id) {
            return true;
        }
        if Timestamp::now() > until {
            return false;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            Some(()) = interrupts.recv() => return false,
        }
    }
}

/// The number of code cells at the start that ran and need not run again, and the reason.
fn same_cells(old: &Loaded, new: &Loaded, ran: usize) -> (usize, String) {
    let cells = |loaded: &Loaded| {
        loaded
            .document()
            .map(Document::code_cells)
            .unwrap_or_default()
    };
    let (old, new) = (cells(old), cells(new));
    let is_same = |place: &usize| match (old.get(*place), new.get(*place)) {
        (Some(old), Some(new)) => old.source == new.source,
        _ => false,
    };
    match (0..ran).find(|place| !is_same(place)) {
        None if ran == 0 => (0, "the first cell failed, so all cells run".to_owned()),
        None => match new.get(ran) {
            Some(cell) => (ran, format!("from cell {}", cell.number + 1)),
            None => (ran, "no cell is left".to_owned()),
        },
        Some(place) => {
            let cell = new.get(place).or(new.last());
            let number = cell.map_or(1, |cell| cell.number + 1);
            (
                0,
                format!("cell {number} has changed, so all cells run again"),
            )
        }
    }
}

// ---- in the process that asks

pub(super) fn main(
    settings: &Settings,
    of: &RunArguments,
    run: &str,
    parse: Parse,
) -> anyhow::Result<ExitCode> {
    let (json, detaches) = (of.json, of.detach);
    if let Some(group) = GroupFolder::find(&settings.state_folder, run)? {
        return resume_group(settings, &group, of, parse);
    }
    let folder = find(&settings.state_folder, run)?;
    let record = folder.read()?;
    match results::end_of(&settings.state_folder, &folder)? {
        None => anyhow::bail!(
            "This run is still running\nhint: baton logs -f {}",
            record.job
        ),
        Some(ended) if ended.outcome == Outcome::Ok => {
            anyhow::bail!("This run has ended without an error: there is nothing to resume")
        }
        Some(_) => {}
    }
    let request = request_of(&record, json, parse)?;
    let mut log = File::open(folder.log()).context("Failed to read the log of the run")?;
    log.seek(SeekFrom::End(0))?;
    if record.kept.is_some() {
        let resumed = request.job(record.job, record.group, &record.label)?;
        drop(check_outputs(&settings.state_folder, &[resumed])?);
        if ask(&folder, record.job)? {
            if detaches {
                let record = folder.read()?;
                results::show_detached(record.job, record.output.as_deref(), json);
                return Ok(ExitCode::SUCCESS);
            }
            return follow(settings, &folder, log, json);
        }
    }
    errln!("The variables of this run are not kept: all of it runs again");
    let job = request.job(JobId::random(), None, &record.label)?;
    super::begin(settings, &request, &job, detaches)
}

/// Runs the jobs that did not succeed again, as a group of their own.
fn resume_group(
    settings: &Settings,
    group: &GroupFolder,
    of: &RunArguments,
    parse: Parse,
) -> anyhow::Result<ExitCode> {
    let record = group.read()?;
    let Some(ends) = results::ends_of(settings, group)? else {
        anyhow::bail!(
            "This group is still running\nhint: baton logs -f {}",
            record.group
        );
    };
    let mut records = Vec::new();
    for (job, ended) in record.jobs.iter().zip(&ends) {
        if ended.outcome != Outcome::Ok {
            records.push(group.job(*job).read()?);
        }
    }
    let first = records.first().context(
        "All jobs of this group have ended without an error: there is nothing to resume",
    )?;
    let request = request_of(first, of.json, parse)?;
    let labels: Vec<String> = records.iter().map(|record| record.label.clone()).collect();
    errln!("{} of {} jobs run again", labels.len(), ends.len());
    array::begin(settings, &request, &labels, of.detach)
}

/// The original request, read again in the folder in which it was made.
fn request_of(record: &Record, json: bool, parse: Parse) -> anyhow::Result<Request> {
    std::env::set_current_dir(&record.called_in)
        .with_context(|| format!("The folder {} is gone", record.called_in.display()))?;
    let words: Vec<OsString> = record.command.iter().map(OsString::from).collect();
    anyhow::ensure!(
        !words.is_empty(),
        "This run was recorded by an older version\nhint: run it again"
    );
    let arguments = parse(&words).context("It was not started by `baton run`")?;
    let mut request = Request::read(&arguments, &words)?;
    request.json = json;
    // Errors in reading must appear here, and not in the background.
    Loaded::read(&request)?;
    Ok(request)
}

fn find(state_folder: &Path, run: &str) -> anyhow::Result<RunFolder> {
    if is_notebook(Path::new(run)) {
        let document = Document::read(Path::new(run))?;
        let job = document.record().and_then(|record| record["job"].as_str());
        let job = job.with_context(|| {
            format!("{run} was not written by `baton run`\nhint: name the notebook that a run wrote, such as train.out.ipynb")
        })?;
        return RunFolder::find(state_folder, job);
    }
    RunFolder::find(state_folder, run)
}

/// Returns whether the run's process resumes it.
fn ask(folder: &RunFolder, job: JobId) -> anyhow::Result<bool> {
    folder.request(job)?;
    loop {
        if folder.read()?.job != job {
            return Ok(true);
        }
        if !folder.is_running().context("Failed to check the run")? {
            // It has ended, perhaps just before the request.
            let _ = folder.take_request(job);
            return Ok(folder.read()?.job != job);
        }
        sleep(LOOK);
    }
}

/// Follows the output of a background run from now on.
fn follow(
    settings: &Settings,
    folder: &RunFolder,
    mut log: File,
    json: bool,
) -> anyhow::Result<ExitCode> {
    loop {
        let ended = results::end_of(&settings.state_folder, folder)?;
        if !json {
            results::copy(&mut log)?;
        }
        if let Some(ended) = ended {
            let record = folder.read()?;
            // The log has shown the traceback.
            let shown = match json {
                true => ended,
                false => ended.without_traceback(),
            };
            let code = results::show(record.job, record.output.as_deref(), &shown, json);
            results::show_kept(folder, &record);
            return code;
        }
        sleep(LOOK);
    }
}
