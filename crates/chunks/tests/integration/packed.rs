//! On one machine a message is one file. It means the same as a manifest and its chunks, and both
//! may alternate.

use crate::{
    ends::{End, noise},
    round_trip::{change, make},
    sys::Mapped,
};
use baton_chunks::{Bundle, Ledger, StateError, memory::Room, pack};
use baton_protocol::{
    memory::{self, BLOCK_BYTES},
    shim::{Delta, Extent, MAPPED_BYTES, Patch, SegmentDelta},
};
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};
use proptest::prelude::*;
use serde_bytes::ByteBuf;
use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt},
};
use twox_hash::XxHash3_128;

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn both_ends_hold_the_same_whichever_lane_each_message_takes(
        turns in prop::collection::vec((any::<bool>(), prop::collection::vec(change(), 0..5)), 1..6),
        stream_bytes in prop::sample::select(vec![0, 10, BLOCK_BYTES + 1]),
    ) {
        let (mut home, mut session) = (End::default(), End::default());
        for (by_memory, changes) in turns {
            for change in changes {
                make(&mut home, change);
            }
            let stream = noise(stream_bytes, 9);
            let said = if by_memory {
                let bundle = home.pack(&stream).unwrap();
                session.unpack(bundle).unwrap()
            } else {
                let message = home.send(&stream).unwrap();
                session.receive(&message).unwrap()
            };
            prop_assert_eq!(said, stream);
            prop_assert!(home.segments == session.segments);
            prop_assert!(home.ledger == session.ledger);
            std::mem::swap(&mut home, &mut session);
        }
    }
}

#[test]
fn what_the_kernel_itself_found_unchanged_is_not_read() {
    let (mut home, mut session) = (End::default(), End::default());
    home.set(1, noise(10 * BLOCK_BYTES + 5, 1));
    session.unpack(home.pack(b"first").unwrap()).unwrap();

    let bytes = home.segments.get_mut(&1).unwrap();
    for block in [2, 4, 10] {
        bytes[block * BLOCK_BYTES] ^= 1;
    }
    let mut found = found_in(bytes);
    // The digests hide the second change; blocks that they show as changed are sent without another look.
    found[4] = XxHash3_128::oneshot(&session.segments[&1][4 * BLOCK_BYTES..5 * BLOCK_BYTES]);
    found[6] ^= 1;
    home.digests.insert(1, found);
    let bundle = home.pack(b"second").unwrap();
    let patches = &bundle.content().delta.segments[0].patches;
    let offsets: Vec<u64> = patches
        .iter()
        .map(|patch| patch.offset / BLOCK_BYTES as u64)
        .collect();
    assert_eq!(offsets, [2, 6, 10]);
}

#[test]
fn only_the_changed_blocks_are_in_the_file() {
    let (mut home, mut session) = (End::default(), End::default());
    home.set(1, noise(100 * BLOCK_BYTES + 5, 1));
    home.set(2, noise(10, 2));
    session.unpack(home.pack(b"first").unwrap()).unwrap();

    let bytes = session.segments.get_mut(&1).unwrap();
    for place in [
        7,
        20 * BLOCK_BYTES,
        21 * BLOCK_BYTES + 9,
        100 * BLOCK_BYTES + 4,
    ] {
        bytes[place] ^= 1;
    }
    let back = session.pack(b"back").unwrap();
    let [segment] = back.content().delta.segments.as_slice() else {
        panic!("{:?}", back.content().delta);
    };
    let sizes: Vec<u64> = segment
        .patches
        .iter()
        .map(|patch| patch.source.bytes)
        .collect();
    let block = BLOCK_BYTES as u64;
    assert_eq!(sizes, [block, 2 * block, 5]);
    assert!(back.file_bytes() < 4 * block);
    home.unpack(back).unwrap();
    assert_eq!(home.segments, session.segments);

    let again = home.pack(b"again").unwrap();
    assert!(again.content().delta.segments.is_empty());
}

#[test]
fn large_segments_are_read_by_several_threads() {
    let (mut home, mut session) = (End::default(), End::default());
    home.set(1, noise(21 << 20, 1));
    home.set(2, noise((9 << 20) + 123, 2));
    session.unpack(home.pack(b"").unwrap()).unwrap();
    assert!(home.segments == session.segments);
    assert!(home.ledger == session.ledger);

    for place in (0..(21 << 20)).step_by(300 << 10) {
        session.segments.get_mut(&1).unwrap()[place] ^= 1;
    }
    session.segments.get_mut(&2).unwrap().fill(3);
    home.unpack(session.pack(b"").unwrap()).unwrap();
    assert!(home.segments == session.segments);
    assert!(home.ledger == session.ledger);

    // Many small changes, which are read together.
    for (number, bytes) in &mut home.segments {
        let length = bytes.len();
        for place in (0..length).step_by(50 << 10).chain([length - 1]) {
            bytes[place] ^= 1;
        }
        home.digests.insert(*number, found_in(bytes));
    }
    session.unpack(home.pack(b"").unwrap()).unwrap();
    assert!(home.segments == session.segments);
    assert!(home.ledger == session.ledger);
    assert!(home.pack(b"").unwrap().content().delta.segments.is_empty());
}

