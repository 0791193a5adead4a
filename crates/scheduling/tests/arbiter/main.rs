//! The arbiter with sessions that carry out its actions, late, never, or after their death.

#![allow(clippy::unwrap_used)]

mod ahead;
mod full;
mod script;
mod stops;
mod world;

use baton_scheduling::arbiter::{Action, Arbiter, Event, Memory, Settings};
use proptest::prelude::*;
use script::{Cell, GB, Script};
use std::time::Duration;
use world::World;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn cell(edit: f64, compute: f64, grow: u64) -> Cell {
    Cell {
        edit: seconds(edit),
        compute: seconds(compute),
        grow,
    }
}

fn script(user: u64, cells: &[Cell]) -> Script {
    Script {
        user,
        cells: cells.to_vec(),
        ..Script::default()
    }
}

fn response(world: &World, session: u64) -> f64 {
    let responses = &world.told.responses;
    let found = responses.iter().find(|(id, ..)| *id == session);
    found.expect("its cell ended").2.as_secs_f64()
}

#[test]
fn a_short_cell_does_not_wait_for_a_training() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    world.add(1, script(1, &[cell(0.0, 600.0, 10 * GB)]));
    world.add(2, script(2, &[cell(100.0, 0.5, 10 * GB)]));
    world.run();
    assert!(response(&world, 2) < 0.6, "{:?}", world.told);
    assert!(response(&world, 1) < 601.0);
    assert_eq!(world.told.moved_bytes, 0, "both fit");
}

#[test]
fn alone_nobody_is_disturbed() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    world.add(1, script(1, &[cell(0.0, 5000.0, 60 * GB)]));
    world.run();
    assert_eq!(world.told.hand_overs, 1);
}

#[test]
fn each_may_use_the_whole_memory() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    for session in 1..=2 {
        world.add(session, script(session, &[cell(0.0, 100.0, 78 * GB)]));
    }
    world.run();
    assert_eq!(world.told.responses.len(), 2);
    assert!(world.told.moved_bytes >= 78 * GB);
}

#[test]
fn what_was_moved_in_computes_at_least_twice_as_long_as_the_move_took() {
    // 78 GB out and 78 GB in take 3.1 s; the first level ends after 1 s.
    let mut world = World::with_memory(80 * GB, 400 * GB);
    for session in 1..=3 {
        world.add(session, script(session, &[cell(0.0, 16.0, 78 * GB)]));
    }
    world.run();
    let computed: Duration = world.told.computed.values().sum();
    let cut_short_by_the_end_of_a_cell = 3.0 * 3.2;
    assert!(
        world.seconds_of_moves() <= computed.as_secs_f64() / 2.0 + cut_short_by_the_end_of_a_cell
    );
}

#[test]
fn more_than_the_gpu_has_is_refused_at_once() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    world.add(1, script(1, &[cell(0.0, 1.0, 81 * GB)]));
    world.run();
    assert_eq!(world.told.refused, [1]);
}

#[test]
fn more_than_the_host_could_hold_is_refused_but_to_who_is_alone() {
    let mut world = World::with_memory(80 * GB, 64 * GB);
    world.add(1, script(1, &[cell(0.0, 1.0, 78 * GB)]));
    world.add(2, script(2, &[cell(5.0, 1.0, 40 * GB)]));
    world.run();
    assert_eq!(world.told.refused, [2]);
}

#[test]
fn the_host_need_not_hold_what_the_gpu_does() {
    // 20 GB at a time are on the host, and 40 GB while one session returns.
    let mut world = World::with_memory(136 * GB, 64 * GB);
    for session in 1..=2 {
        let cells = [cell(0.0, 100.0, 78 * GB), cell(5.0, 100.0, 0)];
        world.add(session, script(session, &cells));
    }
    world.run();
    assert!(world.told.refused.is_empty() && world.told.ended.is_empty());
    assert_eq!(world.told.responses.len(), 4);
}

#[test]
fn many_small_sessions_may_have_more_than_the_host() {
    // Of 160 GB, 80 GB are on the host, and 20 GB more while one session returns.
    let mut world = World::with_memory(80 * GB, 101 * GB);
    for session in 1..=9 {
        let cells = [cell(session as f64, 30.0, 20 * GB), cell(5.0, 30.0, 0)];
        world.add(session, script(session, &cells));
    }
    world.run();
    assert_eq!(world.told.refused, [9]);
    assert!(world.told.ended.is_empty());
}

