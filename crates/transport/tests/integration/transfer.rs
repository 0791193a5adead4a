//! Receiving a state while memory is short.

use crate::server::nobody;
use baton_chunks::{Ledger, memory::Room};
use baton_protocol::{Manifest, Piece, StateVersion, TableId};
use baton_transport::{Attempts, ChunkClient, Received, TransferError, transfer};
use bytes::Bytes;
use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt},
    time::Duration,
};
use tokio::time::{Instant, sleep};

const STREAM: &[u8] = b"what only the other end has";
const PATIENCE: Duration = Duration::from_mins(10);

/// Receives a state again and again. `free_bytes` is what is free at each time since the first attempt.
async fn receive(
    limit_bytes: u64,
    free_bytes: impl Fn(Duration) -> u64,
) -> (Result<Received, TransferError>, Duration) {
    let chunk_client = ChunkClient::new(&nobody().0).unwrap();
    let manifest = Manifest {
        base: StateVersion {
            table: TableId::random(),
            messages: 0,
        },
        stream: vec![Piece::Inline(Bytes::from_static(STREAM))],
        segments: Vec::new(),
        dropped_segments: Vec::new(),
    };
    let (began, mut attempts) = (Instant::now(), Attempts::new(PATIENCE));
    loop {
        let room = Room {
            limit_bytes,
            free_bytes: free_bytes(began.elapsed()),
        };
        let ledger = Ledger::default();
        let error =
            match transfer::download(&chunk_client, None, manifest.clone(), ledger, room).await {
                Ok(received) => return (Ok(received), began.elapsed()),
                Err(error) => error,
            };
        match attempts.delay_after(error.severity()) {
            Some(delay) => sleep(delay).await,
            None => return (Err(error), began.elapsed()),
        }
    }
}

fn content(file: OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; STREAM.len()];
    File::from(file).read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[tokio::test(start_paused = true)]
async fn a_state_arrives_when_memory_is_free_again() {
    let shortage = Duration::from_mins(2);
    let free_bytes = |passed| if passed < shortage { 3 } else { 1 << 20 };
    let (received, waited) = receive(u64::MAX, free_bytes).await;
    assert_eq!(content(received.unwrap().file), STREAM);
    assert!(waited >= shortage, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shortage_is_waited_for_as_long_as_patience_allows() {
    let (received, waited) = receive(u64::MAX, |_| 3).await;
    let error = received.err().unwrap().to_string();
    assert_eq!(error, "This machine has no memory left for the state");
    assert!(waited >= PATIENCE, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_state_that_never_fits_is_refused_at_once() {
    let (received, waited) = receive(3, |_| 3).await;
    let error = received.err().unwrap().to_string();
    assert_eq!(error, "The state has 27 bytes; there is room for 3");
    assert_eq!(waited, Duration::ZERO);
}
