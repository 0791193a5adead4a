//! Several jobs of one notebook, each with its own parameters.
//!
//! The broker decides how many of them run at once. Each job that waits or runs takes a kernel on
//! this machine, so further jobs are submitted as earlier ones leave the queue.

use super::{
    group::GroupFolder,
    pass_on,
    progress::Progress,
    record::{Ended, Outcome, Record, RunFolder, open_log},
    request::{Loaded, OneJob, Request},
    results::{self, ShownJob},
    unfinished::check_outputs,
    watched::{self, Run, Step},
};
use crate::{settings::Settings, signals::EndSignals, status_line::StatusLine};
use anyhow::Context;
use baton_protocol::{GroupId, JobId};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs::File,
    future::pending,
    io::Write as _,
    process::ExitCode,
    time::Duration,
};
use tokio::{
    runtime::Builder,
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

/// The most jobs of an array that wait in the broker's queue.
const MOST_WAITING: usize = 4;
/// Each job has a kernel here, which takes about 70 MB.
const MOST_AT_ONCE: usize = 32;
/// The pause between two checks whether the group was cancelled.
const LOOK: Duration = Duration::from_secs(1);

/// Begins a group of the jobs with these labels.
pub(super) fn begin(
    settings: &Settings,
    request: &Request,
    labels: &[String],
    detaches: bool,
) -> anyhow::Result<ExitCode> {
    let group = GroupId::random();
    let loaded = Loaded::read(request)?;
    let jobs = labels
        .iter()
        .map(|label| request.job(JobId::random(), Some(group), label))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let beginning = check_outputs(&settings.state_folder, &jobs)?;
    for job in &jobs {
        RunFolder::of(&settings.state_folder, job.id).begin(&Record::new(job, request)?)?;
    }
    let folder = GroupFolder::of(&settings.state_folder, group);
    let ids = jobs.iter().map(|job| job.id).collect();
    folder.begin(group, &request.program, ids)?;
    let lock = folder.lock()?;
    drop(beginning);
    if detaches {
        super::continue_in_background(&request.command, &group.to_string(), lock)?;
        results::show_detached_group(group, &jobs, request.json);
        return Ok(ExitCode::SUCCESS);
    }
    let array = Array {
        request,
        loaded: &loaded,
        jobs: &jobs,
        folder: &folder,
    };
    let ended = array.run_to_end(request.json, false)?;
    drop(lock);
    let jobs: Vec<ShownJob> = jobs.iter().zip(&ended).map(ShownJob::of).collect();
    results::show_group(group, &jobs, request.json)
}

/// Continues a group in the background, with the lock of the process that began it.
pub(super) fn continue_group(
    settings: &Settings,
    request: &Request,
    group: GroupId,
) -> anyhow::Result<ExitCode> {
    let folder = GroupFolder::of(&settings.state_folder, group);
    let ids = folder.read()?.jobs.into_iter();
    let jobs = ids.map(|id| {
        let record = folder.job(id).read()?;
        request.job(id, Some(group), &record.label)
    });
    let array = Array {
        request,
        loaded: &Loaded::read(request)?,
        jobs: &jobs.collect::<anyhow::Result<Vec<_>>>()?,
        folder: &folder,
    };
    array.run_to_end(true, true)?;
    Ok(ExitCode::SUCCESS)
}

struct Array<'a> {
    request: &'a Request,
    /// The notebook without parameters.
    loaded: &'a Loaded,
    jobs: &'a [OneJob],
    folder: &'a GroupFolder,
}

impl Array<'_> {
    /// Returns how each job ended.
    fn run_to_end(&self, is_quiet: bool, in_background: bool) -> anyhow::Result<Vec<Ended>> {
        let runtime = crate::runtime::start(Builder::new_current_thread())?;
        let shown = Shown::new(self, is_quiet)?;
        let ended = runtime.block_on(run(self, shown, in_background))?;
        self.folder.end()?;
        Ok(ended)
    }
}

/// Decides when each job is begun. Jobs are numbered by their position in the array.
#[derive(Debug)]
struct Schedule {
    count: usize,
    at_once: usize,
    next: usize,
    /// The job whose kernel is starting. Only one at a time, so that jobs are submitted in order.
    starting: Option<usize>,
    /// Submitted, but not on a worker yet.
    waiting: BTreeSet<usize>,
    running: BTreeSet<usize>,
}

impl Schedule {
    fn new(count: usize, at_once: Option<usize>) -> Self {
        Self {
            count,
            at_once: at_once.unwrap_or(MOST_AT_ONCE).min(MOST_AT_ONCE),
            next: 0,
            starting: None,
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
        }
    }

