//! The events that workers report about their jobs.

use super::{
    Action, ConnectionId, Dispatch, Now, Observation, Phase, act,
    job::{End, phase_after},
};
use crate::bounds::{cut_reason, cut_usage};
use baton_protocol::{
    FencingNumber, Finished, JobEvent, JobId, Outcome, RemoteError, Usage, WorkerId,
    worker::ToWorker,
};

impl Dispatch {
    /// Skips events that are already stored. A gap means that worker and broker disagree, so the
    /// connection is closed.
    pub(super) fn worker_events(
        &mut self,
        connection: ConnectionId,
        worker: WorkerId,
        (id, fencing): (JobId, FencingNumber),
        (first, events): (u64, Vec<JobEvent>),
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let job = self.jobs.get(id);
        let Some(job) = job.filter(|job| job.is_assigned_to(worker, fencing)) else {
            actions.push(Action::ToWorker(
                connection,
                ToWorker::Revoke { job: id, fencing },
            ));
            return;
        };
        if first == 0 || first > job.acknowledged() + 1 {
            actions.push(Action::Log(Observation::EventsMissing {
                job: id,
                worker,
                first,
                acknowledged: job.acknowledged(),
            }));
            actions.push(Action::Close(connection));
            return;
        }
        let stored = usize::try_from(job.acknowledged() + 1 - first).unwrap_or(usize::MAX);
        let acknowledged = job.acknowledged().max(first + events.len() as u64 - 1);
        let new: Vec<JobEvent> = events.into_iter().skip(stored).collect();
        if !new.is_empty() {
            self.new_events(id, new, acknowledged, now, actions);
        }
        actions.push(Action::ToWorker(
            connection,
            ToWorker::Acknowledge {
                job: id,
                fencing,
                number: acknowledged,
            },
        ));
    }

    fn new_events(
        &mut self,
        id: JobId,
        events: Vec<JobEvent>,
        acknowledged: u64,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let mut accepted = Vec::with_capacity(events.len());
        let (mut end, mut has_arrived) = (None, false);
        let (mut not_started, mut started_on) = (None, None);
        for mut event in events {
            let Some(job) = self.jobs.get(id) else {
                return;
            };
            let before = job.phase();
            let Some(phase) = phase_after(job, &event) else {
                actions.push(Action::Log(Observation::UnexpectedEvent {
                    job: id,
                    phase: before,
                }));
                continue;
            };
            if let JobEvent::NotStarted { error } = event {
                not_started = Some(error);
                continue;
            }
            if (before, phase) == (Phase::Assigned, Phase::Started) {
                started_on = job.worker();
                self.start(id, now, actions);
            }
            if let Some(job) = self.jobs.get_mut(id) {
                job.enter(phase, &event);
                if let Some(words) = &job.stopped {
                    act::set_stopped_message(&mut event, words, before == Phase::Started);
                }
            }
            has_arrived |= matches!(
                event,
                JobEvent::DeferredState { .. } | JobEvent::Salvaged { .. }
            );
            match &mut event {
                JobEvent::Started { worker } => {
                    *worker = self.peers.name_of_worker(self.jobs.get(id))
                }
                JobEvent::Finished(Finished { usage, .. }) => {
                    *usage = self.believed(id, *usage, now, actions)
                }
                _ => {}
            }
            if let JobEvent::Finished(finished) = &event {
                end = Some(End::of(finished));
                let charged_ms = self.charged_ms(id, finished, now);
                accepted.extend(self.charge(id, charged_ms, now, actions));
            }
            accepted.push(event);
        }
        self.append(id, accepted, Some(acknowledged), actions);
        if let Some(end) = end {
            self.finished(id, end, now, actions);
        }
        if has_arrived && let Some(job) = self.jobs.get(id).filter(|job| job.is_kept()) {
            self.end_unneeded_sessions(job.notebook, actions);
        }
        if let Some(worker) = started_on {
            self.session_starts(worker);
        }
        if let Some(error) = not_started {
            self.not_started(id, error, now, actions);
        }
    }

    /// Stores that the job has started, and learns from how long that took.
    fn start(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        actions.push(Action::Write(job.start(now)));
        if let Some((assigned_ms, cold)) = job.assigned() {
            let took_ms = now.unix_ms.saturating_sub(assigned_ms);
            self.history
                .started(cold, u64::try_from(took_ms).unwrap_or(0));
        }
        let ranges = std::mem::take(&mut job.shown_ranges);
        let now_ms = u64::try_from(now.unix_ms).unwrap_or(0);
        self.history.started_after(&job.account, &ranges, now_ms);
        if let Some(notebook) = self.peers.notebooks.get_mut(&job.notebook) {
            notebook.ran_on = job.worker();
        }
    }

    /// The GPU time that the job's account is charged.
    fn charged_ms(&self, id: JobId, finished: &Finished, now: Now) -> u64 {
        let run_ms = match finished.usage.run_ms {
            // A session that died cannot report its time. A refused cell did not run,
            // although it had started.
            0 if finished.outcome != Outcome::Refused => self.ran(id, now).run_ms,
            run_ms => run_ms,
        };
        let is_program = self.jobs.get(id).is_some_and(|job| job.kind.is_program());
        match finished.usage.gpu {
            // Under time-sharing, a program leaves the GPU to others between its leases.
            Some(gpu) if is_program => gpu.held_ms.min(run_ms),
            _ => run_ms,
        }
    }

    /// The usage that the worker reports, limited to what is possible.
    fn believed(&self, id: JobId, usage: Usage, now: Now, actions: &mut Vec<Action>) -> Usage {
        let Some(job) = self.jobs.get(id) else {
            return usage;
        };
        let wall_ms = job.started_ms().map_or(0, |started| now.unix_ms - started);
        let worker = job
            .worker()
            .and_then(|worker| self.peers.workers.get(&worker));
        let devices = worker.map_or(1, |worker| worker.offer.devices.len());
        let cut = cut_usage(usage, u64::try_from(wall_ms).unwrap_or(0), devices);
        if cut.is_some() {
            actions.push(Action::Log(Observation::ImpossibleUsage {
                job: id,
                worker: worker.map(|worker| worker.name.clone()).unwrap_or_default(),
                run_ms: usage.run_ms,
                wall_ms,
            }));
        }
        cut.unwrap_or(usage)
    }

    /// The worker cannot start a session. The job returns to the queue, for another worker or for
    /// this one later.
    fn not_started(&mut self, id: JobId, error: RemoteError, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let cancelled = job.cancel_wanted;
        let environment = self.environment_of(job);
        match (job.worker(), environment) {
            (Some(worker), Some(environment)) => {
                self.environment_failed(worker, &environment, error.value, actions);
            }
            (Some(worker), None) => self.no_session_starts(worker, error.value, actions),
            (None, _) => {}
        }
        if cancelled {
            self.finish_cancelled(id, now, actions);
        } else {
            self.requeue(id, actions);
        }
    }

    pub(super) fn no_session_starts(
        &mut self,
        worker: WorkerId,
        why: String,
        actions: &mut Vec<Action>,
    ) {
        if let Some(worker) = self.peers.workers.get_mut(&worker) {
            worker.failing = Some(cut_reason(&why));
            actions.push(Action::Log(Observation::CannotStartSessions {
                worker: worker.name.clone(),
                environment: None,
                why,
            }));
            self.disordered = true;
        }
    }

    pub(super) fn session_starts(&mut self, worker: WorkerId) {
        if let Some(worker) = self.peers.workers.get_mut(&worker) {
            worker.failing = None;
            self.disordered = true;
        }
    }
}
