//! How sessions make places on the host ahead of moves, and give them up.

use super::{Happening, World};
use baton_scheduling::arbiter::{Action, Arbiter, Event, SessionId};
use std::time::Duration;

/// How fast places on the host are made, in bytes per second.
const PLACES_A_SECOND: f64 = 3e9;
/// The delay until the arbiter gets the answer.
const SAYING: Duration = Duration::from_micros(100);

impl World {
    /// Checks that all other decisions are those of an arbiter that makes no places ahead.
    pub(crate) fn beside_one_that_makes_no_places(mut self) -> Self {
        let mut settings = self.settings.clone();
        settings.pin_bytes = 0;
        self.twin = Some(Arbiter::new(settings));
        self
    }

    pub(super) fn check_twin(&mut self, event: Event, said: &[Action]) {
        let Some(twin) = &mut self.twin else { return };
        let event = match event {
            Event::Pinned { .. } => Event::Woke,
            other => other,
        };
        let is_of_places = |action: &Action| match action {
            Action::Pin { .. } => true,
            Action::Unpin { bytes, .. } => *bytes < u64::MAX,
            _ => false,
        };
        let mut others = said.to_vec();
        others.retain(|action| !is_of_places(action));
        assert_eq!(twin.handle(event, self.now), others);
        // The arbiter may wake earlier, to ask a session for places.
        let never = Duration::MAX;
        let wakes_at = |arbiter: &Arbiter| arbiter.wake_at().unwrap_or(never);
        assert!(wakes_at(&self.arbiter) <= wakes_at(twin));
    }

    pub(super) fn pin(&mut self, id: SessionId, bytes: u64) {
        self.entries += 1;
        let number = self.entries;
        let session = self.sessions.get_mut(&id).expect("it is known");
        session.is_asked_to_pin = true;
        if !session.script.is_stuck {
            session.makes = Some((number, bytes));
            let time = Duration::from_secs_f64(bytes as f64 / PLACES_A_SECOND);
            self.enter(self.now + time, Happening::PlacesMade(id, number));
        }
    }

    pub(super) fn places_made(&mut self, id: SessionId, number: u64) {
        let makes = self.sessions[&id].makes;
        if let Some((_, bytes)) = makes.filter(|(made, _)| *made == number) {
            self.make_places(id, bytes);
        }
    }

    pub(super) fn report_pinned(&mut self, session: SessionId, bytes: u64) {
        let one = self.sessions.get_mut(&session).expect("it is known");
        one.is_asked_to_pin = false;
        if !one.gone {
            self.handle(Event::Pinned { session, bytes });
        }
    }

    /// Ends the request with this many bytes made. The session's answer arrives after a delay.
    fn make_places(&mut self, id: SessionId, bytes: u64) {
        let session = self.sessions.get_mut(&id).expect("it is known");
        session.makes = None;
        session.places = (session.places + bytes).min(session.bytes);
        self.told.pinned_ahead += bytes;
        self.enter(self.now + SAYING, Happening::SaysPinned(id, bytes));
    }

    /// A session that is making places stops half-way. Returns how many bytes it does not make.
    pub(super) fn stop_making(&mut self, id: SessionId) -> u64 {
        let Some((_, bytes)) = self.sessions[&id].makes else {
            return 0;
        };
        self.make_places(id, bytes / 2);
        bytes - bytes / 2
    }

    pub(super) fn unpin(&mut self, id: SessionId, bytes: u64) {
        let bytes = bytes - self.stop_making(id).min(bytes);
        let session = self.sessions.get_mut(&id).expect("it is known");
        session.places -= bytes.min(session.empty());
    }
}
