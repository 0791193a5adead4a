//! What the student reads about a waiting or finished cell: one line that changes in place.
//!
//! Pure: facts and times in, texts out.
//!
//! **Invariant:** nothing for a wait under [`QUIET`], and never more than one change in [`PACE`].

use std::time::Duration;

use baton_protocol::proxy::WaitingReason;
use serde_json::json;

/// Waits shorter than this are not worth a word.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// A text that changes faster cannot be read.
pub(super) const PACE: Duration = Duration::from_secs(1);

/// Why the cell does not run yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    Connecting,
    Moving,
    Queued { place: u32, reason: WaitingReason },
    Starting,
}

impl Waiting {
    fn text(self) -> String {
        match self {
            Self::Connecting => {
                "Waiting for the GPU service to answer. Your variables are safe".to_owned()
            }
            Self::Moving => "Sending what the cell needs".to_owned(),
            Self::Queued {
                reason: WaitingReason::NoWorker,
                ..
            } => "Waiting for a GPU: no GPU worker is connected at the moment".to_owned(),
            Self::Queued {
                reason: WaitingReason::OwnJobRuns,
                ..
            } => "Waiting for your other GPU cell to finish".to_owned(),
            Self::Queued {
                place,
                reason: WaitingReason::InLine,
            } => format!("Waiting for a GPU: {} in line", ordinal(place)),
            Self::Starting => "Starting a session on the GPU worker".to_owned(),
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
            quiet,
        }
    }

    pub(super) fn waits(&mut self, waiting: Waiting) {
        self.waiting = waiting;
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
            (None, _, _) => self.waiting.text(),
            (Some(_), Some(worker), Some(_)) => format!("Running on {worker}"),
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
    pub(super) fn ends(&mut self, now: Duration, worker: &str, run_ms: u64) -> Option<Line> {
        if self.quiet {
            return None;
        }
        let waited = self.started.unwrap_or(now);
        let text = format!(
            "GPU: {} on {worker}, waited {}",
            seconds(Duration::from_millis(run_ms)),
            seconds(waited)
        );
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
                "text/html": format!("<small style=\"opacity:0.7\">{}</small>", escaped(&text)),
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

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn text(line: Option<Line>) -> Option<(&'static str, String)> {
        let line = line?;
        let content: serde_json::Value = serde_json::from_str(&line.content).ok()?;
        Some((
            line.kind,
            content["data"]["text/plain"].as_str()?.to_owned(),
        ))
    }

    fn queued(place: u32) -> Waiting {
        Waiting::Queued {
            place,
            reason: WaitingReason::InLine,
        }
    }

    #[test]
    fn a_short_wait_shows_the_summary_alone() {
        let mut notice = Notice::new("d".into(), false);
        notice.waits(queued(1));
        assert_eq!(notice.look(at(1.9), None), None);
        notice.starts(at(0.4));
        assert_eq!(notice.look(at(3.0), Some("cpu-0")), None);
        assert_eq!(
            text(notice.ends(at(3.5), "cpu-0", 3100)),
            Some((
                "display_data",
                "GPU: 3.1 s on cpu-0, waited 0.4 s".to_owned()
            ))
        );
    }

    #[test]
    fn a_long_wait_is_one_line_that_changes_once_a_second_at_most() {
        let mut notice = Notice::new("d".into(), false);
        notice.waits(queued(2));
        assert_eq!(
            text(notice.look(at(2.0), None)),
            Some(("display_data", "Waiting for a GPU: 2nd in line".to_owned()))
        );
        notice.waits(queued(1));
        assert_eq!(notice.look(at(2.5), None), None);
        assert_eq!(
            text(notice.look(at(3.0), None)),
            Some((
                "update_display_data",
                "Waiting for a GPU: 1st in line".to_owned()
            ))
        );
        notice.starts(at(4.0));
        assert_eq!(
            text(notice.look(at(4.0), Some("gpu-2"))),
            Some(("update_display_data", "Running on gpu-2".to_owned()))
        );
    }

    #[test]
    fn a_quiet_cell_says_nothing() {
        let mut notice = Notice::new("d".into(), true);
        assert_eq!(notice.look(at(60.0), None), None);
        assert_eq!(notice.ends(at(61.0), "cpu-0", 5), None);
    }

    #[test]
    fn words_for_numbers_and_times() {
        let ordinals: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(ordinal).to_vec();
        assert_eq!(
            ordinals.join(" "),
            "1st 2nd 3rd 4th 11th 12th 13th 21st 102nd 111th"
        );
        assert_eq!(seconds(at(0.04)), "0.0 s");
        assert_eq!(seconds(at(75.0)), "1 min 15 s");
        assert_eq!(seconds(at(7500.0)), "2 h 5 min");
    }
}
