//! The queues of the connections to proxies and workers.
//!
//! In: messages, and requests to read stored events. Out: frames.
//!
//! **Invariant:** sending never waits.

use super::{Engine, Event, Outgoing};
use axum::body::Bytes;
use baton_broker_queue::{ConnectionId, Dispatch};
use baton_broker_store::StoreError;
use baton_protocol::{JobId, Refusal, encode, proxy::ToProxy, worker::ToWorker};
use baton_transport::LARGEST_MESSAGE_BYTES;
use std::{collections::HashMap, time::Duration};
use tokio::task::JoinSet;

/// How often a reader looks whether its proxy has read enough for the next events.
const ROOM_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct Connections {
    open: HashMap<ConnectionId, Outgoing>,
    /// Tasks that read stored events.
    readers: JoinSet<()>,
}

impl Connections {
    pub(super) fn add(&mut self, connection: ConnectionId, outgoing: Outgoing) {
        self.open.insert(connection, outgoing);
    }

    pub(super) fn remove(&mut self, connection: ConnectionId) {
        self.open.remove(&connection);
    }

    /// Waits until one of the readers has ended; `None` if there is none.
    pub(super) async fn reader_ended(&mut self) -> Option<()> {
        self.readers.join_next().await.map(drop)
    }

    /// Sends output, or what a notebook and a worker say to each other. Returns `false` if there is no room for that.
    pub(super) fn try_send_bulk(
        &self,
        connection: ConnectionId,
        message: &impl serde::Serialize,
    ) -> bool {
        let open = self.open.get(&connection);
        open.is_none_or(Outgoing::has_room_for_bulk)
            && self.try_send_frame(connection, || Bytes::from(encode(message)))
    }

    fn try_send_frame(&self, connection: ConnectionId, frame: impl FnOnce() -> Bytes) -> bool {
        let Some(outgoing) = self.open.get(&connection) else {
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
        if !self.try_send_frame(connection, frame) {
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
        for outgoing in self.open.values() {
            outgoing.close.cancel();
        }
    }

    pub(super) fn close(&self, connection: ConnectionId) {
        if let Some(outgoing) = self.open.get(&connection) {
            outgoing.close.cancel();
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
        let Some(outgoing) = self.open.get(&connection).cloned() else {
            return;
        };
        let store = engine.store.clone();
        let inbox = engine.caught_up.clone();
        self.readers.spawn(async move {
            let mut through = after;
            loop {
                let events = match store.events().after(job, through).await {
                    Ok(events) => events,
                    Err(error) => {
                        tracing::error!(job.id = %job, "Failed to read the events of job {job}: {error}");
                        outgoing.close.cancel();
                        return;
                    }
                };
                let Some(last) = events.last() else { break };
                through = last.number;
                let message = ToProxy::Events { job, events };
                let frame = Bytes::from(encode(&message));
                while !outgoing.has_room_for_bulk() && !outgoing.frames.is_closed() {
                    tokio::time::sleep(ROOM_INTERVAL).await;
                }
                if outgoing.frames.send(frame).await.is_err() {
                    return;
                }
            }
            if let Some(inbox) = inbox.upgrade() {
                let caught_up = Event::CaughtUp {
                    connection,
                    job,
                    through,
                };
                // If the engine has ended, this connection ends too.
                drop(inbox.send(caught_up).await);
            }
        });
    }
}
