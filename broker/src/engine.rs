//! The broker's only loop: it takes events, decides, stores, and then sends.
//!
//! In: [`Event`]s from connections and pages. Out: frames into the connections' queues. A batch of
//! events becomes one transaction, and nothing is sent before that is committed. If storing fails,
//! the loop closes all connections and loads the state again; peers reconnect and resume by event
//! number. The same happens when another broker becomes the leader. Until this one is the leader
//! again, it closes all connections.
//!
//! Sending never waits. If a proxy's queue is full, its events are read from the store once there is room
//! again. A full queue for any other message closes the connection; its peer reconnects and resumes.

mod connections;
mod leader_election;
mod outgoing;

pub(crate) use leader_election::Leadership;
pub(crate) use outgoing::{Frame, Outgoing};

use self::connections::Connections;
use crate::{
    clock::unix_ms, in_flight::Booking, journal::Journal, metrics::Metrics, outputs::Outputs,
    quota::Quotas,
};
use baton_broker_queue::{
    Account, Action, Activity, Assignment, Batch, Command, ConnectionId, Dispatch, Ending, Graces,
    Identity, NotDone, Now, Observation, OpenJob, Overview, Severity, Unwelcome, WorkerHello,
    Write,
    courses::Courses,
    pools::{ComingLessons, PoolLook, PoolsPresent},
};
use baton_broker_store::{Store, StoreError};
use baton_protocol::{
    JobId, NotebookId,
    api::{Allowance, AttachableJob, Course, QueueDetails},
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};
use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// The number of waiting events above which connections must wait before they add another.
pub(crate) const INBOX: usize = 1024;
/// The largest number of events in one transaction.
const BATCH: usize = 64;
/// How long to wait after a failed transaction.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the leader checks that it is still the leader, even if there is nothing to store.
const LEADERSHIP_CHECK_EVERY: Duration = Duration::from_secs(2);

/// Everything that can wake the loop, besides time.
pub(crate) enum Event {
    ProxyConnected(ConnectionId, Outgoing, NotebookId, Account),
    WorkerConnected(ConnectionId, Outgoing, WorkerHello),
    FromProxy(ConnectionId, FromProxy, Booking),
    /// A message that is not passed to a worker, and the reason.
    Unwelcome(ConnectionId, FromProxy, Unwelcome, Booking),
    FromWorker(ConnectionId, FromWorker),
    Closed(ConnectionId, Ending),
    CaughtUp {
        connection: ConnectionId,
        job: JobId,
        through: u64,
    },
    Overview(oneshot::Sender<Overview>),
    Explain(JobId, oneshot::Sender<Option<QueueDetails>>),
    Courses(Identity, oneshot::Sender<Vec<Course>>),
    /// The allowances of a course.
    Allowances(
        Identity,
        String,
        oneshot::Sender<Result<Vec<Allowance>, NotDone>>,
    ),
    Act(Identity, Command, oneshot::Sender<Result<(), NotDone>>),
    Attachable(Account, oneshot::Sender<Vec<AttachableJob>>),
    Discard(Account, JobId, oneshot::Sender<Result<(), NotDone>>),
    Pools(PoolLook, oneshot::Sender<PoolsPresent>),
    /// The rows of these jobs were deleted because of their age.
    JobsDeleted(Vec<JobId>),
    /// The next time of each lesson.
    Lessons(oneshot::Sender<ComingLessons>),
}

pub(crate) struct Engine {
    pub(crate) store: Store,
    pub(crate) graces: Graces,
    pub(crate) courses: watch::Receiver<Arc<Courses>>,
    pub(crate) inbox: mpsc::Receiver<Event>,
    /// For tasks that read stored events and report when they are done.
    pub(crate) caught_up: mpsc::WeakSender<Event>,
    pub(crate) activity: watch::Sender<Activity>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) quotas: Arc<Quotas>,
    /// For the outputs of one open job.
    pub(crate) output_limit_bytes: u64,
    pub(crate) leadership: watch::Sender<Leadership>,
    /// The address at which other brokers reach this one.
    pub(crate) address: String,
    /// Makes [`Self::account_number`].
    pub(crate) account_numbers: RandomState,
}

