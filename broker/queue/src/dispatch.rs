//! Everything that the broker decides, as a state machine: `(state, events, now) -> actions`.
//!
//! In: messages of proxies and workers, opened and closed connections, and the time. Out: the
//! [`Action`]s of a [`Batch`]. The caller stores all writes of a batch in one transaction and sends
//! only afterwards, so a crash cannot undo what a peer has already received. The state here is a
//! copy of the store's open jobs, plus the connected peers. If a transaction fails, the copy is
//! discarded and loaded again.
//!
//! [`Dispatch`] holds the state and has a method for each kind of event. What an event leads to is
//! in the functions of one module for each subject; what every subject does to jobs is in
//! `transitions`.
//!
//! **Invariant:** no I/O, no clock, cannot fail.

mod accounts;
mod allowances;
mod batch;
mod commands;
mod environments;
mod estimate;
mod explain;
#[cfg(test)]
mod exploration;
mod graces;
mod job;
mod jobs;
mod lost_records;
mod needs;
mod not_done;
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
mod transitions;
mod waiting;
mod worker;
mod worker_events;

pub use batch::{Action, Assignment, Batch, ConnectionId, Now};
pub use commands::Command;
pub use job::Job;
pub use not_done::NotDone;
pub use observation::{Observation, Severity};
pub use overview::{Activity, JobView, Overview, WorkerView};
pub use waiting::Waiting;

use crate::{
    Account, Identity, Unwelcome, WorkerHello,
    courses::Courses,
    pools::{ComingLessons, PoolLook, PoolState, PoolsPresent},
    record::{Loaded, Phase, Remainder},
};
use accounts::Accounts;
use baton_protocol::{
    JobId, NotebookId, api,
    proxy::FromProxy,
    worker::{FromWorker, ToWorker},
};
use baton_scheduling::queue::History;
use estimate::Estimates;
use jobs::Jobs;
use peers::{Peer, Peers, Subscription, Worker};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

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
    PeerClosed,
    /// This broker closed it, because the peer was silent for too long or sent something that it should not, or
    /// because the broker ends. The peer may not know yet.
    BrokerClosed,
    /// This broker closed it, because its person was removed from the people file. The peer cannot reconnect.
    PersonRemoved,
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
    plan_is_stale: bool,
    /// When the order is computed again, and waiting jobs get their positions.
    replan_at: Option<Instant>,
    pools: Vec<PoolState>,
    /// By name: until when a pool worker has been asked to stay, in milliseconds since 1970.
    stays: HashMap<String, i64>,
    /// Until then, workers from before this broker's start may return with the stored locks of environments.
    locks_return_until: Option<Instant>,
    /// By this time, workers from before this broker's start have reconnected or are lost.
    restart_grace_ends: Instant,
}