    fn begin_next(&mut self) -> Option<usize> {
        let has_room = self.starting.is_none()
            && self.waiting.len() < MOST_WAITING
            && self.waiting.len() + self.running.len() < self.at_once;
        if !has_room || self.next == self.count {
            return None;
        }
        self.next += 1;
        self.starting = Some(self.next - 1);
        self.starting
    }

    fn on_step(&mut self, job: usize, step: Step) {
        self.starting.take_if(|starting| *starting == job);
        match step {
            Step::Submitted => self.waiting.insert(job),
            Step::OnWorker => {
                self.waiting.remove(&job);
                self.running.insert(job)
            }
        };
    }

    /// Returns whether a worker had run it.
    fn on_end(&mut self, job: usize) -> bool {
        self.starting.take_if(|starting| *starting == job);
        self.waiting.remove(&job);
        self.running.remove(&job)
    }

    /// Begins no more jobs, and returns those that were not begun.
    fn stop(&mut self) -> std::ops::Range<usize> {
        let left = self.next..self.count;
        self.next = self.count;
        left
    }
}

/// Returns how each job ended.
async fn run(
    array: &Array<'_>,
    mut shown: Shown,
    in_background: bool,
) -> anyhow::Result<Vec<Ended>> {
    let signals = EndSignals::listen().context("Failed to listen for signals")?;
    let (interrupt, mut interrupted) = mpsc::channel(1);
    let listening = tokio::spawn(pass_on(signals, pending(), interrupt, in_background));
    let mut schedule = Schedule::new(array.jobs.len(), array.request.at_once);
    let mut ended: BTreeMap<usize, Ended> = BTreeMap::new();
    let mut running = FuturesUnordered::new();
    let mut interrupts: BTreeMap<usize, mpsc::Sender<()>> = BTreeMap::new();
    // Bounded by the jobs: each has a few steps.
    let (step, mut steps) = mpsc::unbounded_channel();
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_cancelled = false;
    loop {
        while let Some(place) = schedule.begin_next() {
            let (interrupt, interrupts_of_job) = mpsc::channel(1);
            interrupts.insert(place, interrupt.clone());
            let step = step.clone();
            running.push(async move {
                let on_step = |reached| _ = step.send((place, reached));
                let job = &array.jobs[place];
                let ended = tokio::select! {
                    biased;
                    never = interrupt_cancelled(array.folder.job(job.id), interrupt) => match never {},
                    ended = run_job(array, job, interrupts_of_job, on_step) => ended,
                };
                let ended = ended.and_then(|ended| {
                    array.folder.job(array.jobs[place].id).end(&ended, None)?;
                    Ok(ended)
                });
                let failed = |error: anyhow::Error| Ended::service_failed(format!("{error:#}"));
                (place, ended.unwrap_or_else(failed))
            });
        }
        if running.is_empty() {
            break;
        }
        shown.progress(&schedule, ended.len());
        let stopped = tokio::select! {
            Some((place, step)) = steps.recv() => {
                schedule.on_step(place, step);
                shown.step(&array.jobs[place], step);
                None
            }
            Some((place, end)) = running.next() => {
                interrupts.remove(&place);
                while let Ok((other, step)) = steps.try_recv() {
                    schedule.on_step(other, step);
                    shown.step(&array.jobs[other], step);
                }
                let has_run = schedule.on_end(place);
                shown.ended(&array.jobs[place], &end);
                let stopped = stops_others(&array.jobs[place], &end, has_run);
                ended.insert(place, end);
                stopped
            }
            Some(()) = interrupted.recv() => Some(cancelled()),
            _ = look.tick(), if !is_cancelled && array.folder.is_cancelled() => {
                is_cancelled = true;
                Some(cancelled())
            }
        };
        let Some(why) = stopped else {
            continue;
        };
        for place in schedule.stop() {
            let recorded = array.folder.job(array.jobs[place].id).end(&why, None);
            if let Err(error) = recorded {
                tracing::warn!("{error:#}"); // the other jobs must still end in order
            }
            ended.insert(place, why.clone());
        }
        if why.outcome == Outcome::Interrupted {
            for interrupt in interrupts.values() {
                let _ = interrupt.try_send(()); // if one is pending already, that is enough
            }
        }
    }
    listening.abort();
    Ok(ended.into_values().collect())
}

/// Interrupts a job once it is cancelled.
async fn interrupt_cancelled(folder: RunFolder, interrupt: mpsc::Sender<()>) -> Infallible {
    folder.cancelled().await;
    let _ = interrupt.try_send(()); // if one is pending already, that is enough
    pending().await
}

