//! What a program does at one moment of a hand-over.

use baton_gpu_tests::FAULTS;
use baton_interposer::wire::{FromSession, ToSession};

use crate::hand::Hand;
use crate::world::{MIB, World, eventually};

#[test]
fn memory_that_is_freed_while_the_lease_ends_stays_until_the_kernels_that_use_it_have_ended() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does(&format!("allocate a {}", 8 * MIB));
    world.machine.hold().unwrap();
    client.does("launch held 1");
    client.does("add a 1");
    hand.close_gate(&mut client);
    client.send("free a");
    // The thread that frees, and the one that gives the lease back.
    assert!(eventually(|| world.machine.waiting().unwrap() == 2));
    world.machine.let_go().unwrap();
    assert_eq!(client.answer().unwrap(), "ok");
    hand.until_yielded();
    assert_eq!(client.does("synchronize"), "");
}

#[test]
fn a_fork_copies_nothing_of_what_memory_that_moved_left_on_the_host() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    client.does(&format!("allocate a {}", 8 * MIB));
    hand.say(ToSession::SwapOut);
    hand.until(|message| matches!(message, FromSession::SwappedOut { .. }));
    client.does("fork");
    hand.say(ToSession::SwapIn);
    hand.until(|message| matches!(message, FromSession::SwappedIn { .. }));
    client.does("fork");
    assert_eq!(world.machine.copied_at_forks().unwrap(), 0);
}

/// The memory leaves the GPU, and comes back.
fn swap(hand: &mut Hand) {
    hand.say(ToSession::SwapOut);
    let swapped = |message| {
        matches!(
            message,
            FromSession::SwappedOut { .. } | FromSession::Fault { .. }
        )
    };
    assert!(matches!(
        hand.until(swapped),
        FromSession::SwappedOut { .. }
    ));
    hand.say(ToSession::SwapIn);
    hand.until(|message| matches!(message, FromSession::SwappedIn { .. }));
}

#[test]
fn memory_moves_after_its_device_was_reset() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    for round in 1..=3 {
        client.does(&format!("allocate a {}", 8 * MIB));
        hand.grant();
        client.does(&format!("set a {round}"));
        hand.drop_lease();
        hand.until_yielded();
        swap(&mut hand);
        hand.grant();
        assert_eq!(client.does("check a"), "right");
        client.does("reset");
        client.does("retain");
    }
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
}

#[test]
fn nothing_of_a_context_that_ended_is_used_again() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    for end in ["reset", "destroy-context"] {
        if end == "destroy-context" {
            client.does("create-context");
        }
        hand.grant();
        // Marks in streams, for those who submit and for memory that is freed in order.
        client.does("launch nothing 200");
        client.does("allocate-in-order a 1024");
        client.does("free-in-order a");
        client.does(end);
        hand.drop_lease();
        hand.until_yielded();
        hand.grant();
        client.does("retain");
        client.does("launch nothing 200");
        client.does("allocate-in-order a 1024");
    }
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
}

#[test]
fn a_lease_ends_when_the_work_of_all_contexts_has_ended() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does("launch nothing 1");
    client.does("create-context");
    world.machine.hold().unwrap();
    client.does("launch held 1");
    client.does("leave-context");
    hand.drop_lease();
    assert!(eventually(|| world.machine.waiting().unwrap() == 1));
    world.machine.let_go().unwrap();
    hand.until_yielded();
    client.does("destroy-context");
}

#[test]
fn calls_whose_pointers_the_driver_checks_wait_for_the_memory() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    client.does(&format!("allocate a {}", 8 * MIB));
    hand.say(ToSession::SwapOut);
    hand.until(|message| matches!(message, FromSession::SwappedOut { .. }));
    client.send("synchronize-copies a");
    hand.until(|message| message == FromSession::Want);
    hand.say(ToSession::SwapIn);
    hand.until(|message| matches!(message, FromSession::SwappedIn { .. }));
    hand.grant();
    assert_eq!(client.answer().unwrap(), "ok");
}

#[test]
fn memory_that_cannot_be_unmapped_is_reported() {
    let mut world = World::new(64 * MIB);
    let faults = [(FAULTS, "cuMemUnmap:1:999")];
    let (mut hand, mut client) = Hand::with_client(&mut world, &faults);
    client.does(&format!("allocate a {}", 8 * MIB));
    hand.say(ToSession::SwapOut);
    hand.until(|message| message == FromSession::Fault { code: 999 });
}
