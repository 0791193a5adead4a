//! The queue of frames for one connection.
//!
//! In: frames of the broker's own messages, which always fit; frames with a job's events, which must wait or be read
//! from the store later if their peer does not read; and messages of notebooks to a worker, which count for their
//! person until they are sent. Out: the same frames, in order.
//!
//! **Invariant:** however many events are stored, and whatever notebooks send, few bytes wait for one peer.

use crate::in_flight::Booking;
use axum::body::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Frames that may wait for a peer to read them.
const FRAMES: usize = 128;
/// Events that may wait for a peer to read them. A single frame may have more.
const EVENT_BYTES: u32 = 8 << 20;

/// The engine's end of a connection.
#[derive(Clone)]
pub(crate) struct Outgoing {
    pub(super) frames: mpsc::Sender<Frame>,
    pub(crate) close: CancellationToken,
    event_bytes: Arc<Semaphore>,
}

pub(crate) struct Frame {
    pub(crate) bytes: Bytes,
    /// Held until the frame leaves the queue.
    _room: Option<OwnedSemaphorePermit>,
    /// Of a notebook's message to a worker; held as long.
    _booking: Option<Booking>,
}

/// Room for events in the queue.
pub(super) struct Room(OwnedSemaphorePermit);

impl Outgoing {
    pub(crate) fn create(close: CancellationToken) -> (Self, mpsc::Receiver<Frame>) {
        let (frames, queue) = mpsc::channel(FRAMES);
        let event_bytes = Arc::new(Semaphore::new(EVENT_BYTES as usize));
        let outgoing = Self {
            frames,
            close,
            event_bytes,
        };
        (outgoing, queue)
    }

    /// Whether the queue is less than half full. The other half is kept for the broker's own messages.
    pub(super) fn has_room_for_bulk(&self) -> bool {
        self.frames.capacity() > self.frames.max_capacity() / 2
    }

    /// Room for events of this size, if there is any now.
    pub(super) fn room_for_events(&self, bytes: usize) -> Option<Room> {
        let bytes = u32::try_from(bytes).map_or(EVENT_BYTES, |bytes| bytes.min(EVENT_BYTES));
        let room = Arc::clone(&self.event_bytes).try_acquire_many_owned(bytes);
        room.ok().filter(|_| self.has_room_for_bulk()).map(Room)
    }
}

impl Frame {
    pub(super) fn own(bytes: Bytes) -> Self {
        Self::relayed(bytes, None)
    }

    /// A message from a notebook to a worker.
    pub(super) fn relayed(bytes: Bytes, booking: Option<Booking>) -> Self {
        Self {
            bytes,
            _room: None,
            _booking: booking,
        }
    }

    pub(super) fn events(bytes: Bytes, room: Room) -> Self {
        Self {
            bytes,
            _room: Some(room.0),
            _booking: None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn events_that_wait_for_a_peer_are_bounded_in_bytes() {
        let (outgoing, mut queue) = Outgoing::create(CancellationToken::new());
        let page = Bytes::from(vec![0; 1 << 20]);
        let mut sent = 0;
        while let Some(room) = outgoing.room_for_events(page.len()) {
            outgoing
                .frames
                .try_send(Frame::events(page.clone(), room))
                .unwrap();
            sent += page.len();
        }
        assert_eq!(sent, EVENT_BYTES as usize);
        outgoing
            .frames
            .try_send(Frame::own(Bytes::from_static(b"own")))
            .unwrap();
        assert!(outgoing.room_for_events(1).is_none());
        drop(queue.try_recv().unwrap());
        assert!(outgoing.room_for_events(page.len()).is_some());
    }

    #[test]
    fn one_large_message_fits_alone() {
        let (outgoing, _queue) = Outgoing::create(CancellationToken::new());
        let room = outgoing.room_for_events(60 << 20);
        assert!(room.is_some());
        assert!(outgoing.room_for_events(1).is_none());
    }
}
