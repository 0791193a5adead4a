//! Memory that a program creates without an address, and maps itself.

use crate::{
    hand::Hand,
    world::{Client, MIB, World},
};
use baton_interposer::wire::{FromSession, ToSession};

/// A program with 8 MiB in two pieces, whose numbers are all 5, and the lease.
fn with_mapped(world: &mut World) -> (Hand, Client) {
    let (mut hand, mut client) = Hand::with_client(world, &[]);
    hand.grant();
    client.does(&format!("map a {} 2", 8 * MIB));
    client.does("set a 5");
    (hand, client)
}

impl Hand {
    fn swap_out(&mut self, bytes: u64) {
        self.drop_lease();
        self.until_yielded();
        self.send(ToSession::SwapOut { bytes });
        let is_meant = |message| matches!(message, FromSession::SwappedOut { .. });
        assert!(
            matches!(self.until(is_meant), FromSession::SwappedOut { bytes: left, .. } if left == bytes)
        );
    }

    fn swap_in(&mut self, bytes: u64) {
        self.send(ToSession::SwapIn);
        let is_meant = |message| matches!(message, FromSession::SwappedIn { .. });
        assert!(
            matches!(self.until(is_meant), FromSession::SwappedIn { bytes: back, .. } if back == bytes)
        );
        self.grant();
    }

    fn until_shrank(&self) -> (u64, u64) {
        let is_meant = |message| matches!(message, FromSession::Shrank { .. });
        match self.until(is_meant) {
            FromSession::Shrank { bytes, away_bytes } => (bytes, away_bytes),
            _ => unreachable!(),
        }
    }

    fn until_fixed(&self, bytes: u64) {
        let is_fixed = |message| matches!(message, FromSession::Fixed { .. });
        assert_eq!(self.until(is_fixed), FromSession::Fixed { bytes });
    }
}

#[test]
fn programs_find_what_they_mapped_as_they_left_it() {
    let mut world = World::new(64 * MIB);
    let mut clients: Vec<Client> = (0..3).map(|_| world.client()).collect();
    for client in &mut clients {
        client.does(&format!("map a {} 5", 40 * MIB));
        client.does("set a 1");
    }
    for client in &mut clients {
        client.send("rounds a 4");
    }
    for client in &mut clients {
        assert_eq!(client.answer().unwrap(), "ok right");
        assert_eq!(client.does("memory"), format!("{} {}", 24 * MIB, 64 * MIB));
        client.does("unmap a");
        client.does("release a");
        assert_eq!(client.does("memory"), format!("{} {}", 64 * MIB, 64 * MIB));
    }
    assert_eq!(world.machine.overlaps().unwrap(), 0);
    let swaps: u64 = world
        .tokens
        .iter()
        .map(|token| world.usage(*token).swaps)
        .sum();
    assert!(swaps >= 3, "{swaps}");
}

#[test]
fn a_large_piece_moves_in_parts() {
    let mut world = World::new(256 * MIB);
    let mut clients = [world.client(), world.client()];
    for client in &mut clients {
        client.does(&format!("map a {} 1", 160 * MIB));
        client.does("set a 3");
    }
    for client in &mut clients {
        client.does("add a 2");
        assert_eq!(client.does("check a"), "right");
        assert_eq!(client.does("range a"), "true");
    }
}

#[test]
fn what_is_mapped_twice_is_one_memory_after_a_move_too() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_mapped(&mut world);
    client.does("map-again a b");
    hand.swap_out(8 * MIB);
    hand.swap_in(8 * MIB);
    assert_eq!(client.does("check a"), "right");
    assert_eq!(client.does("check b"), "right");
    client.does("set b 9");
    assert_eq!(client.does("check a"), "wrong: 9 and not 5 at 0");
}

#[test]
fn memory_that_is_away_is_mapped_and_unmapped_and_freed_without_the_gpu() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_mapped(&mut world);
    hand.swap_out(8 * MIB);
    client.does("map-again a b");
    client.does("unmap a");
    client.does(&format!("map c {} 1", 4 * MIB));
    client.does(&format!("map d {} 1", 6 * MIB));
    client.does("unmap d");
    client.does("release d");
    assert_eq!(hand.until_shrank(), (6 * MIB, 6 * MIB));
    hand.swap_in(12 * MIB);
    assert_eq!(client.does("check b"), "right");
    client.does("set c 7");
    assert_eq!(client.does("check c"), "right");
    // A mapping keeps its pieces.
    client.does("release a");
    assert_eq!(client.does("check b"), "right");
    client.does("unmap b");
    assert_eq!(hand.until_shrank(), (8 * MIB, 0));
}

