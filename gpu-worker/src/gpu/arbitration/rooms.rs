//! Room that other sessions make for memory that is in no ledger: the contexts of a session that returns to the
//! GPU.

use super::Arbitration;
use crate::gpu::Token;
use baton_scheduling::arbiter::{Event, SessionId};
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

impl Rooms {
    /// Returns `false` if the session does not stand for a room.
    pub(super) fn answer(&mut self, session: SessionId, granted: bool) -> bool {
        let Some(room) = self.open.get_mut(&session) else {
            return false;
        };
        if let Some(waits) = room.waits.take() {
            let _ = waits.send(granted);
        }
        true
    }

    fn bytes(&self, session: SessionId) -> u64 {
        self.open.get(&session).map_or(0, |room| room.bytes)
    }

    fn of(&self, token: Token) -> Option<SessionId> {
        let mut open = self.open.iter();
        open.find(|(_, room)| room.token == token)
            .map(|(id, _)| *id)
    }
}

impl Arbitration {
    /// Asks for a room that is larger by `more` bytes than before, which was not enough.
    pub(super) fn make_room(&mut self, token: Token, more: u64, answer: oneshot::Sender<bool>) {
        let session = self.rooms.of(token).unwrap_or_else(|| {
            self.rooms.count += 1;
            ROOM | self.rooms.count
        });
        let before = self.rooms.bytes(session);
        let bytes = before + more;
        let room = Room {
            token,
            bytes,
            waits: Some(answer),
        };
        self.rooms.open.insert(session, room);
        self.rejoin(session, token, 0);
        self.handle(Event::CellStarted(session));
        if before > 0 {
            self.on_full(session, before, 0);
        }
        self.handle(Event::Grew { session, bytes });
    }

    /// What is in a room cannot move, so a granted room becomes fixed memory.
    pub(super) fn answer_room(&mut self, session: SessionId, granted: bool) -> bool {
        let token = self.rooms.open.get(&session).map(|room| room.token);
        let is_room = self.rooms.answer(session, granted);
        if let Some(token) = token.filter(|_| granted) {
            self.rejoin(session, token, self.rooms.bytes(session));
        }
        is_room
    }

    fn rejoin(&mut self, session: SessionId, token: Token, fixed_bytes: u64) {
        let user = self.sessions.get(&token);
        let user = user.map_or(0, |session| session.admission.user);
        self.handle(Event::Left(session));
        self.handle(Event::Joined {
            session,
            user,
            fixed_bytes,
        });
    }

    pub(super) fn leave_room(&mut self, token: Token) {
        if let Some(session) = self.rooms.of(token) {
            self.rooms.open.remove(&session);
            self.handle(Event::Left(session));
        }
    }
}