#[test]
fn what_fits_on_the_gpu_together_needs_no_room_on_the_host() {
    let mut world = World::with_memory(80 * GB, 16 * GB);
    for session in 1..=3 {
        world.add(
            session,
            script(session, &[cell(session as f64, 1.0, 30 * GB)]),
        );
    }
    world.run();
    assert_eq!(world.told.refused, [3]);
    assert_eq!(world.told.moved_bytes, 0);
}

#[test]
fn what_contexts_take_makes_others_move() {
    let mut world = World::with_memory(16 * GB, 64 * GB).with_contexts_of(GB);
    for session in 1..=2 {
        let cells = [
            cell(session as f64 * 10.0, 1.0, 7 * GB + GB / 2),
            cell(30.0, 1.0, 0),
        ];
        world.add(session, script(session, &cells));
    }
    world.run();
    assert_eq!(world.told.responses.len(), 4);
    assert!(world.told.refused.is_empty() && world.told.released.is_empty());
    assert!(response(&world, 2) < 2.0, "{:?}", world.told.responses);
}

#[test]
fn who_has_no_cell_leaves_the_gpu_when_contexts_take_too_much_of_it() {
    // Nobody else leaves while the first two take long to, unless they take far too long.
    for (takes, released, longest) in [(0.0, 2, 8.0), (20.0, 2, 28.0), (1e4, 4, 48.0)] {
        let mut world = World::with_memory(16 * GB, 64 * GB).with_contexts_of(GB);
        for session in 1..=8 {
            let mut idle = script(session, &[cell(session as f64, 0.5, GB)]);
            idle.leaves_in = seconds(if session <= 2 { takes } else { 0.0 });
            world.add(session, idle);
        }
        // 8 contexts and its own leave 7 GB.
        world.add(9, script(9, &[cell(60.0, 1.0, 9 * GB)]));
        world.run();
        assert_eq!(world.told.responses.len(), 9);
        assert!(world.told.released.iter().copied().eq(1..=released));
        assert!(world.told.refused.is_empty());
        assert!(response(&world, 9) < longest, "{:?}", world.told.responses);
    }
}

#[test]
fn who_sleeps_gets_no_turn_and_counts_again_after_its_next_cell() {
    let mut world = World::with_memory(16 * GB, 64 * GB).with_contexts_of(GB);
    for session in 1..=8 {
        let cells = [cell(session as f64, 0.5, GB), cell(200.0, 0.5, 0)];
        let mut sleeper = script(session, &cells);
        sleeper.can_sleep = true;
        world.add(session, sleeper);
    }
    let cells = [cell(60.0, 1.0, 9 * GB), cell(300.0, 1.0, 0)];
    world.add(9, script(9, &cells));
    world.run();
    assert_eq!(world.told.responses.len(), 18, "{:?}", world.told.responses);
    assert_eq!(world.told.released.len(), 4, "{:?}", world.told.released);
    assert!(world.told.refused.is_empty() && world.told.ended.is_empty());
}

#[test]
fn what_nobody_can_make_room_for_is_refused() {
    let mut world = World::with_memory(16 * GB, 64 * GB).with_contexts_of(GB);
    world.add(
        1,
        script(1, &[cell(0.0, 1.0, 16 * GB), cell(1.0, 1.0, 15 * GB)]),
    );
    world.run();
    assert_eq!(world.told.refused, [1]);
    assert!(response(&world, 1) < 7.0, "{:?}", world.told.responses);
}

#[test]
fn the_lowest_level_has_its_share_among_short_cells_without_end() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    world.add(1, script(1, &[cell(0.0, 1e5, GB)]));
    for session in 2..=12 {
        world.add(session, script(session, &[cell(0.1, 8.0, 0); 100]));
    }
    world.run_until(seconds(2000.0));
    let share = world.told.computed[&1].as_secs_f64() / 2000.0;
    assert!((0.09..0.2).contains(&share), "{share}");
}

#[test]
fn trainings_compute_together_until_somebody_else_comes() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    for session in 1..=3 {
        world.add(session, script(session, &[cell(0.0, 300.0, 10 * GB)]));
    }
    world.add(4, script(4, &[cell(200.0, 0.5, GB)]));
    world.run();
    assert_eq!(world.told.most_together, 2);
    assert!(response(&world, 4) < 0.6);
}

#[test]
fn two_sessions_of_one_person_get_what_one_of_another_gets() {
    let mut settings = World::with_memory(80 * GB, 200 * GB).settings;
    settings.together = 1;
    let mut world = World::new(settings);
    for (session, user) in [(1, 1), (2, 1), (3, 2)] {
        world.add(session, script(user, &[cell(0.0, 1e5, GB)]));
    }
    world.run_until(seconds(6400.0));
    let other = world.told.computed[&3].as_secs_f64() / 6400.0;
    assert!((0.47..0.53).contains(&other), "{other}");
}