impl Engine {
    /// The number by which workers share GPUs: a hash of the owner, or of a notebook without one.
    fn account_number(&self, owner: &str, notebook: NotebookId) -> u64 {
        match owner.is_empty() {
            true => self.account_numbers.hash_one(notebook),
            false => self.account_numbers.hash_one(owner),
        }
    }
}

/// Runs until it is cancelled or no sender of events is left.
pub(crate) async fn run(mut engine: Engine, stop: CancellationToken) -> Result<(), StoreError> {
    let mut pause = Duration::ZERO;
    let mut last_error = String::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = leader_election::reject_connections(&mut engine.inbox, pause) => {}
        }
        let (loaded, output_bytes) = match leader_election::acquire(&engine).await {
            Ok(loaded) => loaded,
            Err(StoreError::OtherLeader { leader }) => {
                leader_election::follow(&engine, leader);
                pause = leader_election::LOOK_EVERY;
                continue;
            }
            // At the first start there is no earlier state to recover, so the error ends the broker.
            Err(error) if pause.is_zero() && !error.may_pass() => return Err(error),
            Err(error) => {
                engine.leadership.send_replace(Leadership::Unknown);
                let words = error.to_string();
                if last_error != words {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "Failed to read the jobs: {words}. Retrying until it works"
                    );
                    last_error = words;
                }
                pause = PAUSE;
                continue;
            }
        };
        last_error.clear();
        let notes = Notes::of(&engine, &loaded.jobs, &output_bytes);
        let dispatch = Dispatch::new(
            loaded,
            engine.graces,
            engine.courses.borrow_and_update().clone(),
            now(),
        );
        engine.leadership.send_replace(Leadership::Leader);
        let mut connections = Connections::default();
        let served = serve(&mut engine, dispatch, notes, &mut connections, &stop).await;
        connections.close_all();
        match served {
            Ok(()) => return Ok(()),
            Err(error) => {
                engine.leadership.send_replace(Leadership::Unknown);
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "Failed to store a change: {error}. Closing all connections and reading the jobs again"
                );
                pause = PAUSE;
            }
        }
    }
}

/// What is known about jobs from the changes that are stored.
struct Notes {
    journal: Journal,
    outputs: Outputs,
}

impl Notes {
    fn of(engine: &Engine, jobs: &[OpenJob], output_bytes: &HashMap<JobId, u64>) -> Self {
        let quotas = Arc::clone(&engine.quotas);
        Self {
            journal: Journal::of(jobs),
            outputs: Outputs::of(jobs, output_bytes, engine.output_limit_bytes, quotas),
        }
    }
}

async fn serve(
    engine: &mut Engine,
    mut dispatch: Dispatch,
    mut notes: Notes,
    connections: &mut Connections,
    stop: &CancellationToken,
) -> Result<(), StoreError> {
    let mut events = Vec::with_capacity(BATCH);
    let mut looks = tokio::time::interval(LEADERSHIP_CHECK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let deadline = dispatch.next_deadline();
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            received = engine.inbox.recv_many(&mut events, BATCH) => {
                if received == 0 {
                    return Ok(());
                }
            }
            () = sleep_until(deadline.map(Instant::from_std)) => {}
            _ = looks.tick() => {
                engine.store.check_leadership().await?;
                continue;
            }
            Ok(()) = engine.courses.changed() => {
                dispatch.on_courses_changed(engine.courses.borrow_and_update().clone());
            }
            Some(()) = connections.reader_ended() => continue,
        }
        let (mut batch, mut replies) = (Batch::new(now()), Vec::new());
        for event in events.drain(..) {
            handle(&mut dispatch, connections, event, &mut batch, &mut replies);
        }
        // Only the deadline from before this batch counts. Whatever became due since is for the next turn.
        if deadline.is_some_and(|deadline| deadline <= batch.now.instant) {
            dispatch.on_time_passed(&mut batch);
        }
        dispatch.assign_and_notify(&mut batch);
        let actions = batch.actions;
        let stored = perform(engine, &mut dispatch, &mut notes, connections, actions).await;
        stored.inspect_err(|error| connections.report_shortage(&dispatch, error))?;
        for (caller, done) in replies {
            // The caller may be gone.
            let _ = caller.send(done);
        }
        publish(engine, &dispatch);
    }
}

