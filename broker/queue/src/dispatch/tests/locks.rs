//! Whose lock of an environment counts.

use super::*;
use crate::samples::lock;
use baton_protocol::{Environment, EnvironmentState, Machine, encode};

struct Workers {
    dispatch: Dispatch,
    start: Instant,
    seconds: u64,
}

fn digest(version: &str) -> String {
    blake3::hash(&encode(&lock(version))).to_hex().to_string()
}

fn ready(version: &str) -> Vec<Environment> {
    vec![Environment {
        name: "ml101".to_owned(),
        lock: Some(digest(version)),
        python_version: None,
        state: EnvironmentState::Ready {},
    }]
}

impl Workers {
    fn new() -> Self {
        let start = Instant::now();
        let now = Now {
            instant: start,
            unix_ms: 0,
        };
        let loaded = Stored::default().load();
        Self {
            dispatch: Dispatch::new(loaded, GRACES, courses(), now),
            start,
            seconds: 0,
        }
    }

    fn restart(&mut self) {
        let loaded = Loaded {
            locks: self.dispatch.peers.locks.clone(),
            ..Stored::default().load()
        };
        self.dispatch = Dispatch::new(loaded, GRACES, courses(), self.batch().now);
    }

    fn batch(&self) -> Batch {
        Batch::new(Now {
            instant: self.start + Duration::from_secs(self.seconds),
            unix_ms: 0,
        })
    }

    /// Each worker that is asked sends the lock of this version.
    fn answer(&mut self, batch: Batch, version: &str) -> Vec<Observation> {
        let mut observed = Vec::new();
        for action in batch.actions {
            match action {
                Action::ToWorker(connection, ToWorker::LockWanted { environment }) => {
                    let message = FromWorker::Lock {
                        environment,
                        lock: lock(version),
                    };
                    self.send(connection.0, message);
                }
                Action::Log(observation) => observed.push(observation),
                _ => {}
            }
        }
        observed
    }

    fn send(&mut self, worker: u64, message: FromWorker) {
        let mut batch = self.batch();
        self.dispatch
            .on_worker_message(ConnectionId(worker), message, &mut batch);
    }

    /// A worker connects with this version of the environment.
    fn connect(&mut self, worker: u8, version: &str) -> Vec<Observation> {
        let hello = WorkerHello {
            worker: worker_id(worker),
            life: worker_id(worker),
            name: format!("gpu-{worker}"),
            offer: Offer {
                devices: Vec::new(),
                machine: Machine {
                    environments: ready(version),
                    ..Machine::default()
                },
            },
            slots: 0,
            sessions: Vec::new(),
            keeping: Vec::new(),
            assignments: Vec::new(),
            acknowledged: Vec::new(),
            failing: None,
        };
        let mut batch = self.batch();
        let connection = ConnectionId(worker.into());
        self.dispatch
            .on_worker_connected(connection, hello, &mut batch);
        self.answer(batch, version)
    }

    fn change(&mut self, worker: u8, version: &str) {
        let mut batch = self.batch();
        let message = FromWorker::Environments {
            environments: ready(version),
        };
        let connection = ConnectionId(worker.into());
        self.dispatch
            .on_worker_message(connection, message, &mut batch);
        self.answer(batch, version);
    }

    fn pass(&mut self, seconds: u64, version: &str) {
        self.seconds += seconds;
        let mut batch = self.batch();
        self.dispatch.on_time_passed(&mut batch);
        self.answer(batch, version);
    }

    fn check(&self, version: &str) {
        let stored = self.dispatch.peers.locks.get("ml101");
        assert_eq!(stored, Some(&digest(version)));
    }
}

#[test]
fn one_worker_cannot_replace_the_lock_that_another_has() {
    let mut workers = Workers::new();
    workers.connect(1, "1");
    workers.check("1");
    let observed = workers.connect(2, "evil");
    let says = observed[0].to_string();
    assert!(says.contains("gpu-2 has another lock"), "{says}");
    // It sends the lock although it was not asked.
    let forged = FromWorker::Lock {
        environment: "ml101".to_owned(),
        lock: lock("evil"),
    };
    workers.send(2, forged);
    workers.check("1");
    // The other worker is away for a moment.
    let now = workers.batch().now;
    workers
        .dispatch
        .on_closed(ConnectionId(1), Ending::PeerClosed, now);
    workers.change(2, "evil");
    workers.check("1");
}

#[test]
fn a_lock_changes_when_no_worker_has_the_former_one() {
    let mut workers = Workers::new();
    workers.connect(1, "1");
    workers.connect(2, "1");
    workers.change(1, "2");
    workers.check("1");
    workers.change(2, "2");
    workers.check("2");

    // The last worker with the former lock leaves for good.
    workers.change(1, "3");
    workers.check("2");
    let now = workers.batch().now;
    workers
        .dispatch
        .on_closed(ConnectionId(2), Ending::PeerClosed, now);
    workers.pass(GRACES.worker.as_secs(), "3");
    workers.check("3");
}

#[test]
fn after_a_restart_workers_have_time_to_return_with_the_stored_lock() {
    let mut workers = Workers::new();
    workers.connect(1, "1");
    workers.restart();
    workers.connect(2, "evil");
    workers.check("1");
    workers.connect(1, "1");
    workers.pass(GRACES.restart.as_secs(), "evil");
    workers.check("1");

    workers.restart();
    workers.connect(2, "2");
    workers.check("1");
    workers.pass(GRACES.restart.as_secs(), "2");
    workers.check("2");
}
