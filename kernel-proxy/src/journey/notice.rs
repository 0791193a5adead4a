//! What the student reads about a waiting or finished cell: one line that changes in place.
//!
//! Pure: facts and times in, texts out.
//!
//! **Invariant:** nothing for a wait under [`QUIET`], and never more than one change in [`PACE`].

mod words;

use std::time::Duration;

use baton_protocol::api::MovedBack;
use baton_protocol::proxy::{Estimate, WaitingReason};
use baton_protocol::{BudgetLeft, GpuUsage, Usage, in_line};
use serde_json::json;

use words::{budget, bytes, escaped, roughly, seconds, since, whole};

/// Waits shorter than this are not worth a word.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// A text that changes faster cannot be read.
pub(super) const PACE: Duration = Duration::from_secs(1);

/// Why the cell does not run yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waiting {
    Connecting,
    Moving,
    Queued {
        place: Place,
        /// When that was said.
        since: Duration,
    },
    Starting,
}

/// What the broker says about a job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// 1 = next in line.
    pub(super) place: u32,
    /// The place that it hardly falls behind.
    pub(super) last_place: u32,
    /// Why it is further back than it once was told to be.
    pub(super) moved_back: Option<MovedBack>,
    pub(super) reason: WaitingReason,
    pub(super) estimate: Option<Estimate>,
    /// From the course's staff.
    pub(super) message: Option<String>,
}

impl Waiting {
    fn text(&self, now: Duration) -> String {
        match self {
            Self::Connecting => {
                "Waiting for the GPU service to answer. Your variables are safe".to_owned()
            }
            Self::Moving => "Sending what the cell needs".to_owned(),
            Self::Queued { place, since } => place.text(now.saturating_sub(*since)),
            Self::Starting => "Starting a session on the GPU worker".to_owned(),
        }
    }
}

impl Place {
    fn text(&self, passed: Duration) -> String {
        let line = match &self.reason {
            WaitingReason::NoWorker => {
                "Waiting for a GPU: no GPU worker is connected at the moment".to_owned()
            }
            WaitingReason::WorkersPaused { why: None } => {
                "Waiting for a GPU: the GPU workers are drained".to_owned()
            }
            WaitingReason::WorkersPaused { why: Some(why) } => {
                format!("Waiting for a GPU: the GPU workers are drained ({why})")
            }
            WaitingReason::CoursePaused { why } => {
                format!("Waiting for a GPU: your course is paused ({why})")
            }
            WaitingReason::OwnJobRuns { notebook } => {
                format!("Waiting for your other GPU cell ({notebook}) to finish")
            }
            WaitingReason::BehindDeadline { course } => format!(
                "Waiting for a GPU: {}. {course} has a deadline and goes first",
                self.in_line(passed)
            ),
            WaitingReason::Held { why } => {
                format!("Waiting for a GPU: your course staff hold this cell back ({why})")
            }
            WaitingReason::BehindMoved {} => format!(
                "Waiting for a GPU: {}. Your course staff let another cell go first",
                self.in_line(passed)
            ),
            WaitingReason::OwnSession { worker } => format!(
                "Waiting for {worker}, where your session holds what no other can have: {}",
                self.in_line(passed)
            ),
            WaitingReason::InLine => format!("Waiting for a GPU: {}", self.in_line(passed)),
        };
        match &self.message {
            Some(message) => format!("{line}\n{message}"),
            None => line,
        }
    }

    fn in_line(&self, passed: Duration) -> String {
        let place = in_line(self.place, self.last_place);
        let place = match self.estimate {
            Some(estimate) => {
                let left = |ms| roughly(Duration::from_millis(ms).saturating_sub(passed));
                let (lower, middle, upper) = (
                    left(estimate.lower_ms),
                    left(estimate.middle_ms),
                    left(estimate.upper_ms),
                );
                match lower == upper {
                    true => format!("{place}, about {middle}"),
                    false => format!("{place}, about {middle} ({lower} to {upper})"),
                }
            }
            None => {
                format!("{place}. Too little is known of the runs ahead for an estimate")
            }
        };
        match self.moved_back {
            Some(moved_back) => format!("{place}. {moved_back}"),
            None => place,
        }
    }
}

