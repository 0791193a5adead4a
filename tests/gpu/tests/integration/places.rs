//! Places on the host that are made before memory leaves the GPU.

use crate::{
    hand::Hand,
    world::{Client, MIB, World, eventually},
};
use baton_gpu_tests::FAULTS;
use baton_interposer::wire::{FromSession, ToSession};

/// A program with two allocations that leave in one part each.
fn with_two(world: &mut World, variables: &[(&str, &str)]) -> (Hand, Client) {
    let (mut hand, mut client) = Hand::with_client(world, variables);
    hand.grant();
    for (name, value) in [("a", 1), ("b", 2)] {
        client.does(&format!("allocate {name} {}", 8 * MIB));
        client.does(&format!("set {name} {value}"));
    }
    (hand, client)
}

fn pinned(hand: &Hand) -> u64 {
    match hand.until(|message| matches!(message, FromSession::Pinned { .. })) {
        FromSession::Pinned { bytes } => bytes,
        _ => unreachable!(),
    }
}

fn pin(hand: &mut Hand, bytes: u64) -> u64 {
    hand.send(ToSession::Pin { bytes });
    pinned(hand)
}

/// Swaps out, and returns how much left and how much of that had no place.
fn swap_out(hand: &mut Hand) -> (u64, u64) {
    hand.send(ToSession::SwapOut { bytes: u64::MAX });
    let is_over = |message| {
        let fails = matches!(message, FromSession::Fault { .. });
        fails || matches!(message, FromSession::SwappedOut { .. })
    };
    match hand.until(is_over) {
        FromSession::SwappedOut {
            bytes,
            new_place_bytes,
            ..
        } => (bytes, new_place_bytes),
        fault => panic!("{fault:?}"),
    }
}

fn swap_in(hand: &mut Hand, client: &mut Client) {
    hand.send(ToSession::SwapIn);
    hand.until(|message| matches!(message, FromSession::SwappedIn { .. }));
    hand.grant();
    for name in ["a", "b"] {
        assert_eq!(client.does(&format!("check {name}")), "right");
    }
}

/// Waits until the session has no lease; it may have returned the last one by itself.
fn rest(hand: &mut Hand) {
    hand.grant();
    hand.drop_lease();
    hand.until_yielded();
}

#[test]
fn memory_leaves_to_the_places_that_were_made_while_the_program_computed() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_two(&mut world, &[]);
    world.machine.hold().unwrap();
    client.does("launch held 1");
    // No more than was requested.
    assert_eq!(pin(&mut hand, 15 * MIB), 8 * MIB);
    assert_eq!(world.machine.pinned().unwrap(), 8 * MIB);
    assert_eq!(pin(&mut hand, 15 * MIB), 8 * MIB);
    assert_eq!(pin(&mut hand, 64 * MIB), 0, "all have a place");
    client.does("launch nothing 10");
    world.machine.let_go().unwrap();
    rest(&mut hand);
    assert_eq!(swap_out(&mut hand), (16 * MIB, 0));
    swap_in(&mut hand, &mut client);
}

#[test]
fn a_move_waits_for_no_place_that_is_being_made() {
    let mut world = World::new(512 * MIB);
    let (mut hand, mut client) = with_two(&mut world, &[]);
    client.does(&format!("allocate c {}", 400 * MIB));
    rest(&mut hand);
    for _ in 0..3 {
        hand.send(ToSession::Pin { bytes: u64::MAX });
        hand.send(ToSession::SwapOut { bytes: u64::MAX });
        // The answer about the bytes pinned so far comes before anything leaves.
        let first = hand.until(|message| {
            matches!(
                message,
                FromSession::Pinned { .. } | FromSession::Left { .. }
            )
        });
        let FromSession::Pinned { bytes } = first else {
            panic!("{first:?}")
        };
        let is_over = |message| matches!(message, FromSession::SwappedOut { .. });
        let FromSession::SwappedOut {
            new_place_bytes, ..
        } = hand.until(is_over)
        else {
            unreachable!()
        };
        assert_eq!(bytes + new_place_bytes, 416 * MIB);
        swap_in(&mut hand, &mut client);
        rest(&mut hand);
        hand.send(ToSession::Unpin { bytes: u64::MAX });
        assert!(eventually(|| world.machine.pinned().unwrap() == 0));
    }
}

