//! What one batch of events leads to.

use super::Observation;
use crate::record::Write;
use baton_protocol::{
    FencingNumber, JobId, NumberedEvent, Submission, proxy::ToProxy, worker::ToWorker,
};
use std::{sync::Arc, time::Instant};

/// Identifies one WebSocket, from its opening to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

#[derive(Debug, Clone, Copy)]
pub struct Now {
    pub instant: Instant,
    pub unix_ms: i64,
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
    Assign(ConnectionId, Assignment),
    Close(ConnectionId),
    /// A log line for operators.
    Log(Observation),
}

/// A job for a worker.
#[derive(Debug)]
pub struct Assignment {
    pub job: JobId,
    pub fencing: FencingNumber,
    pub timeout_ms: Option<u64>,
    /// Empty if the broker does not know the person.
    pub owner: String,
    pub environment: Option<String>,
    /// If it is `None`, the caller reads it from the store.
    pub submission: Option<Arc<Submission>>,
}

/// The time of a batch of events, and what they have led to so far.
#[derive(Debug)]
pub struct Batch {
    pub now: Now,
    pub actions: Vec<Action>,
}

impl Batch {
    pub fn new(now: Now) -> Self {
        Self {
            now,
            actions: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn write(&mut self, write: Write) {
        self.push(Action::Write(write));
    }

    pub(super) fn send_proxy(&mut self, connection: ConnectionId, message: ToProxy) {
        self.push(Action::ToProxy(connection, message));
    }

    pub(super) fn send_worker(&mut self, connection: ConnectionId, message: ToWorker) {
        self.push(Action::ToWorker(connection, message));
    }

    pub(super) fn close(&mut self, connection: ConnectionId) {
        self.push(Action::Close(connection));
    }

    pub(super) fn log(&mut self, observation: Observation) {
        self.push(Action::Log(observation));
    }
}
