//! The model: one job, every process that takes part in it, and what may happen next.

mod messages;
mod peers;
mod steps;

use crate::{
    Account, WorkerHello,
    dispatch::{
        Action, Batch, ConnectionId, Dispatch, Ending, Graces, Now, Subscription,
        tests::{Stored, courses, job_id, notebook, worker_id},
    },
    record::Write,
    samples::{naming, submission},
};
use baton_protocol::{
    Answer, ChunkHash, FencingNumber, JobEvent, NumberedEvent, Outcome,
    outbox::Outbox,
    proxy::{FromProxy, ToProxy},
    worker::{Acknowledged, FromWorker, ToWorker},
};
use baton_scheduling::queue::Offer;
use messages::{Down, Event, Known, Numbered, Up};
use peers::{down_to_worker, event, number_of};
use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    sync::OnceLock,
    time::{Duration, Instant},
};

const GRACES: Graces = Graces {
    worker: Duration::from_secs(2),
    proxy: Duration::from_secs(4),
    silent_proxy: Duration::from_secs(4),
    restart: Duration::from_secs(4),
};
const PROXY: u8 = 0;

/// How a worker behaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) waits_for_its_start: bool,
    /// Workers have their own tokens, so after a restart a process is still the same worker.
    pub(super) named_by_token: bool,
    /// The worker lacks the state that the cell continues, so it asks for a complete one.
    pub(super) wants_state: bool,
    /// It asks again after each new connection.
    pub(super) asks_again: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            waits_for_its_start: true,
            named_by_token: false,
            wants_state: false,
            asks_again: true,
        }
    }
}

/// How often each kind of fault may occur.
#[derive(Debug, Clone, Copy, Default, Hash)]
pub(super) struct Faults {
    /// Of a worker's connection.
    pub(super) breaks: u8,
    /// Of the proxy's connection. If this is 0, its messages arrive at once.
    pub(super) proxy_breaks: u8,
    pub(super) deaths: u8,
    pub(super) restarts: u8,
    pub(super) cancels: u8,
    /// Restarts with the database of an earlier moment.
    pub(super) losses: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Connect(Peer),
    /// The oldest message on this connection arrives.
    ArriveAtBroker(usize),
    ArriveAtPeer(usize),
    BreakAtBroker(usize),
    BreakAtPeer(usize),
    Cancel,
    /// The worker asks for a complete state.
    AskForState(u8),
    /// The worker has the state and asks to start.
    Ask(u8),
    Begin(u8),
    End(u8),
    Die(u8),
    Restart,
    /// A later loss restores the database of this moment.
    Remember,
    RestartBehind,
    /// Until the next grace is over.
    Wait,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    Worker(u8),
    Proxy,
}

/// One connection. Messages in flight can arrive while the receiving end is open.
#[derive(Clone)]
struct Line {
    id: ConnectionId,
    peer: Peer,
    open_at_broker: bool,
    open_at_peer: bool,
    to_broker: VecDeque<Up>,
    to_peer: VecDeque<Down>,
}

#[derive(Clone, Default)]
struct Worker {
    /// Increased by each death.
    life: u8,
    welcomed: bool,
    held: Option<Assignment>,
}

#[derive(Clone)]
struct Assignment {
    fencing: FencingNumber,
    outbox: Outbox,
    /// Whether the worker has asked for the state, and whether it has an answer.
    state: Option<bool>,
    cancelled: bool,
    begun: bool,
}

#[derive(Clone, Default, Hash)]
struct Proxy {
    welcomed: bool,
    submitted: bool,
    seen: u64,
    /// The last question that it has answered.
    answered: Option<u64>,
    /// It has received the end of its job.
    over: bool,
    /// It has also received the broker's confirmation.
    closed: bool,
}

/// What survives a crash.
#[derive(Clone, Default)]
struct Disk {
    stored: Stored,
    events: Vec<Numbered>,
}

#[derive(Clone)]
pub(super) struct World {
    rules: Rules,
    faults: Faults,
    proxy_may_lag: bool,
    seconds: u64,
    next_connection: u64,
    dispatch: Dispatch,
    disk: Disk,
    remembered: Option<Box<Disk>>,
    lines: Vec<Line>,
    workers: [Worker; 2],
    proxy: Proxy,
    /// How often the cell began.
    pub(super) begun: u8,
}

