//! Streams and contexts that end, with captures, with memory, and beside other contexts.

use crate::{
    hand::Hand,
    moments::swap,
    world::{MIB, World, eventually},
};
use baton_gpu_tests::FAULTS;
use baton_interposer::wire::{FromSession, ToSession};

#[test]
fn a_capture_ends_with_its_stream_and_with_its_context() {
    for commands in [&["renew-stream"][..], &["reset", "retain"]] {
        let mut world = World::new(64 * MIB);
        let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
        hand.grant();
        client.does("begin-capture");
        for command in commands {
            client.does(command);
        }
        hand.drop_lease();
        hand.until_yielded();
    }
}

#[test]
fn a_capture_that_could_not_be_ended_goes_on() {
    let mut world = World::new(64 * MIB);
    // As if another thread had begun it (CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD).
    let faults = [(FAULTS, "cuStreamEndCapture:1:908")];
    let (mut hand, mut client) = Hand::with_client(&mut world, &faults);
    hand.grant();
    client.does("begin-capture");
    assert_eq!(client.says("end-capture"), "error 908");
    try_to_end_lease(&mut hand);
    client.does("end-capture");
    hand.until_yielded();
}

#[test]
fn a_capture_goes_on_when_that_of_another_thread_s_default_stream_ends() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does("begin-own-capture");
    client.does("capture-aside");
    try_to_end_lease(&mut hand);
    client.does("end-own-capture");
    hand.until_yielded();
}

/// Takes the lease back, and returns when the agent has tried to end it.
fn try_to_end_lease(hand: &mut Hand) {
    hand.drop_lease();
    // Messages are handled in order.
    let cap_bytes = 1 << 40;
    hand.send(ToSession::Welcome { cap_bytes });
    hand.until(|message| message == FromSession::Capped { cap_bytes });
}

#[test]
fn small_memory_outlives_the_end_of_another_context() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does("allocate a 1024");
    client.does("create-context cuCtxCreate_v2");
    client.does("allocate b 1024");
    client.does("set b 1");
    client.does("reset");
    assert_eq!(client.does("check b"), "right");
}

#[test]
fn memory_of_a_stream_that_ended_beside_a_capture_is_not_the_next_stream_s() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    let bytes = 4 * MIB;
    let first = client.does(&format!("captured-allocate a {bytes}"));
    client.does("swap-streams");
    client.does("begin-capture");
    client.does("swap-streams");
    client.does("free-in-stream a");
    // The driver gives the new stream the handle of the one that ended.
    client.does("renew-stream");
    assert_ne!(client.does(&format!("captured-allocate b {bytes}")), first);
    client.does("swap-streams");
    client.does("end-capture");
}

#[test]
fn memory_outlives_the_green_context_in_which_it_was_allocated() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does("create-green-context");
    client.does(&format!("allocate a {}", 8 * MIB));
    client.does("set a 1");
    client.does("allocate-in-order b 1024");
    client.does("free-in-order b");
    client.does("launch nothing 200");
    client.does("leave-context");
    client.does("destroy-green-context");
    client.does("add a 1");
    assert_eq!(client.does("check a"), "right");
    hand.drop_lease();
    hand.until_yielded();
    swap(&mut hand);
    hand.grant();
    assert_eq!(client.does("check a"), "right");
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
}

#[test]
fn a_lease_ends_when_the_work_of_a_green_context_has_ended() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does("create-green-context");
    world.machine.hold().unwrap();
    client.does("launch held 1");
    client.does("leave-context");
    hand.drop_lease();
    assert!(eventually(|| world.machine.waiting().unwrap() == 1));
    world.machine.let_go().unwrap();
    hand.until_yielded();
    client.does("destroy-green-context");
}

#[test]
fn memory_that_a_program_creates_on_the_host_is_not_the_gpu_s() {
    let mut world = World::new(64 * MIB);
    let (hand, mut client) = Hand::with_client(&mut world, &[]);
    let (bytes, on_device) = (8 * MIB, 1);
    for on_host in [2, 3] {
        client.does(&format!("create-piece {on_host} {}", 4 * MIB));
    }
    client.does(&format!("create-piece {on_device} {bytes}"));
    let is_asked_for = |message| matches!(message, FromSession::Grew { .. });
    assert_eq!(hand.until(is_asked_for), FromSession::Grew { bytes });
    client.does(&format!("create-piece-without-context {bytes}"));
    assert_eq!(hand.until(is_asked_for), FromSession::Grew { bytes });
    let said = hand.said();
    assert!(
        !said
            .iter()
            .any(|message| matches!(message, FromSession::Fixed { .. })),
        "{said:?}"
    );
}
