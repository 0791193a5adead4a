//! What happens when a proxy or a worker does not reconnect.
//!
//! A worker: its assignments expire, and the cells that it had started are lost, because a cell is
//! never run twice.
//! A proxy: its jobs are cancelled and its sessions end, except for what `orphans.rs` keeps. If it said goodbye, that
//! is all. Otherwise the notebook may return, and the results of its jobs are kept for some hours.

use super::{
    Action, Dispatch, Job, Now, Observation, Phase, Remainder, job::Unclaimed, peers::Missed,
};
use crate::record::Write;
use baton_humanize::SAFE;
use baton_protocol::{JobEvent, JobId, NotebookId, Outcome, RemoteError, WorkerId};
use std::time::{Duration, Instant};

/// What a finished cell left on a worker exists nowhere else, so the worker gets this many graces
/// to reconnect before that is given up.
const DEFERRED_GRACES: u32 = 12;
/// How long results are kept for a notebook that fell silent. A restart of the broker begins this time anew.
const RETURN_TERM: Duration = Duration::from_secs(12 * 3600);
const SILENT: &str =
    "The cell was stopped because the notebook had lost its connection to the GPU service";

impl Dispatch {
    pub fn next_deadline(&self) -> Option<Instant> {
        let workers = self
            .peers
            .workers
            .values()
            .filter_map(|worker| worker.deadline);
        let notebooks = self
            .peers
            .notebooks
            .values()
            .filter_map(|notebook| notebook.deadline);
        let missed = self.peers.missed.values().map(|missed| missed.deadline);
        let unclaimed = self
            .jobs
            .iter()
            .filter_map(|job| Some(job.unclaimed?.until));
        let peers = workers.chain(notebooks).chain(missed).chain(unclaimed);
        let peers = peers.chain(self.orphans_end_at());
        let line = self
            .notify_at
            .into_iter()
            .chain(self.estimates.continue_at());
        peers.chain(line).min()
    }

