//! The status line below a waiting or finished cell, updated in place.
//!
//! Pure: facts and times in, texts out.
//!
//! **Invariant:** no line for a wait under [`QUIET`] or a run under [`SOON`], and at most one change in [`PACE`].

mod phrases;

use super::iopub;
use baton_humanize::{bytes, whole_seconds};
use baton_protocol::{
    BudgetLeft, GpuUsage, JobKind, Output, Usage,
    api::MovedBack,
    in_line,
    proxy::{Estimate, WaitingReason},
    wording::queued_noun,
};
use phrases::{budget, roughly, seconds, since};
use std::time::Duration;

/// Shorter waits show no line.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// A cell that runs longer than this without output shows that it is running.
const SOON: Duration = Duration::from_secs(1);
/// A cell that waits longer for something that only staff can change says what its student can do.
const LONG: Duration = Duration::from_secs(30);
/// Lines that change faster are hard to read.
pub(super) const PACE: Duration = Duration::from_secs(1);
/// A shorter start is left out of the line.
const SHORTEST_START_SHOWN: Duration = Duration::from_millis(500);

/// Why the cell does not run yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waiting {
    Connecting,
    Sending,
    /// Its notebook, which runs another cell, must send a complete state.
    Notebook,
    Queued {
        position: ShownQueuePosition,
        /// When the broker reported it.
        since: Duration,
    },
    Starting {
        worker: Option<String>,
    },
}

/// Which other job of the person a cell waits for, if it waits for one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum OtherJob {
    #[default]
    Any,
    /// The notebook's last cell, which was stopped.
    Stopped,
    /// Probably another job of the same map or run.
    SameRun,
}

/// A waiting job's position in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownQueuePosition {
    /// 1 = next.
    pub(super) position: u32,
    /// The largest position that the job is likely to have.
    pub(super) last_position: u32,
    /// Why the job is further back than before.
    pub(super) moved_back: Option<MovedBack>,
    pub(super) reason: WaitingReason,
    /// Whether the job waits for a GPU.
    pub(super) gpu: bool,
    pub(super) estimate: Option<Estimate>,
    /// A message from the course's staff.
    pub(super) message: Option<String>,
    pub(super) other: OtherJob,
}

impl Waiting {
    fn text(&self, kind: JobKind, now: Duration) -> String {
        match self {
            Self::Connecting => {
                let safe = match kind.is_program() {
                    true => "",
                    false => ". Your variables are safe",
                };
                format!("Waiting for the GPU service to answer{safe}")
            }
            Self::Sending if kind.is_program() => "Sending the run".to_owned(),
            Self::Sending => format!("Sending the {}'s variables", kind.noun()),
            Self::Notebook => format!(
                "Waiting until the notebook runs no other cell and can send the {}'s variables again",
                kind.noun()
            ),
            Self::Queued { position, since } => {
                position.text(kind, now.saturating_sub(*since), now)
            }
            Self::Starting { worker: None } => "Starting".to_owned(),
            Self::Starting {
                worker: Some(worker),
            } => format!("Starting on {worker}"),
        }
    }
}

impl ShownQueuePosition {
    /// `passed`: since the broker reported it. `waited`: since the cell began.
    fn text(&self, kind: JobKind, passed: Duration, waited: Duration) -> String {
        let (noun, queued) = (kind.noun(), queued_noun(kind));
        let staff = match waited < LONG {
            true => String::new(),
            false => format!(
                ". Your course staff can see this; stop the {noun} if you do not want to wait"
            ),
        };
        let in_line = || self.in_line(passed, queued);
        let (for_one, worker) = match self.gpu {
            true => ("Waiting for a GPU", "GPU worker"),
            false => ("Waiting for a worker", "worker"),
        };
        let line = match &self.reason {
            WaitingReason::NoWorker => {
                format!("{for_one}: no {worker} is connected at the moment{staff}")
            }
            WaitingReason::WorkersPaused { why: None } => {
                format!("{for_one}: the {worker}s accept no new {queued}s{staff}")
            }
            WaitingReason::WorkersPaused { why: Some(why) } => {
                format!("{for_one}: the {worker}s accept no new {queued}s ({why})")
            }
            WaitingReason::WorkersFail { worker: name, why } => {
                format!("{for_one}: sessions cannot start on {name} ({why}){staff}")
            }
            WaitingReason::CoursePaused { why } => {
                format!("{for_one}: your course is paused ({why})")
            }
            WaitingReason::OwnJobRuns { notebook } => match self.other {
                OtherJob::Any => {
                    format!("Waiting for your other %%gpu cell ({notebook}) to finish")
                }
                OtherJob::Stopped => {
                    format!("Waiting until the {noun} that you stopped has ended")
                }
                OtherJob::SameRun => {
                    format!(
                        "{for_one}: you already run as many {queued}s at once as one person may"
                    )
                }
            },
            WaitingReason::BehindDeadline { course } => format!(
                "{for_one}: {}. {course} has a deadline and runs first",
                in_line()
            ),
            WaitingReason::Held { why } => {
                format!("{for_one}: your course staff hold this {noun} back ({why})")
            }
            WaitingReason::BehindMoved {} => format!(
                "{for_one}: {}. Your course staff moved another {queued} to the front",
                in_line()
            ),
            WaitingReason::OwnSession { worker } => format!(
                "Waiting for {worker}, because your session there holds objects that cannot move: {}",
                in_line()
            ),
            WaitingReason::FittingWorkersBusy { requirement } => {
                format!("Waiting for a worker {requirement}: {}", in_line())
            }
            WaitingReason::MachineStarting {
                usual,
                expected_in_ms,
            } => {
                let kind = if self.gpu { "GPU machine" } else { "machine" };
                starting(kind, *usual, *expected_in_ms)
            }
            WaitingReason::NoWorkerFits {
                requirement,
                connected,
            } => format!(
                "Waiting for a worker {requirement}: there is none. Available: {}. Interrupt the {noun} to change what it asks for",
                connected.join(", ")
            ),
            WaitingReason::JobsAhead => format!("{for_one}: {}", in_line()),
        };
        match &self.message {
            Some(message) => format!("{line}\n{message}"),
            None => line,
        }
    }

