//! Whatever proxies, workers, time and kills do: decisions can be stored, and a cell starts at most once.
#![allow(clippy::unwrap_used)]

mod connections;
mod deleted_jobs;
mod flood;
mod hostile;
mod locks;
mod long_queue;
mod pools;

use super::{
    job::{Job, remainder_after},
    *,
};
use crate::{
    Account, Identity, WorkerHello,
    record::{OpenJob, Write},
    samples::{naming, submission},
};
use baton_protocol::{
    Answer, ChunkHash, FencingNumber, Finished, JobEvent, JobKind, NotebookId, Outcome,
    RemoteError, WorkerId,
    proxy::FromProxy,
    worker::{FromWorker, ToWorker},
};
use baton_scheduling::queue::Offer;
use proptest::prelude::*;
use std::collections::BTreeMap;
use uuid::Uuid;

const GRACES: Graces = Graces {
    worker: Duration::from_secs(5),
    proxy: Duration::from_secs(5),
    silent_proxy: Duration::from_secs(30),
    restart: Duration::from_secs(30),
};

#[derive(Debug, Clone)]
enum Step {
    ProxyConnects(u8),
    ProxyGoes(u8),
    Submit(u8, u8),
    SendState(u8, u8),
    Cancel(u8, u8),
    Applied(u8, u8),
    Resume(u8, u8, u64),
    /// A notebook attaches a job of this or another notebook.
    Attach(u8, u8, u8),
    Detach(u8, u8, u8),
    Discard(u8, u8),
    /// Staff act on a job.
    Act(u8, u8, u8),
    WorkerConnects(u8),
    WorkerGoes(u8),
    /// It accepts no more jobs, but may still start what it holds: the two messages cross.
    WorkerDrains(u8),
    /// The next event of a worker's job: state wanted, started, names wanted, not started, finished, salvaged.
    Work(u8, u8),
    Seconds(u8),
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    let (proxy, job, worker) = (0..3_u8, 0..4_u8, 0..2_u8);
    prop_oneof![
        3 => proxy.clone().prop_map(Step::ProxyConnects),
        1 => proxy.clone().prop_map(Step::ProxyGoes),
        5 => (proxy.clone(), job.clone()).prop_map(|(proxy, job)| Step::Submit(proxy, job)),
        1 => (proxy.clone(), job.clone()).prop_map(|(proxy, job)| Step::SendState(proxy, job)),
        1 => (proxy.clone(), job.clone()).prop_map(|(proxy, job)| Step::Cancel(proxy, job)),
        1 => (proxy.clone(), job.clone()).prop_map(|(proxy, job)| Step::Applied(proxy, job)),
        1 => (proxy.clone(), job.clone(), 0..4_u8).prop_map(|(proxy, job, what)| Step::Act(proxy, job, what)),
        1 => (proxy, job, 0..5_u64).prop_map(|(proxy, job, after)| Step::Resume(proxy, job, after)),
        1 => (0..3_u8, 0..3_u8, 0..4_u8).prop_map(|(proxy, of, job)| Step::Attach(proxy, of, job)),
        1 => (0..3_u8, 0..3_u8, 0..4_u8).prop_map(|(proxy, of, job)| Step::Detach(proxy, of, job)),
        1 => (0..3_u8, 0..4_u8).prop_map(|(proxy, job)| Step::Discard(proxy, job)),
        4 => worker.clone().prop_map(Step::WorkerConnects),
        1 => worker.clone().prop_map(Step::WorkerGoes),
        1 => worker.clone().prop_map(Step::WorkerDrains),
        8 => (worker, 0..6_u8).prop_map(|(worker, what)| Step::Work(worker, what)),
        2 => (1..40_u8).prop_map(Step::Seconds),
        1 => Just(Step::Kill),
    ]
}

/// What the store would hold. It has the same conditions for each change.
#[derive(Clone, Default)]
pub(super) struct Stored {
    pub(super) jobs: HashMap<JobId, OpenJob>,
    pub(super) closed: HashMap<JobId, NotebookId>,
    starts: HashMap<JobId, u32>,
    ends: HashMap<JobId, u32>,
}