#[test]
fn many_small_segments_take_little_room() {
    let (mut home, mut session) = (End::default(), End::default());
    for number in 0..1000 {
        home.set(number, noise(100, u64::from(number)));
    }
    let bundle = home.pack(b"").unwrap();
    assert!(bundle.file_bytes() < 200_000, "{}", bundle.file_bytes());
    session.unpack(bundle).unwrap();
    assert_eq!(home.segments, session.segments);
}

#[test]
fn a_new_table_needs_nothing_of_the_past() {
    let (mut home, mut session) = (End::default(), End::default());
    home.set(1, noise(10, 1));
    home.set(2, noise(10, 2));
    session.unpack(home.pack(b"").unwrap()).unwrap();
    home.messages = 0;
    home.seen.clear();
    home.segments.remove(&2);
    let mut session = End {
        ledger: session.ledger,
        ..End::default()
    };
    session.unpack(home.pack(b"").unwrap()).unwrap();
    assert_eq!(session.ledger.segments(), 1);
    assert_eq!(home.segments, session.segments);
}

#[test]
fn packing_can_be_given_up() {
    let mut home = End::default();
    home.set(1, noise(20 << 20, 1));
    let pid = i32::try_from(std::process::id()).unwrap();
    let error = pack(
        pid,
        &home.snapshot(b""),
        &Ledger::default(),
        Room::UNLIMITED,
        &|| true,
    )
    .unwrap_err();
    assert!(matches!(error, StateError::Cancelled), "{error}");
}

#[test]
fn nothing_is_copied_that_does_not_fit() {
    let mut home = End::default();
    home.set(1, noise(20 << 20, 1));
    let pid = i32::try_from(std::process::id()).unwrap();
    let check = |home: &End, limit_bytes: u64, free_bytes: u64, expected: &str| {
        let room = Room {
            limit_bytes,
            free_bytes,
        };
        let error = pack(pid, &home.snapshot(b""), &home.ledger, room, &|| false).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let full = "This machine has no memory left for the state";
    let never = "The state has 20971520 bytes; there is room for 1048576";
    check(&home, 1 << 20, 1 << 20, never);
    check(&home, u64::MAX, 1 << 20, full);
    // Which blocks have changed is found out while they are copied.
    home.pack(b"").unwrap();
    home.set(1, noise(20 << 20, 2));
    check(&home, u64::MAX, 1 << 20, full);
}

#[test]
fn memory_that_is_not_there_is_named() {
    let mut home = End::default();
    home.set(1, noise(20 << 20, 1));
    let mut snapshot = home.snapshot(b"");
    snapshot.segments[0].address = 4096;
    let pid = i32::try_from(std::process::id()).unwrap();
    let error = pack(pid, &snapshot, &Ledger::default(), Room::UNLIMITED, &|| {
        false
    })
    .unwrap_err();
    assert!(matches!(error, StateError::Memory { .. }), "{error}");
}

#[test]
fn a_segment_that_was_never_sent_is_not_known() {
    let mut home = End::default();
    home.set(1, noise(10, 1));
    home.seen.push(1);
    let error = home.pack(b"").unwrap_err();
    assert!(
        matches!(error, StateError::Ledger { segment: 1, .. }),
        "{error}"
    );
}

/// The ledger's digests differ in every block, so a block that is missing in the file was not read.
#[test]
fn of_a_received_segment_only_what_was_written_to_is_read() {
    let blocks = 1000;
    let (mut home, mut other) = (End::default(), End::default());
    home.set(1, noise(blocks * BLOCK_BYTES + 5, 1));
    other.set(1, noise(blocks * BLOCK_BYTES + 5, 2));
    let received = home.pack(b"stream").unwrap();
    other.pack(b"stream").unwrap();

    let place = received.content().delta.segments[0].patches[0]
        .source
        .offset;
    let mut mapped = Mapped::new(received.file(), received.file_bytes());
    let mut snapshot = home.snapshot(b"");
    snapshot.segments[0].address = mapped.address() + place;
    let segment = &mut mapped.bytes()[usize::try_from(place).unwrap()..];
    assert_eq!(segment[7 * BLOCK_BYTES], home.segments[&1][7 * BLOCK_BYTES]);
    for block in [3, 4, 500] {
        segment[block * BLOCK_BYTES + 9] ^= 1;
    }
    let pid = i32::try_from(std::process::id()).unwrap();
    let bundle = pack(pid, &snapshot, &other.ledger, Room::UNLIMITED, &|| false).unwrap();
    let patches = &bundle.content().delta.segments[0].patches;
    let block = BLOCK_BYTES as u64;
    let found: Vec<(u64, u64)> = patches
        .iter()
        .map(|patch| (patch.offset / block, patch.source.bytes / block))
        .collect();
    assert_eq!(found, [(3, 2), (500, 1)]);

    // A new table does not use what was received.
    snapshot.segments[0].fresh = true;
    let bundle = pack(pid, &snapshot, &other.ledger, Room::UNLIMITED, &|| false).unwrap();
    let patches = &bundle.content().delta.segments[0].patches;
    assert_eq!(patches[0].source.bytes, blocks as u64 * block + 5);
}

#[test]
fn the_file_is_sealed() {
    let mut home = End::default();
    home.set(1, noise(100, 1));
    let (file, _) = home.pack(b"stream").unwrap().into_parts();
    let file = File::from(file);
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 20).is_err());
}