    fn in_line(&self, passed: Duration, queued: &str) -> String {
        let position = in_line(self.position, self.last_position);
        let position = match self.estimate {
            Some(estimate) => {
                let left = |ms| roughly(Duration::from_millis(ms).saturating_sub(passed));
                let (lower, middle, upper) = (
                    left(estimate.lower_ms),
                    left(estimate.middle_ms),
                    left(estimate.upper_ms),
                );
                match lower == upper {
                    true => format!("{position}, about {middle}"),
                    false => format!("{position}, about {middle} ({lower} to {upper})"),
                }
            }
            None => {
                format!(
                    "{position}. No estimate yet: too little is known about the {queued}s ahead"
                )
            }
        };
        match self.moved_back {
            Some(moved_back) => format!("{position}. {moved_back}"),
            None => position,
        }
    }
}

/// The status line of one cell. Times are measured from the beginning of the cell.
///
/// It is shown below the cell's output: while the cell waits, while it runs without output, and
/// again at the end.
#[derive(Debug)]
pub(super) struct StatusLine {
    display_id: String,
    kind: JobKind,
    waiting: Waiting,
    offline: bool,
    /// The text in the notebook, and when it was shown.
    shown: Option<(String, Duration)>,
    assigned: Option<Assigned>,
    started: Option<Duration>,
    has_output: bool,
    /// When the student pressed stop.
    stopping: Option<Duration>,
    budget: Option<BudgetLeft>,
    quiet: bool,
}

#[derive(Debug)]
struct Assigned {
    worker: String,
    /// Whether the worker has a GPU.
    gpu: bool,
    at: Duration,
    /// The time limit of the run.
    limit: Option<Duration>,
}

impl StatusLine {
    pub(super) fn new(display_id: String, kind: JobKind, quiet: bool) -> Self {
        Self {
            display_id,
            kind,
            waiting: Waiting::Connecting,
            offline: false,
            shown: None,
            assigned: None,
            started: None,
            has_output: false,
            stopping: None,
            budget: None,
            quiet,
        }
    }