/// A worker with its assigned jobs: the fencing number and the number of the last event of each.
#[derive(Default)]
struct WorkerSide {
    connection: Option<ConnectionId>,
    held: HashMap<JobId, (FencingNumber, u64)>,
}

struct World {
    dispatch: Dispatch,
    stored: Stored,
    start: Instant,
    seconds: u64,
    next_connection: u64,
    proxies: HashMap<u8, ConnectionId>,
    workers: HashMap<u8, WorkerSide>,
}

impl World {
    fn new() -> Self {
        let start = Instant::now();
        let now = Now {
            instant: start,
            unix_ms: 0,
        };
        let stored = Stored::default();
        Self {
            dispatch: Dispatch::new(stored.load(), GRACES, courses(), now),
            stored,
            start,
            seconds: 0,
            next_connection: 1,
            proxies: HashMap::new(),
            workers: HashMap::new(),
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: self.start + Duration::from_secs(self.seconds),
            unix_ms: 0,
        }
    }

    fn connection(&mut self) -> ConnectionId {
        self.next_connection += 1;
        ConnectionId(self.next_connection)
    }

    fn after(steps: impl IntoIterator<Item = Step>) -> Self {
        let mut world = Self::new();
        steps.into_iter().for_each(|step| world.take(step));
        world
    }

    fn take(&mut self, step: Step) {
        let now = self.now();
        let mut batch = Batch::new(now);
        match step {
            Step::ProxyConnects(proxy) => {
                let connection = self.connection();
                self.proxies.insert(proxy, connection);
                self.dispatch.on_proxy_connected(
                    connection,
                    notebook(proxy),
                    Account::default(),
                    &mut batch,
                );
            }
            Step::ProxyGoes(proxy) => {
                if let Some(connection) = self.proxies.remove(&proxy) {
                    self.dispatch.on_closed(connection, Ending::PeerClosed, now);
                }
            }
            Step::Submit(proxy, job) => {
                let mut submission = submission(job_id(proxy, job), naming(ChunkHash([0; 32])));
                submission.notebook = notebook(proxy);
                submission.cell.kind = kind_of(submission.job);
                self.proxy_says(proxy, FromProxy::Submit(submission), &mut batch);
            }
            Step::SendState(proxy, job) => {
                let (job, question) = (job_id(proxy, job), 1);
                let answer = Answer::State(naming(ChunkHash([1; 32])));
                #[rustfmt::skip]
                let message = FromProxy::Answer { job, question, answer };
                self.proxy_says(proxy, message, &mut batch);
            }
            Step::Cancel(proxy, job) => {
                let job = job_id(proxy, job);
                self.proxy_says(proxy, FromProxy::Cancel { job }, &mut batch);
            }
            Step::Applied(proxy, job) => {
                let job = job_id(proxy, job);
                self.proxy_says(proxy, FromProxy::Applied { job }, &mut batch);
            }
            Step::Resume(proxy, job, after) => {
                let job = job_id(proxy, job);
                self.proxy_says(proxy, FromProxy::Resume { job, after }, &mut batch);
            }
            Step::Attach(proxy, of, job) => {
                let (job, after) = (job_id(of, job), 0);
                self.proxy_says(proxy, FromProxy::Attach { job, after }, &mut batch);
            }
            Step::Detach(proxy, of, job) => {
                let job = job_id(of, job);
                self.proxy_says(proxy, FromProxy::Detach { job }, &mut batch);
            }
            Step::Discard(proxy, job) => {
                let job = job_id(proxy, job);
                let account = Account::default();
                drop(self.dispatch.discard(&account, job, &mut batch));
            }
            Step::Act(proxy, job, what) => {
                let job = job_id(proxy, job);
                let reason = "why".to_owned();
                let command = match what {
                    0 => Command::Hold { job, reason },
                    1 => Command::Release { job },
                    2 => Command::MoveToFront { job, reason },
                    _ => {
                        let reason = Some(reason);
                        Command::Cancel { job, reason }
                    }
                };
                let staff = Identity::operator();
                // This fails if the job is over, or has a worker.
                drop(self.dispatch.act(&staff, command, &mut batch));
            }
            Step::WorkerConnects(worker) => self.worker_connects(worker, &mut batch),
            Step::WorkerGoes(worker) => {
                let side = self.workers.entry(worker).or_default();
                if let Some(connection) = side.connection.take() {
                    self.dispatch.on_closed(connection, Ending::PeerClosed, now);
                }
            }
            Step::WorkerDrains(worker) => {
                let side = self.workers.entry(worker).or_default();
                if let Some(connection) = side.connection {
                    let drain = FromWorker::Drain {};
                    self.dispatch
                        .on_worker_message(connection, drain, &mut batch);
                }
            }
            Step::Work(worker, what) => self.work(worker, what, &mut batch),
            Step::Seconds(seconds) => {
                self.seconds += u64::from(seconds);
                batch.now = self.now();
            }
            Step::Kill => {
                self.proxies.clear();
                self.workers
                    .values_mut()
                    .for_each(|worker| worker.connection = None);
                self.dispatch = Dispatch::new(self.stored.load(), GRACES, courses(), now);
            }
        }
        self.dispatch.on_time_passed(&mut batch);
        self.dispatch.assign_and_notify(&mut batch);
        self.perform(batch.actions);
    }