impl Dispatch {
    /// Peers from before this broker's start have the restart grace to reconnect.
    pub fn new(mut loaded: Loaded, graces: Graces, courses: Arc<Courses>, now: Now) -> Self {
        let until = now.instant + graces.restart;
        let is_first_start = loaded.next_sequence == 1;
        let has_locks = !loaded.locks.is_empty();
        let peers = Peers::of_stored(&mut loaded, until);
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
            plan_is_stale: true,
            replan_at: None,
            pools: Vec::new(),
            stays: HashMap::new(),
            locks_return_until: Some(until).filter(|_| has_locks),
            restart_grace_ends: match is_first_start {
                true => now.instant,
                false => until,
            },
        };
        for id in dispatch.jobs.ids(|_| true) {
            estimate::foresee(&mut dispatch, id);
        }
        dispatch
    }

    // ---- events

    /// Only the newest connection of a notebook counts.
    pub fn on_proxy_connected(
        &mut self,
        connection: ConnectionId,
        notebook: NotebookId,
        account: Account,
        batch: &mut Batch,
    ) {
        proxy::on_connected(self, connection, notebook, account, batch);
    }

    pub fn on_proxy_message(
        &mut self,
        connection: ConnectionId,
        message: FromProxy,
        batch: &mut Batch,
    ) {
        proxy::on_message(self, connection, message, batch);
    }

    /// Handles a refused message: no part of it reaches a worker. If a new cell is too large, no
    /// record of it remains.
    pub fn on_proxy_refused(
        &mut self,
        connection: ConnectionId,
        message: FromProxy,
        why: &Unwelcome,
        batch: &mut Batch,
    ) {
        proxy::on_refused(self, connection, message, why, batch);
    }

    /// A stored cell is too large for its worker, so the worker did not get it.
    pub fn on_not_sent(&mut self, job: JobId, bytes: usize, batch: &mut Batch) {
        proxy::on_not_sent(self, job, bytes, batch);
    }

    /// A worker's queue has no room for a notebook's message. The notebook sends it again when it reconnects.
    pub fn on_not_relayed(&mut self, message: &ToWorker) {
        proxy::on_not_relayed(self, message);
    }

    /// The stored events up to `through` have been sent.
    pub fn on_caught_up(
        &mut self,
        connection: ConnectionId,
        job: JobId,
        through: u64,
        batch: &mut Batch,
    ) {
        proxy::on_caught_up(self, connection, job, through, batch);
    }

    /// Whether the proxy still receives stored events of this job, so that it must not receive newer ones yet.
    pub fn is_catching_up(&self, connection: ConnectionId, job: JobId) -> bool {
        self.peers.is_catching_up(connection, job)
    }

    /// Both sides compare what they hold. The worker learns which events are stored, which
    /// assignments it has lost, and what it missed while it was disconnected. While one process is
    /// registered as a worker, and until its grace is over, no other process can register as it.
    pub fn on_worker_connected(
        &mut self,
        connection: ConnectionId,
        hello: WorkerHello,
        batch: &mut Batch,
    ) {
        worker::on_connected(self, connection, hello, batch);
    }

    pub fn on_worker_message(
        &mut self,
        connection: ConnectionId,
        message: FromWorker,
        batch: &mut Batch,
    ) {
        worker::on_message(self, connection, message, batch);
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
                        Ending::PeerClosed | Ending::PersonRemoved => self.graces.proxy,
                        Ending::BrokerClosed => self.graces.silent_proxy,
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
                    self.plan_is_stale = true;
                }
            }
            None => {}
        }
    }

    /// The rows of these jobs were deleted because of their age.
    pub fn on_jobs_deleted(&mut self, jobs: &[JobId]) {
        self.jobs.forget(jobs);
        self.peers.forget_owners(self.jobs.notebooks());
    }

    pub fn on_courses_changed(&mut self, courses: Arc<Courses>) {
        self.accounts.on_file_changed(courses);
        self.plan_is_stale = true;
    }

    /// The pools report their workers and learn about the demand.
    pub fn on_pools(&mut self, look: PoolLook, batch: &mut Batch) -> PoolsPresent {
        pools::on_look(self, look, batch)
    }

    /// A person asks for a change.
    pub fn act(
        &mut self,
        who: &Identity,
        command: Command,
        batch: &mut Batch,
    ) -> Result<(), NotDone> {
        commands::carry_out(self, who, command, batch)
    }

    /// Cancels the orphan if it runs, and keeps none of its results.
    pub fn discard(
        &mut self,
        account: &Account,
        job: JobId,
        batch: &mut Batch,
    ) -> Result<(), NotDone> {
        orphans::discard(self, account, job, batch)
    }

    /// The time of [`Self::next_deadline`] has come.
    pub fn on_time_passed(&mut self, batch: &mut Batch) {
        graces::on_time_passed(self, batch);
    }

    /// Assigns the jobs that can run, and sends the others their position. Call it at the end of each batch.
    pub fn assign_and_notify(&mut self, batch: &mut Batch) {
        queue::assign_and_notify(self, batch);
    }

    // ---- questions

    pub fn next_deadline(&self) -> Option<Instant> {
        graces::next_deadline(self)
    }

    pub fn proxies(&self) -> impl Iterator<Item = ConnectionId> {
        self.peers.proxies()
    }

    pub fn activity(&self) -> Activity {
        overview::activity(self)
    }

    pub fn overview(&self) -> Overview {
        overview::overview(self)
    }

    /// Returns `None` if the job does not wait.
    pub fn explain(&self, job: JobId, now: Now) -> Option<api::QueueDetails> {
        explain::queue_details(self, job, now)
    }

    /// How long the job had waited at `at_ms`, counted from its submission.
    pub fn waited_until(&self, job: JobId, at_ms: i64) -> Option<u64> {
        explain::waited_until(self, job, at_ms)
    }

    /// The courses that this person may see, by name; for others, all known courses.
    pub fn courses(&self, seen_by: &Identity, now: Now) -> Vec<api::Course> {
        explain::courses(self, seen_by, now)
    }

    /// The allowances of a course; students see their own and that of everyone.
    pub fn allowances(
        &self,
        seen_by: &Identity,
        course: &str,
        now: Now,
    ) -> Result<Vec<api::Allowance>, NotDone> {
        allowances::of_course(self, seen_by, course, now)
    }

    /// The orphans of a person, the oldest first.
    pub fn attachable(&self, account: &Account) -> Vec<api::AttachableJob> {
        orphans::attachable(self, account)
    }

    /// The lessons that are in progress or begin within this time, and which workers can run their cells.
    pub fn coming_lessons(&self, within_ms: i64, now: Now) -> ComingLessons {
        pools::coming_lessons(self, within_ms, now)
    }

    // ---- what several subjects change

    /// The order is computed and positions are sent again at this time, or earlier.
    fn recheck_at(&mut self, at: Instant) {
        self.replan_at = Some(self.replan_at.map_or(at, |earlier| earlier.min(at)));
    }
}
