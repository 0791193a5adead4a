//! ZMTP 3 framing: finds the ends of messages in a byte stream, and copies their small frames.
//!
//! In: the bytes of one direction of one connection, cut anywhere. Out: the ends of messages. A
//! frame is flags (bit 0 more, bit 1 long, bit 2 command), one or eight bytes of length, and its
//! body. A greeting of 64 bytes comes first (<https://rfc.zeromq.org/spec/23/>).
//!
//! **Invariant:** this module never touches a socket and never changes a forwarded byte.

use crate::message::DELIMITER;
use bytes::{BufMut as _, Bytes, BytesMut};
use std::ops::Range;

const GREETING_BYTES: usize = 64;
/// Frames up to this size are kept for reading; longer ones (images, comm buffers) are not.
const KEPT_FRAME_BYTES: u64 = 16 << 10;
/// Enough for identities and all frames up to the content; later frames are not kept.
const KEPT_FRAMES: usize = 32;

const FLAG_MORE: u8 = 1;
const FLAG_LONG: u8 = 2;
const FLAG_COMMAND: u8 = 4;
const FLAGS_RESERVED: u8 = !(FLAG_MORE | FLAG_LONG | FLAG_COMMAND);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    #[error("A frame has the reserved flags {0:#04x}")]
    ReservedFlags(u8),
    #[error("A command is in the middle of a message")]
    CommandInMessage,
    #[error("A frame announces {0} bytes")]
    TooLong(u64),
}

/// Follows one direction of one connection.
#[derive(Debug, Default)]
pub struct Tracker {
    stage: Stage,
    kept: Kept,
    /// At least one frame of a message has passed, and more of its frames follow.
    inside_message: bool,
}

/// How far [`Tracker::advance`] went.
#[derive(Debug)]
pub struct Step<'a> {
    pub used: usize,
    /// The message or command that ended with the last used byte.
    pub ended: Option<Ended<'a>>,
}

#[derive(Debug)]
pub enum Ended<'a> {
    Message(MessageView<'a>),
    /// The body of a READY, SUBSCRIBE, PING or similar frame.
    Command(&'a [u8]),
}

impl Tracker {
    /// Follows bytes that begin between two messages, after the greeting.
    #[must_use]
    pub fn after_greeting() -> Self {
        Self {
            stage: Stage::NEXT_FRAME,
            ..Self::default()
        }
    }

    /// Whether the stream is between two messages, the only position where other bytes may be inserted.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        matches!(self.stage, Stage::Prefix { count: 0, .. }) && !self.inside_message
    }

    /// Whether messages cannot be parsed because the peer speaks an older ZMTP or encrypts.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        matches!(self.stage, Stage::Blind)
    }

    /// Consumes bytes up to the end of the next message or command, or all of them.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Step<'_>, WireError> {
        if !self.inside_message && self.at_boundary() {
            self.kept.clear();
        }
        let mut used = 0;
        while used < bytes.len() {
            let (taken, closed) = self.stage.feed(&bytes[used..], &mut self.kept)?;
            used += taken;
            let Some(flags) = closed else { continue };
            let was_inside = self.inside_message;
            self.inside_message = flags & FLAG_MORE != 0;
            if flags & FLAG_COMMAND != 0 {
                if was_inside || self.inside_message {
                    return Err(WireError::CommandInMessage);
                }
                let ended = Some(Ended::Command(self.kept.frame(0).unwrap_or_default()));
                return Ok(Step { used, ended });
            }
            if !self.inside_message {
                let ended = Some(Ended::Message(MessageView { kept: &self.kept }));
                return Ok(Step { used, ended });
            }
        }
        Ok(Step { used, ended: None })
    }
}

#[derive(Debug)]
enum Stage {
    Greeting {
        seen: Vec<u8>,
    },
    /// Flags and length of a frame, as far as they have arrived.
    Prefix {
        seen: [u8; 9],
        count: usize,
    },
    Body {
        flags: u8,
        left: u64,
    },
    Blind,
}

impl Default for Stage {
    fn default() -> Self {
        Self::Greeting {
            seen: Vec::with_capacity(GREETING_BYTES),
        }
    }
}

impl Stage {
    const NEXT_FRAME: Self = Self::Prefix {
        seen: [0; 9],
        count: 0,
    };

    /// Consumes at least one of `bytes`, which must not be empty. Returns their number, and the
    /// flags of the frame if it ended.
    fn feed(&mut self, bytes: &[u8], kept: &mut Kept) -> Result<(usize, Option<u8>), WireError> {
        match self {
            Self::Blind => Ok((bytes.len(), None)),
            Self::Greeting { seen } => {
                let taken = bytes.len().min(GREETING_BYTES - seen.len());
                seen.extend_from_slice(&bytes[..taken]);
                if !is_plain_greeting(seen) {
                    *self = Self::Blind;
                } else if seen.len() == GREETING_BYTES {
                    *self = Self::NEXT_FRAME;
                }
                Ok((taken, None))
            }
            Self::Prefix { seen, count } => {
                seen[*count] = bytes[0];
                *count += 1;
                let Some((flags, left)) = read_prefix(&seen[..*count])? else {
                    return Ok((1, None));
                };
                kept.open(left);
                if left == 0 {
                    *self = Self::NEXT_FRAME;
                    return Ok((1, Some(flags)));
                }
                *self = Self::Body { flags, left };
                Ok((1, None))
            }
            Self::Body { flags, left } => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                kept.extend(&bytes[..taken]);
                *left -= taken as u64;
                if *left > 0 {
                    return Ok((taken, None));
                }
                let flags = *flags;
                *self = Self::NEXT_FRAME;
                Ok((taken, Some(flags)))
            }
        }
    }
}

