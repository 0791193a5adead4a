//! Places on the host that are made ahead of moves.

use crate::{
    any_script, cell, script,
    script::{GB, Told},
    seconds,
    world::World,
};
use baton_scheduling::arbiter::{Action, Arbiter, Event, Memory, SessionId, Settings};
use proptest::prelude::*;
use std::time::Duration;

const PART: u64 = 64 << 20;
const PIECE: u64 = 4 * PART;

/// Runs two sessions of this size on 80 GB, with cells that follow each other.
fn told_of_pair(bytes: u64, change: impl Fn(&mut Settings)) -> Told {
    let mut settings = World::with_memory(80 * GB, 400 * GB).settings;
    settings.memory.reserve_bytes = 0;
    change(&mut settings);
    let mut world = World::new(settings);
    for session in 1..=2 {
        let edit = 10.0 * session as f64;
        let cells = [cell(edit, 1.0, bytes), cell(30.0, 1.0, 0)];
        world.add(session, script(session, &cells));
    }
    world.run();
    assert_eq!(world.told.responses.len(), 4);
    world.told
}

#[test]
fn only_the_first_memory_that_leaves_finds_no_place() {
    let told = told_of_pair(50 * GB, |_| {});
    // The first session makes way while the second allocates. After that, both expect to move 20 GB and one
    // part.
    assert!(told.pinned_in_moves <= 20 * GB + PART, "{told:?}");
    assert!(told.pinned_ahead >= 20 * GB, "{told:?}");
    assert!(told.pinned_ahead <= 20 * GB + 2 * PART, "{told:?}");
    let without = told_of_pair(50 * GB, |settings| settings.pin_bytes = 0);
    assert!(without.pinned_in_moves >= 40 * GB && without.pinned_ahead == 0);
    assert_eq!(without.moved_bytes, told.moved_bytes);
}

#[test]
fn nobody_makes_places_whose_memory_fits_with_the_reserve() {
    assert_eq!(told_of_pair(40 * GB, |_| {}).pinned_ahead, 0);
    let with_reserve = |settings: &mut Settings| settings.memory.reserve_bytes = 8 * GB;
    assert_eq!(told_of_pair(36 * GB, with_reserve).pinned_ahead, 0);
    // Each session expects to move the 4 GB that are missing.
    let told = told_of_pair(38 * GB, with_reserve);
    assert!(
        (8 * GB..8 * GB + 4 * PART).contains(&told.pinned_ahead),
        "{told:?}"
    );
}

#[test]
fn who_is_alone_makes_no_places() {
    let mut world = World::with_memory(80 * GB, 400 * GB);
    world.add(1, script(1, &[cell(0.0, 100.0, 79 * GB)]));
    world.run();
    assert_eq!(world.told.pinned_ahead, 0);
}

/// An arbiter on 80 GB, with sessions that have joined and have memory.
struct Desk {
    arbiter: Arbiter,
    now: Duration,
    /// The last request to make places.
    asked: Option<(SessionId, u64)>,
}

impl Desk {
    fn with(host_bytes: u64, sessions: &[u64]) -> Self {
        let settings = Settings::new(Memory {
            usable_bytes: 80 * GB,
            reserve_bytes: 20 * GB,
            host_bytes,
        });
        let mut desk = Self {
            arbiter: Arbiter::new(settings),
            now: Duration::ZERO,
            asked: None,
        };
        for (session, bytes) in (1..).zip(sessions.iter().copied()) {
            desk.handle(Event::Joined {
                session,
                user: session,
                fixed_bytes: 0,
            });
            let said = desk.handle(Event::Grew { session, bytes });
            assert_eq!(said[0], Action::Grow { session, bytes });
        }
        desk
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.now += Duration::from_millis(1);
        let said = self.arbiter.handle(event, self.now);
        for action in &said {
            if let Action::Pin { session, bytes } = action {
                self.asked = Some((*session, *bytes));
            }
        }
        said
    }