/// The reply to a request; it is sent only after the change has been stored.
type Reply = (oneshot::Sender<Result<(), NotDone>>, Result<(), NotDone>);

fn handle(
    dispatch: &mut Dispatch,
    connections: &mut Connections,
    event: Event,
    batch: &mut Batch,
    replies: &mut Vec<Reply>,
) {
    match event {
        Event::ProxyConnected(connection, outgoing, notebook, account) => {
            connections.add(connection, outgoing);
            dispatch.on_proxy_connected(connection, notebook, account, batch);
        }
        Event::WorkerConnected(connection, outgoing, hello) => {
            connections.add(connection, outgoing);
            dispatch.on_worker_connected(connection, hello, batch);
        }
        Event::FromProxy(connection, message, booking) => {
            let before = batch.actions.len();
            dispatch.on_proxy_message(connection, message, batch);
            let is_relay = |action: &Action| matches!(action, Action::Relay { .. });
            if batch.actions[before..].iter().any(is_relay) {
                connections.keep_for_relay(booking);
            }
        }
        Event::Unwelcome(connection, message, why, _booking) => {
            dispatch.on_proxy_refused(connection, message, &why, batch);
        }
        Event::FromWorker(connection, message) => {
            dispatch.on_worker_message(connection, message, batch);
        }
        Event::Closed(connection, ending) => {
            connections.remove(connection);
            dispatch.on_closed(connection, ending, batch.now);
        }
        Event::CaughtUp {
            connection,
            job,
            through,
        } => dispatch.on_caught_up(connection, job, through, batch),
        // The caller may be gone.
        Event::Overview(answer) => drop(answer.send(dispatch.overview())),
        Event::Explain(job, answer) => drop(answer.send(dispatch.explain(job, batch.now))),
        Event::Courses(seen_by, answer) => drop(answer.send(dispatch.courses(&seen_by, batch.now))),
        Event::Allowances(who, course, answer) => {
            drop(answer.send(dispatch.allowances(&who, &course, batch.now)));
        }
        Event::Attachable(account, answer) => drop(answer.send(dispatch.attachable(&account))),
        Event::Discard(account, job, answer) => {
            let done = dispatch.discard(&account, job, batch);
            replies.push((answer, done));
        }
        Event::Pools(look, answer) => drop(answer.send(dispatch.on_pools(look, batch))),
        Event::JobsDeleted(jobs) => dispatch.on_jobs_deleted(&jobs),
        Event::Lessons(answer) => drop(answer.send(dispatch.coming_lessons(i64::MAX, batch.now))),
        Event::Act(who, command, answer) => {
            let done = dispatch.act(&who, command, batch);
            replies.push((answer, done));
        }
    }
}

/// Stores first, then sends. What cannot be sent may lead to further actions.
async fn perform(
    engine: &Engine,
    dispatch: &mut Dispatch,
    notes: &mut Notes,
    connections: &mut Connections,
    mut actions: Vec<Action>,
) -> Result<(), StoreError> {
    while !actions.is_empty() {
        actions = perform_once(engine, dispatch, notes, connections, actions).await?;
    }
    Ok(())
}