/// Whether these bytes can still become an unencrypted ZMTP 3 greeting.
fn is_plain_greeting(seen: &[u8]) -> bool {
    let byte_is =
        |index: usize, check: fn(u8) -> bool| seen.get(index).is_none_or(|&byte| check(byte));
    let mechanism = seen.get(12..).unwrap_or_default();
    let mechanism = &mechanism[..mechanism.len().min(20)];
    let could_be = |name: &[u8; 20]| name.starts_with(mechanism);
    byte_is(0, |byte| byte == 0xff)
        && byte_is(9, |byte| byte & 1 == 1)
        && byte_is(10, |version| version >= 3)
        && (could_be(b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")
            || could_be(b"PLAIN\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"))
}

/// Returns flags and length of the body once the prefix is complete.
fn read_prefix(seen: &[u8]) -> Result<Option<(u8, u64)>, WireError> {
    let flags = seen[0];
    if flags & FLAGS_RESERVED != 0 {
        return Err(WireError::ReservedFlags(flags));
    }
    let length = match (flags & FLAG_LONG != 0, &seen[1..]) {
        (false, [length]) => u64::from(*length),
        (true, long) if long.len() == 8 => long
            .iter()
            .fold(0, |length, byte| length << 8 | u64::from(*byte)),
        _ => return Ok(None),
    };
    if length > i64::MAX.cast_unsigned() {
        return Err(WireError::TooLong(length));
    }
    Ok(Some((flags, length)))
}

/// Copies of one message's small frames; `None` stands for one that was too long.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    frames: Vec<Option<Range<usize>>>,
    /// Whether the open frame is copied.
    keeps_open: bool,
}

impl Kept {
    fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }

    fn open(&mut self, length: u64) {
        self.keeps_open = length <= KEPT_FRAME_BYTES && self.frames.len() < KEPT_FRAMES;
        if self.frames.len() < KEPT_FRAMES {
            let start = self.bytes.len();
            self.frames.push(self.keeps_open.then_some(start..start));
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.keeps_open
            && let Some(Some(frame)) = self.frames.last_mut()
        {
            self.bytes.extend_from_slice(bytes);
            frame.end = self.bytes.len();
        }
    }

    fn frame(&self, index: usize) -> Option<&[u8]> {
        let range = self.frames.get(index)?.clone()?;
        Some(&self.bytes[range])
    }
}

/// Copies of the small frames of a message that has passed. Frames are located from the delimiter
/// on, because any number of identities may precede it.
#[derive(Debug, Clone, Copy)]
pub struct MessageView<'a> {
    kept: &'a Kept,
}

impl<'a> MessageView<'a> {
    /// An identity, a topic or a subscription; the delimiter if nothing precedes it.
    #[must_use]
    pub fn first_frame(self) -> Option<&'a [u8]> {
        self.kept.frame(0)
    }

    #[must_use]
    pub fn header(self) -> Option<&'a [u8]> {
        self.after_delimiter(2)
    }

    #[must_use]
    pub fn parent_header(self) -> Option<&'a [u8]> {
        self.after_delimiter(3)
    }

    #[must_use]
    pub fn content(self) -> Option<&'a [u8]> {
        self.after_delimiter(5)
    }

    fn after_delimiter(self, index: usize) -> Option<&'a [u8]> {
        let delimiter =
            (0..self.kept.frames.len()).find(|frame| self.kept.frame(*frame) == Some(DELIMITER))?;
        self.kept.frame(delimiter + index)
    }
}

/// One message in its wire format.
#[must_use]
pub fn encode_message(frames: &[Bytes]) -> Bytes {
    let mut wire = BytesMut::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (index, frame) in frames.iter().enumerate() {
        let more = if index + 1 < frames.len() {
            FLAG_MORE
        } else {
            0
        };
        if let Ok(length) = u8::try_from(frame.len()) {
            wire.put_slice(&[more, length]);
        } else {
            wire.put_u8(more | FLAG_LONG);
            wire.put_u64(frame.len() as u64);
        }
        wire.put_slice(frame);
    }
    wire.freeze()
}

/// The frames of one whole message in wire format, without copying them.
pub fn decode_message(mut wire: Bytes) -> Result<Vec<Bytes>, WireError> {
    let mut frames = Vec::new();
    while !wire.is_empty() {
        let prefix_bytes = if wire[0] & FLAG_LONG == 0 { 2 } else { 9 };
        let Some((_, length)) = read_prefix(&wire[..prefix_bytes.min(wire.len())])? else {
            break;
        };
        let body = usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_add(prefix_bytes));
        let Some(end) = body.filter(|end| *end <= wire.len()) else {
            return Err(WireError::TooLong(length));
        };
        frames.push(wire.slice(prefix_bytes..end));
        wire = wire.slice(end..);
    }
    Ok(frames)
}

#[cfg(test)]
mod tests;
