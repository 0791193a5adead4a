//! The queues of the connections to proxies and workers.
//!
//! In: messages, and requests to read stored events. Out: frames.
//!
//! **Invariant:** sending never waits. At most one task for each connection reads stored events.

use super::{Engine, Event, Frame, Outgoing};
use crate::in_flight::Booking;
use axum::body::Bytes;
use baton_broker_queue::{ConnectionId, Dispatch};
use baton_broker_store::{Store, StoreError};
use baton_protocol::{JobId, Refusal, encode, proxy::ToProxy, worker::ToWorker};
use baton_transport::LARGEST_MESSAGE_BYTES;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet};

/// How often a reader looks whether its proxy has read enough for the next events.
const ROOM_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct Connections {
    open: HashMap<ConnectionId, Open>,
    /// Tasks that read stored events.
    readers: JoinSet<()>,
    /// Of the messages that the current batch passes on to workers, in their order.
    /// Bounded by the batch: one for each message.
    bookings: VecDeque<Booking>,
}

struct Open {
    outgoing: Outgoing,
    wanted: Arc<Mutex<Wanted>>,
}

/// The stored events that a proxy still wants.
#[derive(Default)]
struct Wanted {
    /// Each job once, with the number after which its events are wanted. The first is next.
    jobs: VecDeque<(JobId, u64)>,
    has_reader: bool,
}

/// Reads stored events for one connection, a page at a time.
struct EventReader {
    connection: ConnectionId,
    outgoing: Outgoing,
    wanted: Arc<Mutex<Wanted>>,
    store: Store,
    inbox: mpsc::WeakSender<Event>,
}

impl Connections {
    pub(super) fn add(&mut self, connection: ConnectionId, outgoing: Outgoing) {
        let wanted = Arc::default();
        self.open.insert(connection, Open { outgoing, wanted });
    }

    pub(super) fn remove(&mut self, connection: ConnectionId) {
        self.open.remove(&connection);
    }

    /// Waits until one of the readers has ended; `None` if there is none.
    pub(super) async fn reader_ended(&mut self) -> Option<()> {
        self.readers.join_next().await.map(drop)
    }

    /// Sends a job's events to a proxy. Returns `false` if there is no room for them.
    pub(super) fn try_send_events(
        &self,
        connection: ConnectionId,
        message: &impl serde::Serialize,
    ) -> bool {
        let Some(Open { outgoing, .. }) = self.open.get(&connection) else {
            return true;
        };
        let bytes = Bytes::from(encode(message));
        let Some(room) = outgoing.room_for_events(bytes.len()) else {
            return outgoing.frames.is_closed();
        };
        self.try_send_frame(connection, || Frame::events(bytes, room))
    }

    /// The message that a proxy has just sent is passed on. Its bytes count for its person until it has been sent.
    pub(super) fn keep_for_relay(&mut self, booking: Booking) {
        self.bookings.push_back(booking);
    }

    /// Passes the next message of a notebook on to its worker. Returns `false` if there is no room for it.
    pub(super) fn try_relay(&mut self, worker: ConnectionId, message: &ToWorker) -> bool {
        let booking = self.bookings.pop_front();
        let open = self.open.get(&worker);
        open.is_none_or(|open| open.outgoing.has_room_for_bulk())
            && self.try_send_frame(worker, || {
                Frame::relayed(Bytes::from(encode(message)), booking)
            })
    }

    fn try_send_frame(&self, connection: ConnectionId, frame: impl FnOnce() -> Frame) -> bool {
        let Some(Open { outgoing, .. }) = self.open.get(&connection) else {
            return true;
        };
        let Ok(room) = outgoing.frames.try_reserve() else {
            // A closed queue is not full: the connection will soon report that it has ended.
            return outgoing.frames.is_closed();
        };
        room.send(frame());
        true
    }

    pub(super) fn send(&self, connection: ConnectionId, message: &impl serde::Serialize) {
        self.send_frame(connection, || Bytes::from(encode(message)));
    }

    fn send_frame(&self, connection: ConnectionId, frame: impl FnOnce() -> Bytes) {
        if !self.try_send_frame(connection, || Frame::own(frame())) {
            tracing::warn!("A client stopped reading; closing its connection");
            self.close(connection);
        }
    }

    /// Sends what a worker needs to run a job. An earlier version may have stored more than a peer
    /// accepts; the worker would close its connection, and get the same again with the next one.
    pub(super) fn send_stored(
        &self,
        connection: ConnectionId,
        message: &ToWorker,
    ) -> Result<(), usize> {
        let frame = Bytes::from(encode(message));
        if frame.len() > LARGEST_MESSAGE_BYTES {
            return Err(frame.len());
        }
        self.send_frame(connection, || frame);
        Ok(())
    }

