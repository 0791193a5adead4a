//! A database that lost its last changes: its machine crashed, or an older copy of it was put in its place.
//!
//! Workers and proxies say how far they have heard a job to be stored. Where that is more than what is stored, nobody
//! here knows whether the cell has run: it is not run again, and its student is told. A job that was stored before this
//! broker started is given to no worker before its proxy has asked for it.

use super::{Abandoned, Action, ConnectionId, Dispatch, Job, Now, Observation, Phase};
use baton_protocol::{
    FencingNumber, JobId, Outcome, RemoteError, WorkerId,
    worker::{Acknowledged, ToWorker},
};

/// An assignment by the word of its worker.
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

    /// The worker was told of more than what is stored of the job.
    pub(super) fn is_ahead_of(&self, job: &Job, worker: WorkerId) -> bool {
        match job.is_assigned_to(worker, self.fencing) {
            true => self.acknowledged > job.acknowledged,
            // Only an end takes a started job from its worker.
            false => self.started && job.phase != Phase::Finished,
        }
    }
}

impl Dispatch {
    /// The worker that holds the assignment is ahead of the database.
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
        match self.jobs.get_mut(id).map(|job| (job.phase, job)) {
            Some((Phase::Finished, _)) => self.remainder_lost(id, actions),
            // Nobody was permitted to start it.
            Some((Phase::Assigned, _)) if !held.started => self.requeue(id, actions),
            Some((_, job)) => {
                job.fencing = job.fencing.max(fencing);
                self.run_forgotten(id, now, actions);
            }
            None => {}
        }
    }

    /// The proxy has heard more events of its job than are stored. Their numbers cannot be given out again.
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
            let fencing = job.fencing;
            actions.push(Action::ToWorker(
                runner,
                ToWorker::Revoke { job: id, fencing },
            ));
        }
        if let Some(job) = self.jobs.get_mut(id) {
            job.abandoned = Some(Abandoned::AsItEnded);
            match job.phase {
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

    /// A proxy asks for its job. `false`: it has heard more than was stored.
    pub(super) fn claim(&mut self, id: JobId, after: u64) -> bool {
        let Some(job) = self.jobs.get_mut(id) else {
            return true;
        };
        let claimed = job.unclaimed.take();
        if claimed.is_some() {
            job.waiting = None;
            self.disordered = true;
        }
        after <= claimed.map_or(job.last_event, |stored| stored.last_event)
    }

    /// Their proxies know how they ended, or will never ask.
    pub(super) fn cancel_unclaimed(&mut self, now: Now, actions: &mut Vec<Action>) {
        let is_over = |job: &Job| {
            job.unclaimed
                .is_some_and(|stored| stored.until <= now.instant)
        };
        for id in self.jobs.ids(is_over) {
            if self.orphan(id, now, actions) {
                continue;
            }
            if let Some(job) = self.jobs.get_mut(id) {
                job.unclaimed = None;
                job.abandoned = Some(Abandoned::AsItEnded);
            }
            self.cancel(id, now, actions);
        }
    }
}
