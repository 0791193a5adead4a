//! One job as the broker holds it in memory.

use super::{Now, Waiting};
use crate::{
    Account, StopReason,
    questions::Questions,
    record::{MemoryCurve, OpenJob, Phase, Remainder, Write},
    requirements::of_cell,
};
use baton_protocol::{
    CellKey, FencingNumber, Finished, JobEvent, JobId, JobKind, NotebookId, NumberedEvent, Outcome,
    Priority, RemoteError, Requirement, State, Submission, Usage, WorkerId,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the result of an orphan is kept for another kernel.
const ORPHAN_TERM: Duration = Duration::from_secs(30 * 24 * 3600);

/// The fields without `pub` are stored, and change only in the steps of its life and of those who steer it.
#[derive(Debug, Clone)]
pub struct Job {
    pub(super) id: JobId,
    pub(super) sequence: u64,
    pub(super) notebook: NotebookId,
    pub(super) notebook_name: String,
    pub(super) kind: JobKind,
    pub(super) execution_count: Option<u32>,
    pub(super) account: Account,
    phase: Phase,
    /// The worker that holds it: set on assignment, and kept after the end.
    worker: Option<WorkerId>,
    fencing: FencingNumber,
    /// The number of the last stored event of this assignment, in the worker's count.
    acknowledged: u64,
    last_event: u64,
    remainder: Remainder,
    /// The proxy has asked for the deferred state, and it has not arrived since.
    pub(super) deferred_wanted: bool,
    /// The last question for a complete state.
    pub(super) state_wanted: Option<u64>,
    questions: Questions,
    cancel_wanted: bool,
    /// Why it is cancelled, if neither its notebook nor its owner asked for it.
    stopped: Option<StopReason>,
    /// Why staff hold it back.
    held: Option<String>,
    /// When staff moved it to the front.
    front_ms: Option<i64>,
    /// Set if its proxy has not asked for it since this broker started, or since its notebook stopped responding.
    pub(super) unclaimed: Option<Unclaimed>,
    /// No notebook waits for its end any more.
    pub(super) abandoned: Option<Abandoned>,
    /// Set if its notebook kernel has ended: how long its result is kept for another kernel.
    kept_until: Option<Instant>,
    /// Its own notebook has detached it.
    pub(super) let_go: bool,
    /// The other notebook that follows it (`%gpu_attach`).
    pub(super) attached: Option<NotebookId>,
    /// Set when it has finished.
    outcome: Option<Outcome>,
    pub(super) cell_key: Option<CellKey>,
    pub(super) priority: Priority,
    /// What the cell itself requires of its worker.
    pub(super) needs: Vec<Requirement>,
    /// The longest time it may run: what was granted, and never more than the rest of the budget.
    timeout_ms: Option<u64>,
    /// How long it was likely to run when it was added.
    pub(super) takes_ms: Option<u64>,
    pub(super) waiting: Option<Waiting>,
    /// What was last sent to its proxy, and when.
    pub(super) shown: Option<(Waiting, Instant)>,
    /// The estimated ranges for its start that its proxy has received, in milliseconds since 1970.
    pub(super) shown_ranges: Vec<(u64, u64)>,
    /// When it was assigned, and whether its notebook had no session there. Unknown after a restart.
    assigned: Option<(i64, bool)>,
    pub(super) submitted_ms: i64,
    started_ms: Option<i64>,
    /// The memory of its session, as reported by its worker.
    pub(super) memory: MemoryCurve,
    /// Kept until the job is assigned or has to wait.
    pub(super) submission: Option<Arc<Submission>>,
}

/// An unclaimed job is assigned to no worker: it may have run already, and the record of that may be lost. Its result
/// is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unclaimed {
    /// When it is cancelled, or its result deleted.
    pub(super) until: Instant,
    /// If the proxy knows a later event than this, events were lost.
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
            state_wanted: None,
            questions: Questions::default(),
            cancel_wanted: false,
            stopped: None,
            held: None,
            front_ms: None,
            unclaimed: None,
            abandoned: None,
            kept_until: None,
            let_go: false,
            attached: None,
            outcome: None,
            cell_key: submission.cell_key,
            priority: submission.priority,
            needs: of_cell(&submission.cell),
            timeout_ms: submission.cell.timeout_ms,
            takes_ms: None,
            waiting: None,
            shown: None,
            shown_ranges: Vec::new(),
            assigned: None,
            submitted_ms: now_ms,
            started_ms: None,
            memory: MemoryCurve::default(),
            submission: Some(submission),
        }
    }

    pub(super) fn from_stored(open: OpenJob, until: Instant, now: Now) -> Self {
        let kept_until = open
            .orphaned_ms
            .map(|since_ms| end_of_orphan(since_ms, now));
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
            state_wanted: None,
            questions: Questions::default(),
            cancel_wanted: open.cancel_wanted,
            stopped: open.stopped,
            held: open.held,
            front_ms: open.front_ms,
            unclaimed: kept_until.is_none().then_some(Unclaimed {
                until,
                last_event: open.last_event,
            }),
            abandoned: None,
            kept_until,
            let_go: false,
            attached: None,
            outcome: open.outcome,
            cell_key: open.cell_key,
            priority: open.priority,
            needs: open.needs,
            timeout_ms: open.timeout_ms,
            takes_ms: None,
            waiting: None,
            shown: None,
            shown_ranges: Vec::new(),
            assigned: None,
            submitted_ms: open.submitted_ms,
            started_ms: open.started_ms,
            memory: MemoryCurve::default(),
            submission: None,
        }
    }

    // ---- the steps of its life: one function for each, which changes the job and returns what to store

    /// `queued -> assigned`. `is_cold`: its notebook has no session there. `left_ms`: the rest of
    /// the budget, if there is one.
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
        self.state_wanted = None;
        self.questions = Questions::default();
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
    fn start(&mut self, now: Now) -> Write {
        self.phase = Phase::Started;
        self.started_ms = Some(now.unix_ms);
        Write::Start {
            job: self.id,
            fencing: self.fencing,
            at_ms: now.unix_ms,
        }
    }

    /// Ends the assignment although a worker may still hold it: later messages of that worker
    /// belong to an outdated fencing number.
    pub(super) fn fence_off(&mut self) {
        self.fencing += 1;
    }

    /// A worker holds a later assignment than the stored one.
    pub(super) fn skip_to_fencing(&mut self, fencing: FencingNumber) {
        self.fencing = self.fencing.max(fencing);
    }

    /// Applies a valid event of its worker. Returns what to store besides the event.
    pub(super) fn apply(&mut self, event: &JobEvent, now: Now) -> Option<Write> {
        if self.phase == Phase::Finished || matches!(event, JobEvent::Finished(_)) {
            self.remainder = remainder_after(event);
        }
        if let Some(question) = event.question() {
            self.questions.open(question);
        }
        match event {
            JobEvent::Started { .. } => return Some(self.start(now)),
            JobEvent::Finished(finished) => return Some(self.finish(End::of(finished), now)),
            JobEvent::StateWanted { question } | JobEvent::BytesWanted { question } => {
                self.state_wanted = Some(*question);
                // The notebook begins a new object table, so no other worker may run the job from the state of the old
                // one, even if this worker is lost before the answer.
                return Some(self.replace_state(State::outdated()));
            }
            JobEvent::DeferredState { .. } => self.deferred_wanted = false,
            _ => {}
        }
        None
    }

    /// From now on, workers get this state.
    pub(super) fn replace_state(&mut self, state: State) -> Write {
        self.submission = None;
        Write::ReplaceState {
            job: self.id,
            state: Box::new(state),
        }
    }

    /// A notebook has answered a question. Returns whether the question was open: only the first answer counts.
    pub(super) fn close_question(&mut self, question: u64) -> bool {
        self.questions.close(question)
    }

    /// A notebook prepares an answer. Returns whether its worker hears of it.
    pub(super) fn sign_question(&mut self, question: u64, now: Now) -> bool {
        self.questions.sign(question, now.instant)
    }

    /// The answer did not reach the worker, so the notebook sends it again.
    pub(super) fn open_question(&mut self, question: u64) {
        self.questions.open(question);
    }

    /// What its worker still had of it is lost. Returns what that was.
    pub(super) fn lose_remainder(&mut self) -> Remainder {
        std::mem::replace(&mut self.remainder, Remainder::Nothing)
    }

    /// Numbers events. `acknowledged`: the last of them in the worker's count, if they are a worker's.
    pub(super) fn number(
        &mut self,
        events: Vec<JobEvent>,
        acknowledged: Option<u64>,
    ) -> Vec<NumberedEvent> {
        self.acknowledged = acknowledged.unwrap_or(self.acknowledged);
        let numbered = events.into_iter().map(|event| {
            self.last_event += 1;
            NumberedEvent {
                number: self.last_event,
                event,
            }
        });
        numbered.collect()
    }

    /// `queued | assigned | started -> finished`
    pub(super) fn finish(&mut self, end: End, now: Now) -> Write {
        self.phase = Phase::Finished;
        self.outcome = Some(end.outcome);
        self.submission = None;
        self.questions = Questions::default();
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

    /// Nothing will ask for the job any more. Returns what to store, and whether the job stays known.
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

    // ---- what people do to it: one function for each, which changes the job and returns what to store

    /// Its worker is to end it. `reason`: why, if neither its notebook nor its owner asks for it.
    /// Returns `None` if all of this is stored.
    pub(super) fn want_cancel(&mut self, reason: Option<StopReason>) -> Option<Write> {
        let was_wanted = std::mem::replace(&mut self.cancel_wanted, true);
        let is_stored = was_wanted && (reason.is_none() || reason == self.stopped);
        self.stopped = reason.or(self.stopped.take());
        (!is_stored).then(|| Write::WantCancel {
            job: self.id,
            stopped: self.stopped.clone(),
        })
    }

    /// Staff hold it back while it is queued.
    pub(super) fn hold(&mut self, reason: String) -> Write {
        self.held = Some(reason);
        self.steered()
    }

    pub(super) fn release(&mut self) -> Write {
        self.held = None;
        self.steered()
    }

    pub(super) fn move_to_front(&mut self, now: Now) -> Write {
        self.front_ms = Some(now.unix_ms);
        self.steered()
    }

    fn steered(&self) -> Write {
        Write::Steer {
            job: self.id,
            held: self.held.clone(),
            front_ms: self.front_ms,
        }
    }

    /// Its notebook kernel has ended, and its result is kept for another one.
    pub(super) fn orphan(&mut self, now: Now) -> Write {
        self.unclaimed = None;
        self.kept_until = Some(end_of_orphan(now.unix_ms, now));
        Write::Orphan {
            job: self.id,
            at_ms: Some(now.unix_ms),
        }
    }

    /// Its notebook kernel was only disconnected.
    pub(super) fn adopt(&mut self) -> Write {
        self.kept_until = None;
        Write::Orphan {
            job: self.id,
            at_ms: None,
        }
    }

    // ---- questions

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn worker(&self) -> Option<WorkerId> {
        self.worker
    }

    pub(super) fn fencing(&self) -> FencingNumber {
        self.fencing
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub(super) fn last_event(&self) -> u64 {
        self.last_event
    }

    pub(super) fn remainder(&self) -> Remainder {
        self.remainder
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    pub(super) fn is_cancel_wanted(&self) -> bool {
        self.cancel_wanted
    }

    pub(super) fn stopped(&self) -> Option<&StopReason> {
        self.stopped.as_ref()
    }

    pub(super) fn held(&self) -> Option<&str> {
        self.held.as_deref()
    }

    pub(super) fn front_ms(&self) -> Option<i64> {
        self.front_ms
    }

    /// Whether its notebook kernel has ended.
    pub(super) fn is_orphan(&self) -> bool {
        self.kept_until.is_some()
    }

    /// How long the result of an orphan is kept; `None` if it is none.
    pub(super) fn kept_until(&self) -> Option<Instant> {
        self.kept_until
    }

    pub(super) fn timeout_ms(&self) -> Option<u64> {
        self.timeout_ms
    }

    pub(super) fn assigned(&self) -> Option<(i64, bool)> {
        self.assigned
    }

    pub(super) fn started_ms(&self) -> Option<i64> {
        self.started_ms
    }

    /// Whether a worker's message is about the current assignment.
    pub(super) fn is_assigned_to(&self, worker: WorkerId, fencing: FencingNumber) -> bool {
        self.worker == Some(worker) && self.fencing == fencing
    }

    /// Whether this worker still has something of the job after its end.
    pub(super) fn has_remainder_at(&self, worker: WorkerId) -> bool {
        self.remainder != Remainder::Nothing && self.worker == Some(worker)
    }

    /// The notebook whose proxy receives its events.
    pub(super) fn follower(&self) -> NotebookId {
        self.attached.unwrap_or(self.notebook)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Assigned | Phase::Started)
    }

    /// Whether the variables of the cell can be salvaged from its session.
    pub(super) fn is_salvageable(&self) -> bool {
        self.phase == Phase::Started || self.remainder == Remainder::Session
    }

    /// Whether the job's result is kept although its notebook is absent.
    pub(super) fn is_kept(&self) -> bool {
        self.kept_until.is_some() || self.unclaimed.is_some()
    }

    /// Whether a result that is kept exists only in the session.
    pub(super) fn needs_session(&self) -> bool {
        let is_due = match self.remainder {
            Remainder::Deferred => true,
            Remainder::Sent => self.deferred_wanted,
            Remainder::Session | Remainder::Nothing => self.is_salvageable(),
        };
        self.is_kept() && is_due
    }

    /// Whether another kernel may attach it, once its own has ended.
    pub(super) fn may_be_orphaned(&self) -> bool {
        self.kind.outlives_kernel() && !self.cancel_wanted && self.abandoned.is_none()
    }

    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.phase == Phase::Finished && self.kept_until.is_some_and(|until| until <= now)
    }
}

fn end_of_orphan(since_ms: i64, now: Now) -> Instant {
    let age = u64::try_from(now.unix_ms - since_ms).unwrap_or(0);
    now.instant + ORPHAN_TERM.saturating_sub(Duration::from_millis(age))
}

/// The outcome that the list of jobs shows for an abandoned job, once it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Abandoned {
    AsItEnded,
    Reported(Outcome),
    /// The job is removed, unless it has started: the notebook submits the cell again.
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

impl End {
    pub(super) fn of(finished: &Finished) -> Self {
        Self {
            outcome: finished.outcome,
            usage: finished.usage,
            error: finished.error.clone(),
            returned_bytes: finished.state.as_ref().map(State::bytes),
        }
    }
}

/// What a worker still has of a job after its last event.
pub(super) fn remainder_after(event: &JobEvent) -> Remainder {
    match event {
        JobEvent::Finished(Finished {
            salvageable: true, ..
        }) => Remainder::Session,
        JobEvent::Finished(_) if !event.is_last() => Remainder::Deferred,
        JobEvent::DeferredState { .. } if !event.is_last() => Remainder::Sent,
        _ => Remainder::Nothing,
    }
}
