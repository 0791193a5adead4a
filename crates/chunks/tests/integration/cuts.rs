//! The file that an assembler makes cannot be changed, and batches are bounded.

use crate::ends::{End, noise};
use baton_chunks::{Assembler, Collector, Ledger, memory::Room};
use baton_protocol::{CHUNK_BYTES, StateVersion, TableId};
use std::{fs::File, os::unix::fs::FileExt};

#[test]
fn the_file_is_sealed() {
    let mut home = End::default();
    home.set(1, noise(100, 1));
    let message = home.send(b"stream").unwrap();
    let assembler = Assembler::new(message.manifest, Ledger::default(), Room::UNLIMITED).unwrap();
    let (file, _, _) = assembler.finish().unwrap();
    let file = File::from(file);
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 20).is_err());
}

#[test]
fn a_batch_is_bounded() {
    let mut home = End::default();
    home.set(1, noise(70 * CHUNK_BYTES, 1));
    let base = StateVersion {
        table: TableId::random(),
        messages: 0,
    };
    let pid = i32::try_from(std::process::id()).unwrap();
    let mut collector = Collector::new(pid, base, home.snapshot(b""), Ledger::default());
    let mut sizes = Vec::new();
    while let Some(batch) = collector.next_batch().unwrap() {
        sizes.push(batch.len());
    }
    assert_eq!(sizes, [32, 32, 6]);
    assert!(collector.next_batch().unwrap().is_none());
}
