//! Everything that the broker decides, as a state machine: `(state, event, now) -> actions`.
//!
//! In: messages of proxies and workers, opened and closed connections, and the time. Out:
//! [`Action`]s. The caller stores all writes of a batch in one transaction and sends only
//! afterwards, so a crash cannot undo what a peer has already received. The state here is a copy of
//! the store's open jobs, plus the connected peers. If a transaction fails, the copy is discarded
//! and loaded again.
//!
//! **Invariant:** no I/O, no clock, cannot fail.

mod accounts;
mod act;
mod allowances;
mod behind;
mod environments;
mod estimate;
mod events;
mod explain;
#[cfg(test)]
mod exploration;
mod graces;
mod job;
mod jobs;
mod needs;
mod observation;
mod orphans;
mod overview;
mod peers;
mod pools;
mod proxy;
mod queue;
mod refusals;
#[cfg(test)]
mod tests;
mod worker;

pub use act::{Command, NotDone};
pub use job::Job;
pub use needs::of_cell;
pub use observation::{Observation, Severity};
pub use overview::{Activity, JobView, Overview, WorkerView};
pub use queue::Waiting;

use crate::{
    courses::Courses,
    pools::PoolState,
    record::{Loaded, Phase, Remainder, Write},
};
use accounts::Accounts;
use baton_protocol::{
    FencingNumber, Finished, JobEvent, JobId, NumberedEvent, Outcome, RemoteError, Submission,
    Usage, proxy::ToProxy, worker::ToWorker,
};
use baton_scheduling::queue::{History, Run};
use estimate::Estimates;
use job::{Abandoned, End};
use jobs::Jobs;
use peers::{Peer, Peers, Subscription, Worker};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Identifies one WebSocket, from its opening to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

#[derive(Debug, Clone, Copy)]
pub struct Now {
    pub instant: Instant,
    pub unix_ms: i64,
}

#[derive(Debug, Clone, Copy)]
pub struct Graces {
    pub worker: Duration,
    pub proxy: Duration,
    pub silent_proxy: Duration,
    pub restart: Duration,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The peer closed it: its process ended, or it reconnects at once.
    Closed,
    /// The peer was silent for too long, or this broker closed the connection. The peer may not know yet.
    Silent,
}

#[derive(Debug)]
pub enum Action {
    Write(Write),
    ToProxy(ConnectionId, ToProxy),
    ToWorker(ConnectionId, ToWorker),
    /// A notebook's message to the worker of its job. If the worker's queue is full, the notebook's
    /// connection is closed: the notebook repeats the message after it reconnects, while closing
    /// the worker's connection would affect every notebook there.
    Relay {
        from: ConnectionId,
        to: ConnectionId,
        message: ToWorker,
    },
    /// Live events for a proxy that has all events before them.
    Forward(ConnectionId, JobId, Vec<NumberedEvent>),
    /// Send the stored events after this number, then report [`Dispatch::on_caught_up`].
    CatchUp {
        connection: ConnectionId,
        job: JobId,
        after: u64,
    },
    /// Send an assignment. If `submission` is `None`, the caller reads it from the store.
    Assign {
        connection: ConnectionId,
        job: JobId,
        fencing: FencingNumber,
        timeout_ms: Option<u64>,
        /// Empty if the broker does not know the person.
        owner: String,
        environment: Option<String>,
        submission: Option<Arc<Submission>>,
    },
    Close(ConnectionId),
    /// A log line for operators.
    Log(Observation),
}

#[derive(Debug, Clone)]
pub struct Dispatch {
    graces: Graces,
    jobs: Jobs,
    peers: Peers,
    accounts: Accounts,
    history: History,
    estimates: Estimates,
    /// The order must be computed again.
    disordered: bool,
    /// When a waiting job's position may be sent to its proxy again.
    notify_at: Option<Instant>,
    pools: Vec<PoolState>,
    /// By name: until when a pool worker has been asked to stay, in milliseconds since 1970.
    stays: HashMap<String, i64>,
    /// By this time, workers from before this broker's start have reconnected or are lost.
    complete_at: Instant,
}

impl Dispatch {
    /// Peers from before this broker's start have the restart grace to reconnect.
    pub fn new(loaded: Loaded, graces: Graces, courses: Arc<Courses>, now: Now) -> Self {
        let until = now.instant + graces.restart;
        let is_first_start = loaded.next_sequence == 1;
        let peers = Peers::of_stored(&loaded.jobs, loaded.owners, until);
        let mut history = History::of(loaded.runs);
        for open in loaded
            .jobs
            .iter()
            .filter(|open| open.phase != Phase::Finished)
        {
            history.submitted(&open.account, open.submitted_ms);
        }
        let jobs = loaded.jobs.into_iter();
        let jobs = jobs.map(|open| Job::from_stored(open, until, now));
        let mut dispatch = Self {
            graces,
            jobs: Jobs::new(jobs, loaded.closed, loaded.next_sequence),
            peers,
            accounts: Accounts::new(courses, loaded.changes, loaded.spent),
            history,
            estimates: Estimates::default(),
            disordered: true,
            notify_at: None,
            pools: Vec::new(),
            stays: HashMap::new(),
            complete_at: match is_first_start {
                true => now.instant,
                false => until,
            },
        };
        for id in dispatch.jobs.ids(|_| true) {
            dispatch.foresee(id);
        }
        dispatch
    }

    pub fn on_courses_changed(&mut self, courses: Arc<Courses>) {
        self.accounts.on_file_changed(courses);
        self.disordered = true;
    }

    pub fn proxies(&self) -> impl Iterator<Item = ConnectionId> {
        self.peers.proxies()
    }

