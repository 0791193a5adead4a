//! Connected peers, and those that disconnected a short time ago.

use super::{Action, Batch, ConnectionId, Job, Now, Observation, environments::with_short_reasons};
use crate::{Account, WorkerHello, bounds::cut_reason, record::Loaded};
use baton_protocol::{
    JobId, NotebookId, WorkerId,
    proxy::ToProxy,
    worker::{GpuLoad, ToWorker},
};
use baton_scheduling::queue::Offer;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::Arc,
    time::Instant,
};

#[derive(Debug, Clone)]
pub(super) struct Peers {
    pub(super) by_connection: HashMap<ConnectionId, Peer>,
    pub(super) notebooks: HashMap<NotebookId, Notebook>,
    /// The person of each notebook that has a job, or whose session a worker may still have.
    pub(super) owners: BTreeMap<NotebookId, String>,
    pub(super) workers: HashMap<WorkerId, Worker>,
    pub(super) missed: HashMap<WorkerId, Missed>,
    /// The hash of each environment's stored lock.
    pub(super) locks: BTreeMap<String, String>,
}

/// One notebook kernel, from its start to its end, as its proxy reports it.
#[derive(Debug, Clone, Default)]
pub(super) struct Notebook {
    /// Unknown if only a worker has reported the notebook so far.
    pub(super) account: Option<Account>,
    pub(super) connection: Option<ConnectionId>,
    /// When its jobs are cancelled; `None` while the proxy is connected.
    pub(super) deadline: Option<Instant>,
    /// The jobs whose events the connected proxy receives.
    pub(super) subscriptions: HashMap<JobId, Subscription>,
    /// The worker on which its last cell started; its session is there.
    pub(super) ran_on: Option<WorkerId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subscription {
    Live,
    /// Stored events are being sent. New events stay in the store until then.
    CatchingUp,
}

#[derive(Debug, Clone)]
pub(super) struct Worker {
    /// The id of its process; `None` if it has not connected since this broker started.
    pub(super) life: Option<WorkerId>,
    pub(super) name: String,
    pub(super) offer: Arc<Offer>,
    pub(super) slots: u32,
    pub(super) warm: HashSet<NotebookId>,
    /// The sessions among `warm` that hold something no other session can have.
    pub(super) keeping: HashSet<NotebookId>,
    /// The notebooks of its assignments since it connected: it may have sessions that it has not reported.
    /// Bounded by the notebooks: when one ends, so do its sessions.
    pub(super) served: HashSet<NotebookId>,
    pub(super) draining: bool,
    /// Why no session starts there.
    pub(super) failing: Option<String>,
    pub(super) memory: Option<(u64, u64)>,
    /// As last reported by the worker.
    pub(super) gpus: Vec<GpuLoad>,
    pub(super) connection: Option<ConnectionId>,
    /// When it last connected; `None` if that was before this broker started.
    pub(super) connected_ms: Option<i64>,
    /// When its jobs are taken away; `None` while it is connected.
    pub(super) deadline: Option<Instant>,
    /// When the connection was lost; `None` while connected or if unknown. For a worker that has not connected since
    /// this broker started: when a broker was last known to run.
    pub(super) disconnected_since_ms: Option<i64>,
    /// The deadline of the last `StayUntil` that it received.
    pub(super) stays_until_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Peer {
    Proxy(NotebookId),
    Worker(WorkerId),
}

/// A worker whose grace is over. It may still reconnect and send deferred or salvaged state.
#[derive(Debug, Clone)]
pub(super) struct Missed {
    pub(super) name: String,
    pub(super) deadline: Instant,
}

impl Notebook {
    /// A notebook whose proxy is not connected. Its jobs are cancelled at `deadline`.
    fn absent(account: Option<Account>, deadline: Instant) -> Self {
        Self {
            account,
            deadline: Some(deadline),
            ..Self::default()
        }
    }
}

impl Worker {
    /// A worker that has not connected since this broker started. Its jobs are taken away at `deadline`.
    fn absent(name: String, deadline: Instant, since_ms: Option<i64>) -> Self {
        Self {
            life: None,
            name,
            offer: Arc::default(),
            slots: 1,
            warm: HashSet::new(),
            keeping: HashSet::new(),
            served: HashSet::new(),
            draining: false,
            failing: None,
            memory: None,
            gpus: Vec::new(),
            connection: None,
            connected_ms: None,
            deadline: Some(deadline),
            disconnected_since_ms: since_ms,
            stays_until_ms: None,
        }
    }

