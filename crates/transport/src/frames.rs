//! Messages and files over a Unix socket between processes of one machine.
//!
//! A frame is a length (8 bytes, big endian) and one MessagePack document. A frame that hands over
//! memory carries exactly one file descriptor, with its first byte.
//!
//! **Invariant:** this module knows no message types; it moves anything that can be encoded.

mod sys;

use baton_protocol::{Bound, DecodeError, decode, encode};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::IoSlice,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Frames may be large, because a pickle stream is part of a frame. Lengths above this must be wrong.
const LARGEST_FRAME_BYTES: u64 = 8 << 30;

/// The buffer to keep: enough for an ordinary frame in one read.
const KEPT_BUFFER_BYTES: usize = 16 << 10;
/// The most memory to allocate at once for an announced large frame.
const LARGEST_READ_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    #[error("The private connection broke")]
    Io(#[from] std::io::Error),
    #[error("The other end's message of {0} bytes is too large")]
    TooLarge(u64),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

#[must_use]
pub fn split(stream: UnixStream) -> (FrameReader, FrameWriter) {
    let (reader, writer) = stream.into_split();
    let reader = FrameReader {
        stream: reader,
        buffer: Vec::with_capacity(KEPT_BUFFER_BYTES),
        file: None,
        largest_bytes: LARGEST_FRAME_BYTES,
        most_elements: usize::MAX,
    };
    (reader, FrameWriter { stream: writer })
}

pub struct FrameReader {
    stream: OwnedReadHalf,
    /// The bytes read so far of a frame that is not complete yet.
    buffer: Vec<u8>,
    /// The file that came with the frame.
    file: Option<OwnedFd>,
    largest_bytes: u64,
    /// The most elements in all lists of a frame.
    most_elements: usize,
}

impl FrameReader {
    /// Refuses larger frames from the other end, which may run a student's code.
    #[must_use]
    pub fn within(self, largest_bytes: u64) -> Self {
        Self {
            largest_bytes: largest_bytes.min(LARGEST_FRAME_BYTES),
            ..self
        }
    }

    /// Refuses frames with more elements in all of their lists: an element may take one byte in a frame, and many more
    /// in memory.
    #[must_use]
    pub fn with_at_most(self, most_elements: usize) -> Self {
        Self {
            most_elements,
            ..self
        }
    }

    /// Returns the next message; `None` when the other end has closed. A file that comes with it is
    /// closed. Cancel safe.
    pub async fn receive<Message: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<Message>, FrameError> {
        loop {
            if let Some(message) = self.complete()? {
                return Ok(Some(message));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Returns the next message and the file that came with it. Cancel safe.
    pub async fn receive_with_file<Message: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<(Message, Option<OwnedFd>)>, FrameError> {
        loop {
            if let Some(message) = self.complete()? {
                return Ok(Some((message, self.file.take())));
            }
            let (stream, buffer) = (self.stream.as_ref(), &mut self.buffer);
            let (count, file) = stream
                .async_io(Interest::READABLE, || sys::receive(stream, buffer))
                .await?;
            if count == 0 {
                return Ok(None);
            }
            self.file = file.or(self.file.take());
        }
    }

    /// Takes the first message from the buffer if it is complete; otherwise makes room for more bytes.
    fn complete<Message: DeserializeOwned>(&mut self) -> Result<Option<Message>, FrameError> {
        let mut wanted = KEPT_BUFFER_BYTES;
        if let Some(length) = self.buffer.first_chunk() {
            let length = u64::from_be_bytes(*length);
            if length > self.largest_bytes {
                return Err(FrameError::TooLarge(length));
            }
            let end = 8 + usize::try_from(length).map_err(|_| FrameError::TooLarge(length))?;
            if self.buffer.len() >= end {
                let document = &self.buffer[8..end];
                let bound = Bound {
                    bytes: document.len(),
                    elements: self.most_elements,
                };
                bound
                    .check_encoded(document)
                    .map_err(|_| FrameError::TooLarge(length))?;
                let message = decode(document);
                self.buffer.drain(..end);
                self.buffer.shrink_to(KEPT_BUFFER_BYTES);
                return Ok(Some(message?));
            }
            wanted = end - self.buffer.len();
        }
        self.buffer.reserve(wanted.min(LARGEST_READ_BYTES));
        Ok(None)
    }
}

pub struct FrameWriter {
    stream: OwnedWriteHalf,
}

impl FrameWriter {
    pub async fn send(&mut self, message: &impl Serialize) -> Result<(), FrameError> {
        Ok(self.stream.write_all(&frame(message)).await?)
    }

    /// Sends a message. The other end gets a duplicate of `file` with the frame's first byte.
    pub async fn send_with_file(
        &mut self,
        message: &impl Serialize,
        file: BorrowedFd<'_>,
    ) -> Result<(), FrameError> {
        let frame = frame(message);
        let stream = self.stream.as_ref();
        let sent = stream
            .async_io(Interest::WRITABLE, || {
                let files = [file.as_raw_fd()];
                sendmsg::<()>(
                    stream.as_raw_fd(),
                    &[IoSlice::new(&frame)],
                    &[ControlMessage::ScmRights(&files)],
                    MsgFlags::MSG_NOSIGNAL,
                    None,
                )
                .map_err(std::io::Error::from)
            })
            .await?;
        Ok(self.stream.write_all(&frame[sent..]).await?)
    }
}

fn frame(message: &impl Serialize) -> Vec<u8> {
    let body = encode(message);
    let mut frame = Vec::with_capacity(8 + body.len());
    frame.extend_from_slice(&(body.len() as u64).to_be_bytes());
    frame.extend_from_slice(&body);
    frame
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_frame_takes_memory_as_it_comes_and_no_more_than_it_may() {
        let (mut other, stream) = UnixStream::pair().unwrap();
        let (reader, _writer) = split(stream);
        let mut reader = reader.within(1 << 30);
        other.write_all(&(1_u64 << 30).to_be_bytes()).await.unwrap();
        other.write_all(b"only this much").await.unwrap();
        drop(other);
        let end: Option<String> = reader.receive().await.unwrap();
        assert_eq!(end, None);
        assert!(reader.buffer.capacity() <= 2 * LARGEST_READ_BYTES);

        let (mut other, stream) = UnixStream::pair().unwrap();
        let (reader, _writer) = split(stream);
        let mut reader = reader.within(1 << 30);
        other.write_all(&(7_u64 << 30).to_be_bytes()).await.unwrap();
        let refused = reader.receive::<String>().await;
        assert!(matches!(refused, Err(FrameError::TooLarge(bytes)) if bytes == 7 << 30));
    }
}
