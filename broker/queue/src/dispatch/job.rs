//! One job as the broker holds it in memory.

use super::{Now, Waiting, needs, orphans};
use crate::{
    Account,
    record::{MemoryCurve, OpenJob, Phase, Remainder, Write},
};
use baton_protocol::{
    CellKey, FencingNumber, JobEvent, JobId, JobKind, NotebookId, Outcome, Payload, Priority,
    RemoteError, Requirement, State, Submission, Usage, WorkerId,
};
use std::{sync::Arc, time::Instant};

#[derive(Debug, Clone)]
pub struct Job {
    pub(super) id: JobId,
    pub(super) sequence: u64,
    pub(super) notebook: NotebookId,
    pub(super) notebook_name: String,
    pub(super) kind: JobKind,
    pub(super) execution_count: Option<u32>,
    pub(super) account: Account,
    pub(super) phase: Phase,
    /// Who has it: from the assignment on, also after the end.
    pub(super) worker: Option<WorkerId>,
    pub(super) fencing: FencingNumber,
    /// The worker's number of its last stored event of this assignment.
    pub(super) acknowledged: u64,
    pub(super) last_event: u64,
    pub(super) remainder: Remainder,
    /// The proxy asked for that while the worker was away.
    pub(super) deferred_wanted: bool,
    /// The assignment during which the proxy sent a whole state.
    pub(super) state_fencing: FencingNumber,
    pub(super) cancel_wanted: bool,
    /// Who of the staff stopped it and why, in words for its owner.
    pub(super) stopped: Option<String>,
    /// Why staff hold it back.
    pub(super) held: Option<String>,
    /// When staff moved it to the front.
    pub(super) front_ms: Option<i64>,
    /// It was stored before this broker started, and its proxy has not asked for it yet.
    pub(super) unclaimed: Option<Unclaimed>,
    /// Nobody waits for its end any more.
    pub(super) abandoned: Option<Abandoned>,
    /// Its notebook kernel has ended. Until then what it leaves waits for another one.
    pub(super) orphaned: Option<Instant>,
    /// The notebook of the other kernel that follows it.
    pub(super) attached: Option<NotebookId>,
    /// Once it is finished.
    pub(super) outcome: Option<Outcome>,
    pub(super) cell_key: Option<CellKey>,
    pub(super) priority: Priority,
    /// What the cell itself requires of its worker.
    pub(super) needs: Vec<Requirement>,
    /// How long it may run: granted, and never more than what was left of the budget.
    pub(super) timeout_ms: Option<u64>,
    pub(super) waiting: Option<Waiting>,
    /// What was last sent to its proxy, and when.
    pub(super) shown: Option<(Waiting, Instant)>,
    /// The ranges that its proxy was told for its start, in milliseconds since 1970.
    pub(super) shown_ranges: Vec<(u64, u64)>,
    /// When it was given to its worker, and whether no session of its notebook was there; unknown after a restart.
    pub(super) assigned: Option<(i64, bool)>,
    pub(super) submitted_ms: i64,
    pub(super) started_ms: Option<i64>,
    /// Of its session, as its worker says it.
    pub(super) memory: MemoryCurve,
    /// Until it is assigned or has to wait.
    pub(super) submission: Option<Arc<Submission>>,
    /// An answer that came while the worker was away. In memory only, because it may be a password.
    pub(super) waiting_input: Option<(u64, Option<String>)>,
    /// Answers about files that came while the worker was away. The proxy says them again to a new broker.
    pub(super) waiting_files: Vec<(u64, Payload)>,
    /// The last answer to [`JobEvent::NamesWanted`], for a worker that comes back: nobody knows whether it arrived.
    pub(super) names: Option<(u64, State)>,
}

/// No worker gets such a job: it may have run, and that be lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unclaimed {
    /// When it is cancelled.
    pub(super) until: Instant,
    /// A proxy that has heard more has heard what is lost.
    pub(super) last_event: u64,
}

