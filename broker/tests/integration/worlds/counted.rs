//! What the API reports about a situation, counted for comparison with the pages.

use crate::{
    api::{every, get},
    harness::Broker,
};
use baton_protocol::api::{Job, JobState, Page, WaitingRule, Worker, WorkerState};

/// The API's data, counted here and not by the code of the pages.
pub(super) struct Counted {
    pub(super) jobs: Vec<Job>,
    pub(super) workers: Vec<Worker>,
}

impl Counted {
    pub(super) async fn by(broker: &Broker, token: &str) -> Self {
        let workers: Page<Worker> = get(broker, token, "/v1/workers").await;
        Self {
            jobs: every(broker, token, "/v1/jobs?limit=500").await,
            workers: workers.items,
        }
    }

    pub(super) fn in_state(&self, state: JobState) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(move |job| job.state == state)
    }

    pub(super) fn held_back(&self) -> usize {
        let rule = |job: &&Job| job.waiting.as_ref().map(|waiting| waiting.rule);
        let held = [Some(WaitingRule::Held), Some(WaitingRule::CoursePaused)];
        self.in_state(JobState::Queued)
            .filter(|job| held.contains(&rule(job)))
            .count()
    }

    pub(super) fn sentence(&self) -> String {
        let count = |number: usize, verb: &str| match number {
            0 => format!("no cell {verb}s"),
            1 => format!("1 cell {verb}s"),
            _ => format!("{number} cells {verb}"),
        };
        let number = |state| self.in_state(state).count();
        let waiting = number(JobState::Queued) - self.held_back();
        let mut parts = vec![count(number(JobState::Started), "run")];
        if number(JobState::Assigned) > 0 {
            parts.push(count(number(JobState::Assigned), "start"));
        }
        parts.push(count(waiting, "wait"));
        if waiting > 0 {
            parts.push("the longest for less than a minute".to_owned());
        }
        match self.held_back() {
            0 => {}
            1 => parts.push("and 1 is held back".to_owned()),
            held => parts.push(format!("and {held} are held back")),
        }
        let sentence = parts.join(", ") + ".";
        sentence.replacen(
            "no cell",
            "No cell",
            usize::from(sentence.starts_with("no")),
        )
    }

    pub(super) fn of_workers(&self) -> String {
        let in_state = |state| {
            self.workers
                .iter()
                .filter(move |worker| worker.state == state)
        };
        let slots: u32 = in_state(WorkerState::Connected)
            .map(|worker| worker.slots)
            .sum();
        let busy: u32 = in_state(WorkerState::Connected)
            .map(|worker| worker.jobs)
            .sum();
        format!(
            "{} workers are connected, {} of {slots} slot{} free, {} drained.",
            self.workers.len(),
            slots - busy,
            if slots == 1 { "" } else { "s" },
            in_state(WorkerState::Drained).count()
        )
    }
}