    fn proxy_says(&mut self, proxy: u8, message: FromProxy, batch: &mut Batch) {
        if let Some(connection) = self.proxies.get(&proxy) {
            self.dispatch.on_proxy_message(*connection, message, batch);
        }
    }

    fn worker_connects(&mut self, worker: u8, batch: &mut Batch) {
        let connection = self.connection();
        let side = self.workers.entry(worker).or_default();
        side.connection = Some(connection);
        let hello = WorkerHello {
            worker: worker_id(worker),
            life: worker_id(worker),
            name: "cpu-0".to_owned(),
            offer: Offer::default(),
            slots: 2,
            sessions: Vec::new(),
            keeping: Vec::new(),
            assignments: side.held.iter().map(|(job, held)| (*job, held.0)).collect(),
            acknowledged: Vec::new(),
            failing: None,
        };
        self.dispatch.on_worker_connected(connection, hello, batch);
    }

    /// Always sends the next number, whether or not the earlier event permits the later one.
    fn work(&mut self, worker: u8, what: u8, batch: &mut Batch) {
        let side = self.workers.entry(worker).or_default();
        let Some(connection) = side.connection else {
            return;
        };
        let Some(job) = side.held.keys().min().copied() else {
            return;
        };
        let (fencing, last) = side.held.get_mut(&job).unwrap();
        *last += 1;
        let (fencing, first) = (*fencing, *last);
        let event = match what {
            0 => JobEvent::StateWanted { question: 1 },
            1 => JobEvent::Started {
                worker: String::new(),
            },
            2 => JobEvent::NamesWanted {
                question: 2,
                names: Vec::new(),
            },
            3 => JobEvent::NotStarted {
                error: RemoteError {
                    name: String::new(),
                    value: String::new(),
                    traceback: Vec::new(),
                    hint: None,
                },
            },
            5 => JobEvent::Salvaged {
                state: None,
                files: Vec::new(),
                error: None,
            },
            _ => JobEvent::Finished(Finished {
                salvageable: kind_of(job).outlives_kernel(),
                ..Finished::without_state(Outcome::Ok, None)
            }),
        };
        if event.is_last() {
            side.held.remove(&job);
        }
        let message = FromWorker::Events {
            job,
            fencing,
            first,
            events: vec![event],
        };
        self.dispatch.on_worker_message(connection, message, batch);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let mut sends = Vec::new();
        for action in actions {
            match action {
                Action::Write(write) => self.stored.apply(write),
                send => sends.push(send),
            }
        }
        for send in sends {
            match send {
                Action::Assign(connection, assignment) => {
                    if let Some(side) = self.worker_of(connection) {
                        let Assignment { job, fencing, .. } = assignment;
                        side.held.insert(job, (fencing, 0));
                    }
                }
                Action::ToWorker(connection, ToWorker::Revoke { job, fencing }) => {
                    if let Some(side) = self.worker_of(connection)
                        && side.held.get(&job).is_some_and(|held| held.0 <= fencing)
                    {
                        side.held.remove(&job);
                    }
                }
                Action::Close(connection) => {
                    let broken = self.worker_of(connection).is_some();
                    assert!(!broken, "a worker that counts right is disconnected");
                }
                _ => {}
            }
        }
    }