#[test]
fn places_go_back_when_others_need_the_room() {
    let mut world = World::new(512 * MIB);
    let (mut hand, mut client) = with_two(&mut world, &[]);
    client.does(&format!("allocate c {}", 400 * MIB));
    assert_eq!(pin(&mut hand, u64::MAX), 416 * MIB);
    // Places are given up in whole parts, while the program computes.
    hand.send(ToSession::Unpin { bytes: 9 * MIB });
    assert!(eventually(|| world.machine.pinned().unwrap() < 416 * MIB));
    let left = world.machine.pinned().unwrap();
    assert!(left >= (416 - 8 - 64) * MIB, "{left}");
    hand.send(ToSession::Unpin { bytes: u64::MAX });
    assert!(eventually(|| world.machine.pinned().unwrap() == 0));
    for _ in 0..3 {
        hand.send(ToSession::Pin { bytes: 416 * MIB });
        hand.send(ToSession::Unpin { bytes: 416 * MIB });
        assert!(pinned(&hand) <= 416 * MIB);
        assert!(eventually(|| world.machine.pinned().unwrap() == 0));
    }
}

#[test]
fn places_that_were_still_to_be_made_count_as_given_back() {
    let mut world = World::new(512 * MIB);
    let (mut hand, mut client) = with_two(&mut world, &[]);
    client.does(&format!("allocate c {}", 400 * MIB));
    for _ in 0..3 {
        let (before, left) = (pin(&mut hand, 8 * MIB), 408 * MIB);
        assert_eq!(before, 8 * MIB);
        hand.send(ToSession::Pin { bytes: left });
        hand.send(ToSession::Unpin { bytes: 8 * MIB });
        let made = pinned(&hand);
        rest(&mut hand);
        let (_, new) = swap_out(&mut hand);
        if made + 8 * MIB <= left {
            assert_eq!(new, left - made);
        }
        swap_in(&mut hand, &mut client);
        hand.send(ToSession::Unpin { bytes: u64::MAX });
    }
}

#[test]
fn memory_that_moves_all_the_time_finds_its_places_and_itself() {
    let mut world = World::with_settings(64 * MIB, |settings| settings.torture = Some(7));
    let mut clients: Vec<Client> = (0..4).map(|_| world.client()).collect();
    for client in &mut clients {
        for name in ["a", "b", "c"] {
            client.does(&format!("allocate {name} {}", 8 * MIB));
            client.does(&format!("set {name} 1"));
        }
    }
    let mut rounds = || {
        for name in ["a", "b", "c"] {
            for client in &mut clients {
                client.send(&format!("rounds {name} 3"));
            }
            for client in &mut clients {
                assert_eq!(client.answer().unwrap(), "ok right");
            }
        }
    };
    let tokens = world.tokens.clone();
    let pinned_ahead = || {
        let usages = tokens.iter().map(|token| world.usage(*token));
        usages.map(|usage| usage.pinned_ahead_bytes).sum::<u64>()
    };
    // Memory often leaves before a place for it is made.
    assert!(eventually(|| {
        rounds();
        pinned_ahead() > 0
    }));
    assert_eq!(world.machine.overlaps().unwrap(), 0);
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
}

#[test]
fn where_the_driver_pins_no_place_memory_leaves_as_without() {
    let mut world = World::new(64 * MIB);
    let faults = [(FAULTS, "cuMemHostRegister_v2:2:2")];
    let (mut hand, mut client) = with_two(&mut world, &faults);
    assert_eq!(pin(&mut hand, 16 * MIB), 8 * MIB);
    assert_eq!(world.machine.pinned().unwrap(), 8 * MIB);
    rest(&mut hand);
    assert_eq!(swap_out(&mut hand), (16 * MIB, 8 * MIB));
    swap_in(&mut hand, &mut client);
}

