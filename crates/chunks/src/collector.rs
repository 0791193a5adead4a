//! Turns a snapshot into a manifest and the chunks that the other end lacks.
//!
//! Memory is read block by block into one buffer, so a snapshot of any size needs little memory
//! here. The hash is computed from the bytes in that buffer, so it always matches them, even if a
//! thread of the student writes meanwhile.

use crate::{
    Ledger, StateError, digests, hash,
    layout::{CHUNK_BLOCKS, chunk_bytes, chunk_count, chunk_offset},
    memory,
};
use baton_protocol::{
    CHUNK_BYTES, ChunkHash, INLINE_BYTES, Manifest, Piece, SegmentPart, StateVersion,
    shim::{SegmentView, Snapshot, Stream},
};
use bytes::Bytes;
use std::collections::HashSet;

/// A batch is returned when it holds this much …
const BATCH_BYTES: usize = 32 << 20;

/// … or when this much was read for it, so that the caller can stop between two batches.
const READ_BYTES: usize = 512 << 20;

/// The limit for everything inside the manifest, which is one message and must stay small.
const INLINE_TOTAL_BYTES: usize = 4 << 20;

pub struct Collector {
    pid: i32,
    source: Source,
    step: Step,
    ledger: Ledger,
    manifest: Manifest,
    inline_left: usize,
    /// Chunks that were already returned: equal content is sent once.
    known: HashSet<ChunkHash>,
    buffer: Vec<u8>,
}

struct Source {
    stream: Stream,
    segments: Vec<SegmentView>,
}

/// What to read next.
enum Step {
    Check,
    Stream { offset: u64 },
    Segment { index: usize, chunk: u64 },
    Done,
}

impl Collector {
    /// `pid` is the kernel that made the snapshot; `ledger` is the state after the last message of
    /// the same table.
    #[must_use]
    pub fn new(pid: i32, base: StateVersion, snapshot: Snapshot, mut ledger: Ledger) -> Self {
        if snapshot.messages == 0 {
            ledger.clear();
        }
        Self {
            pid,
            source: Source {
                stream: snapshot.stream,
                segments: snapshot.segments,
            },
            step: Step::Check,
            ledger,
            manifest: Manifest {
                base,
                stream: Vec::new(),
                segments: Vec::new(),
                dropped_segments: snapshot.dropped_segments,
            },
            inline_left: INLINE_TOTAL_BYTES,
            known: HashSet::new(),
            buffer: Vec::new(),
        }
    }

    /// Returns the next chunks that the other end must be able to fetch, each once; `None` after
    /// the last. A batch may be empty if much memory was read and little of it had changed.
    ///
    /// After an error the object table is void, because the ledger no longer matches the chunks
    /// that were returned.
    pub fn next_batch(&mut self) -> Result<Option<Vec<(ChunkHash, Bytes)>>, StateError> {
        if matches!(self.step, Step::Done) {
            return Ok(None);
        }
        let mut batch = Batch::default();
        while batch.bytes < BATCH_BYTES && batch.read_bytes < READ_BYTES {
            self.step = match self.step {
                Step::Check => self.check()?,
                Step::Stream { offset } => self.cut_stream(offset, &mut batch)?,
                Step::Segment { index, chunk } => self.read_chunk(index, chunk, &mut batch)?,
                Step::Done => break,
            };
        }
        let over = matches!(self.step, Step::Done) && batch.chunks.is_empty();
        Ok((!over).then_some(batch.chunks))
    }

    /// Returns the manifest, and what both ends hold once it has been applied.
    ///
    /// # Panics
    /// If [`Self::next_batch`] has not returned `None` yet.
    #[must_use]
    pub fn finish(self) -> (Manifest, Ledger) {
        assert!(
            matches!(self.step, Step::Done),
            "the last batch comes before the manifest"
        );
        (self.manifest, self.ledger)
    }

    fn check(&mut self) -> Result<Step, StateError> {
        let dropped = &self.manifest.dropped_segments;
        self.ledger.check_snapshot(&self.source.segments, dropped)?;
        for segment in dropped {
            self.ledger.forget(*segment);
        }
        Ok(Step::Stream { offset: 0 })
    }

    fn cut_stream(&mut self, offset: u64, batch: &mut Batch) -> Result<Step, StateError> {
        let stream = &self.source.stream;
        let rest = usize::try_from(stream.bytes() - offset).unwrap_or(CHUNK_BYTES);
        let mut bytes = vec![0; rest.min(CHUNK_BYTES)];
        if bytes.is_empty() {
            return Ok(Step::Segment { index: 0, chunk: 0 });
        }
        memory::read_stream(self.pid, stream, offset, &mut bytes)?;
        let end = offset + bytes.len() as u64;
        let piece = self.piece(bytes.into(), batch);
        self.manifest.stream.push(piece);
        Ok(Step::Stream { offset: end })
    }

    fn read_chunk(
        &mut self,
        index: usize,
        chunk: u64,
        batch: &mut Batch,
    ) -> Result<Step, StateError> {
        let Some(view) = self.source.segments.get(index) else {
            return Ok(Step::Done);
        };
        let SegmentView {
            number,
            address,
            bytes,
            fresh,
            ..
        } = *view;
        if chunk == 0 && fresh {
            self.ledger.begin(number, bytes);
            self.part(number, bytes, fresh);
        }
        if chunk == chunk_count(bytes) {
            return Ok(Step::Segment {
                index: index + 1,
                chunk: 0,
            });
        }
        let address = address.wrapping_add(chunk_offset(chunk));
        self.buffer.resize(chunk_bytes(bytes, chunk), 0);
        memory::read(self.pid, address, &mut self.buffer)?;
        batch.read_bytes += self.buffer.len();
        let place = u32::try_from(chunk).map_err(|_| StateError::Ledger {
            segment: number,
            what: "is too large",
        })?;
        let digests: Vec<u128> = digests(&self.buffer).collect();
        let news = self
            .ledger
            .note(number, place as usize * CHUNK_BLOCKS, &digests);
        if news {
            let piece = self.piece(Bytes::copy_from_slice(&self.buffer), batch);
            self.part(number, bytes, fresh).chunks.push((place, piece));
        }
        Ok(Step::Segment {
            index,
            chunk: chunk + 1,
        })
    }

    /// The manifest's part for the segment that is being read.
    fn part(&mut self, number: u32, bytes: u64, fresh: bool) -> &mut SegmentPart {
        let parts = &mut self.manifest.segments;
        let there = parts.last().is_some_and(|part| part.number == number);
        let place = if there { parts.len() - 1 } else { parts.len() };
        if !there {
            parts.push(SegmentPart {
                number,
                bytes,
                fresh,
                chunks: Vec::new(),
            });
        }
        &mut parts[place]
    }

    fn piece(&mut self, bytes: Bytes, batch: &mut Batch) -> Piece {
        let length = bytes.len();
        if length <= INLINE_BYTES.min(self.inline_left) {
            self.inline_left -= length;
            return Piece::Inline(bytes);
        }
        let hash = hash(&bytes);
        if self.known.insert(hash) {
            batch.bytes += length;
            batch.chunks.push((hash, bytes));
        }
        #[expect(clippy::cast_possible_truncation, reason = "a chunk has at most 1 MiB")]
        let bytes = length as u32;
        Piece::Stored { hash, bytes }
    }
}

#[derive(Default)]
struct Batch {
    chunks: Vec<(ChunkHash, Bytes)>,
    bytes: usize,
    read_bytes: usize,
}
