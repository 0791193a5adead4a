//! Room that others make for what is in no ledger: the contexts of a session that comes back to the GPU.

use std::collections::HashMap;

use baton_scheduling::arbiter::{Event, SessionId};
use tokio::sync::oneshot;

use super::Arbitration;
use crate::gpu::Token;

/// Sessions of the arbiter that stand for rooms.
const ROOM: SessionId = 1 << 62;

/// Of the GPU, that a room has more with each question.
const PART: u64 = 20;

#[derive(Debug, Default)]
pub(super) struct Rooms {
    count: u64,
    /// By the arbiter's session.
    open: HashMap<SessionId, Room>,
}

#[derive(Debug)]
struct Room {
    token: Token,
    bytes: u64,
    /// For more of it.
    waits: Option<oneshot::Sender<bool>>,
}

impl Rooms {
    /// `false` where the session is none of these.
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
    /// More than there was, which was not enough.
    pub(super) fn make_room(&mut self, token: Token, answer: oneshot::Sender<bool>) {
        let session = self.rooms.of(token).unwrap_or_else(|| {
            self.rooms.count += 1;
            ROOM | self.rooms.count
        });
        let before = self.rooms.bytes(session);
        let bytes = before + self.usable_bytes / PART;
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

    /// Nobody can move what is in it, so it stays.
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
