//! A database that lost its last changes, because its machine crashed or an older copy was restored.
//!
//! Workers and proxies report up to which event they know a job to be stored. If that is more than
//! the database contains, the broker cannot know whether the cell has run. It does not run the cell
//! again, and the student gets an error. A job from before this broker's start is assigned to no
//! worker until its proxy has asked for it.

use super::{Abandoned, Action, ConnectionId, Dispatch, Job, Now, Observation, Phase};
use baton_protocol::{
    FencingNumber, JobId, Outcome, RemoteError, WorkerId,
    worker::{Acknowledged, ToWorker},
};

/// An assignment as its worker reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) job: JobId,
    pub(super) fencing: FencingNumber,
    pub(super) acknowledged: u64,
    pub(super) started: bool,
}

impl Held {
    pub(super) fn new(job: JobId, fencing: FencingNumber, known: Option<&Acknowledged>) -> Self {
        Self {
            job,
            fencing,
            acknowledged: known.map_or(0, |known| known.number),
            started: known.is_some_and(|known| known.started),
        }
    }

    /// Whether the broker had acknowledged more of the job to the worker than it has stored.
    pub(super) fn is_ahead_of(&self, job: &Job, worker: WorkerId) -> bool {
        match job.is_assigned_to(worker, self.fencing) {
            true => self.acknowledged > job.acknowledged(),
            // Without a lost record, a started job leaves its worker only when it ends.
            false => self.started && job.phase() != Phase::Finished,
        }
    }
}

impl Dispatch {
    /// Handles a worker that knows more of its assignment than the database.
    pub(super) fn worker_is_ahead(
        &mut self,
        connection: ConnectionId,
        held: Held,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let (id, fencing) = (held.job, held.fencing);
        actions.push(Action::ToWorker(
            connection,
            ToWorker::Revoke { job: id, fencing },
        ));
        match self.jobs.get_mut(id).map(|job| (job.phase(), job)) {
            Some((Phase::Finished, _)) => self.remainder_lost(id, actions),
            // The worker had no permission to start it, so the cell has not run.
            Some((Phase::Assigned, _)) if !held.started => self.requeue(id, actions),
            Some((_, job)) => {
                job.skip_to_fencing(fencing);
                self.run_forgotten(id, now, actions);
            }
            None => {}
        }
    }

    /// Handles a proxy that has received more events than are stored. Their numbers must not be used again.
    pub(super) fn proxy_is_ahead(
        &mut self,
        connection: ConnectionId,
        id: JobId,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        if let Some(job) = self.jobs.get(id)
            && let Some(runner) = self.peers.runner(job).filter(|_| job.is_running())
        {
            let fencing = job.fencing();
            actions.push(Action::ToWorker(
                runner,
                ToWorker::Revoke { job: id, fencing },
            ));
        }
        if let Some(job) = self.jobs.get_mut(id) {
            job.abandoned = Some(Abandoned::AsItEnded);
            match job.phase() {
                Phase::Finished => self.close(id, actions),
                _ => self.run_forgotten(id, now, actions),
            }
        }
        self.forgotten(connection, id, actions);
    }

    fn run_forgotten(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        actions.push(Action::Log(Observation::RecordsLost(id)));
        let error = RemoteError {
            name: "GpuServiceError".to_owned(),
            value: "The GPU service lost its latest records, for example in a power failure, and cannot tell \
                    whether this cell ran. It will not run again automatically. Your \
                    variables are as they were before the cell"
                .to_owned(),
            traceback: Vec::new(),
            hint: Some(format!(
                "check what the cell wrote or sent, then run it again, or show a TA job {id}"
            )),
        };
        self.finish(id, Outcome::WorkerLost, Some(error), now, actions);
    }

    /// Marks the job as claimed by its proxy. Returns `false` if the proxy has received more than was stored.
    pub(super) fn claim(&mut self, id: JobId, after: u64) -> bool {
        let Some(job) = self.jobs.get_mut(id) else {
            return true;
        };
        let claimed = job.unclaimed.take();
        if claimed.is_some() {
            job.waiting = None;
            self.disordered = true;
        }
        after <= claimed.map_or(job.last_event(), |stored| stored.last_event)
    }

    /// Cancels jobs whose proxies did not ask for them in time: these know how the jobs ended, or
    /// will never ask. The results of absent notebooks are deleted.
    pub(super) fn cancel_unclaimed(&mut self, now: Now, actions: &mut Vec<Action>) {
        let is_over = |job: &Job| {
            job.unclaimed
                .is_some_and(|stored| stored.until <= now.instant)
        };
        for id in self.jobs.ids(is_over) {
            if self.orphan(id, now, actions) {
                continue;
            }
            let Some(job) = self.jobs.get_mut(id) else {
                continue;
            };
            job.unclaimed = None;
            if !self.peers.notebooks.contains_key(&job.notebook) {
                self.abandon(id, Abandoned::AsItEnded, now, actions);
            } else if job.phase() != Phase::Finished {
                job.abandoned = Some(Abandoned::AsItEnded);
                self.cancel(id, now, actions);
            }
        }
    }
}