/// The line of one cell. Times are measured from the moment at which the cell began.
#[derive(Debug)]
pub(super) struct Notice {
    display_id: String,
    waiting: Waiting,
    /// The text that stands in the notebook, and since when.
    shown: Option<(String, Duration)>,
    started: Option<Duration>,
    limit: Option<Duration>,
    budget: Option<BudgetLeft>,
    quiet: bool,
}

/// An iopub message to be put out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) kind: &'static str,
    pub(super) content: String,
}

impl Notice {
    pub(super) fn new(display_id: String, quiet: bool) -> Self {
        Self {
            display_id,
            waiting: Waiting::Connecting,
            shown: None,
            started: None,
            limit: None,
            budget: None,
            quiet,
        }
    }

    pub(super) fn waits(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// How long the cell may run.
    pub(super) fn limit(&mut self, timeout_ms: Option<u64>) {
        self.limit = timeout_ms.map(Duration::from_millis);
    }

    pub(super) fn charged(&mut self, left: BudgetLeft) {
        self.budget = Some(left);
    }

    pub(super) fn starts(&mut self, now: Duration) {
        self.started.get_or_insert(now);
    }

    /// How long after `now` there may be something to show.
    pub(super) fn next_look(&self, now: Duration) -> Duration {
        let earliest = match &self.shown {
            None => QUIET,
            Some((_, since)) => *since + PACE,
        };
        earliest.saturating_sub(now).max(PACE / 4)
    }

    /// The line as it should stand now, if that is a change.
    pub(super) fn look(&mut self, now: Duration, worker: Option<&str>) -> Option<Line> {
        if self.quiet || now < QUIET {
            return None;
        }
        let text = match (self.started, worker, &self.shown) {
            (None, _, _) => self.waiting.text(now),
            (Some(started), Some(worker), Some(_)) => {
                let running = since(now.saturating_sub(started));
                let limit = self.limit.map_or_else(String::new, |limit| {
                    format!(" of at most {}", whole(limit.as_secs().max(1)))
                });
                format!("Running on {worker} for {running}{limit}")
            }
            // A cell that started in time needs no word while it runs.
            (Some(_), _, _) => return None,
        };
        let due = match &self.shown {
            None => true,
            Some((shown, since)) => *shown != text && now >= *since + PACE,
        };
        due.then(|| self.show(text, now))
    }

    /// The summary after the cell.
    pub(super) fn ends(&mut self, now: Duration, worker: &str, usage: Usage) -> Option<Line> {
        if self.quiet {
            return None;
        }
        let waited = self.started.unwrap_or(now);
        let mut text = format!(
            "GPU: {} on {worker}, waited {}",
            seconds(Duration::from_millis(usage.run_ms)),
            seconds(waited)
        );
        if usage.peak_memory_bytes > 0 {
            text.push_str(&format!(", peak {}", bytes(usage.peak_memory_bytes)));
        }
        if let Some(gpu) = usage.gpu {
            text.push_str(&turns(gpu));
        }
        if let Some(left) = &self.budget {
            text.push_str(&format!(". {}", budget(left)));
        }
        Some(self.show(text, now))
    }

    /// The last word on a cell that did not run, if a line stands that would be wrong now.
    pub(super) fn fails(&mut self, now: Duration) -> Option<Line> {
        self.shown.as_ref()?;
        Some(self.show("The cell did not run on a GPU".to_owned(), now))
    }

    fn show(&mut self, text: String, now: Duration) -> Line {
        let kind = match self.shown {
            None => "display_data",
            Some(_) => "update_display_data",
        };
        let content = json!({
            "data": {
                "text/plain": text,
                "text/html": format!("<small style=\"opacity:0.7\">{}</small>", escaped(&text).replace('\n', "<br>")),
            },
            "metadata": {},
            "transient": {"display_id": self.display_id},
        });
        self.shown = Some((text, now));
        Line {
            kind,
            content: content.to_string(),
        }
    }
}

/// What the cell had of a GPU that sessions share.
fn turns(gpu: GpuUsage) -> String {
    let mut text = format!(
        ", had the GPU {}",
        seconds(Duration::from_millis(gpu.held_ms))
    );
    if gpu.waited_ms >= 100 {
        let waited = seconds(Duration::from_millis(gpu.waited_ms));
        text.push_str(&format!(" and waited {waited} for its turns"));
    }
    text
}

#[cfg(test)]
mod tests;