#[test]
fn a_program_can_ask_about_what_it_mapped() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_mapped(&mut world);
    assert_eq!(client.does("hold a"), "true");
    hand.swap_out(8 * MIB);
    assert_eq!(client.does("hold a"), "true");
    // The driver answers this, and knows only memory that is on the GPU.
    client.send("may-write a");
    hand.until(|message| message == FromSession::Want);
    hand.swap_in(8 * MIB);
    assert_eq!(client.answer().unwrap(), "ok true");
    assert_eq!(client.says("export a"), "error 801");
    assert_eq!(client.says("unmap-half a"), "error 1");
}

#[test]
fn a_handle_that_was_released_is_no_longer_valid() {
    let mut world = World::new(64 * MIB);
    let (_hand, mut client) = with_mapped(&mut world);
    client.does("map-again a b");
    client.does("release a");
    assert_eq!(client.says("release b"), "error 1");
    client.does("unmap a");
    assert_eq!(client.does("check b"), "right");
    client.does("unmap b");
    assert_eq!(client.says("hold b"), "error 1");
}

#[test]
fn what_the_driver_refuses_is_refused_while_the_memory_is_away_too() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_mapped(&mut world);
    assert_eq!(client.says("permit a 1"), "error 101");
    hand.swap_out(8 * MIB);
    assert_eq!(client.says("map-over a"), "error 1");
    assert_eq!(client.says("map-half-over a"), "error 1");
    assert_eq!(client.says("unmap-half a"), "error 1");
    client.does("permit a 0");
    // Only the driver knows whether another device may have access.
    client.send("permit a 1");
    hand.until(|message| message == FromSession::Want);
    hand.swap_in(8 * MIB);
    assert_eq!(client.answer().unwrap(), "error 101");
    hand.swap_out(8 * MIB);
    hand.swap_in(8 * MIB);
    assert_eq!(client.does("check a"), "right");
}

#[test]
fn addresses_that_are_given_up_are_no_longer_mapped() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_mapped(&mut world);
    client.does("map-again a b");
    hand.swap_out(8 * MIB);
    client.does("unreserve a");
    hand.swap_in(8 * MIB);
    assert_eq!(client.does("check b"), "right");
    client.does("release a");
    client.does("unmap b");
    assert_eq!(hand.until_shrank(), (8 * MIB, 0));
}

#[test]
fn a_capture_is_not_disturbed_when_memory_is_unmapped_and_freed() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_mapped(&mut world);
    // From now on it has a place on the host.
    hand.swap_out(8 * MIB);
    hand.swap_in(8 * MIB);
    client.does("begin-capture");
    client.does("unmap a");
    client.does("release a");
    client.does("end-capture");
    assert_eq!(hand.until_shrank(), (4 * MIB, 0));
}

#[test]
fn memory_without_an_address_outlives_its_context() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = with_mapped(&mut world);
    hand.swap_out(8 * MIB);
    // Nothing could bring it back without a context.
    client.send("reset");
    hand.until(|message| message == FromSession::Want);
    hand.swap_in(8 * MIB);
    assert_eq!(client.answer().unwrap(), "ok");
    assert_eq!(hand.until_shrank(), (8 * MIB, 0));
    hand.until_fixed(8 * MIB);
    client.does("retain");
    assert_eq!(client.does("check a"), "right");
    client.does("unmap a");
    client.does("release a");
    hand.until_fixed(4 * MIB);
    hand.until_fixed(0);
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
}

#[test]
fn a_library_that_frees_while_its_process_exits_is_refused() {
    const DEINITIALIZED: i32 = 4;
    let mut world = World::new(64 * MIB);
    let (_hand, mut client) = with_mapped(&mut world);
    client.does("release-at-exit a");
    client.does("exit-slowly");
    assert_eq!(client.answer().unwrap(), format!("error {DEINITIALIZED}"));
    assert_eq!(client.answer().unwrap(), "ok exiting");
}
