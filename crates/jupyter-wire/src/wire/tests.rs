#![allow(clippy::unwrap_used)]
use super::*;
use crate::message::{Draft, Signer, message_id};
use proptest::prelude::*;

fn greeting() -> Vec<u8> {
    let mut greeting = vec![0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn message(identities: usize, content_bytes: usize, buffers: usize) -> Bytes {
    let draft = Draft {
        parent_header: Bytes::from_static(br#"{"msg_id":"m1"}"#),
        buffers: vec![Bytes::from(vec![7; 300]); buffers],
        ..Draft::new("stream", vec![b'x'; content_bytes])
    };
    let mut frames = vec![Bytes::from_static(b"identity"); identities];
    frames.extend(draft.sign(&Signer::new(b"key", "hmac-sha256").unwrap(), "s"));
    encode_message(&frames)
}

const READY: &[u8] = b"\x04\x06\x05READY";

/// However the stream is cut, the same messages end at the same offsets.
fn check_ends(stream: &[u8], ends: &[usize], cuts: &[usize]) {
    let mut tracker = Tracker::default();
    let (mut offset, mut seen) = (0, Vec::new());
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % stream.len()).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    for cut in cuts.windows(2) {
        let mut rest = &stream[cut[0]..cut[1]];
        while !rest.is_empty() {
            let step = tracker.advance(rest).unwrap();
            offset += step.used;
            rest = &rest[step.used..];
            match step.ended {
                Some(Ended::Message(view)) => {
                    let parent = view.parent_header().and_then(message_id);
                    assert_eq!(parent.as_deref(), Some("m1"));
                    seen.push(offset);
                }
                Some(Ended::Command(command)) => {
                    assert_eq!(command, &READY[2..]);
                    seen.push(offset);
                }
                None => {
                    assert_eq!(
                        tracker.at_boundary(),
                        offset == GREETING_BYTES && rest.is_empty()
                    );
                    continue;
                }
            }
            assert!(tracker.at_boundary());
        }
    }
    assert_eq!(seen, ends);
}

proptest! {
    #[test]
    fn cuts_do_not_matter(
        shapes in prop::collection::vec((0_usize..4, 0_usize..70_000, 0_usize..40), 1..6),
        cuts in prop::collection::vec(any::<usize>(), 0..60),
    ) {
        let mut stream = greeting();
        stream.extend_from_slice(READY);
        let mut ends = vec![stream.len()];
        for (identities, content_bytes, buffers) in shapes {
            stream.extend_from_slice(&message(identities, content_bytes, buffers));
            ends.push(stream.len());
        }
        check_ends(&stream, &ends, &cuts);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut tracker = Tracker::after_greeting();
        let mut rest = &bytes[..];
        while let Ok(step) = tracker.advance(rest) {
            if step.used == 0 {
                break;
            }
            rest = &rest[step.used..];
        }
        let _ = decode_message(bytes.into());
    }
}

/// A frame with any flags. Its announced length may differ from that of its body.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![8 => 0_u8..8, 1 => any::<u8>()];
    let length = prop_oneof![6 => Just(None), 1 => any::<u64>().prop_map(Some)];
    let body = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        2 => Just(DELIMITER.to_vec()),
        1 => Just(vec![b'{'; 20_000]),
    ];
    (flags, length, body).prop_map(|(flags, length, body)| {
        let length = length.unwrap_or(body.len() as u64);
        let mut frame = vec![flags];
        match u8::try_from(length) {
            Ok(short) if flags & FLAG_LONG == 0 => frame.push(short),
            _ => {
                frame[0] |= FLAG_LONG;
                frame.extend(length.to_be_bytes());
            }
        }
        frame.extend(body);
        frame
    })
}

proptest! {
    /// A malicious peer's bytes: each piece is accepted or refused, and little is kept. Set
    /// `PROPTEST_CASES=1000000` for a longer search.
    #[test]
    fn any_frames_are_survived(
        begins_right in any::<bool>(),
        frames in prop::collection::vec(any_frame(), 0..60),
        piece in 1_usize..5000,
    ) {
        let mut stream = if begins_right { greeting() } else { Vec::new() };
        stream.extend(frames.concat());
        let mut tracker = Tracker::default();
        'stream: for piece in stream.chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                let Ok(step) = tracker.advance(rest) else { break 'stream };
                prop_assert!(step.used > 0);
                rest = &rest[step.used..];
                if let Some(Ended::Message(view)) = step.ended {
                    let _ = view.header().and_then(message_id);
                    let _ = (view.parent_header(), view.content());
                }
                let most = KEPT_FRAMES * usize::try_from(KEPT_FRAME_BYTES).unwrap();
                prop_assert!(tracker.kept.bytes.len() <= most);
            }
        }
    }
}

#[test]
fn every_single_cut_is_the_same() {
    let mut stream = greeting();
    let mut ends = Vec::new();
    for _ in 0..3 {
        stream.extend_from_slice(&message(1, 500, 1));
        ends.push(stream.len());
    }
    let every: Vec<usize> = (0..stream.len()).collect();
    check_ends(&stream, &ends, &every);
    for cut in every {
        check_ends(&stream, &ends, &[cut]);
    }
}

#[test]
fn long_frames_only_pass_by() {
    let mut tracker = Tracker::after_greeting();
    let wire = message(2, 1 << 20, 100);
    let step = tracker.advance(&wire).unwrap();
    assert_eq!(step.used, wire.len());
    let Some(Ended::Message(view)) = step.ended else {
        panic!("one message");
    };
    assert!(view.header().is_some());
    assert!(view.content().is_none());
    assert!(tracker.kept.bytes.len() < 32 << 10);
}

#[test]
fn malformed_frames_are_reported() {
    let check = |bytes: &[u8], expected| {
        let error = Tracker::after_greeting().advance(bytes).unwrap_err();
        assert_eq!(error, expected);
    };
    check(&[0x80, 1], WireError::ReservedFlags(0x80));
    check(&[5, 1, b'x'], WireError::CommandInMessage);
    check(&[1, 1, b'x', 4, 1, b'y'], WireError::CommandInMessage);
    check(
        &[2, 255, 255, 255, 255, 255, 255, 255, 255],
        WireError::TooLong(u64::MAX),
    );
}

#[test]
fn peers_that_cannot_be_followed_are_left_alone() {
    let check = |index: usize, byte: u8| {
        let mut stream = greeting();
        stream[index] = byte;
        stream.extend_from_slice(&message(0, 10, 0));
        let mut tracker = Tracker::default();
        let step = tracker.advance(&stream).unwrap();
        assert!(step.ended.is_none());
        assert_eq!(step.used, stream.len());
        assert!(tracker.is_blind() && !tracker.at_boundary());
    };
    check(0, 1); // ZMTP 1 has no signature
    check(10, 1); // ZMTP 2
    check(12, b'C'); // CURVE
}

#[test]
fn a_message_reads_back() {
    let wire = message(1, 400, 2);
    let frames = decode_message(wire.clone()).unwrap();
    assert_eq!(frames.len(), 9);
    assert_eq!(encode_message(&frames), wire);
}