    pub(super) fn waits(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// The student pressed stop.
    pub(super) fn stops(&mut self, now: Duration) {
        self.stopping.get_or_insert(now);
    }

    /// The connection to the broker broke, or is back.
    pub(super) fn is_offline(&mut self, offline: bool) {
        self.offline = offline;
    }

    pub(super) fn assigned(
        &mut self,
        worker: String,
        gpu: bool,
        timeout_ms: Option<u64>,
        at: Duration,
    ) {
        self.waiting = Waiting::Starting {
            worker: Some(worker.clone()),
        };
        self.assigned = Some(Assigned {
            worker,
            gpu,
            at,
            limit: timeout_ms.map(Duration::from_millis),
        });
    }

    pub(super) fn charged(&mut self, left: BudgetLeft) {
        self.budget = Some(left);
    }

    /// What the cell left of the person's budget.
    pub(super) fn gpu_time_left(&self) -> Option<String> {
        self.budget.as_ref().map(budget)
    }

    pub(super) fn starts(&mut self, now: Duration) {
        self.started.get_or_insert(now);
    }

    /// The cell has shown output of its own.
    pub(super) fn output_shown(&mut self) {
        self.has_output = true;
    }

    pub(super) fn is_shown(&self) -> bool {
        self.shown.is_some()
    }

    /// The line has been removed from the notebook.
    pub(super) fn cleared(&mut self) {
        self.shown = None;
    }

    /// The time after `now` at which the line may change.
    pub(super) fn next_refresh(&self, now: Duration) -> Duration {
        let earliest = match (&self.shown, self.started) {
            (Some((_, since)), _) => *since + PACE,
            (None, Some(started)) => started + SOON,
            (None, None) => QUIET,
        };
        earliest.saturating_sub(now).max(PACE / 4)
    }

    /// Returns the line as it should be now, if it has changed, and notes that it is shown.
    pub(super) fn refresh(&mut self, now: Duration) -> Option<Output> {
        if self.quiet {
            return None;
        }
        let text = match (&self.assigned, self.started) {
            (Some(assigned), Some(started)) => {
                let running = now.saturating_sub(started);
                if self.stopping.is_some_and(|stopping| now >= stopping + SOON) {
                    return self.change(&stopping(self.kind), now);
                }
                if self.shown.is_none() && (self.has_output || running < SOON) {
                    return None;
                }
                assigned.running(running)
            }
            _ if now < QUIET => return None,
            _ if self.offline => Waiting::Connecting.text(self.kind, now),
            _ => self.waiting.text(self.kind, now),
        };
        self.change(&text, now)
    }

    fn change(&mut self, text: &str, now: Duration) -> Option<Output> {
        let due = match &self.shown {
            None => true,
            Some((shown, since)) => shown != text && now >= *since + PACE,
        };
        due.then(|| self.show(text, now))
    }

    /// Returns the summary of a finished cell.
    pub(super) fn summary(&self, now: Duration, usage: Usage) -> Option<String> {
        let assigned = self.assigned.as_ref().filter(|_| !self.quiet)?;
        let started = self.started.unwrap_or(now);
        let mut text = format!(
            "{}: {} on {}, waited {}",
            if assigned.gpu { "GPU" } else { "CPU" },
            seconds(Duration::from_millis(usage.run_ms)),
            assigned.worker,
            seconds(assigned.at)
        );
        let starting = started.saturating_sub(assigned.at);
        if starting >= SHORTEST_START_SHOWN {
            text.push_str(&format!(", started in {}", seconds(starting)));
        }
        if let Some((peak, of)) = peak(usage) {
            text.push_str(&format!(", peak {} of {of}", bytes(peak)));
        }
        if let Some(gpu) = usage.gpu {
            text.push_str(&gpu_usage(gpu));
        }
        if let Some(left) = self.gpu_time_left() {
            text.push_str(&format!(". {left}"));
        }
        Some(text)
    }

    /// Sets the text that is shown from now on.
    pub(super) fn show(&mut self, text: &str, now: Duration) -> Output {
        let before = self.shown.replace((text.to_owned(), now));
        match before {
            None => iopub::line(text, Some(&self.display_id)),
            Some(_) => iopub::updated_line(text, &self.display_id),
        }
    }
}

impl Assigned {
    fn running(&self, running: Duration) -> String {
        let limit = self.limit.map_or_else(String::new, |limit| {
            format!(
                " of at most {}",
                whole_seconds(limit.max(Duration::from_secs(1)))
            )
        });
        format!("Running on {} for {}{limit}", self.worker, since(running))
    }
}

/// For a cell that the student stopped. It may be returning its changes, or go on in spite of the interrupt.
fn stopping(kind: JobKind) -> String {
    let noun = kind.noun();
    let end_it = match kind.is_program() {
        true => "Interrupt it again to end it at once",
        false => "Press stop again to end it without its changes",
    };
    format!("Interrupted, but the {noun} has not ended yet. {end_it}")
}

/// Describes a machine that is starting, and how long that takes.
fn starting(kind: &str, usual: Option<Estimate>, expected_in_ms: Option<u64>) -> String {
    let time = |ms| roughly(Duration::from_millis(ms));
    let mut line = match usual {
        Some(Estimate {
            lower_ms,
            middle_ms,
            upper_ms,
        }) if time(lower_ms) != time(upper_ms) => format!(
            "A {kind} is being started, usually {} ({} to {})",
            time(middle_ms),
            time(lower_ms),
            time(upper_ms)
        ),
        Some(usual) => format!(
            "A {kind} is being started, usually {}",
            time(usual.middle_ms)
        ),
        None => format!("A {kind} is being started"),
    };
    if let Some(ms) = expected_in_ms {
        line.push_str(&format!(
            ". The batch system expects it to begin within {}",
            time(ms)
        ));
    }
    line
}

/// The peak of GPU memory, or of main memory if no GPU was used.
fn peak(usage: Usage) -> Option<(u64, &'static str)> {
    let on_gpu = usage.gpu.map_or(0, |gpu| gpu.peak_memory_bytes);
    [
        (on_gpu, "GPU memory"),
        (usage.peak_memory_bytes, "main memory"),
    ]
    .into_iter()
    .find(|(bytes, _)| *bytes > 0)
}

/// A cell's use of a GPU that several sessions share.
fn gpu_usage(gpu: GpuUsage) -> String {
    let mut text = format!(
        ", held the GPU for {}",
        seconds(Duration::from_millis(gpu.held_ms))
    );
    if gpu.waited_ms >= 100 {
        let waited = seconds(Duration::from_millis(gpu.waited_ms));
        text.push_str(&format!(" and waited {waited} for it"));
    }
    text
}

#[cfg(test)]
mod tests;