async fn run_job(
    array: &Array<'_>,
    job: &OneJob,
    interrupts: mpsc::Receiver<()>,
    on_step: impl FnMut(Step),
) -> anyhow::Result<Ended> {
    let folder = array.folder.job(job.id);
    if folder.is_cancelled() {
        return Ok(cancelled());
    }
    let loaded = array.loaded.with(job);
    folder.write_notebook(loaded.document())?;
    // As long as there was no notebook, a cancelled job let other runs write its output.
    if folder.is_cancelled() {
        return Ok(cancelled());
    }
    let progress = Progress::new(&folder, &loaded, true)?;
    let run = Run {
        request: array.request,
        job,
        loaded: &loaded,
        folder: &folder,
    };
    watched::run(run, progress, interrupts, on_step).await
}

fn cancelled() -> Ended {
    Ended {
        error: Some("Cancelled before it was submitted".to_owned()),
        ..Ended::new(Outcome::Interrupted)
    }
}

/// If a job could not run, whatever the reason (no broker, a wrong option, no budget), the others
/// cannot run either.
fn stops_others(job: &OneJob, end: &Ended, has_run: bool) -> Option<Ended> {
    if has_run || end.outcome != Outcome::ServiceFailed {
        return None;
    }
    let error = format!("Not submitted, because {} could not run", job.label);
    Some(Ended::service_failed(error))
}

/// The array's progress, shown on the terminal if there is one, and in the group's log.
struct Shown {
    log: File,
    is_quiet: bool,
    line: StatusLine,
    count: usize,
}

impl Shown {
    fn new(array: &Array<'_>, is_quiet: bool) -> anyhow::Result<Self> {
        Ok(Self {
            log: open_log(&array.folder.log())?,
            is_quiet,
            line: StatusLine::new(is_quiet),
            count: array.jobs.len(),
        })
    }

    fn step(&mut self, job: &OneJob, step: Step) {
        if step == Step::OnWorker {
            self.record(&format!("{} runs (job {})", job.label, job.id));
        }
    }

    fn ended(&mut self, job: &OneJob, ended: &Ended) {
        let text = match &ended.error {
            None => format!("{} done", job.label),
            Some(error) => format!("{} {error}", job.label),
        };
        self.record(&text);
        if self.is_quiet {
            return;
        }
        self.line.clear();
        match (&ended.error, &job.output) {
            (None, Some(output)) => outln!("{}", output.display()),
            _ => errln!("{text}"),
        }
    }

    fn record(&mut self, text: &str) {
        let _ = writeln!(self.log, "{text}");
    }

    fn progress(&mut self, schedule: &Schedule, ended: usize) {
        self.line.show(&format!(
            "{ended} of {} ended, {} running, {} waiting, {} to come",
            self.count,
            schedule.running.len(),
            schedule.waiting.len() + usize::from(schedule.starting.is_some()),
            schedule.count - schedule.next,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The jobs that are submitted now, in order.
    fn submitted(schedule: &mut Schedule) -> Vec<usize> {
        let next = || {
            let job = schedule.begin_next()?;
            assert_eq!(schedule.begin_next(), None, "one kernel starts at a time");
            schedule.on_step(job, Step::Submitted);
            Some(job)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn jobs_follow_as_others_leave_the_queue() {
        let mut schedule = Schedule::new(100, None);
        assert_eq!(submitted(&mut schedule), [0, 1, 2, 3]);
        schedule.on_step(1, Step::OnWorker);
        schedule.on_step(2, Step::OnWorker);
        assert_eq!(submitted(&mut schedule), [4, 5]);
        assert!(schedule.on_end(1));
        assert!(!schedule.on_end(0));
        assert_eq!(submitted(&mut schedule), [6]);
        assert_eq!(schedule.stop(), 7..100);
        assert!(submitted(&mut schedule).is_empty());
    }

    #[test]
    fn only_so_many_have_a_kernel() {
        for (at_once, most) in [
            (None, MOST_AT_ONCE),
            (Some(3), 3),
            (Some(500), MOST_AT_ONCE),
        ] {
            let mut schedule = Schedule::new(100, at_once);
            let mut all = 0;
            loop {
                let submitted = submitted(&mut schedule);
                if submitted.is_empty() {
                    break;
                }
                all += submitted.len();
                for job in submitted {
                    schedule.on_step(job, Step::OnWorker);
                }
            }
            assert_eq!(all, most);
        }
    }

    #[test]
    fn a_kernel_that_does_not_start_keeps_no_other_from_starting() {
        let mut schedule = Schedule::new(2, None);
        assert_eq!(schedule.begin_next(), Some(0));
        assert!(!schedule.on_end(0));
        assert_eq!(submitted(&mut schedule), [1]);
        assert!(!schedule.on_end(1));
        assert!(submitted(&mut schedule).is_empty());
    }
}
