//! After a message the other end holds what the first one holds, and only changes were sent.

use crate::ends::{End, noise};
use baton_protocol::{CHUNK_BYTES, INLINE_BYTES, Manifest, Piece};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Replace {
        number: u32,
        bytes: usize,
        seed: u64,
    },
    Poke {
        number: u32,
        place: usize,
    },
    Drop {
        number: u32,
    },
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    let sizes = prop::sample::select(vec![
        0,
        1,
        INLINE_BYTES,
        INLINE_BYTES + 1,
        CHUNK_BYTES - 1,
        CHUNK_BYTES,
        CHUNK_BYTES + 1,
        2 * CHUNK_BYTES + 77,
    ]);
    prop_oneof![
        (0..6_u32, sizes, 0..3_u64).prop_map(|(number, bytes, seed)| Change::Replace {
            number,
            bytes,
            seed
        }),
        (0..6_u32, 0..3 * CHUNK_BYTES).prop_map(|(number, place)| Change::Poke { number, place }),
        (0..6_u32).prop_map(|number| Change::Drop { number }),
    ]
}

pub(crate) fn make(end: &mut End, change: Change) {
    match change {
        Change::Replace {
            number,
            bytes,
            seed,
        } => {
            end.set(number, noise(bytes, seed));
            end.seen.retain(|seen| *seen != number);
            end.dropped.retain(|dropped| *dropped != number);
        }
        Change::Poke { number, place } => {
            let byte = end
                .segments
                .get_mut(&number)
                .and_then(|bytes| bytes.get_mut(place));
            if let Some(byte) = byte {
                *byte = byte.wrapping_add(1);
            }
        }
        Change::Drop { number } => {
            // A segment that was replaced before it was sent again still exists at the other end.
            if end.segments.remove(&number).is_some() {
                end.dropped.push(number);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn both_ends_hold_the_same_after_each_message(
        turns in prop::collection::vec(prop::collection::vec(change(), 0..5), 1..5),
        stream_bytes in prop::sample::select(vec![0, 10, INLINE_BYTES + 1, CHUNK_BYTES + 1]),
    ) {
        let (mut home, mut session) = (End::default(), End::default());
        for changes in turns {
            for change in changes {
                make(&mut home, change);
            }
            let stream = noise(stream_bytes, 9);
            let message = home.send(&stream).unwrap();
            prop_assert_eq!(session.receive(&message).unwrap(), stream);
            prop_assert!(home.segments == session.segments);
            prop_assert!(home.ledger == session.ledger);
            std::mem::swap(&mut home, &mut session);
        }
    }
}

#[test]
fn only_the_changed_chunks_move() {
    let (mut home, mut session) = (End::default(), End::default());
    home.set(1, noise(5 * CHUNK_BYTES, 1));
    home.set(2, noise(3 * CHUNK_BYTES, 2));
    let first = home.send(b"first").unwrap();
    assert_eq!(first.chunks.len(), 8);
    session.receive(&first).unwrap();

    session.segments.get_mut(&1).unwrap()[2 * CHUNK_BYTES + 5] ^= 1;
    session.segments.get_mut(&1).unwrap()[3 * CHUNK_BYTES] ^= 1;
    let back = session.send(b"back").unwrap();
    assert_eq!(back.chunks.len(), 2);
    assert_eq!(parts(&back.manifest), [(1, vec![2, 3])]);
    home.receive(&back).unwrap();
    assert_eq!(home.segments, session.segments);

    let again = home.send(b"again").unwrap();
    assert!(again.manifest.segments.is_empty());
    assert!(again.chunks.is_empty());
}

#[test]
fn equal_content_moves_once() {
    let mut home = End::default();
    home.set(1, vec![0; 4 * CHUNK_BYTES]);
    home.set(2, vec![0; CHUNK_BYTES]);
    let message = home.send(b"").unwrap();
    assert_eq!(message.chunks.len(), 1);
    let mut session = End::default();
    session.receive(&message).unwrap();
    assert_eq!(home.segments, session.segments);
}

#[test]
fn many_small_segments_do_not_make_the_manifest_large() {
    let (mut home, mut session) = (End::default(), End::default());
    for number in 0..1000 {
        home.set(number, noise(INLINE_BYTES, u64::from(number)));
    }
    let message = home.send(b"").unwrap();
    let inline = message.manifest.pieces().map(|piece| match piece {
        Piece::Inline(bytes) => bytes.len(),
        Piece::Stored { .. } => 0,
    });
    assert!(inline.sum::<usize>() <= 4 << 20);
    session.receive(&message).unwrap();
    assert_eq!(home.segments, session.segments);
}

#[test]
fn a_new_table_needs_nothing_of_the_past() {
    let mut home = End::default();
    home.set(1, noise(10, 1));
    home.send(b"").unwrap();
    home.messages = 0;
    home.seen.clear();
    let message = home.send(b"").unwrap();
    let mut session = End {
        ledger: home.ledger.clone(),
        ..End::default()
    };
    session.receive(&message).unwrap();
    assert_eq!(session.ledger.segments(), 1);
    assert_eq!(home.segments, session.segments);
}

fn parts(manifest: &Manifest) -> Vec<(u32, Vec<u32>)> {
    let chunks =
        |part: &baton_protocol::SegmentPart| part.chunks.iter().map(|(index, _)| *index).collect();
    let parts = manifest.segments.iter();
    parts.map(|part| (part.number, chunks(part))).collect()
}