    fn worker_of(&mut self, connection: ConnectionId) -> Option<&mut WorkerSide> {
        self.workers
            .values_mut()
            .find(|side| side.connection == Some(connection))
    }

    /// Each waiting job is known to the plan, and each running job has a worker.
    fn check(&self) {
        for job in self.dispatch.jobs.iter() {
            let stored = &self.stored.jobs[&job.id];
            assert_eq!(stored.phase, job.phase());
            assert_eq!(stored.fencing, job.fencing());
            assert_eq!(stored.last_event, job.last_event());
            assert_eq!(stored.acknowledged, job.acknowledged());
            assert_eq!(stored.held.as_deref(), job.held());
            assert_eq!(stored.front_ms, job.front_ms());
            assert_eq!(stored.orphaned_ms.is_some(), job.is_orphan());
            if job.phase() == Phase::Finished {
                assert!([stored.remainder, Remainder::Nothing].contains(&job.remainder()));
            }
            assert_eq!(job.is_running(), job.is_running() && job.worker().is_some());
            if job.phase() == Phase::Queued {
                assert!(job.waiting.is_some() && job.worker().is_none());
            }
        }
        assert_eq!(self.dispatch.jobs.iter().count(), self.stored.jobs.len());
        assert!(self.stored.starts.values().all(|starts| *starts == 1));
        assert!(self.stored.ends.values().all(|ends| *ends == 1));
    }
}

impl Stored {
    pub(super) fn load(&self) -> Loaded {
        Loaded {
            jobs: self.jobs.values().cloned().collect(),
            closed: self.closed.clone(),
            owners: BTreeMap::new(),
            next_sequence: 1 + self
                .jobs
                .values()
                .map(|job| job.sequence)
                .max()
                .unwrap_or(0),
            last_alive_ms: None,
            spent: Vec::new(),
            runs: Vec::new(),
            changes: crate::courses::Changes::default(),
            locks: BTreeMap::new(),
        }
    }

