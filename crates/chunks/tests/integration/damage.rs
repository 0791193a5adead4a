//! Messages that contradict themselves, or what is already there, are refused.

use crate::ends::{End, collect, noise};
use baton_chunks::{
    Assembler, Collector, Ledger, Severity, StateError, check_size, hash, memory::Room,
};
use baton_protocol::{
    CHUNK_BYTES, Manifest, Piece, SegmentPart, StateVersion, TableId,
    shim::{SegmentView, Snapshot, Stream, StreamPart},
};
use bytes::Bytes;

fn manifest(segments: Vec<SegmentPart>) -> Manifest {
    Manifest {
        base: StateVersion {
            table: TableId::random(),
            messages: 1,
        },
        stream: Vec::new(),
        segments,
        dropped_segments: Vec::new(),
    }
}

fn part(bytes: u64, fresh: bool, chunks: Vec<(u32, Piece)>) -> SegmentPart {
    SegmentPart {
        number: 7,
        bytes,
        fresh,
        chunks,
    }
}

fn inline(bytes: usize) -> Piece {
    Piece::Inline(Bytes::from(vec![1; bytes]))
}

fn stored(bytes: u32) -> Piece {
    let hash = hash(b"some");
    Piece::Stored { hash, bytes }
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    #[track_caller]
    fn check(parts: Vec<SegmentPart>, expected: &str) {
        let error = Assembler::new(manifest(parts), Ledger::default(), Room::UNLIMITED)
            .err()
            .unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mib = CHUNK_BYTES as u64;
    check(vec![part(3, true, vec![])], "incomplete");
    check(vec![part(u64::MAX, true, vec![])], "incomplete");
    check(vec![part(3, true, vec![(0, inline(2))])], "does not fit");
    check(vec![part(3, true, vec![(1, inline(3))])], "does not fit");
    check(vec![part(0, true, vec![(0, inline(0))])], "empty");
    check(
        vec![part(mib + 1, true, vec![(0, stored(1 << 21))])],
        "too large",
    );
    let twice = vec![(0, stored(1 << 20)), (0, stored(1 << 20))];
    check(vec![part(mib + 1, true, twice)], "out of order");
    check(vec![part(0, true, vec![]), part(0, true, vec![])], "twice");
    check(vec![part(3, false, vec![])], "was never sent");
    let sizes = vec![(0, stored(1 << 20)), (1, stored(1))];
    check(vec![part(mib + 1, true, sizes)], "two sizes");
    let mut dropped = manifest(vec![part(0, true, vec![])]);
    dropped.dropped_segments = vec![7];
    let error = Assembler::new(dropped, Ledger::default(), Room::UNLIMITED)
        .err()
        .unwrap();
    assert!(error.to_string().contains("dropped"), "{error}");
}

#[test]
fn a_known_segment_keeps_its_size() {
    let mut home = End::default();
    home.set(7, noise(100, 1));
    home.send(b"").unwrap();
    home.set(7, noise(101, 1));
    let error = home.send(b"").err().unwrap();
    assert!(
        matches!(error, StateError::Ledger { segment: 7, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("another size"), "{error}");
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    let mut home = End::default();
    home.set(7, noise(100, 1));
    let mut twice = home.snapshot(b"");
    twice.segments.push(twice.segments[0].clone());
    let mut dropped = home.snapshot(b"");
    dropped.dropped_segments.push(7);
    let mut unknown = home.snapshot(b"");
    unknown.segments[0].fresh = false;
    let check = |snapshot: Snapshot, expected: &str| {
        let error = collect(snapshot, Ledger::default()).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(twice, "twice");
    check(dropped, "dropped");
    check(unknown, "never sent");
}

#[test]
fn chunks_are_verified_as_they_arrive() {
    let mut home = End::default();
    home.set(1, noise(CHUNK_BYTES, 1));
    home.set(2, noise(CHUNK_BYTES, 2));
    let message = home.send(b"").unwrap();
    let mut assembler =
        Assembler::new(message.manifest, Ledger::default(), Room::UNLIMITED).unwrap();
    let wanted = assembler.wanted();
    let [first, second] = wanted[..] else {
        panic!("two chunks")
    };

    let wrong = assembler.place(first, &message.chunks[&second]);
    assert!(
        matches!(wrong, Err(StateError::Damaged { hash, found }) if (hash, found) == (first, second))
    );
    let cut = assembler.place(first, &message.chunks[&first][..100]);
    assert!(matches!(cut, Err(StateError::Damaged { .. })));
    let foreign = assembler.place(hash(b"foreign"), b"foreign");
    assert!(matches!(foreign, Err(StateError::NotWanted { .. })));
    assert_eq!(assembler.wanted(), wanted);

    assembler.place(first, &message.chunks[&first]).unwrap();
    assembler.place(first, &message.chunks[&first]).unwrap();
    assert_eq!(assembler.wanted(), [second]);
    let early = assembler.finish().err().unwrap();
    assert!(matches!(early, StateError::Incomplete { missing: 1 }));
}

#[test]
#[should_panic(expected = "the last batch comes before the manifest")]
fn an_unfinished_collector_makes_no_manifest() {
    let home = End::default();
    let base = StateVersion {
        table: TableId::random(),
        messages: 0,
    };
    let _ = Collector::new(1, base, home.snapshot(b""), Ledger::default()).finish();
}

/// A manifest claims 1 GiB, all of one chunk. Nothing is allocated for it on any machine.
#[test]
fn a_state_that_says_more_than_there_is_room_for_is_refused() {
    let chunks = (0..1024).map(|index| (index, stored(1 << 20))).collect();
    let large = manifest(vec![part(1 << 30, true, chunks)]);
    let too_little = (1 << 30) - 1;
    let error = |limit_bytes, free_bytes| {
        let room = Room {
            limit_bytes,
            free_bytes,
        };
        Assembler::new(large.clone(), Ledger::default(), room).err()
    };
    for free_bytes in [0, u64::MAX] {
        let never = error(too_little, free_bytes).unwrap();
        assert!(
            matches!(never, StateError::NoRoom { bytes, .. } if bytes == 1 << 30),
            "{never:?}"
        );
        assert_eq!(never.severity(), Severity::Lasting);
    }
    let not_now = error(1 << 30, too_little).unwrap();
    assert!(matches!(not_now, StateError::MemoryFull), "{not_now:?}");
    assert_eq!(not_now.severity(), Severity::Passing);
    assert!(error(1 << 30, 1 << 30).is_none());
}

/// The parts of a snapshot claim more than a session's memory can hold, also more than a number can count.
#[test]
fn a_snapshot_that_claims_too_much_is_refused() {
    #[track_caller]
    fn check(stream_bytes: u64, segment_bytes: &[u64], expected: Option<u64>) {
        let address = 4096;
        let bytes = stream_bytes;
        let snapshot = Snapshot {
            messages: 0,
            stream: Stream(vec![StreamPart::At { address, bytes }]),
            segments: (1..)
                .zip(segment_bytes)
                .map(|(number, bytes)| SegmentView {
                    number,
                    address,
                    bytes: *bytes,
                    fresh: true,
                    digests: None,
                })
                .collect(),
            dropped_segments: Vec::new(),
        };
        let found = match check_size(&snapshot, 1 << 30) {
            Err(StateError::NoRoom { bytes, .. }) => Some(bytes),
            other => other.map(|()| None).unwrap(),
        };
        assert_eq!(found, expected);
    }
    check(1 << 20, &[1 << 20, 1 << 20], None);
    check(0, &[1 << 50], Some(1 << 50));
    check(1 << 50, &[], Some(1 << 50));
    check(1, &[1 << 29, 1 << 29], Some((1 << 30) + 1));
    check(2, &[u64::MAX, 1], Some(u64::MAX));
}