#[test]
fn places_go_with_their_memory() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_two(&mut world, &[]);
    assert_eq!(pin(&mut hand, 16 * MIB), 16 * MIB);
    client.does("free a");
    assert_eq!(world.machine.pinned().unwrap(), 8 * MIB);
    // Memory freed in the order of a stream is released at the end of the lease, by another thread.
    client.does("free-in-order b");
    rest(&mut hand);
    assert_eq!(world.machine.pinned().unwrap(), 0);
}

#[test]
fn a_fork_copies_no_place() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_two(&mut world, &[]);
    hand.send(ToSession::Pin { bytes: u64::MAX });
    client.does("fork");
    pinned(&hand);
    client.does("fork");
    assert_eq!(world.machine.copied_at_forks().unwrap(), 0);
    rest(&mut hand);
    swap_out(&mut hand);
    swap_in(&mut hand, &mut client);
}

#[test]
fn a_context_takes_its_places_along() {
    let mut world = World::new(64 * MIB);
    for end in ["reset", "destroy-context"] {
        let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
        for _ in 0..3 {
            if end == "destroy-context" {
                client.does("create-context cuCtxCreate_v2");
            }
            client.does(&format!("allocate a {}", 8 * MIB));
            hand.send(ToSession::Pin { bytes: u64::MAX });
            client.does(end);
            pinned(&hand);
            assert!(eventually(|| world.machine.pinned().unwrap() == 0));
            hand.grant();
            client.does("retain");
            rest(&mut hand);
        }
        client.does(&format!("allocate b {}", 8 * MIB));
        assert_eq!(pin(&mut hand, u64::MAX), 8 * MIB);
        assert_eq!(swap_out(&mut hand), (8 * MIB, 0));
        client.kill();
        assert_eq!(world.machine.stale_handles().unwrap(), 0);
        world = World::new(64 * MIB);
    }
}

#[test]
fn places_that_the_next_worker_does_not_know_go_back() {
    let mut world = World::new(64 * MIB);
    let (mut hand, client) = with_two(&mut world, &[]);
    assert_eq!(pin(&mut hand, u64::MAX), 16 * MIB);
    hand.leave();
    assert!(eventually(|| world.machine.pinned().unwrap() == 0));
    drop(client);
}

#[test]
fn a_second_program_finds_its_places_when_its_memory_leaves_for_the_first_time() {
    let mut world = World::new(64 * MIB);
    let mut clients = [world.client(), world.client()];
    for client in &mut clients {
        client.does(&format!("allocate a {}", 40 * MIB));
        client.does("set a 1");
    }
    let tokens = world.tokens.clone();
    // The first session's memory left when the second allocated, or was about to leave.
    let mut pinned = 0;
    assert!(eventually(|| {
        let first = world.usage(tokens[0]);
        pinned += first.pinned_in_moves_bytes + first.pinned_ahead_bytes;
        pinned == 40 * MIB
    }));
    let mut ahead = 0;
    assert!(eventually(|| {
        ahead += world.usage(tokens[1]).pinned_ahead_bytes;
        ahead == 40 * MIB
    }));
    for client in &mut clients {
        client.does("add a 2");
        assert_eq!(client.does("check a"), "right");
    }
    let usage = world.usage(tokens[1]);
    assert!(
        usage.moved_bytes >= 40 * MIB && usage.pinned_in_moves_bytes == 0,
        "{usage:?}"
    );
}

#[test]
fn memory_that_fits_has_no_places() {
    let mut world = World::new(64 * MIB);
    let mut clients = [world.client(), world.client()];
    for client in &mut clients {
        client.does(&format!("allocate a {}", 30 * MIB));
        client.does("set a 1");
    }
    for client in &mut clients {
        client.does("add a 1");
        assert_eq!(client.does("check a"), "right");
    }
    assert_eq!(world.machine.pinned().unwrap(), 0);
}