#[test]
fn who_does_not_come_to_rest_is_ended() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    let mut deaf = script(1, &[cell(0.0, 1e4, GB)]);
    deaf.is_deaf = true;
    world.add(1, deaf);
    world.add(2, script(2, &[cell(100.0, 1.0, GB)]));
    world.run();
    assert_eq!(world.told.ended, [1]);
    assert!(response(&world, 2) < 32.0);
}

#[test]
fn who_does_not_move_its_memory_is_ended() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    let mut stuck = script(1, &[cell(0.0, 1.0, 60 * GB)]);
    stuck.is_stuck = true;
    world.add(1, stuck);
    world.add(2, script(2, &[cell(100.0, 1.0, 60 * GB)]));
    world.run();
    assert_eq!(world.told.ended, [1]);
    let slowest = (60 * GB / world.settings.slowest_move) as f64;
    let waited = response(&world, 2);
    assert!((slowest..slowest + 33.0).contains(&waited), "{waited}");
}

/// An arbiter that pins no host memory ahead.
fn arbiter_of_moves(memory: Memory) -> Arbiter {
    let mut settings = Settings::new(memory);
    settings.pin_bytes = 0;
    Arbiter::new(settings)
}

/// Up to this much more is swapped out than was requested.
const PART: u64 = 64 << 20;

fn leaves(session: u64, bytes: u64) -> Action {
    Action::SwapOut { session, bytes }
}

#[test]
fn no_more_leaves_the_gpu_than_is_needed_and_no_more_comes_back() {
    let mut settings = World::with_memory(80 * GB, 200 * GB).settings;
    settings.memory.reserve_bytes = 0;
    settings.part_bytes = 1;
    let mut world = World::new(settings);
    for session in 1..=2 {
        let edit = 10.0 * session as f64;
        let cells = [cell(edit, 1.0, 50 * GB), cell(30.0, 1.0, 0)];
        world.add(session, script(session, &cells));
    }
    world.run();
    // The second lacks 20 GB. Then each 20 GB of the first return in exchange for as much of the other's.
    assert_eq!(world.told.responses.len(), 4);
    assert_eq!(world.told.moved_bytes, (20 + 3 * 20 + 20) * GB);
}

#[test]
fn what_libraries_hold_without_using_it_is_freed_and_does_not_move() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    let mut holding = script(1, &[cell(0.0, 1.0, 60 * GB)]);
    holding.held = 60 * GB;
    world.add(1, holding);
    world.add(2, script(2, &[cell(10.0, 1.0, 60 * GB)]));
    world.run();
    assert_eq!(world.told.moved_bytes, 0);
    assert!(response(&world, 2) < 1.1, "{:?}", world.told.responses);
}

#[test]
fn what_the_host_has_no_room_for_does_not_leave_the_gpu() {
    let mut arbiter = arbiter_of_moves(Memory {
        usable_bytes: 80 * GB,
        reserve_bytes: 0,
        host_bytes: 200 * GB,
    });
    let mut handle = |event, at| arbiter.handle(event, seconds(at));
    for session in 1..=2 {
        let (user, fixed_bytes) = (session, 0);
        let joined = Event::Joined {
            session,
            user,
            fixed_bytes,
        };
        assert_eq!(handle(joined, 0.0), []);
        let bytes = 50 * GB;
        let said = handle(Event::Grew { session, bytes }, 0.0);
        assert_eq!(said.len(), 1);
    }
    // 20 GB of the first are being moved; other programs use up the host's memory.
    let bytes = 20 * GB;
    assert_eq!(
        handle(Event::PartLeft { session: 1, bytes }, 1.0),
        [Action::Grow {
            session: 2,
            bytes: 50 * GB
        }]
    );
    assert_eq!(handle(Event::SwappedOut(1), 1.0), []);
    assert_eq!(handle(Event::HostHas { bytes: GB }, 2.0), []);
    // More than the host has is refused at once.
    let bytes = 20 * GB;
    assert_eq!(
        handle(Event::Grew { session: 2, bytes }, 3.0),
        [Action::Refuse { session: 2, bytes }]
    );
    // The first session's memory returns only once as much of the other's has found room.
    assert_eq!(handle(Event::CellStarted(1), 4.0), []);
    assert_eq!(handle(Event::Wanted(1), 4.0), []);
    assert_eq!(
        handle(Event::HostHas { bytes: 30 * GB }, 5.0),
        [leaves(2, 20 * GB)]
    );
    assert_eq!(handle(Event::SwappedOut(2), 6.0), [Action::SwapIn(1)]);
}

