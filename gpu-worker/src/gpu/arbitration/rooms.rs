//! Room that other sessions make for memory that is in no ledger: the contexts of a session that returns to the
//! GPU.

use crate::gpu::Token;
use baton_scheduling::arbiter::SessionId;
use std::collections::HashMap;
use tokio::sync::oneshot;

/// Marks the ids of the arbiter's sessions that stand for rooms.
const ROOM: SessionId = 1 << 62;

#[derive(Debug, Default)]
pub(super) struct Rooms {
    count: u64,
    /// By the arbiter's session that stands for the room.
    open: HashMap<SessionId, Room>,
}

#[derive(Debug)]
struct Room {
    token: Token,
    bytes: u64,
    /// Where the answer to the last request is sent.
    waits: Option<oneshot::Sender<bool>>,
}

/// A room that was requested.
pub(super) struct Requested {
    pub(super) session: SessionId,
    pub(super) bytes: u64,
    /// How large it was before, which was not enough; 0 for a new room.
    pub(super) before_bytes: u64,
}

impl Rooms {
    /// Enlarges the session's room by `more` bytes.
    pub(super) fn enlarge(
        &mut self,
        token: Token,
        more: u64,
        answer: oneshot::Sender<bool>,
    ) -> Requested {
        let session = self.of(token).unwrap_or_else(|| {
            self.count += 1;
            ROOM | self.count
        });
        let before_bytes = self.open.get(&session).map_or(0, |room| room.bytes);
        let bytes = before_bytes + more;
        let room = Room {
            token,
            bytes,
            waits: Some(answer),
        };
        self.open.insert(session, room);
        Requested {
            session,
            bytes,
            before_bytes,
        }
    }

    /// Returns whose room it is, and its size. `None` if the arbiter's session does not stand for a room.
    pub(super) fn answer(&mut self, session: SessionId, granted: bool) -> Option<(Token, u64)> {
        let room = self.open.get_mut(&session)?;
        if let Some(waits) = room.waits.take() {
            let _ = waits.send(granted);
        }
        Some((room.token, room.bytes))
    }

    /// Returns the arbiter's session that stood for the room.
    pub(super) fn close(&mut self, token: Token) -> Option<SessionId> {
        let session = self.of(token)?;
        self.open.remove(&session);
        Some(session)
    }

    fn of(&self, token: Token) -> Option<SessionId> {
        let mut open = self.open.iter();
        open.find(|(_, room)| room.token == token)
            .map(|(id, _)| *id)
    }
}