    /// Wakes the arbiter at the time that it asked for.
    fn wake(&mut self) -> Vec<Action> {
        self.now = self.arbiter.wake_at().unwrap();
        self.arbiter.handle(Event::Woke, self.now)
    }

    /// Answers requests to make places until there are no more. Returns how many bytes each session made.
    fn pin_all(&mut self) -> [u64; 4] {
        let mut made = [0; 4];
        while let Some((session, bytes)) = self.asked.take() {
            made[session as usize] += bytes;
            self.handle(pinned(session, bytes));
        }
        made
    }
}

fn pinned(session: SessionId, bytes: u64) -> Event {
    Event::Pinned { session, bytes }
}

fn pin(session: SessionId, bytes: u64) -> Action {
    Action::Pin { session, bytes }
}

fn unpin(session: SessionId, bytes: u64) -> Action {
    Action::Unpin { session, bytes }
}

#[test]
fn places_are_made_in_pieces_and_one_session_at_a_time() {
    let mut desk = Desk::with(200 * GB, &[38 * GB]);
    let joined = Event::Joined {
        session: 2,
        user: 2,
        fixed_bytes: 0,
    };
    assert_eq!(desk.handle(joined), []);
    let bytes = 32 * GB;
    let grew = desk.handle(Event::Grew { session: 2, bytes });
    assert_eq!(grew, [Action::Grow { session: 2, bytes }, pin(1, PIECE)]);
    assert_eq!(desk.handle(Event::Woke), []);
    assert_eq!(desk.handle(pinned(1, PIECE)), [pin(1, PIECE)]);
    // An answer without a request is ignored, and no answer counts for more than was requested.
    assert_eq!(desk.handle(pinned(2, 30 * GB)), []);
    assert_eq!(desk.handle(pinned(1, 30 * GB)), [pin(1, PIECE)]);
    desk.handle(pinned(1, PIECE));
    // Together they exceed the limit by the reserve's 10 GB.
    let all = 10 * GB + PART;
    let made = desk.pin_all();
    assert_eq!(made[2], all);
    assert_eq!(desk.handle(Event::Woke), []);
}

#[test]
fn who_does_not_answer_stops_nobody_else() {
    let mut desk = Desk::with(200 * GB, &[38 * GB, 32 * GB]);
    assert_eq!(desk.handle(Event::Woke), []);
    assert_eq!(desk.wake(), [pin(2, PIECE)]);
    assert!(desk.now > seconds(5.0));
    assert_eq!(desk.handle(pinned(1, PIECE)), []);
    assert_eq!(desk.handle(pinned(2, PIECE)), [pin(1, PIECE)]);
}

#[test]
fn who_cannot_make_places_is_asked_again_after_longer_and_longer_pauses() {
    let mut desk = Desk::with(200 * GB, &[38 * GB, 32 * GB]);
    let (session, bytes) = (2, 0);
    desk.handle(Event::SessionHas { session, bytes });
    // Less than a part is missing if the memory does not divide into whole parts.
    assert_eq!(desk.handle(pinned(1, PIECE - 1)), [pin(1, PIECE)]);
    let mut answers = [PART, 0].into_iter().cycle();
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(desk.handle(pinned(1, answers.next().unwrap())), []);
        let since = desk.now;
        assert_eq!(desk.wake(), [pin(1, PIECE)]);
        assert_eq!(desk.now - since, Duration::from_secs(pause));
    }
    assert_eq!(desk.handle(pinned(1, PIECE)), [pin(1, PIECE)]);
}

#[test]
fn places_take_less_than_half_of_what_the_host_has_and_go_back_first() {
    let mut desk = Desk::with(16 * GB, &[38 * GB, 32 * GB]);
    let made = desk.pin_all();
    let (first, second) = (made[1], made[2]);
    assert!(
        first + second <= 8 * GB && first + second > 8 * GB - PART,
        "{made:?}"
    );
    // Other programs need the host's memory. Afterwards as much is left as the places take.
    assert_eq!(desk.handle(Event::HostHas { bytes: 4 * GB }), []);
    let said = desk.handle(Event::HostHas { bytes: GB });
    let given = said.iter().map(|action| match action {
        Action::Unpin { bytes, .. } => *bytes,
        _ => panic!("{action:?}"),
    });
    let given: u64 = given.sum();
    let surplus = (first + second) - (first + second + GB) / 2;
    assert!((surplus..surplus + PART).contains(&given), "{said:?}");
    // No places are made again either.
    assert_eq!(desk.handle(Event::Woke), []);
}

