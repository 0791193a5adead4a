//! Jobs that continue after their notebook kernel has ended: background cells that have started.
//!
//! Such a job is an orphan. The object table that its session shared with the notebook is gone. So
//! the session salvages what the cell had, and then ends. Another kernel of the same person can
//! attach the job: it receives all of the job's events, and then the salvaged state.

use super::{
    Action, ConnectionId, Dispatch, Job, NotDone, Now, Observation, Phase, job::Abandoned,
};
use crate::{Account, record::Write};
use baton_protocol::{JobId, NotebookId, api::AttachableJob, worker::ToWorker};
use std::time::{Duration, Instant};

/// Results kept for absent notebooks of one person in one course. The oldest one is removed first.
const MOST_ENDED: usize = 20;
/// How long the result of an orphan is kept for another kernel.
const TERM: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) fn until(since_ms: i64, now: Now) -> Instant {
    let age = u64::try_from(now.unix_ms - since_ms).unwrap_or(0);
    now.instant + TERM.saturating_sub(Duration::from_millis(age))
}

impl Dispatch {
    /// The job's notebook is gone. Returns whether the job continues as an orphan.
    pub(super) fn orphan(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) -> bool {
        let Some(job) = self.jobs.get_mut(id) else {
            return false;
        };
        if job.orphaned.is_some() {
            return true;
        }
        if !(job.may_be_orphaned() && job.is_salvageable()) {
            return false;
        }
        self.keep_for_others(id, now, actions);
        true
    }

    fn keep_for_others(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        actions.push(Action::Log(Observation::GoesOnWithoutKernel(id)));
        job.unclaimed = None;
        job.orphaned = Some(until(now.unix_ms, now));
        let at_ms = Some(now.unix_ms);
        actions.push(Action::Write(Write::Orphan { job: id, at_ms }));
        if let Some(connection) = self.jobs.get(id).and_then(|job| self.peers.runner(job)) {
            let salvage = ToWorker::Salvage { job: id };
            actions.push(Action::ToWorker(connection, salvage));
        }
        self.make_room_for_results_of(id, actions);
    }

    /// Limits the results that are kept for absent notebooks of an account. Call it if one more may be kept.
    pub(super) fn make_room_for_results_of(&mut self, id: JobId, actions: &mut Vec<Action>) {
        let job = self.jobs.get(id);
        let Some(newest) = job.filter(|job| job.is_kept()) else {
            return;
        };
        let has_ended = |job: &Job| {
            let ended = job.is_kept() && job.phase() == Phase::Finished;
            ended && job.account == newest.account
        };
        let ended = self.jobs.in_order(has_ended);
        let surplus = ended.len().saturating_sub(MOST_ENDED);
        let oldest: Vec<JobId> = ended[..surplus].iter().map(|job| job.id).collect();
        for job in oldest {
            self.close(job, actions);
        }
    }

    /// The notebook kernel was only disconnected.
    pub(super) fn adopt(&mut self, id: JobId, actions: &mut Vec<Action>) {
        let job = self.jobs.get_mut(id);
        if let Some(job) = job.filter(|job| job.attached.is_none())
            && job.orphaned.take().is_some()
        {
            let at_ms = None;
            actions.push(Action::Write(Write::Orphan { job: id, at_ms }));
            if let Some(connection) = self.jobs.get(id).and_then(|job| self.peers.runner(job)) {
                let adopted = ToWorker::Adopted { job: id };
                actions.push(Action::ToWorker(connection, adopted));
            }
        }
    }

    /// Another kernel of the same person follows the job. If several do, the newest one counts.
    pub(super) fn attach(
        &mut self,
        connection: ConnectionId,
        notebook: NotebookId,
        (id, after): (JobId, u64),
        actions: &mut Vec<Action>,
    ) {
        let account = self
            .peers
            .notebooks
            .get(&notebook)
            .and_then(|notebook| notebook.account.clone());
        let job = self.jobs.get_mut(id).filter(|job| {
            job.orphaned.is_some()
                && Some(&job.account) == account.as_ref()
                && after <= job.last_event()
        });
        let Some(job) = job else {
            return self.forgotten(connection, id, actions);
        };
        let before = job.attached.replace(notebook);
        if let Some(before) = before.filter(|before| *before != notebook)
            && let Some(before) = self.peers.notebooks.get_mut(&before)
            && before.subscriptions.remove(&id).is_some()
            && let Some(connection) = before.connection
        {
            self.forgotten(connection, id, actions);
        }
        self.subscribe(connection, id, after, actions);
    }

    /// Its follower no longer waits for the job.
    pub(super) fn on_detach(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        if job.attached.is_some() {
            self.detach(id);
        } else if job.may_be_orphaned() && job.started_ms().is_some() {
            if let Some(notebook) = self.peers.notebooks.get_mut(&job.notebook) {
                notebook.subscriptions.remove(&id);
            }
            self.keep_for_others(id, now, actions);
        }
    }

    /// The job waits for another kernel.
    pub(super) fn detach(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(id)
            && let Some(notebook) = job.attached.take()
            && let Some(notebook) = self.peers.notebooks.get_mut(&notebook)
        {
            notebook.subscriptions.remove(&id);
        }
    }

    pub(super) fn detach_all(&mut self, notebook: NotebookId) {
        for job in self.jobs.ids(|job| job.attached == Some(notebook)) {
            self.detach(job);
        }
    }

    /// The orphans of a person, the oldest first.
    pub fn attachable(&self, account: &Account) -> Vec<AttachableJob> {
        let of_person = |job: &Job| {
            job.orphaned.is_some() && job.abandoned.is_none() && job.account == *account
        };
        let jobs = self.jobs.in_order(of_person);
        let entry = |job: &Job| AttachableJob {
            job: job.id,
            kind: job.kind,
            notebook: job.notebook_name.clone(),
            execution_count: job.execution_count,
            submitted_ms: job.submitted_ms,
            outcome: job.outcome(),
        };
        jobs.into_iter().map(entry).collect()
    }

    /// Cancels the orphan if it runs, and keeps none of its results.
    pub fn discard(
        &mut self,
        account: &Account,
        id: JobId,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), NotDone> {
        let job = self.jobs.get(id);
        job.filter(|job| job.orphaned.is_some() && job.account == *account)
            .ok_or(NotDone::UnknownJob(id))?;
        self.abandon(id, Abandoned::AsItEnded, now, actions);
        Ok(())
    }

    pub(super) fn orphans_end_at(&self) -> Option<Instant> {
        let finished = self
            .jobs
            .iter()
            .filter(|job| job.phase() == Phase::Finished);
        finished.filter_map(|job| job.orphaned).min()
    }

    pub(super) fn forget_old_orphans(&mut self, now: Now, actions: &mut Vec<Action>) {
        for job in self.jobs.ids(|job| job.is_old(now.instant)) {
            self.close(job, actions);
        }
    }
}