#[test]
fn what_would_leave_a_session_beyond_its_own_limit_stays_on_the_gpu() {
    let mut world = World::with_memory(24 * GB, 200 * GB);
    let mut limited = script(1, &[cell(0.0, 1.0, 20 * GB), cell(30.0, 1.0, 0)]);
    limited.host_limit = Some(8 * GB);
    world.add(1, limited);
    // The others have room for what is left while the first session keeps 12 GB there.
    world.add(2, script(2, &[cell(10.0, 1.0, 13 * GB)]));
    world.add(
        3,
        script(3, &[cell(20.0, 1.0, 11 * GB), cell(30.0, 1.0, 0)]),
    );
    world.run();
    assert_eq!(world.told.refused, [2]);
    assert!(response(&world, 2) < 0.1, "{:?}", world.told.responses);
    assert!(world.told.ended.is_empty() && world.told.moved_bytes > 0);
    assert_eq!(world.told.responses.len(), 5);
}

#[test]
fn who_waits_for_ever_for_room_on_the_host_is_ended() {
    let mut world = World::with_memory(80 * GB, 200 * GB);
    for session in 1..=2 {
        let edit = 10.0 * session as f64;
        let cells = [cell(edit, 1.0, 50 * GB), cell(30.0, 1.0, 0)];
        world.add(session, script(session, &cells));
    }
    // After 20 GB of the first session have left, nothing can make room for them any more.
    world.host_has(seconds(25.0), 0);
    world.run();
    assert_eq!(world.told.ended, [1]);
}

#[test]
fn who_is_asked_to_free_and_does_not_is_moved() {
    let mut arbiter = arbiter_of_moves(Memory {
        usable_bytes: 80 * GB,
        reserve_bytes: 0,
        host_bytes: 200 * GB,
    });
    for (session, bytes) in [(1, 60 * GB), (2, 30 * GB)] {
        let (user, fixed_bytes) = (session, 0);
        arbiter.handle(
            Event::Joined {
                session,
                user,
                fixed_bytes,
            },
            Duration::ZERO,
        );
        arbiter.handle(Event::CanTrim(session), Duration::ZERO);
        let said = arbiter.handle(Event::Grew { session, bytes }, Duration::ZERO);
        let expected = match session {
            1 => Action::Grow { session, bytes },
            _ => Action::Trim(1),
        };
        assert_eq!(said, [expected]);
    }
    let late = arbiter.wake_at().unwrap();
    assert_eq!(late, Duration::from_millis(200));
    assert_eq!(arbiter.handle(Event::Woke, late), [leaves(1, 10 * GB)]);
}

#[test]
fn sessions_that_sleep_make_room_before_anybody_asks() {
    let mut arbiter = arbiter_of_moves(Memory {
        usable_bytes: 80 * GB,
        reserve_bytes: 8 * GB,
        host_bytes: 200 * GB,
    });
    for session in 1..=2 {
        let joined = Event::Joined {
            session,
            user: session,
            fixed_bytes: GB / 2,
        };
        arbiter.handle(joined, Duration::ZERO);
        let bytes = 38 * GB;
        assert_eq!(
            arbiter.handle(Event::Grew { session, bytes }, Duration::ZERO),
            [Action::Grow { session, bytes }]
        );
    }
    assert_eq!(arbiter.bytes_on_gpu(), 77 * GB);
    assert_eq!(arbiter.handle(Event::Expected(1), seconds(60.0)), []);
    let asleep = seconds(300.0);
    assert_eq!(arbiter.wake_at(), Some(asleep));
    assert_eq!(arbiter.handle(Event::Woke, asleep), [leaves(2, 38 * GB)]);
    assert_eq!(arbiter.handle(Event::SwappedOut(2), seconds(301.0)), []);
    assert_eq!(arbiter.bytes_on_gpu(), 39 * GB);
    assert_eq!(
        arbiter.handle(Event::Expected(2), seconds(310.0)),
        [Action::SwapIn(2)]
    );
}