    pub(super) fn connected(connection: ConnectionId, hello: &WorkerHello, now: Now) -> Self {
        let mut offer = hello.offer.clone();
        offer.machine.environments = with_short_reasons(offer.machine.environments);
        Self {
            life: Some(hello.life),
            name: hello.name.clone(),
            offer: Arc::new(offer),
            slots: hello.slots,
            warm: HashSet::new(),
            keeping: HashSet::new(),
            served: HashSet::new(),
            draining: false,
            failing: hello.failing.clone().map(cut_reason),
            memory: None,
            gpus: Vec::new(),
            connection: Some(connection),
            connected_ms: Some(now.unix_ms),
            deadline: None,
            disconnected_since_ms: None,
            stays_until_ms: None,
        }
    }

    pub(super) fn has_gpu(&self) -> bool {
        self.offer.has_gpu()
    }

    /// Returns whether it may have a session of this notebook.
    fn forget_session(&mut self, notebook: NotebookId) -> bool {
        self.keeping.remove(&notebook);
        let is_warm = self.warm.remove(&notebook);
        self.served.remove(&notebook) || is_warm
    }

    /// How long it stays, if its time is limited.
    pub(super) fn leaves_in_ms(&self, now: Now) -> Option<u64> {
        let at = self.offer.machine.leaves_at_ms?;
        Some(u64::try_from(at.saturating_sub(now.unix_ms)).unwrap_or(0))
    }
}

impl Peers {
    /// The peers that had jobs before this broker started. They have until `deadline` to reconnect.
    /// Takes what it needs of the loaded state.
    pub(super) fn of_stored(loaded: &mut Loaded, deadline: Instant) -> Self {
        let jobs = &loaded.jobs;
        // The kernels of orphans have ended.
        let expected = jobs.iter().filter(|job| job.orphaned_ms.is_none());
        let notebooks = expected.map(|job| {
            let account = Some(job.account.clone());
            (job.notebook, Notebook::absent(account, deadline))
        });
        let workers = jobs.iter().filter_map(|job| {
            let worker = Worker::absent(job.worker_name.clone(), deadline, loaded.last_alive_ms);
            Some((job.worker?, worker))
        });
        Self {
            by_connection: HashMap::new(),
            notebooks: notebooks.collect(),
            workers: workers.collect(),
            owners: mem::take(&mut loaded.owners),
            missed: HashMap::new(),
            locks: mem::take(&mut loaded.locks),
        }
    }

    /// Whether the notebook may belong to this account, given what the broker knows.
    pub(super) fn is_of(&self, id: NotebookId, account: &Account) -> bool {
        let notebook = self.notebooks.get(&id);
        let known = notebook.and_then(|notebook| notebook.account.as_ref());
        let owner = self.owners.get(&id);
        known.is_none_or(|known| known == account)
            && owner.is_none_or(|owner| *owner == account.owner)
    }

    /// Removes the owners of notebooks without a job, a proxy or a session.
    pub(super) fn forget_owners(&mut self, mut needed: HashSet<NotebookId>) {
        needed.extend(self.notebooks.keys());
        needed.extend(self.workers.values().flat_map(|worker| &worker.warm));
        self.owners.retain(|notebook, _| needed.contains(notebook));
    }

    pub(super) fn proxies(&self) -> impl Iterator<Item = ConnectionId> {
        self.notebooks
            .values()
            .filter_map(|notebook| notebook.connection)
    }

    /// The connected proxy that follows this job.
    pub(super) fn subscriber(&self, job: &Job) -> Option<ConnectionId> {
        let notebook = self.notebooks.get(&job.follower())?;
        notebook.subscriptions.get(&job.id)?;
        notebook.connection
    }

    /// The connected proxy that follows the job receives its events after this number: the stored ones first, then
    /// the live ones. If the stored ones are still being sent, that continues from where it is.
    pub(super) fn subscribe(
        &mut self,
        connection: ConnectionId,
        job: &Job,
        after: u64,
        batch: &mut Batch,
    ) {
        if !self.is_catching_up(connection, job.id) {
            self.send_after(connection, job, after, batch);
        }
    }

    pub(super) fn is_catching_up(&self, connection: ConnectionId, job: JobId) -> bool {
        let Some(Peer::Proxy(notebook)) = self.by_connection.get(&connection) else {
            return false;
        };
        let notebook = self.notebooks.get(notebook);
        let subscription = notebook.and_then(|notebook| notebook.subscriptions.get(&job));
        subscription == Some(&Subscription::CatchingUp)
    }

    pub(super) fn send_after(
        &mut self,
        connection: ConnectionId,
        job: &Job,
        after: u64,
        batch: &mut Batch,
    ) {
        let Some(notebook) = self.notebooks.get_mut(&job.follower()) else {
            return;
        };
        let subscription = if after >= job.last_event() {
            Subscription::Live
        } else {
            batch.push(Action::CatchUp {
                connection,
                job: job.id,
                after,
            });
            Subscription::CatchingUp
        };
        notebook.subscriptions.insert(job.id, subscription);
    }

