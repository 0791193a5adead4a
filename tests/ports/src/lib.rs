//! Ports of this machine for servers of tests that are told their ports before they start.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, TcpListener};

const FIRST: u16 = 10_000;
const BLOCK: u16 = 10;
const BLOCKS: u16 = 1000;

/// Ports that no other test takes while this exists, even when their server is stopped. They lie
/// below the ports that Linux gives to connections.
#[derive(Debug)]
pub struct Ports<const COUNT: usize> {
    pub numbers: [u16; COUNT],
    /// Listens on the last port of the block, so that other tests skip the block.
    _taken: TcpListener,
}

impl<const COUNT: usize> Ports<COUNT> {
    /// A block of which nothing uses a port.
    #[must_use]
    pub fn free() -> Self {
        const { assert!(COUNT < BLOCK as usize, "the last port marks the block") };
        let own = (std::process::id() % u32::from(BLOCKS)) as u16;
        let mut blocks = (0..BLOCKS).map(|number| FIRST + (own + number) % BLOCKS * BLOCK);
        blocks.find_map(Self::of_block).unwrap()
    }

    fn of_block(first: u16) -> Option<Self> {
        let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let _taken = listen(first + BLOCK - 1).ok()?;
        let numbers = std::array::from_fn(|number| first + number as u16);
        let are_free = numbers.iter().all(|port| listen(*port).is_ok());
        are_free.then_some(Self { numbers, _taken })
    }
}
