//! Several programs on one card.

use crate::world::{Client, MIB, World, eventually};
use baton_gpu_tests::{FAULTS, MEGABYTES_PER_SECOND};
use baton_gpu_worker::gpu::{Cell, EndReason};
use baton_scheduling::arbiter::Settings;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::time::Duration;

#[test]
fn eight_programs_have_three_times_the_memory_and_find_it_as_they_left_it() {
    let mut world = World::new(64 * MIB);
    let mut clients: Vec<Client> = (0..8).map(|_| world.client()).collect();
    for client in &mut clients {
        client.does(&format!("allocate a {}", 24 * MIB));
        client.does("set a 1");
    }
    for client in &mut clients {
        client.send("rounds a 6");
    }
    for client in &mut clients {
        assert_eq!(client.answer().unwrap(), "ok right");
    }
    assert_eq!(world.machine.overlaps().unwrap(), 0);
    let usages = world.tokens.iter().map(|token| world.usage(*token));
    let usages: Vec<_> = usages.collect();
    let swaps: u64 = usages.iter().map(|usage| usage.swaps).sum();
    assert!(swaps >= 8, "{usages:?}");
    assert!(
        usages
            .iter()
            .all(|usage| usage.held >= Duration::from_millis(300)),
        "{usages:?}"
    );
}

#[test]
fn programs_with_the_vendor_s_bindings_share_it_too() {
    let mut world = World::new(64 * MIB);
    let mut clients = [world.bindings(40 * MIB, 3), world.bindings(40 * MIB, 3)];
    for _ in 0..3 {
        for client in &mut clients {
            assert_eq!(client.does("go"), "right");
        }
    }
    assert_eq!(world.machine.overlaps().unwrap(), 0);
    assert!(world.usage(world.tokens[0]).swaps >= 2);
}

#[test]
fn each_may_use_the_whole_card() {
    check_that_each_may_use_the_whole_card(&mut World::new(64 * MIB));
}

/// The programs compute one after the other, because memory moves.
pub(crate) fn check_that_each_may_use_the_whole_card(world: &mut World) {
    let mut clients = [world.client(), world.client()];
    for client in &mut clients {
        client.does(&format!("allocate a {}", 60 * MIB));
        client.does("set a 3");
    }
    for client in &mut clients {
        client.does("add a 2");
        assert_eq!(client.does("check a"), "right");
    }
}

#[test]
fn a_program_that_dies_while_its_memory_moves_harms_nobody() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    // Its 40 MiB take 40 seconds to leave.
    let mut dying = world.client_of(token, &[(MEGABYTES_PER_SECOND, "1")]);
    dying.does(&format!("allocate a {}", 40 * MIB));
    dying.does("launch nothing 1");
    let mut other = world.client();
    other.send(&format!("allocate a {}", 40 * MIB));
    // It no longer has the GPU, so its memory is moving.
    assert!(eventually(|| world.usage(token).held.is_zero()));
    assert_eq!(world.usage(token).moved_bytes, 0);
    dying.kill();
    assert!(other.answer().unwrap().starts_with("ok"));
    other.does("set a 1");
    assert_eq!(other.does("rounds a 2"), "right");
}

#[test]
fn a_program_that_dies_with_the_lease_gives_it_back() {
    let mut world = World::new(64 * MIB);
    let mut dying = world.client();
    dying.does("launch sleep_20ms 50");
    let mut other = world.client();
    other.send("launch nothing 1");
    dying.kill();
    assert_eq!(other.answer().unwrap(), "ok");
}

#[test]
fn a_program_that_dies_gives_the_lease_back_though_its_forked_child_lives() {
    let mut world = World::new(64 * MIB);
    let mut dying = world.client();
    dying.does("launch sleep_20ms 50");
    dying.does("fork-and-stay");
    dying.kill();
    let mut other = world.client();
    other.does("launch nothing 1");
}

#[test]
fn the_worker_knows_how_long_a_session_has_waited_for_the_gpu() {
    let mut world = World::new(64 * MIB);
    let (mut first, mut second) = (world.client(), world.client());
    let token = world.tokens[1];
    let has_waited = || !world.usage(token).waited.is_zero();
    assert!(!has_waited());
    first.does("launch sleep_20ms 500");
    second.send("launch nothing 1");
    assert!(eventually(has_waited));
    first.kill();
    assert_eq!(second.answer().unwrap(), "ok");
    // It no longer waits, but did since the last look.
    assert!(has_waited());
    assert!(!has_waited());
}