fn file(bytes: u64, seals: SealFlag) -> OwnedFd {
    let file = File::from(memfd_create("test", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(bytes).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file.into()
}

fn sealed(bytes: u64) -> OwnedFd {
    file(bytes, SealFlag::all() - SealFlag::F_SEAL_FUTURE_WRITE)
}

fn patch(offset: u64, place: u64, bytes: u64) -> Patch {
    Patch {
        offset,
        source: Extent {
            offset: place,
            bytes,
        },
    }
}

/// The digest of each whole block, as a kernel computes them for its own memory.
fn found_in(bytes: &[u8]) -> Vec<u128> {
    let blocks = bytes.chunks_exact(BLOCK_BYTES);
    blocks.map(XxHash3_128::oneshot).collect()
}

fn content(segments: Vec<SegmentDelta>, digests: usize) -> memory::Bundle {
    memory::Bundle {
        delta: Delta {
            messages: 1,
            stream: Extent {
                offset: 0,
                bytes: 2,
            },
            segments,
            dropped_segments: vec![5],
        },
        digests: ByteBuf::from(vec![0; 16 * digests]),
    }
}

fn segment(number: u32, bytes: u64, fresh: bool, patches: Vec<Patch>) -> SegmentDelta {
    SegmentDelta {
        number,
        bytes,
        fresh,
        patches,
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    #[track_caller]
    fn check(segments: Vec<SegmentDelta>, digests: usize, expected: &str) {
        let error = Bundle::receive(content(segments, digests), sealed(1 << 20)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let block = BLOCK_BYTES as u64;
    Bundle::receive(content(vec![], 0), sealed(2)).unwrap();
    check(vec![segment(1, 9, true, vec![])], 0, "incomplete");
    check(
        vec![segment(1, 9, true, vec![patch(0, 0, 8)])],
        1,
        "incomplete",
    );
    check(
        vec![segment(1, 9, true, vec![patch(0, 1 << 20, 9)])],
        1,
        "outside its file",
    );
    check(
        vec![segment(1, 9, true, vec![patch(0, u64::MAX - 3, 9)])],
        1,
        "outside its file",
    );
    check(
        vec![segment(
            1,
            MAPPED_BYTES,
            true,
            vec![patch(0, 64, MAPPED_BYTES)],
        )],
        16,
        "in the wrong place",
    );
    let known = |patches| segment(1, 3 * block, false, patches);
    check(
        vec![known(vec![patch(5, 64, block)])],
        1,
        "in the wrong place",
    );
    check(
        vec![known(vec![patch(block, 64, block), patch(0, 64, block)])],
        2,
        "in the wrong place",
    );
    check(vec![known(vec![patch(0, 64, 7)])], 1, "does not fit");
    check(
        vec![known(vec![patch(block, 64, 3 * block)])],
        3,
        "does not fit",
    );
    check(
        vec![known(vec![patch(0, 64, block)])],
        2,
        "one digest for each block",
    );
    check(vec![known(vec![]), known(vec![])], 0, "twice");
    check(vec![segment(5, 0, true, vec![])], 0, "dropped");
}

#[test]
fn a_file_that_can_still_change_is_refused() {
    for seals in [
        SealFlag::empty(),
        SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW,
    ] {
        let error = Bundle::receive(content(vec![], 0), file(2, seals)).unwrap_err();
        assert!(
            error.to_string().contains("can still be changed"),
            "{error}"
        );
    }
}