impl World {
    /// All peers are connected, and the job has just been submitted.
    pub(super) fn new(rules: Rules, faults: Faults) -> Self {
        let disk = Disk::default();
        let mut world = Self {
            rules,
            faults,
            proxy_may_lag: faults.proxy_breaks > 0,
            seconds: 0,
            next_connection: 1,
            dispatch: Dispatch::new(disk.stored.load(), GRACES, courses(), at(0)),
            disk,
            remembered: None,
            lines: Vec::new(),
            workers: Default::default(),
            proxy: Proxy::default(),
            begun: 0,
        };
        for (line, peer) in [Peer::Proxy, Peer::Worker(0), Peer::Worker(1)]
            .into_iter()
            .enumerate()
        {
            world.connect(peer);
            world.arrive_at_broker(line);
            world.arrive_at_peer(line);
        }
        world.proxy.submitted = true;
        world.send(Peer::Proxy, Up::Submit);
        world.arrive_at_broker(0);
        world.hurry();
        world
    }

    /// The student knows how the job ended, and nothing of it is left on any worker or the broker.
    pub(super) fn is_over(&self) -> bool {
        let free = self.workers.iter().all(|worker| worker.held.is_none());
        self.proxy.closed && free && self.dispatch.jobs.is_empty()
    }

    // ---- steps

    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Connect(peer) => self.connect(peer),
            Step::ArriveAtBroker(line) => self.arrive_at_broker(line),
            Step::ArriveAtPeer(line) => self.arrive_at_peer(line),
            Step::BreakAtBroker(line) => {
                if self.lines[line].open_at_peer {
                    self.spend_break(line);
                }
                self.break_at_broker(line);
            }
            Step::BreakAtPeer(line) => {
                if self.lines[line].open_at_broker {
                    self.spend_break(line);
                }
                self.break_at_peer(line);
            }
            Step::Cancel => {
                self.faults.cancels -= 1;
                self.send(Peer::Proxy, Up::Cancel);
            }
            Step::AskForState(worker) => {
                let held = self.held_mut(worker);
                held.state = Some(false);
                let question = held.fencing;
                self.push(worker, Event::StateWanted(question));
            }
            Step::Ask(worker) => self.push(worker, Event::Started),
            Step::Begin(worker) => {
                self.begun += 1;
                self.held_mut(worker).begun = true;
            }
            Step::End(worker) => self.push(worker, Event::Finished),
            Step::Die(worker) => {
                self.faults.deaths -= 1;
                let line = self.line_of(Peer::Worker(worker)).unwrap();
                self.break_at_peer(line);
                let life = self.workers[usize::from(worker)].life + 1;
                self.workers[usize::from(worker)] = Worker {
                    life,
                    ..Worker::default()
                };
            }
            Step::Restart => {
                self.faults.restarts -= 1;
                self.restart();
            }
            Step::Remember => self.remembered = Some(Box::new(self.disk.clone())),
            Step::RestartBehind => {
                self.faults.losses -= 1;
                self.disk = *self.remembered.take().unwrap();
                self.restart();
            }
            Step::Wait => {
                let deadline = self.dispatch.next_deadline().unwrap();
                let passed = deadline.saturating_duration_since(at(0).instant);
                let seconds = passed.as_millis().div_ceil(1000);
                self.seconds = self.seconds.max(u64::try_from(seconds).unwrap());
                self.perform(Batch::new(at(self.seconds)));
            }
        }
        if !self.proxy_may_lag {
            self.hurry();
        }
        self.lines
            .retain(|line| line.open_at_broker || line.open_at_peer);
    }

    fn spend_break(&mut self, line: usize) {
        match self.lines[line].peer {
            Peer::Proxy => self.faults.proxy_breaks -= 1,
            Peer::Worker(_) => self.faults.breaks -= 1,
        }
    }

    /// Delivers all messages to and from the proxy.
    fn hurry(&mut self) {
        let is_due = |line: &Line| {
            line.peer == Peer::Proxy
                && (line.open_at_broker && !line.to_broker.is_empty()
                    || line.open_at_peer && !line.to_peer.is_empty())
        };
        while let Some(number) = self.lines.iter().position(is_due) {
            let line = &self.lines[number];
            match line.open_at_broker && !line.to_broker.is_empty() {
                true => self.arrive_at_broker(number),
                false => self.arrive_at_peer(number),
            }
        }
    }

    // ---- connections

    fn line_of(&self, peer: Peer) -> Option<usize> {
        let mut lines = self.lines.iter();
        lines.position(|line| line.peer == peer && line.open_at_peer)
    }

    fn connect(&mut self, peer: Peer) {
        self.next_connection += 1;
        let hello = match peer {
            Peer::Proxy => Up::ProxyHello,
            Peer::Worker(number) => {
                let held = self.workers[usize::from(number)].held.as_ref();
                Up::WorkerHello(held.map(|held| Known {
                    fencing: held.fencing,
                    number: held.outbox.acknowledged(),
                    started: held.outbox.start_is_stored(),
                }))
            }
        };
        self.lines.push(Line {
            id: ConnectionId(self.next_connection),
            peer,
            open_at_broker: true,
            open_at_peer: true,
            to_broker: [hello].into(),
            to_peer: VecDeque::new(),
        });
    }

    fn send(&mut self, peer: Peer, message: Up) {
        let welcomed = match peer {
            Peer::Proxy => self.proxy.welcomed,
            Peer::Worker(number) => self.workers[usize::from(number)].welcomed,
        };
        if welcomed && let Some(line) = self.line_of(peer) {
            self.lines[line].to_broker.push_back(message);
        }
    }

    fn break_at_broker(&mut self, line: usize) {
        let line = &mut self.lines[line];
        line.open_at_broker = false;
        line.to_broker.clear();
        self.dispatch
            .on_closed(line.id, Ending::PeerClosed, at(self.seconds));
        self.perform(Batch::new(at(self.seconds)));
    }

    fn break_at_peer(&mut self, line: usize) {
        let line = &mut self.lines[line];
        line.open_at_peer = false;
        line.to_peer.clear();
        match line.peer {
            Peer::Proxy => self.proxy.welcomed = false,
            Peer::Worker(number) => self.workers[usize::from(number)].welcomed = false,
        }
    }

    fn restart(&mut self) {
        for line in &mut self.lines {
            line.open_at_broker = false;
            line.to_broker.clear();
        }
        let loaded = self.disk.stored.load();
        self.dispatch = Dispatch::new(loaded, GRACES, courses(), at(self.seconds));
        self.perform(Batch::new(at(self.seconds)));
    }

    // ---- the broker

    fn arrive_at_broker(&mut self, line: usize) {
        let Line { id, peer, .. } = self.lines[line];
        let message = self.lines[line].to_broker.pop_front().unwrap();
        let mut batch = Batch::new(at(self.seconds));
        let job = job_id(PROXY, 0);
        let said = match message {
            Up::WorkerHello(known) => {
                let hello = self.hello(peer, known);
                self.dispatch.on_worker_connected(id, hello, &mut batch);
                return self.perform(batch);
            }
            Up::ProxyHello => {
                let notebook = notebook(PROXY);
                self.dispatch
                    .on_proxy_connected(id, notebook, Account::default(), &mut batch);
                return self.perform(batch);
            }
            Up::Events {
                fencing,
                first,
                events,
            } => {
                let events = events.into_iter().map(event).collect();
                let said = FromWorker::Events {
                    job,
                    fencing,
                    first,
                    events,
                };
                self.dispatch.on_worker_message(id, said, &mut batch);
                return self.perform(batch);
            }
            Up::Submit => {
                let mut submission = submission(job, naming(ChunkHash([0; 32])));
                submission.notebook = notebook(PROXY);
                FromProxy::Submit(submission)
            }
            Up::Resume(after) => FromProxy::Resume { job, after },
            Up::Answer(question) => FromProxy::Answer {
                job,
                question,
                answer: Answer::State(naming(ChunkHash([1; 32]))),
            },
            Up::Cancel => FromProxy::Cancel { job },
            Up::Applied => FromProxy::Applied { job },
        };
        self.dispatch.on_proxy_message(id, said, &mut batch);
        self.perform(batch);
    }

    fn hello(&self, peer: Peer, known: Option<Known>) -> WorkerHello {
        let job = job_id(PROXY, 0);
        let life = worker_id(self.life_of(peer));
        let worker = match peer {
            Peer::Worker(number) if self.rules.named_by_token => worker_id(number),
            _ => life,
        };
        WorkerHello {
            worker,
            life,
            name: String::new(),
            offer: Offer::default(),
            slots: 1,
            sessions: Vec::new(),
            keeping: Vec::new(),
            assignments: known
                .map(|known| (job, known.fencing))
                .into_iter()
                .collect(),
            acknowledged: known
                .map(|known| Acknowledged {
                    job,
                    number: known.number,
                    started: known.started,
                })
                .into_iter()
                .collect(),
            failing: None,
        }
    }

    fn life_of(&self, peer: Peer) -> u8 {
        match peer {
            Peer::Worker(number) => 10 * self.workers[usize::from(number)].life + number,
            Peer::Proxy => u8::MAX,
        }
    }

    /// Stores, then sends, as the engine does.
    fn perform(&mut self, mut batch: Batch) {
        self.dispatch.on_time_passed(&mut batch);
        self.dispatch.assign_and_notify(&mut batch);
        let mut sends = Vec::new();
        for action in batch.actions {
            match action {
                Action::Write(write) => self.disk.apply(write),
                send => sends.push(send),
            }
        }
        for send in sends {
            self.deliver(send);
        }
    }

    fn deliver(&mut self, action: Action) {
        match action {
            Action::ToWorker(id, message)
            | Action::Relay {
                to: id, message, ..
            } => {
                self.pass(id, down_to_worker(&message));
            }
            Action::ToProxy(id, ToProxy::Welcome { .. }) => self.pass(id, Some(Down::Welcome)),
            Action::ToProxy(id, ToProxy::Closed { .. }) => self.pass(id, Some(Down::Closed)),
            Action::ToProxy(id, ToProxy::UnknownJob { .. }) => {
                self.pass(id, Some(Down::UnknownJob));
            }
            Action::ToProxy(id, ToProxy::Events { events, .. })
            | Action::Forward(id, _, events) => {
                let events = events.iter().map(number_of).collect();
                self.pass(id, Some(Down::Events(events)));
            }
            Action::Assign(connection, assignment) => {
                self.pass(connection, Some(Down::Assign(assignment.fencing)));
            }
            Action::CatchUp {
                connection,
                job,
                after,
            } => {
                let stored = self.disk.events.iter().copied();
                let events: Vec<_> = stored.filter(|event| event.number > after).collect();
                let through = events.last().map_or(after, |event| event.number);
                if !events.is_empty() {
                    self.pass(connection, Some(Down::Events(events)));
                }
                let mut batch = Batch::new(at(self.seconds));
                self.dispatch
                    .on_caught_up(connection, job, through, &mut batch);
                batch
                    .actions
                    .into_iter()
                    .for_each(|action| self.deliver(action));
            }
            Action::Close(id) => {
                let mut lines = self.lines.iter();
                if let Some(line) = lines.position(|line| line.id == id && line.open_at_broker) {
                    self.break_at_broker(line);
                }
            }
            _ => {}
        }
    }

    fn pass(&mut self, id: ConnectionId, message: Option<Down>) {
        let mut lines = self.lines.iter_mut();
        if let Some(line) = lines.find(|line| line.id == id && line.open_at_peer)
            && let Some(message) = message
        {
            line.to_peer.push_back(message);
        }
    }
}

impl Disk {
    fn apply(&mut self, write: Write) {
        match &write {
            Write::Events { events, .. } => self.events.extend(events.iter().map(number_of)),
            Write::Close { .. } | Write::Remove { .. } => self.events.clear(),
            _ => {}
        }
        self.stored.apply(write);
    }
}

/// This many seconds after the beginning.
fn at(seconds: u64) -> Now {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    Now {
        instant: *BEGINNING.get_or_init(Instant::now) + Duration::from_secs(seconds),
        unix_ms: 0,
    }
}
