//! What must hold after each decision of the arbiter.

use super::{World, session::Session};
use baton_scheduling::arbiter::{Action, EndReason, Event, SessionId};

impl World {
    pub(super) fn check(&self, event: Event, action: Action) {
        let about = |id: SessionId| &self.sessions[&id];
        match action {
            Action::Grant { session, .. } => {
                let granted = about(session);
                assert!(
                    granted.waits && granted.lease.is_none(),
                    "{action:?} {granted:?}"
                );
                assert!(
                    granted.is_resident && !granted.moves && !granted.sleeps,
                    "{action:?} {granted:?}"
                );
            }
            Action::Preempt { session, epoch, .. } => {
                let lease = about(session).lease.expect("only a lease is taken back");
                assert_eq!(lease.epoch, epoch);
                let others = self.sessions.iter().filter(|(id, _)| **id != session);
                let is_wanted = others
                    .map(|(_, other)| other)
                    .any(|other| other.waits || other.next_cell < other.script.cells.len());
                assert!(
                    is_wanted || event == Event::CellEnded(session),
                    "{action:?} after {event:?}, and nobody else wants the GPU"
                );
            }
            Action::SwapOut { session: id, bytes } => {
                let session = about(id);
                assert!(!session.moves && session.lease.is_none() && !session.sleeps);
                assert!(bytes > 0 && bytes <= session.bytes_there() + session.not_found);
            }
            Action::SwapIn(id) => assert!(!about(id).is_resident && !about(id).sleeps),
            Action::Release(id) => {
                let session = about(id);
                assert!(session.has_context && !session.has_cell && session.lease.is_none());
                assert!(!session.moves && session.bytes_there() == 0);
            }
            Action::Trim(id) => assert!(about(id).script.held > 0),
            Action::Pin { session, bytes } => self.check_pin(session, bytes),
            Action::Unpin { session, bytes } => {
                let session = about(session);
                // Places that were made ahead may be given up at any time.
                let made_ahead = bytes < u64::MAX;
                let rests = !session.moves && session.lease.is_none();
                assert!(made_ahead || rests, "{session:?}");
            }
            Action::End { reason, .. } => {
                let could_return = self.is_steady && reason == EndReason::NoHostRoom;
                assert!(!could_return, "{action:?}: it was allowed to grow");
            }
            Action::Grow { .. } | Action::Refuse { .. } => {}
        }
    }

    /// Places are made ahead only while nothing moves, for memory that has no place, if another session
    /// competes for the GPU, and within half of the host's memory.
    fn check_pin(&self, id: SessionId, bytes: u64) {
        let session = &self.sessions[&id];
        assert!(!session.is_asked_to_pin && !session.sleeps, "{session:?}");
        let on_gpu = session.bytes - session.away;
        assert!(bytes > 0 && bytes <= self.settings.pin_bytes);
        assert!(
            bytes + session.empty() <= on_gpu + session.not_found,
            "{bytes} {session:?}"
        );
        let all = || self.sessions.values();
        assert!(all().all(|one| !one.moves));
        let others = self.sessions.iter().filter(|(other, _)| **other != id);
        let takes_part = |one: &Session| one.bytes + one.not_found > 0 || one.has_cell || one.waits;
        let is_rivalled = others.map(|(_, one)| one).any(takes_part);
        assert!(
            self.settings.torture.is_some() || is_rivalled,
            "it is alone"
        );
        let making = |one: &Session| one.makes.map_or(0, |(_, bytes)| bytes);
        let places: u64 = all().map(|one| one.places + making(one)).sum();
        let half = self.settings.memory.host_bytes / 2;
        assert!(
            !self.is_steady || places + bytes <= half,
            "{places} on the host"
        );
    }

    pub(super) fn check_memory(&self) {
        let bytes: u64 = self.sessions.values().map(Session::bytes_there).sum();
        assert!(bytes <= self.settings.memory.usable_bytes);
        let places: u64 = self.sessions.values().map(|one| one.places).sum();
        let host_bytes = self.settings.memory.host_bytes;
        assert!(
            !self.is_steady || places <= host_bytes,
            "{places} on the host"
        );
        for session in self.sessions.values() {
            let limit = session.script.host_limit.unwrap_or(u64::MAX);
            assert!(!self.is_steady || session.places <= limit, "{session:?}");
        }
    }
}