#[test]
fn programs_outlive_their_worker() {
    let mut world = World::new(64 * MIB);
    let mut clients: Vec<Client> = (0..3).map(|_| world.client()).collect();
    for client in &mut clients {
        client.does(&format!("allocate a {}", 30 * MIB));
        client.does("set a 1");
        client.send("rounds a 10");
    }
    world.stop_worker();
    world.start_worker();
    for client in &mut clients {
        assert_eq!(client.answer().unwrap(), "ok right");
        client.does("free a");
        client.does(&format!("allocate a {}", 50 * MIB));
    }
}

#[test]
fn who_keeps_the_gpu_when_its_turn_is_over_is_ended() {
    let mut world = World::with_settings(64 * MIB, |settings| {
        settings.drain_limit = Duration::from_secs(3);
    });
    let mut endless = world.client();
    endless.does("launch forever 1");
    let mut other = world.client();
    other.does("launch nothing 1");
    assert_eq!(other.does("synchronize"), "");
    assert_eq!(endless.answer(), None);
    assert_eq!(world.usage(world.tokens[0]).ended, Some(EndReason::Kept));
}

#[test]
fn who_does_not_move_its_memory_is_ended() {
    let mut world = World::with_settings(64 * MIB, |settings| {
        settings.drain_limit = Duration::from_secs(3);
        settings.slowest_move = u64::MAX;
    });
    let mut frozen = world.client();
    frozen.does(&format!("allocate a {}", 40 * MIB));
    kill(
        Pid::from_raw(frozen.child.id().cast_signed()),
        Signal::SIGSTOP,
    )
    .unwrap();
    let mut other = world.client();
    other.does(&format!("allocate a {}", 40 * MIB));
    assert_eq!(frozen.answer(), None);
    assert_eq!(world.usage(world.tokens[0]).ended, Some(EndReason::Kept));
}

#[test]
fn a_capture_is_let_through_and_its_graph_runs_after_the_memory_moved() {
    let mut world = World::new(64 * MIB);
    let mut capturing = world.client();
    capturing.does(&format!("allocate a {}", 40 * MIB));
    capturing.does("set a 1");
    capturing.does("begin-capture");
    let mut other = world.client();
    other.send(&format!("allocate a {}", 40 * MIB));
    // An allocation during a capture does not wait either.
    capturing.does("allocate b 512");
    capturing.does("captured-add a 4");
    capturing.does("end-capture");
    assert!(other.answer().unwrap().starts_with("ok"));
    other.does("set a 2");
    assert_eq!(other.does("rounds a 2"), "right");
    capturing.does("launch-graph a 4");
    assert_eq!(capturing.does("check a"), "right");
    assert_eq!(world.machine.overlaps().unwrap(), 0);
    assert!(world.usage(world.tokens[0]).swaps >= 1);
}

#[test]
fn memory_of_a_graph_is_counted_and_stays() {
    let captured = format!("captured-allocate a {}", 30 * MIB);
    let made = format!("make-graph {}", 30 * MIB);
    for commands in [
        &["begin-capture", &captured, "end-capture"][..],
        &[&made, "launch nothing 1"],
    ] {
        let mut world = World::new(64 * MIB);
        let mut first = world.client();
        for command in commands {
            first.does(command);
        }
        let mut other = world.client();
        other.does(&format!("allocate a {}", 20 * MIB));
        other.does("set a 2");
        assert!(world.usage(world.tokens[0]).peak_bytes >= 30 * MIB);
        assert_eq!(other.says(&format!("allocate b {}", 40 * MIB)), "error 2");
        assert_eq!(other.does("check a"), "right");
    }
}

#[test]
fn memory_of_a_stream_that_joined_a_capture_is_the_graph_s() {
    let mut world = World::new(64 * MIB);
    let mut capturing = world.client();
    capturing.does("begin-capture");
    capturing.does("fork-stream");
    capturing.does(&format!("joined-allocate a {}", 30 * MIB));
    capturing.does("end-capture");
    let mut other = world.client();
    other.does(&format!("allocate a {}", 20 * MIB));
    // It is counted from the end of the other session's lease on.
    other.does("set a 2");
    assert_eq!(other.says(&format!("allocate b {}", 40 * MIB)), "error 2");
}