    /// The broker can refuse cells that it cannot store. Notebooks with running cells keep waiting.
    pub(super) fn report_shortage(&self, dispatch: &Dispatch, error: &StoreError) {
        if let Some(reason) = error.shortage() {
            let reason = reason.to_owned();
            let refused = ToProxy::Refused(Refusal::Unable { reason });
            for connection in dispatch.proxies() {
                self.send(connection, &refused);
            }
        }
    }

    pub(super) fn close_all(&self) {
        for open in self.open.values() {
            open.outgoing.close.cancel();
        }
    }

    pub(super) fn close(&self, connection: ConnectionId) {
        if let Some(open) = self.open.get(&connection) {
            open.outgoing.close.cancel();
        }
    }

    /// Reads stored events and sends them as fast as the proxy accepts them.
    pub(super) fn catch_up(
        &mut self,
        engine: &Engine,
        connection: ConnectionId,
        job: JobId,
        after: u64,
    ) {
        let Some(Open { outgoing, wanted }) = self.open.get(&connection) else {
            return;
        };
        if !lock(wanted).add(job, after) {
            return;
        }
        let reader = EventReader {
            connection,
            outgoing: outgoing.clone(),
            wanted: Arc::clone(wanted),
            store: engine.store.clone(),
            inbox: engine.caught_up.clone(),
        };
        self.readers.spawn(reader.run());
    }
}

impl Wanted {
    /// Returns whether a reader must be started. The last position of a job counts.
    fn add(&mut self, job: JobId, after: u64) -> bool {
        self.jobs.retain(|(wanted, _)| *wanted != job);
        self.jobs.push_back((job, after));
        !std::mem::replace(&mut self.has_reader, true)
    }

    /// The job continues after this number, unless another position was requested meanwhile.
    fn continue_after(&mut self, job: JobId, after: u64) {
        if self.jobs.iter().all(|(wanted, _)| *wanted != job) {
            self.jobs.push_back((job, after));
        }
    }

    /// The next job. If there is none, the reader ends.
    fn next(&mut self) -> Option<(JobId, u64)> {
        let next = self.jobs.pop_front();
        self.has_reader = next.is_some();
        next
    }
}

impl EventReader {
    async fn run(self) {
        while let Some((job, after)) = { lock(&self.wanted).next() } {
            let events = match self.store.events().after(job, after).await {
                Ok(events) => events,
                Err(error) => {
                    tracing::error!(job.id = %job, "Failed to read the events of job {job}: {error}");
                    self.outgoing.close.cancel();
                    return;
                }
            };
            let Some(last) = events.last() else {
                self.report(job, after).await;
                continue;
            };
            let through = last.number;
            let message = ToProxy::Events { job, events };
            if !self.send(Bytes::from(encode(&message))).await {
                return;
            }
            lock(&self.wanted).continue_after(job, through);
        }
    }

    /// Returns `false` if the connection has ended.
    async fn send(&self, bytes: Bytes) -> bool {
        let room = loop {
            if self.outgoing.frames.is_closed() {
                return false;
            }
            match self.outgoing.room_for_events(bytes.len()) {
                Some(room) => break room,
                None => tokio::time::sleep(ROOM_INTERVAL).await,
            }
        };
        let frame = Frame::events(bytes, room);
        self.outgoing.frames.send(frame).await.is_ok()
    }

    async fn report(&self, job: JobId, through: u64) {
        if let Some(inbox) = self.inbox.upgrade() {
            let caught_up = Event::CaughtUp {
                connection: self.connection,
                job,
                through,
            };
            // If the engine has ended, this connection ends too.
            drop(inbox.send(caught_up).await);
        }
    }
}

fn lock(wanted: &Mutex<Wanted>) -> MutexGuard<'_, Wanted> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_once_however_often_it_is_requested() {
        let (one, two) = (JobId::random(), JobId::random());
        let mut wanted = Wanted::default();
        assert!(wanted.add(one, 0), "the first request starts the reader");
        for after in 1..=3000 {
            assert!(!wanted.add(one, after % 7));
        }
        assert!(!wanted.add(two, 0));
        assert_eq!(wanted.next(), Some((one, 3000 % 7)));
        wanted.continue_after(one, 20);
        assert_eq!(wanted.next(), Some((two, 0)), "jobs take turns");
        assert!(!wanted.add(one, 5));
        wanted.continue_after(one, 40);
        assert_eq!(wanted.next(), Some((one, 5)), "the newest request counts");
        assert_eq!(wanted.next(), None);
        assert!(wanted.add(one, 0), "the reader had ended");
    }
}