    /// The connected worker that has this job.
    pub(super) fn runner(&self, job: &Job) -> Option<ConnectionId> {
        self.workers.get(&job.worker()?)?.connection
    }

    /// Whether any known worker has a GPU, including those that disconnected a short time ago.
    pub(super) fn knows_a_gpu(&self) -> bool {
        self.workers.values().any(Worker::has_gpu)
    }

    /// Whether the connected workers have a GPU. If none is connected, the disconnected ones
    /// count; if none is known, `true`.
    pub(super) fn have_gpus(&self) -> bool {
        let of = |connected: bool| {
            let mut workers = self.workers.values();
            workers.any(|worker| worker.connection.is_some() == connected && worker.has_gpu())
        };
        let is_any_connected = self
            .workers
            .values()
            .any(|worker| worker.connection.is_some());
        self.workers.is_empty() || of(is_any_connected)
    }

    /// Removes notebooks that have since run on another worker: their sessions here are outdated.
    pub(super) fn current(
        &self,
        worker: WorkerId,
        sessions: &HashSet<NotebookId>,
    ) -> HashSet<NotebookId> {
        let is_current = |notebook: &&NotebookId| {
            let ran_on = self.notebooks.get(notebook).and_then(|entry| entry.ran_on);
            ran_on.is_none_or(|on| on == worker)
        };
        sessions.iter().filter(is_current).copied().collect()
    }

    pub(super) fn is_followed(&self, id: JobId, notebook: NotebookId) -> bool {
        self.notebooks
            .get(&notebook)
            .is_some_and(|notebook| notebook.subscriptions.contains_key(&id))
    }

    /// Ends the notebook's sessions on the workers that may have one. A worker is asked once for each session, so no
    /// notebook can fill its queue.
    pub(super) fn end_sessions(&mut self, notebook: NotebookId, batch: &mut Batch) {
        for worker in self.workers.values_mut() {
            if let Some(connection) = worker.connection
                && worker.forget_session(notebook)
            {
                batch.send_worker(connection, ToWorker::EndSession { notebook });
            }
        }
    }

    /// A worker has reported a session of this notebook. If its proxy does not connect before
    /// `deadline`, the session is ended.
    pub(super) fn expect_proxy(&mut self, id: NotebookId, deadline: Instant) {
        let notebook = self.notebooks.entry(id);
        notebook.or_insert_with(|| Notebook::absent(None, deadline));
    }

    /// The name, as people see it, of the worker that has or had the job.
    pub(super) fn name_of_worker(&self, job: Option<&Job>) -> String {
        let name = job.and_then(|job| job.worker()).and_then(|id| {
            let present = self.workers.get(&id).map(|worker| &worker.name);
            present.or_else(|| self.missed.get(&id).map(|missed| &missed.name))
        });
        name.map_or_else(|| "the worker".to_owned(), String::clone)
    }

    /// A name for a worker that has chosen none: the kind of its device and a number. A worker that is started again is
    /// another worker, but it gets the name of the one that has left, under which staff may have drained it.
    pub(super) fn name_for(&self, hello: &WorkerHello) -> String {
        if let Some(known) = self.workers.get(&hello.worker) {
            return known.name.clone();
        }
        let kind = if hello.offer.has_gpu() { "gpu" } else { "cpu" };
        let workers = self.workers.values();
        let connected = workers.filter(|worker| worker.connection.is_some());
        let taken: HashSet<&str> = connected.map(|worker| worker.name.as_str()).collect();
        let mut number = 0;
        loop {
            let name = format!("{kind}-{number}");
            if !taken.contains(name.as_str()) {
                return name;
            }
            number += 1;
        }
    }

    pub(super) fn disbelieve(&self, worker: WorkerId, what: &'static str, batch: &mut Batch) {
        if let Some(worker) = self.workers.get(&worker) {
            let worker = worker.name.clone();
            let report = Observation::ImpossibleReport { worker, what };
            batch.log(report);
        }
    }

    /// Reports ended sessions to their notebooks, if a session held something no other can have. If
    /// the notebook has since moved to another worker, nothing is lost, so nothing is reported.
    pub(super) fn sessions_end(
        &mut self,
        id: WorkerId,
        ends: impl Fn(&NotebookId) -> bool,
        batch: &mut Batch,
    ) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let ended: Vec<NotebookId> = worker.keeping.extract_if(ends).collect();
        for notebook in ended {
            let notebook = self.notebooks.get(&notebook);
            let here = notebook.filter(|notebook| notebook.ran_on.is_none_or(|on| on == id));
            if let Some(connection) = here.and_then(|notebook| notebook.connection) {
                let worker = worker.name.clone();
                let ended = ToProxy::SessionEnded { worker };
                batch.send_proxy(connection, ended);
            }
        }
    }
}