#[test]
fn the_lease_comes_back_with_the_end_of_a_cell() {
    let mut world = World::new(64 * MIB);
    let mut first = world.client();
    let token = world.tokens[0];
    world.cell(token, Cell::Expected);
    world.cell(token, Cell::Started);
    first.does("launch sleep_20ms 3");
    world.cell(token, Cell::Ended);
    let mut second = world.client();
    second.does("launch nothing 1");
    let usage = world.usage(token);
    assert!(usage.held >= Duration::from_millis(30), "{usage:?}");
    assert!(usage.fault.is_none() && usage.ended.is_none());
}

#[test]
fn memory_that_could_not_be_saved_is_never_computed_with() {
    // After the first code later calls may succeed; after the second a driver usually fails all calls.
    for code in [2, 999] {
        let mut world = World::new(64 * MIB);
        let token = world.admit(None);
        let faults = [(FAULTS, &*format!("cuMemcpyDtoHAsync_v2:1:{code}"))];
        let mut unlucky = world.client_of(token, &faults);
        unlucky.does(&format!("allocate a {}", 40 * MIB));
        unlucky.does("set a 1");
        let mut other = world.client();
        other.does(&format!("allocate b {}", 40 * MIB));
        other.does("set b 2");
        assert_eq!(unlucky.says("check a"), "error 802");
        assert!(eventually(|| world.usage(token).fault == Some(code)));
        assert_eq!(other.does("check b"), "right");
    }
}

#[test]
fn memory_that_does_not_come_back_at_once_comes_back_whole() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    let faults = [(FAULTS, "cuMemcpyHtoDAsync_v2:1:2")];
    let mut first = world.client_of(token, &faults);
    let mut second = world.client();
    for (client, value) in [(&mut first, 1), (&mut second, 2)] {
        client.does(&format!("allocate a {}", 40 * MIB));
        client.does(&format!("set a {value}"));
    }
    for client in [&mut first, &mut second] {
        assert_eq!(client.does("check a"), "right");
    }
}

#[test]
fn what_finds_no_room_on_the_host_is_out_of_memory_before_anything_moves() {
    const MUCH: u64 = 1 << 40;
    // For all sessions, and by the limits of each.
    for room in [(0, MUCH), (MUCH, 0)] {
        let mut world = World::new(64 * MIB);
        let (token, mut first) = (world.admit(None), world.client());
        first.does(&format!("allocate a {}", 40 * MIB));
        first.does("set a 1");
        let mut second = world.client_of(token, &[]);
        world.host_has(room.0, room.1);
        let allocate = format!("allocate b {}", 40 * MIB);
        assert_eq!(second.says(&allocate), "error 2");
        assert_eq!(world.usage(world.tokens[1]).moved_bytes, 0);
        world.host_has(MUCH, MUCH);
        second.does(&allocate);
        assert_eq!(first.does("check a"), "right");
        assert!(world.usage(world.tokens[1]).moved_bytes > 0);
    }
}

#[test]
fn together_they_may_have_more_than_the_card_and_the_host() {
    // The card has room for 128 of 360 MiB, and the host for the others and for one session that returns.
    let mut world = World::with_settings(128 * MIB, |settings| {
        settings.memory.host_bytes = 356 * MIB;
    });
    let mut clients: Vec<Client> = (0..6).map(|_| world.client()).collect();
    for (client, value) in clients.iter_mut().zip(1..) {
        client.does(&format!("allocate a {}", 60 * MIB));
        client.does(&format!("set a {value}"));
    }
    // One more session could not return.
    let mut other = world.client();
    assert_eq!(other.says(&format!("allocate a {}", 60 * MIB)), "error 2");
    for _ in 0..2 {
        for client in &mut clients {
            client.does("add a 2");
            assert_eq!(client.does("check a"), "right");
        }
    }
    let ended = |token| world.usage(token).ended;
    assert!(world.tokens.iter().all(|token| ended(*token).is_none()));
}

fn hurry(settings: &mut Settings) {
    settings.late = Duration::from_millis(300);
    settings.retry = Duration::from_millis(50);
}

#[test]
fn what_contexts_take_makes_others_move() {
    let mut world = World::new(64 * MIB);
    world.machine.charge_contexts(6 * MIB).unwrap();
    let mut clients: Vec<Client> = (0..3).map(|_| world.client()).collect();
    // Two of them fit by the ledger, but not on the card.
    for (client, value) in clients.iter_mut().zip(1..) {
        client.does(&format!("allocate a {}", 28 * MIB));
        client.does(&format!("set a {value}"));
    }
    for client in &mut clients {
        client.does("add a 2");
        assert_eq!(client.does("check a"), "right");
    }
    assert!(
        world
            .tokens
            .clone()
            .iter()
            .all(|token| !world.is_released(*token))
    );
}