#[test]
fn a_move_has_the_room_that_places_take() {
    let mut desk = Desk::with(8 * GB, &[38 * GB, 32 * GB]);
    let places = desk.pin_all()[1];
    let left = 2 * GB;
    assert_eq!(desk.handle(Event::HostHas { bytes: left }), []);
    assert_eq!(desk.handle(Event::Expected(1)), []);
    desk.handle(Event::Joined {
        session: 3,
        user: 3,
        fixed_bytes: 0,
    });
    // 2 GB of the second session leave, and perhaps one part more.
    let bytes = 12 * GB;
    let said = desk.handle(Event::Grew { session: 3, bytes });
    let lacking = 2 * GB + PART - left;
    assert!(places > lacking);
    let leaves = Action::SwapOut {
        session: 2,
        bytes: 2 * GB,
    };
    assert_eq!(said, [unpin(1, lacking), leaves]);
}

#[test]
fn a_session_keeps_to_its_own_limits() {
    let mut desk = Desk::with(200 * GB, &[38 * GB, 32 * GB]);
    let has = |session, bytes| Event::SessionHas { session, bytes };
    // The places being made are given up, so the answer to that request is ignored.
    assert_eq!(desk.handle(has(1, 0)), [unpin(1, PIECE)]);
    assert_eq!(desk.handle(has(2, 2 * PIECE)), []);
    assert_eq!(desk.handle(pinned(1, PIECE)), [pin(2, PIECE)]);
    // As much memory is left as the places take.
    assert_eq!(desk.handle(pinned(2, PIECE)), []);
    assert_eq!(desk.handle(has(2, PIECE)), []);
    assert_eq!(desk.handle(has(2, 0)), [unpin(2, PIECE / 2)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever sessions do, all other decisions are as if no places were made ahead. `World`'s checks hold for
    /// the places at each step, and the arbiter does not make and give up places for ever.
    #[test]
    fn places_change_nothing_but_where_memory_leaves_to(
        scripts in proptest::collection::vec(any_script(), 2..9),
        usable in 20..90u64,
        host in 4..200u64,
        in_the_way in proptest::option::weighted(0.2, 2..9u64),
        context in prop_oneof![Just(0), 1..2 * GB],
    ) {
        let mut world = World::with_memory(usable * GB, host * GB)
            .with_contexts_of(context)
            .beside_one_that_makes_no_places();
        if let Some(one_in) = in_the_way {
            world = world.sometimes_in_the_way(one_in);
        }
        world.add_all(scripts);
        world.run();
    }

    /// The same while the host's memory and the limits of sessions change.
    #[test]
    fn places_are_made_and_given_back_without_end_to_nobody(
        scripts in proptest::collection::vec(any_script(), 2..9),
        usable in 20..90u64,
        host in 4..200u64,
        torture in proptest::option::weighted(0.3, any::<u64>()),
        host_changes in proptest::collection::vec((0.0..300.0f64, 0..100u64), 0..5),
        limits in proptest::collection::vec((0.0..300.0f64, 0..9u64, 0..30u64), 0..9),
    ) {
        let mut settings = World::with_memory(usable * GB, host * GB).settings;
        settings.torture = torture;
        let mut world = World::new(settings);
        let count = scripts.len() as u64;
        world.add_all(scripts);
        for (time, bytes) in host_changes {
            world.host_has(seconds(time), bytes * GB);
        }
        for (time, session, bytes) in limits {
            world.session_has(seconds(time), session % count, bytes * GB);
        }
        world.run();
    }
}