async fn perform_once(
    engine: &Engine,
    dispatch: &mut Dispatch,
    notes: &mut Notes,
    connections: &mut Connections,
    actions: Vec<Action>,
) -> Result<Vec<Action>, StoreError> {
    let mut writes: Vec<Write> = Vec::new();
    let mut sends = Vec::with_capacity(actions.len());
    for action in actions {
        match action {
            Action::Write(write) => {
                let further = notes.outputs.note(&write);
                writes.push(write);
                writes.extend(further);
            }
            Action::Log(observation) => log(&observation),
            send => sends.push(send),
        }
    }
    if !writes.is_empty() {
        let begun = Instant::now();
        if let Err(error) = engine.store.apply(&writes).await {
            engine.metrics.failed();
            return Err(error);
        }
        engine.metrics.stored(begun.elapsed());
        for write in &writes {
            notes.journal.note(write);
            engine.metrics.changed(write);
            if let Write::Start { job, at_ms, .. } = write
                && let Some(waited_ms) = dispatch.waited_until(*job, *at_ms)
            {
                engine.metrics.waited(waited_ms);
            }
        }
        drop(writes);
    }
    let mut further = Batch::new(now());
    for action in sends {
        send(engine, dispatch, connections, action, &mut further).await?;
    }
    Ok(further.actions)
}

fn log(observation: &Observation) {
    let job = observation.job();
    let (job, worker) = (
        job.as_ref().map(tracing::field::display),
        observation.worker(),
    );
    match observation.severity() {
        Severity::Error => tracing::error!(job.id = job, worker.name = worker, "{observation}"),
        Severity::Warning => tracing::warn!(job.id = job, worker.name = worker, "{observation}"),
        Severity::Information => {
            tracing::info!(job.id = job, worker.name = worker, "{observation}");
        }
    }
}

async fn send(
    engine: &Engine,
    dispatch: &mut Dispatch,
    connections: &mut Connections,
    action: Action,
    further: &mut Batch,
) -> Result<(), StoreError> {
    match action {
        // Stored already.
        Action::Write(_) => {}
        Action::ToProxy(connection, message) => connections.send(connection, &message),
        Action::ToWorker(connection, message) => connections.send(connection, &message),
        Action::Relay { from, to, message } => {
            if !connections.try_relay(to, &message) {
                tracing::warn!(
                    "A worker does not read its notebooks' messages fast enough; closing the sender's connection"
                );
                connections.close(from);
                dispatch.on_not_relayed(&message);
            }
        }
        Action::Forward(connection, job, events) => {
            let before = events.first().map_or(0, |event| event.number - 1);
            let message = ToProxy::Events { job, events };
            if !dispatch.is_catching_up(connection, job)
                && !connections.try_send_events(connection, &message)
            {
                dispatch.on_caught_up(connection, job, before, further);
            }
        }
        Action::CatchUp {
            connection,
            job,
            after,
        } => connections.catch_up(engine, connection, job, after),
        Action::Assign(connection, assignment) => {
            assign(
                engine,
                dispatch,
                connections,
                connection,
                assignment,
                further,
            )
            .await?;
        }
        Action::Close(connection) => connections.close(connection),
        // Logged already.
        Action::Log(_) => {}
    }
    Ok(())
}

async fn assign(
    engine: &Engine,
    dispatch: &mut Dispatch,
    connections: &mut Connections,
    connection: ConnectionId,
    assignment: Assignment,
    further: &mut Batch,
) -> Result<(), StoreError> {
    let job = assignment.job;
    let mut submission = match assignment.submission {
        Some(submission) => Arc::unwrap_or_clone(submission),
        None => {
            let stored = engine.store.jobs().submission(job).await?;
            stored.ok_or(StoreError::Conflict { job })?
        }
    };
    submission.cell.timeout_ms = assignment.timeout_ms;
    let message = ToWorker::Assign {
        fencing: assignment.fencing,
        account: engine.account_number(&assignment.owner, submission.notebook),
        environment: assignment.environment,
        submission,
    };
    if let Err(bytes) = connections.send_stored(connection, &message) {
        dispatch.on_not_sent(job, bytes, further);
    }
    Ok(())
}

fn publish(engine: &Engine, dispatch: &Dispatch) {
    if engine.activity.receiver_count() == 0 {
        return;
    }
    let activity = dispatch.activity();
    engine.activity.send_if_modified(|known| {
        let changed = *known != activity;
        *known = activity;
        changed
    });
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn now() -> Now {
    Now {
        instant: Instant::now().into_std(),
        unix_ms: unix_ms(),
    }
}