#[test]
fn others_make_room_for_a_context() {
    let mut world = World::new(64 * MIB);
    world.machine.charge_contexts(12 * MIB).unwrap();
    let mut large = world.client();
    large.does(&format!("allocate a {}", 50 * MIB));
    large.does("set a 1");
    let mut small = world.client();
    small.does(&format!("allocate a {}", 8 * MIB));
    small.does("set a 2");
    assert_eq!(small.does("check a"), "right");
    // There is no room for it beside two contexts.
    small.kill();
    assert_eq!(large.does("check a"), "right");
}

#[test]
fn others_make_room_for_code() {
    let mut world = World::new(64 * MIB);
    let mut large = world.client();
    large.does(&format!("allocate a {}", 54 * MIB));
    large.does("set a 1");
    world.machine.charge_code(5 * MIB).unwrap();
    let mut small = world.client();
    small.does(&format!("allocate a {}", 2 * MIB));
    small.does("set a 2");
    // Its module found room, but its function finds none at the first launch.
    small.does("add a 3");
    assert_eq!(small.does("check a"), "right");
    assert_eq!(large.does("check a"), "right");
    // Another module finds none either.
    let mut another = world.client();
    another.does(&format!("allocate a {}", 2 * MIB));
    another.kill();
    assert_eq!(large.does("check a"), "right");
}

#[test]
fn others_make_room_for_what_a_session_makes_while_its_memory_is_on_the_host() {
    for make in [
        "launch nothing 1",
        &format!("allocate-managed m {}", 4 * MIB),
    ] {
        let mut world = World::new(64 * MIB);
        let mut first = world.client();
        for buffer in ["a", "b", "c"] {
            first.does(&format!("allocate {buffer} {}", 4 * MIB));
        }
        first.does("set a 1");
        let mut second = world.client();
        second.does(&format!("allocate a {}", 56 * MIB));
        second.does("set a 2");
        // Neither may be chosen to leave the GPU with its context.
        for token in &world.tokens {
            world.cell(*token, Cell::Started);
        }
        world.machine.charge_code(2 * MIB).unwrap();
        first.does(make);
        for client in [&mut first, &mut second] {
            assert_eq!(client.does("check a"), "right");
        }
    }
}

#[test]
fn code_does_not_count_against_the_limit_of_its_session() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(Some(8 * MIB));
    let mut limited = world.client_of(token, &[]);
    limited.does(&format!("allocate a {}", 8 * MIB));
    let mut other = world.client();
    other.does(&format!("allocate a {}", 54 * MIB));
    world.machine.charge_code(3 * MIB).unwrap();
    limited.does("launch nothing 1");
}

#[test]
fn who_has_no_cell_leaves_the_card_when_contexts_take_too_much_of_it() {
    let mut world = World::with_settings(64 * MIB, hurry);
    world.machine.charge_contexts(8 * MIB).unwrap();
    let mut idle: Vec<Client> = (0..3).map(|_| world.client()).collect();
    for client in &mut idle {
        client.does(&format!("allocate a {}", 4 * MIB));
        client.does("set a 1");
    }
    let tokens = world.tokens.clone();
    let mut large = world.client();
    let token = world.tokens[3];
    world.cell(token, Cell::Expected);
    world.cell(token, Cell::Started);
    large.send(&format!("allocate a {}", 40 * MIB));
    world.wait_for_release(tokens[0]);
    assert!(!world.is_released(tokens[1]));
    // A cell comes first.
    world.cell(tokens[0], Cell::Expected);
    idle[0].does("add a 1");
    world.cell(tokens[0], Cell::Ended);
    world.wait_for_release(tokens[1]);
    assert!(!world.is_released(tokens[0]));
    idle[1].kill();
    assert!(large.answer().unwrap().starts_with("ok"));
    large.does("set a 5");
    assert_eq!(large.does("check a"), "right");
    assert_eq!(idle[2].does("check a"), "right");
}

#[test]
fn what_nobody_can_make_room_for_is_out_of_memory() {
    let mut world = World::with_settings(64 * MIB, hurry);
    world.machine.charge_contexts(8 * MIB).unwrap();
    let mut client = world.client();
    assert_eq!(client.says(&format!("allocate a {}", 60 * MIB)), "error 2");
    assert_eq!(
        client.says(&format!("allocate-managed a {}", 60 * MIB)),
        "error 2"
    );
    client.does(&format!("allocate a {}", 56 * MIB));
}