impl Job {
    pub(super) fn new(
        submission: Arc<Submission>,
        account: Account,
        sequence: u64,
        now_ms: i64,
    ) -> Self {
        Self {
            id: submission.job,
            sequence,
            notebook: submission.notebook,
            notebook_name: submission.notebook_name.clone(),
            kind: submission.cell.kind,
            execution_count: Some(submission.cell.execution_count),
            account,
            phase: Phase::Queued,
            worker: None,
            fencing: 0,
            acknowledged: 0,
            last_event: 0,
            remainder: Remainder::Nothing,
            deferred_wanted: false,
            state_fencing: 0,
            cancel_wanted: false,
            stopped: None,
            held: None,
            front_ms: None,
            unclaimed: None,
            abandoned: None,
            orphaned: None,
            attached: None,
            outcome: None,
            cell_key: submission.cell_key,
            priority: submission.priority,
            needs: needs::of_cell(&submission.cell),
            timeout_ms: submission.cell.timeout_ms,
            waiting: None,
            shown: None,
            shown_ranges: Vec::new(),
            assigned: None,
            submitted_ms: now_ms,
            started_ms: None,
            memory: MemoryCurve::default(),
            submission: Some(submission),
            waiting_input: None,
            waiting_files: Vec::new(),
            names: None,
        }
    }

    pub(super) fn from_stored(open: OpenJob, until: Instant, now: Now) -> Self {
        let orphaned = open
            .orphaned_ms
            .map(|since_ms| orphans::until(since_ms, now));
        Self {
            id: open.job,
            sequence: open.sequence,
            notebook: open.notebook,
            notebook_name: open.notebook_name,
            kind: open.kind,
            execution_count: open.execution_count,
            account: open.account,
            phase: open.phase,
            worker: open.worker,
            fencing: open.fencing,
            acknowledged: open.acknowledged,
            last_event: open.last_event,
            remainder: open.remainder,
            deferred_wanted: false,
            state_fencing: open.state_fencing,
            cancel_wanted: open.cancel_wanted,
            stopped: open.stopped,
            held: open.held,
            front_ms: open.front_ms,
            unclaimed: orphaned.is_none().then_some(Unclaimed {
                until,
                last_event: open.last_event,
            }),
            abandoned: None,
            orphaned,
            attached: None,
            outcome: open.outcome,
            cell_key: open.cell_key,
            priority: open.priority,
            needs: open.needs,
            timeout_ms: open.timeout_ms,
            waiting: None,
            shown: None,
            shown_ranges: Vec::new(),
            assigned: None,
            submitted_ms: open.submitted_ms,
            started_ms: open.started_ms,
            memory: MemoryCurve::default(),
            submission: None,
            waiting_input: None,
            waiting_files: Vec::new(),
            names: None,
        }
    }

    // ---- its life, one function for each step: what changes, and what of that is stored

    /// `queued -> assigned`. `is_cold`: no session of its notebook is there. It may run for `left_ms` at most.
    pub(super) fn assign(
        &mut self,
        (worker, worker_name): (WorkerId, String),
        is_cold: bool,
        left_ms: Option<u64>,
        now: Now,
    ) -> Write {
        self.phase = Phase::Assigned;
        self.worker = Some(worker);
        self.fencing += 1;
        self.acknowledged = 0;
        self.waiting = None;
        self.shown = None;
        self.assigned = Some((now.unix_ms, is_cold));
        self.timeout_ms = [self.timeout_ms, left_ms].into_iter().flatten().min();
        Write::Assign {
            job: self.id,
            worker,
            worker_name,
            fencing: self.fencing,
            timeout_ms: self.timeout_ms,
            at_ms: now.unix_ms,
        }
    }

    /// `assigned -> queued`
    pub(super) fn requeue(&mut self) -> Write {
        self.phase = Phase::Queued;
        self.worker = None;
        self.acknowledged = 0;
        Write::Requeue {
            job: self.id,
            fencing: self.fencing,
        }
    }

    /// `assigned -> started`
    pub(super) fn start(&mut self, now: Now) -> Write {
        self.phase = Phase::Started;
        self.started_ms = Some(now.unix_ms);
        Write::Start {
            job: self.id,
            fencing: self.fencing,
            at_ms: now.unix_ms,
        }
    }

