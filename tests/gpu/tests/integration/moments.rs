//! What a program does at one moment of a hand-over.

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