    /// A connection ended, or the broker gave it up because of a message.
    pub fn on_closed(&mut self, connection: ConnectionId, ending: Ending, now: Now) {
        match self.peers.by_connection.remove(&connection) {
            Some(Peer::Proxy(notebook)) => {
                if let Some(notebook) = self.peers.notebooks.get_mut(&notebook)
                    && notebook.connection == Some(connection)
                {
                    notebook.connection = None;
                    notebook.subscriptions.clear();
                    let grace = match ending {
                        Ending::Closed => self.graces.proxy,
                        Ending::Silent => self.graces.silent_proxy,
                    };
                    notebook.deadline = Some(now.instant + grace);
                }
            }
            Some(Peer::Worker(worker)) => {
                if let Some(worker) = self.peers.workers.get_mut(&worker)
                    && worker.connection == Some(connection)
                {
                    worker.connection = None;
                    worker.disconnected_since_ms = Some(now.unix_ms);
                    worker.deadline = Some(now.instant + self.graces.worker);
                    self.disordered = true;
                }
            }
            None => {}
        }
    }

    /// Numbers events, stores them, and forwards them to a proxy that follows the job live.
    fn append(
        &mut self,
        id: JobId,
        events: Vec<JobEvent>,
        acknowledged: Option<u64>,
        actions: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let events = job.number(events, acknowledged);
        if !events.is_empty()
            && let Some(notebook) = self.peers.notebooks.get(&job.follower())
            && let Some(connection) = notebook.connection
            && notebook.subscriptions.get(&id) == Some(&Subscription::Live)
        {
            actions.push(Action::Forward(connection, id, events.clone()));
        }
        actions.push(Action::Write(Write::Events {
            job: id,
            acknowledged,
            events,
        }));
    }

    /// The broker ends a job itself. A worker that still holds it is fenced off, as by a new assignment.
    fn finish(
        &mut self,
        id: JobId,
        outcome: Outcome,
        error: Option<RemoteError>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        job.fence_off();
        let usage = self.ran(id, now);
        let charged = self.charge(id, usage.run_ms, now, actions);
        let end = JobEvent::Finished(Finished {
            usage,
            ..Finished::without_state(outcome, error.clone())
        });
        self.append(
            id,
            charged.into_iter().chain([end]).collect(),
            None,
            actions,
        );
        let end = End {
            outcome,
            usage,
            error,
            returned_bytes: None,
        };
        self.finished(id, end, now, actions);
    }

    /// What follows from a job's last event, which has already been appended.
    fn finished(&mut self, id: JobId, end: End, now: Now, actions: &mut Vec<Action>) {
        self.remember(id, end.outcome, end.usage, now);
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        actions.push(Action::Write(job.finish(end, now)));
        self.disordered = true;
        let notebook = job.notebook;
        let is_left = !job.is_kept() && !self.peers.notebooks.contains_key(&notebook);
        let nobody_asks = job.abandoned.is_some() || is_left;
        if nobody_asks {
            self.close(id, actions);
        } else if job.unclaimed.is_some() {
            self.end_unneeded_sessions(notebook, actions);
        }
        self.make_room_for_results_of(id, actions);
    }

    fn close(&mut self, id: JobId, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.remove(id) else {
            return;
        };
        let notebook = self.peers.notebooks.get_mut(&job.follower());
        let proxy = notebook.and_then(|notebook| {
            notebook.subscriptions.remove(&id);
            notebook.connection
        });
        if job.remainder() != Remainder::Nothing
            && let Some(connection) = self.peers.runner(&job)
        {
            let fencing = job.fencing();
            actions.push(Action::ToWorker(
                connection,
                ToWorker::Revoke { job: id, fencing },
            ));
        }
        if job.is_kept() {
            self.end_unneeded_sessions(job.notebook, actions);
        }
        if let Some(proxy) = proxy {
            actions.push(Action::ToProxy(proxy, ToProxy::Closed { job: id }));
        }
        let (writes, is_known) = job.close();
        actions.extend(writes.into_iter().map(Action::Write));
        if is_known {
            self.jobs.remember_closed(id, job.notebook);
        }
    }

    /// Charges a job's run to its account.
    fn charge(
        &mut self,
        id: JobId,
        run_ms: u64,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Option<JobEvent> {
        let account = &self.jobs.get(id)?.account;
        self.accounts.charge(account, run_ms, now, actions)
    }

    /// How long a job ran, if its worker does not report it.
    fn ran(&self, id: JobId, now: Now) -> Usage {
        let started_ms = self.jobs.get(id).and_then(|job| job.started_ms());
        let worker = self.jobs.get(id).and_then(|job| job.worker());
        let absent_ms =
            worker.and_then(|worker| self.peers.workers.get(&worker)?.disconnected_since_ms);
        let until_ms = absent_ms.unwrap_or(now.unix_ms);
        let run_ms = started_ms.map_or(0, |started| until_ms.saturating_sub(started));
        Usage {
            run_ms: u64::try_from(run_ms).unwrap_or(0),
            ..Usage::default()
        }
    }

    /// Records that the job's person is active. If the run ended by itself, records it for later estimates.
    fn remember(&mut self, id: JobId, outcome: Outcome, usage: Usage, now: Now) {
        let by_itself = matches!(outcome, Outcome::Ok | Outcome::Error | Outcome::TimedOut);
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        self.history.ended(&job.account, now.unix_ms);
        if by_itself {
            self.history.add(Run {
                cell: job.cell_key,
                account: job.account.clone(),
                run_ms: usage.run_ms,
            });
        }
    }
}