    /// It ends although a worker may hold it: what that says of it later is of another assignment.
    pub(super) fn fence_off(&mut self) {
        self.fencing += 1;
    }

    /// `queued | assigned | started -> finished`
    pub(super) fn finish(&mut self, end: End, now: Now) -> Write {
        self.phase = Phase::Finished;
        self.outcome = Some(end.outcome);
        self.submission = None;
        self.waiting_input = None;
        self.names = None;
        Write::Finish {
            job: self.id,
            fencing: self.fencing,
            outcome: end.outcome,
            usage: end.usage,
            error: end.error,
            returned_bytes: end.returned_bytes,
            memory: std::mem::take(&mut self.memory),
            at_ms: now.unix_ms,
        }
    }

    /// Nobody asks for it any more. What the list of jobs says of it, and whether it is still known.
    pub(super) fn close(&self) -> (Vec<Write>, bool) {
        let job = self.id;
        let mut writes = Vec::new();
        if let Some(Abandoned::Reported(outcome)) = self.abandoned {
            writes.push(Write::GiveUp { job, outcome });
        }
        let leaves_no_trace =
            self.abandoned == Some(Abandoned::NoTrace) && self.started_ms.is_none();
        writes.push(match leaves_no_trace {
            true => Write::Remove { job },
            false => Write::Close { job },
        });
        (writes, !leaves_no_trace)
    }

    // ---- what it is

    /// Whether this assignment is the one that a worker speaks of.
    pub(super) fn is_assigned_to(&self, worker: WorkerId, fencing: FencingNumber) -> bool {
        self.worker == Some(worker) && self.fencing == fencing
    }

    /// Whether this worker still has something of the job, which is finished.
    pub(super) fn has_remainder_at(&self, worker: WorkerId) -> bool {
        self.remainder != Remainder::Nothing && self.worker == Some(worker)
    }

    /// The notebook whose proxy hears its events.
    pub(super) fn follower(&self) -> NotebookId {
        self.attached.unwrap_or(self.notebook)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Assigned | Phase::Started)
    }
}

/// What the list of jobs says of a job that nobody waits for, once it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Abandoned {
    AsItEnded,
    Reported(Outcome),
    /// Nothing, unless it has started: the notebook submits the cell anew.
    NoTrace,
}

/// How a job ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) usage: Usage,
    pub(super) error: Option<RemoteError>,
    pub(super) returned_bytes: Option<u64>,
}

/// Where an event of a worker leads, or `None` when it must not happen there.
pub(super) fn phase_after(job: &Job, event: &JobEvent) -> Option<Phase> {
    let phase = job.phase;
    match (phase, event) {
        (Phase::Finished, JobEvent::DeferredState { .. })
            if job.remainder == Remainder::Deferred =>
        {
            Some(Phase::Finished)
        }
        (Phase::Finished, JobEvent::Salvaged { .. }) if job.remainder == Remainder::Session => {
            Some(Phase::Finished)
        }
        (Phase::Assigned, JobEvent::StateWanted {} | JobEvent::BytesWanted {}) => {
            Some(Phase::Assigned)
        }
        (Phase::Assigned, JobEvent::Started { .. }) => Some(Phase::Started),
        (Phase::Assigned, JobEvent::NotStarted { .. }) => Some(Phase::Queued),
        (
            Phase::Started,
            JobEvent::Output(_) | JobEvent::InputWanted { .. } | JobEvent::NamesWanted { .. },
        ) => Some(Phase::Started),
        (Phase::Assigned | Phase::Started, JobEvent::FilesWanted { .. }) => Some(phase),
        (Phase::Assigned | Phase::Started, JobEvent::Finished { .. }) => Some(Phase::Finished),
        _ => None,
    }
}

/// What a worker still has after its last event.
pub(super) fn remainder_after(event: &JobEvent) -> Remainder {
    match event {
        JobEvent::Finished {
            salvageable: true, ..
        } => Remainder::Session,
        JobEvent::Finished { .. } | JobEvent::DeferredState { .. } if !event.is_last() => {
            Remainder::Deferred
        }
        _ => Remainder::Nothing,
    }
}