    pub(super) fn apply(&mut self, write: Write) {
        match write {
            Write::Submit {
                sequence,
                submission,
                ..
            } => {
                let job = OpenJob {
                    remainder: Remainder::Nothing,
                    orphaned_ms: None,
                    outcome: None,
                    job: submission.job,
                    sequence,
                    notebook: submission.notebook,
                    notebook_name: String::new(),
                    kind: submission.cell.kind,
                    execution_count: None,
                    account: Account::default(),
                    phase: Phase::Queued,
                    cancel_wanted: false,
                    stopped: None,
                    held: None,
                    front_ms: None,
                    worker: None,
                    worker_name: String::new(),
                    fencing: 0,
                    acknowledged: 0,
                    last_event: 0,
                    cell_key: None,
                    priority: submission.priority,
                    needs: Vec::new(),
                    timeout_ms: submission.cell.timeout_ms,
                    submitted_ms: 0,
                    started_ms: None,
                };
                assert!(!self.closed.contains_key(&submission.job));
                assert!(self.jobs.insert(submission.job, job).is_none());
            }
            Write::Assign {
                job,
                worker,
                fencing,
                ..
            } => {
                let job = self.jobs.get_mut(&job).unwrap();
                assert!(job.phase == Phase::Queued && job.fencing < fencing);
                job.phase = Phase::Assigned;
                job.worker = Some(worker);
                job.fencing = fencing;
                job.acknowledged = 0;
            }
            Write::Requeue { job, fencing } => {
                let job = self.jobs.get_mut(&job).unwrap();
                assert!(job.phase == Phase::Assigned && job.fencing == fencing);
                job.phase = Phase::Queued;
                job.worker = None;
                job.acknowledged = 0;
            }
            Write::Start {
                job: id, fencing, ..
            } => {
                let job = self.jobs.get_mut(&id).unwrap();
                assert!(job.phase == Phase::Assigned && job.fencing == fencing);
                job.phase = Phase::Started;
                *self.starts.entry(id).or_default() += 1;
            }
            Write::Events {
                job,
                acknowledged,
                events,
            } => {
                let job = self.jobs.get_mut(&job).unwrap();
                for event in events {
                    assert_eq!(event.number, job.last_event + 1);
                    job.last_event += 1;
                    job.remainder = remainder_after(&event.event);
                }
                job.acknowledged = acknowledged.unwrap_or(job.acknowledged);
            }
            Write::ReplaceState { job, .. } => {
                let job = &self.jobs[&job];
                assert!(matches!(job.phase, Phase::Queued | Phase::Assigned));
            }
            Write::WantCancel { job, stopped } => {
                let job = self.jobs.get_mut(&job).unwrap();
                job.cancel_wanted = true;
                job.stopped = stopped;
            }
            Write::Steer {
                job,
                held,
                front_ms,
            } => {
                let job = self.jobs.get_mut(&job).unwrap();
                assert!(job.phase == Phase::Queued);
                (job.held, job.front_ms) = (held, front_ms);
            }
            Write::Finish {
                job: id, fencing, ..
            } => {
                let job = self.jobs.get_mut(&id).unwrap();
                assert!(job.phase != Phase::Finished);
                job.phase = Phase::Finished;
                job.fencing = fencing;
                *self.ends.entry(id).or_default() += 1;
            }
            Write::Orphan { job, at_ms } => {
                self.jobs.get_mut(&job).unwrap().orphaned_ms = at_ms;
            }
            Write::GiveUp { job, .. } => {
                assert!(self.jobs[&job].phase == Phase::Finished);
            }
            Write::Close { job } | Write::Remove { job } => {
                let closed = self.jobs.remove(&job).unwrap();
                assert!(closed.phase == Phase::Finished);
                self.closed.insert(job, closed.notebook);
            }
            Write::SeeWorker { .. } | Write::LoseWorker { .. } | Write::KeepLock { .. } => {}
            Write::ChangeWorker { .. } | Write::ChangeCourse { .. } | Write::Allow { .. } => {}
            Write::Audit(_) | Write::Charge { .. } | Write::DropOutputs { .. } => {}
        }
    }
}

pub(super) fn courses() -> Arc<Courses> {
    Arc::new(Courses::unlimited(1))
}

pub(super) fn notebook(number: u8) -> NotebookId {
    NotebookId(Uuid::from_u128(number.into()))
}

pub(super) fn worker_id(number: u8) -> WorkerId {
    WorkerId(Uuid::from_u128(number.into()))
}

pub(super) fn job_id(proxy: u8, number: u8) -> JobId {
    JobId(Uuid::from_u128(
        u128::from(proxy) * 100 + u128::from(number),
    ))
}

/// Every second job is a background job.
fn kind_of(job: JobId) -> JobKind {
    match job.0.as_u128() % 2 {
        0 => JobKind::Cell,
        _ => JobKind::Background,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn what_is_decided_can_be_stored_and_a_cell_starts_once(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            world.check();
        }
        // If no peer reconnects, only results that are kept remain, and after their term nothing does.
        world.take(Step::Kill);
        world.take(Step::Seconds(31));
        world.check();
        prop_assert!(world.dispatch.jobs.iter().all(|job| job.is_kept() && !job.is_running()));
        world.seconds += 31 * 24 * 3600;
        world.take(Step::Seconds(1));
        prop_assert!(world.dispatch.jobs.is_empty());
        prop_assert!(world.dispatch.peers.notebooks.is_empty());
        prop_assert!(world.dispatch.peers.workers.is_empty());
        prop_assert_eq!(world.dispatch.next_deadline(), None);
    }
}
