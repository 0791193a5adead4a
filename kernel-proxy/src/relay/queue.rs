//! Bytes that wait for one iopub client, as whole messages where possible.
//!
//! In: bytes as they were read, and the offsets at which messages end. Out: the same bytes, through [`Buf`].
//!
//! **Invariant:** only complete messages can be replaced, and only before any byte of them is taken.

use bytes::{Buf, Bytes, BytesMut};
use std::{collections::VecDeque, io::IoSlice};

#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    runs: VecDeque<Run>,
    /// Bytes of all runs that have not been taken.
    bytes: usize,
    /// The number of messages whose end has not been taken.
    messages: usize,
    /// The bytes taken last ended in the middle of a message.
    front_is_begun: bool,
}

/// Bytes from one read, which may begin and end in the middle of a message.
#[derive(Debug)]
struct Run {
    bytes: Bytes,
    taken: usize,
    /// Offsets at which messages end, ascending.
    ends: VecDeque<usize>,
}

impl OutputQueue {
    /// `ends`: the offsets in `bytes` at which messages end, ascending.
    pub(super) fn push(&mut self, bytes: Bytes, ends: VecDeque<usize>) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.messages += ends.len();
            self.runs.push_back(Run {
                bytes,
                taken: 0,
                ends,
            });
        }
    }

    /// The number of messages whose end is still in the queue.
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    pub(super) fn push_message(&mut self, message: Bytes) {
        let ends = VecDeque::from([message.len()]);
        self.push(message, ends);
    }

    /// Passes every complete message that is still untouched to `compact`, and queues the result instead.
    pub(super) fn exchange(&mut self, compact: impl FnOnce(Vec<Bytes>) -> Vec<Bytes>) {
        let mut head = Vec::new();
        let mut messages = Vec::new();
        let mut open: Vec<Bytes> = Vec::new();
        let mut is_head = self.front_is_begun;
        for run in self.runs.drain(..) {
            let mut start = run.taken;
            for end in run.ends {
                open.push(run.bytes.slice(start..end));
                start = end;
                let pieces = std::mem::take(&mut open);
                if std::mem::take(&mut is_head) {
                    head = pieces;
                } else {
                    messages.push(join(pieces));
                }
            }
            if start < run.bytes.len() {
                open.push(run.bytes.slice(start..));
            }
        }
        self.bytes = 0;
        self.messages = 0;
        let head_ends = !head.is_empty();
        for (index, piece) in head.iter().enumerate() {
            let is_last = head_ends && index + 1 == head.len();
            self.push(
                piece.clone(),
                is_last.then_some(piece.len()).into_iter().collect(),
            );
        }
        self.push_packed(&compact(messages));
        for piece in open {
            self.push(piece, VecDeque::new());
        }
    }

    /// Copies the messages, so that they do not keep the memory of dropped ones alive.
    fn push_packed(&mut self, messages: &[Bytes]) {
        let mut packed = BytesMut::with_capacity(messages.iter().map(Bytes::len).sum());
        let mut ends = VecDeque::with_capacity(messages.len());
        for message in messages {
            packed.extend_from_slice(message);
            ends.push_back(packed.len());
        }
        self.push(packed.freeze(), ends);
    }
}

fn join(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    }
}

impl Buf for OutputQueue {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.runs.front().map_or(&[], |run| &run.bytes[run.taken..])
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = self.runs.len().min(slices.len());
        for (slice, run) in slices.iter_mut().zip(&self.runs) {
            *slice = IoSlice::new(&run.bytes[run.taken..]);
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes -= count;
        while count > 0 {
            let Some(run) = self.runs.front_mut() else {
                return;
            };
            let taken = count.min(run.bytes.len() - run.taken);
            count -= taken;
            run.taken += taken;
            self.front_is_begun = true;
            while let Some(end) = run.ends.front().copied().filter(|end| *end <= run.taken) {
                run.ends.pop_front();
                self.messages -= 1;
                self.front_is_begun = end < run.taken;
            }
            if run.taken == run.bytes.len() {
                self.runs.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn take(queue: &mut OutputQueue, count: usize) -> Vec<u8> {
        let count = count.min(queue.remaining());
        queue.copy_to_bytes(count).to_vec()
    }

    proptest! {
        /// Messages of equal bytes are cut anywhere, taken in any portions and dropped at any moment. What
        /// comes out is whole messages, including every message that was partly taken before.
        #[test]
        fn only_whole_messages_vanish(
            lengths in prop::collection::vec(1_usize..20, 1..30),
            cut in 1_usize..40,
            portions in prop::collection::vec(1_usize..30, 0..20),
        ) {
            let mut stream = Vec::new();
            let mut ends = Vec::new();
            for (number, length) in lengths.iter().enumerate() {
                stream.extend(std::iter::repeat_n(u8::try_from(number).unwrap(), *length));
                ends.push(stream.len());
            }
            let mut queue = OutputQueue::default();
            let mut out = Vec::new();
            let mut portions = portions.into_iter();
            for (index, chunk) in stream.chunks(cut).enumerate() {
                let start = index * cut;
                let inside = ends.iter().filter(|end| start < **end && **end <= start + chunk.len());
                queue.push(Bytes::copy_from_slice(chunk), inside.map(|end| end - start).collect());
                if let Some(count) = portions.next() {
                    out.extend(take(&mut queue, count));
                    queue.exchange(|_| Vec::new());
                }
            }
            let rest = queue.remaining();
            out.extend(take(&mut queue, rest));
            for (number, length) in lengths.iter().enumerate() {
                let count = out.iter().filter(|byte| usize::from(**byte) == number).count();
                prop_assert!(count == 0 || count == *length, "{count} of {length}");
            }
            prop_assert!(out.is_sorted());
        }
    }

    #[test]
    fn what_is_given_back_keeps_its_place() {
        let mut queue = OutputQueue::default();
        queue.push(Bytes::from_static(b"aaabbbcc"), VecDeque::from([3, 6]));
        assert_eq!(take(&mut queue, 1), b"a");
        queue.exchange(|messages| {
            assert_eq!(messages, [Bytes::from_static(b"bbb")]);
            vec![Bytes::from_static(b"B"), Bytes::from_static(b"N")]
        });
        queue.push(Bytes::from_static(b"cdd"), VecDeque::from([1, 3]));
        assert_eq!(take(&mut queue, 100), b"aaBNcccdd");
        assert_eq!(queue.remaining(), 0);
    }
}