#[test]
fn sessions_that_sleep_stay_where_the_host_has_no_room_for_them() {
    let mut arbiter = arbiter_of_moves(Memory {
        usable_bytes: 80 * GB,
        reserve_bytes: 50 * GB,
        host_bytes: 30 * GB,
    });
    for session in 1..=3 {
        let joined = Event::Joined {
            session,
            user: session,
            fixed_bytes: 0,
        };
        arbiter.handle(joined, Duration::ZERO);
        let bytes = 20 * GB;
        arbiter.handle(Event::Grew { session, bytes }, Duration::ZERO);
    }
    let asleep = seconds(300.0);
    // One session may use at most half of the host's memory, so that it does not limit the others.
    assert_eq!(
        arbiter.handle(Event::Woke, asleep),
        [leaves(1, 15 * GB - PART)]
    );
    assert_eq!(
        arbiter.handle(Event::SwappedOut(1), asleep),
        [leaves(2, 15 * GB - PART)]
    );
    assert_eq!(
        arbiter.handle(Event::SwappedOut(2), asleep),
        [leaves(3, PART)]
    );
    assert_eq!(arbiter.handle(Event::SwappedOut(3), asleep), []);
    // What it left on the host stays there after its return.
    assert_eq!(
        arbiter.handle(Event::Expected(1), asleep),
        [Action::SwapIn(1)]
    );
    assert_eq!(arbiter.handle(Event::SwappedIn(1), asleep), []);
    assert_eq!(
        arbiter.handle(Event::CellEnded(1), asleep),
        [leaves(1, 15 * GB - PART)]
    );
}

fn any_cell() -> impl Strategy<Value = Cell> {
    let compute = prop_oneof![0.001..2.0, 1.0..30.0, 30.0..300.0f64];
    (0.0..60.0f64, compute, prop_oneof![Just(0), 0..30 * GB])
        .prop_map(|(edit, compute, grow)| cell(edit, compute, grow))
}

fn any_script() -> impl Strategy<Value = Script> {
    let cells = proptest::collection::vec(any_cell(), 1..6);
    let dies = proptest::option::weighted(0.1, (0.0..500.0f64).prop_map(seconds));
    let seldom = || proptest::bool::weighted(0.05);
    let sleeps = proptest::bool::ANY;
    let held = prop_oneof![Just(0), 1..20 * GB];
    let limit = proptest::option::weighted(0.3, 0..40 * GB);
    (
        0..4u64,
        cells,
        seldom(),
        seldom(),
        held,
        sleeps,
        limit,
        dies,
    )
        .prop_map(
            |(user, cells, is_deaf, is_stuck, held, can_sleep, host_limit, dies_at)| Script {
                user,
                cells,
                is_deaf,
                is_stuck,
                held,
                can_sleep,
                host_limit,
                dies_at,
                ..Script::default()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The sessions have far more memory together than the host, and some have limits of their own. A session
    /// that was allowed to grow is never ended because the host lacks room.
    #[test]
    fn whoever_is_allowed_to_grow_can_return(
        scripts in proptest::collection::vec(any_script(), 2..9),
        usable in 20..90u64,
        host in 4..60u64,
        in_the_way in proptest::option::weighted(0.2, 2..9u64),
        together in 1..4usize,
        torture in proptest::option::weighted(0.3, any::<u64>()),
    ) {
        let mut settings = World::with_memory(usable * GB, host * GB).settings;
        settings.together = together;
        settings.torture = torture;
        let mut world = World::new(settings);
        if let Some(one_in) = in_the_way {
            world = world.sometimes_in_the_way(one_in);
        }
        world.add_all(scripts);
        world.run();
    }

    /// What `World` checks at each step: leases go only to resident sessions that wait, never to
    /// two at once unless permitted; memory stays within bounds; there is no needless hand-over. At
    /// the end no session waits.
    #[test]
    fn whatever_sessions_do_the_rules_hold_and_nobody_waits_for_ever(
        scripts in proptest::collection::vec(any_script(), 1..9),
        usable in 20..90u64,
        host in 40..400u64,
        in_the_way in proptest::option::weighted(0.2, 2..9u64),
        context in prop_oneof![Just(0), 1..2 * GB],
        share in prop_oneof![Just(0.0), Just(0.1), Just(0.3)],
        together in 1..4usize,
        torture in proptest::option::weighted(0.2, any::<u64>()),
        host_changes in proptest::collection::vec((0.0..300.0f64, 0..100u64), 0..5),
    ) {
        let mut world = World::with_memory(usable * GB, host * GB);
        let mut settings = world.settings.clone();
        settings.guaranteed_share = share;
        settings.together = together;
        settings.torture = torture;
        world = World::new(settings).with_contexts_of(context);
        if let Some(one_in) = in_the_way {
            world = world.sometimes_in_the_way(one_in);
        }
        for (time, bytes) in host_changes {
            world.host_has(seconds(time), bytes * GB);
        }
        world.add_all(scripts);
        world.run();
        prop_assert!(world.told.most_together <= together);
    }
}