    pub fn on_time_passed(&mut self, now: Now, actions: &mut Vec<Action>) {
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|end| end <= now.instant);
        let workers: Vec<WorkerId> = self
            .peers
            .workers
            .iter()
            .filter(|(_, worker)| is_over(worker.deadline))
            .map(|(id, _)| *id)
            .collect();
        for worker in workers {
            self.on_worker_gone(worker, now, actions);
        }
        let missed: Vec<WorkerId> = self
            .peers
            .missed
            .iter()
            .filter(|(_, missed)| missed.deadline <= now.instant)
            .map(|(id, _)| *id)
            .collect();
        for worker in missed {
            for job in self.jobs.ids(|job| job.has_remainder_at(worker)) {
                self.remainder_lost(job, actions);
            }
            self.peers.missed.remove(&worker);
        }
        let notebooks: Vec<NotebookId> = self
            .peers
            .notebooks
            .iter()
            .filter(|(_, notebook)| is_over(notebook.deadline))
            .map(|(id, _)| *id)
            .collect();
        for notebook in notebooks {
            self.on_silence(notebook, now, actions);
        }
        self.cancel_unclaimed(now, actions);
        self.forget_old_orphans(now, actions);
    }

    fn on_worker_gone(&mut self, id: WorkerId, now: Now, actions: &mut Vec<Action>) {
        for job in self
            .jobs
            .ids(|job| job.worker() == Some(id) && job.is_running())
        {
            match self.jobs.get(job) {
                Some(job) if job.phase() == Phase::Started => {
                    self.worker_lost(job.id, now, actions)
                }
                Some(job) if job.cancel_wanted => {
                    self.finish_cancelled(job.id, now, actions);
                }
                _ => self.requeue(job, actions),
            }
        }
        self.peers.sessions_end(id, |_| true, actions);
        if let Some(worker) = self.peers.workers.remove(&id) {
            actions.push(Action::Log(Observation::WorkerStaysAway {
                worker: worker.name.clone(),
            }));
            if self.jobs.iter().any(|job| job.has_remainder_at(id)) {
                let deadline = now.instant + DEFERRED_GRACES * self.graces.worker;
                self.peers.missed.insert(
                    id,
                    Missed {
                        name: worker.name,
                        deadline,
                    },
                );
            }
        }
        actions.push(Action::Write(Write::LoseWorker {
            worker: id,
            at_ms: now.unix_ms,
        }));
        self.disordered = true;
    }

    /// The notebook kernel has ended, so no results are needed except those of orphans.
    pub(super) fn on_goodbye(&mut self, id: NotebookId, now: Now, actions: &mut Vec<Action>) {
        for job in self.remove_notebook(id, now, actions) {
            match self.jobs.get(job).map(|job| job.phase()) {
                Some(Phase::Finished) => self.close(job, actions),
                _ => self.cancel(job, now, actions),
            }
        }
        self.end_unneeded_sessions(id, actions);
    }

    /// The notebook may return, for example when its machine wakes up. Meanwhile it runs nothing, and its results
    /// are kept.
    fn on_silence(&mut self, id: NotebookId, now: Now, actions: &mut Vec<Action>) {
        for job in self.remove_notebook(id, now, actions) {
            self.await_return(job, now, actions);
            self.cancel(job, now, actions);
        }
        self.end_unneeded_sessions(id, actions);
    }

    /// Returns its jobs, except orphans. Once the notebook is removed, a job that does not await its return is closed
    /// as soon as it finishes.
    fn remove_notebook(
        &mut self,
        id: NotebookId,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Vec<JobId> {
        self.peers.notebooks.remove(&id);
        self.detach_all(id);
        let mut jobs = self.jobs.ids(|job| job.notebook == id);
        jobs.retain(|job| !self.orphan(*job, now, actions));
        jobs
    }

    fn await_return(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if job.phase() != Phase::Finished {
            job.stopped.get_or_insert_with(|| SILENT.to_owned());
        }
        let last_event = job.last_event();
        let unclaimed = job.unclaimed.get_or_insert(Unclaimed {
            until: now.instant,
            last_event,
        });
        if unclaimed.until <= now.instant {
            unclaimed.until = now.instant + RETURN_TERM;
            actions.push(Action::Log(Observation::AwaitsReturn(id)));
        }
        self.make_room_for_results_of(id, actions);
    }

    /// Ends the sessions of an absent notebook, unless a result that is still needed exists only there.
    pub(super) fn end_unneeded_sessions(&self, id: NotebookId, actions: &mut Vec<Action>) {
        let is_present = self.peers.notebooks.contains_key(&id);
        let needs_session = |job: &Job| job.notebook == id && job.needs_session();
        if !is_present && !self.jobs.iter().any(needs_session) {
            self.peers.end_sessions(id, actions);
        }
    }

    pub(super) fn requeue(&mut self, id: JobId, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        actions.push(Action::Write(job.requeue()));
        self.disordered = true;
    }

    pub(super) fn worker_lost(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        let worker = self.peers.name_of_worker(self.jobs.get(id));
        let error = RemoteError {
            name: "WorkerLost".to_owned(),
            value: format!("{worker} was lost while this cell ran. {SAFE}"),
            traceback: Vec::new(),
            hint: Some(format!("run the cell again, or show a TA job {id}")),
        };
        self.finish(id, Outcome::WorkerLost, Some(error), now, actions);
    }

    /// Gives up what the worker still had of the job.
    pub(super) fn remainder_lost(&mut self, id: JobId, actions: &mut Vec<Action>) {
        let worker = self.peers.name_of_worker(self.jobs.get(id));
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let error = |value| RemoteError {
            name: "WorkerLost".to_owned(),
            value,
            traceback: Vec::new(),
            hint: Some(format!("run the cell again, or show a TA job {id}")),
        };
        let event = match job.lose_remainder() {
            Remainder::Deferred | Remainder::Sent => {
                job.fence_off();
                JobEvent::DeferredState {
                    state: None,
                    error: Some(error(format!(
                        "The connection to {worker} was lost before all results had arrived"
                    ))),
                }
            }
            Remainder::Session if job.orphaned.is_some() => JobEvent::Salvaged {
                state: None,
                files: Vec::new(),
                error: Some(error(format!(
                    "The connection to {worker} was lost before the variables of this cell had arrived"
                ))),
            },
            // Its notebook already has the result.
            Remainder::Session | Remainder::Nothing => return,
        };
        self.append(id, vec![event], None, actions);
    }
}
