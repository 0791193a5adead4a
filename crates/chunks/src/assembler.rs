//! Turns a manifest and its chunks into a sealed file in memory that a kernel can map.
//!
//! The file holds the pickle stream, then the segments: all of a fresh segment, at a page boundary if it is to
//! be mapped, and the changed chunks of a known one. Chunks are written to their places as they arrive.
//!
//! **Invariant:** a manifest comes from another machine; nothing in it is used before it is checked.

use crate::{
    Ledger, StateError, digests,
    layout::{CHUNK_BLOCKS, border, chunk_bytes, chunk_count, chunk_offset},
    memory::Room,
    sealed::{self, no_room},
};
use baton_protocol::{
    CHUNK_BYTES, ChunkHash, Manifest, Piece, SegmentPart,
    shim::{Delta, Extent, Patch, SegmentDelta},
};
use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::Arc,
};

pub struct Assembler {
    file: File,
    delta: Delta,
    ledger: Ledger,
    /// The end of the parts that have a place in the file.
    end: u64,
    chunks: HashMap<ChunkHash, Wanted>,
    /// The distinct chunks in the order of the manifest.
    order: Vec<ChunkHash>,
    /// What the ledger will record about the segments.
    notes: Vec<Note>,
}

struct Wanted {
    bytes: u64,
    targets: Vec<Target>,
    placed: bool,
}

#[derive(Clone, Copy)]
struct Target {
    offset: u64,
    /// The note that gets the digest; none for a piece of the stream.
    note: Option<usize>,
}

struct Note {
    segment: u32,
    chunk: usize,
    digests: Arc<[u128]>,
}

impl Assembler {
    /// `ledger` is the state after the last message of the same table. A state for which there is no `room`
    /// is refused before any memory is allocated, because a short manifest may name one chunk many times.
    pub fn new(manifest: Manifest, mut ledger: Ledger, room: Room) -> Result<Self, StateError> {
        if manifest.base.messages == 0 {
            ledger.clear();
        }
        for segment in &manifest.dropped_segments {
            ledger.forget(*segment);
        }
        check(&manifest, &ledger)?;
        room.check(manifest.bytes())?;
        let mut assembler = Self {
            file: sealed::create()?,
            delta: Delta {
                messages: manifest.base.messages,
                stream: Extent {
                    offset: 0,
                    bytes: 0,
                },
                segments: Vec::with_capacity(manifest.segments.len()),
                dropped_segments: manifest.dropped_segments,
            },
            ledger,
            end: 0,
            chunks: HashMap::new(),
            order: Vec::new(),
            notes: Vec::new(),
        };
        for piece in manifest.stream {
            assembler.lay_out(piece, None)?;
        }
        assembler.delta.stream.bytes = assembler.end;
        for part in manifest.segments {
            assembler.lay_out_segment(part)?;
        }
        sealed::make_room(&assembler.file, assembler.end, &|| false)?;
        Ok(assembler)
    }

    /// The chunks that have not been placed yet, each once, in the order of the manifest.
    #[must_use]
    pub fn wanted(&self) -> Vec<ChunkHash> {
        let missing = |hash: &&ChunkHash| self.chunks.get(hash).is_some_and(|chunk| !chunk.placed);
        self.order.iter().filter(missing).copied().collect()
    }

    /// Writes a chunk to all of its places. Does nothing if it is already there.
    pub fn place(&mut self, hash: ChunkHash, bytes: &[u8]) -> Result<(), StateError> {
        let Some(chunk) = self.chunks.get_mut(&hash) else {
            return Err(StateError::NotWanted { hash });
        };
        if chunk.placed {
            return Ok(());
        }
        let found = crate::hash(bytes);
        if found != hash {
            return Err(StateError::Damaged { hash, found });
        }
        if bytes.len() as u64 != chunk.bytes {
            return Err(StateError::Manifest(
                "a chunk does not have the announced size",
            ));
        }
        let digests: Arc<[u128]> = digests(bytes).collect();
        for target in &chunk.targets {
            self.file
                .write_all_at(bytes, target.offset)
                .map_err(no_room)?;
            if let Some(note) = target.note {
                self.notes[note].digests = digests.clone();
            }
        }
        chunk.placed = true;
        Ok(())
    }

    /// Returns the sealed file, its description, and what both ends hold once it has been applied.
    pub fn finish(mut self) -> Result<(OwnedFd, Delta, Ledger), StateError> {
        let missing = self.wanted().len();
        if missing > 0 {
            return Err(StateError::Incomplete { missing });
        }
        for segment in self.delta.segments.iter().filter(|segment| segment.fresh) {
            self.ledger.begin(segment.number, segment.bytes);
        }
        for note in self.notes {
            let first = note.chunk * CHUNK_BLOCKS;
            self.ledger.note(note.segment, first, &note.digests);
        }
        Ok((sealed::seal(self.file)?, self.delta, self.ledger))
    }

    fn lay_out_segment(&mut self, part: SegmentPart) -> Result<(), StateError> {
        self.end = self.end.next_multiple_of(border(part.fresh, part.bytes));
        let mut patches: Vec<Patch> = Vec::new();
        for (index, piece) in part.chunks {
            let offset = chunk_offset(u64::from(index));
            let bytes = piece.bytes();
            match patches.last_mut() {
                Some(last) if last.offset + last.source.bytes == offset => {
                    last.source.bytes += bytes
                }
                _ => patches.push(Patch {
                    offset,
                    source: Extent {
                        offset: self.end,
                        bytes,
                    },
                }),
            }
            let note = self.notes.len();
            self.notes.push(Note {
                segment: part.number,
                chunk: index as usize,
                digests: Arc::default(),
            });
            self.lay_out(piece, Some(note))?;
        }
        self.delta.segments.push(SegmentDelta {
            number: part.number,
            bytes: part.bytes,
            fresh: part.fresh,
            patches,
        });
        Ok(())
    }

    /// Gives a piece the next place in the file.
    fn lay_out(&mut self, piece: Piece, note: Option<usize>) -> Result<(), StateError> {
        let target = Target {
            offset: self.end,
            note,
        };
        self.end += piece.bytes();
        match piece {
            Piece::Inline(bytes) => {
                if let Some(note) = note {
                    self.notes[note].digests = digests(&bytes).collect();
                }
                self.file
                    .write_all_at(&bytes, target.offset)
                    .map_err(no_room)
            }
            Piece::Stored { hash, bytes } => self.want(hash, u64::from(bytes), target),
        }
    }

    fn want(&mut self, hash: ChunkHash, bytes: u64, target: Target) -> Result<(), StateError> {
        match self.chunks.entry(hash) {
            Entry::Vacant(entry) => {
                self.order.push(hash);
                entry.insert(Wanted {
                    bytes,
                    targets: vec![target],
                    placed: false,
                });
            }
            Entry::Occupied(mut entry) if entry.get().bytes == bytes => {
                entry.get_mut().targets.push(target);
            }
            Entry::Occupied(_) => {
                return Err(StateError::Manifest("one chunk has two sizes"));
            }
        }
        Ok(())
    }
}

fn check(manifest: &Manifest, ledger: &Ledger) -> Result<(), StateError> {
    let in_range = |piece: &Piece| (1..=CHUNK_BYTES as u64).contains(&piece.bytes());
    if !manifest.pieces().all(in_range) {
        return Err(StateError::Manifest("a piece is empty or too large"));
    }
    let dropped: HashSet<u32> = manifest.dropped_segments.iter().copied().collect();
    let mut numbers = HashSet::new();
    for part in &manifest.segments {
        if !numbers.insert(part.number) {
            return Err(StateError::Manifest("a segment is listed twice"));
        }
        if dropped.contains(&part.number) {
            return Err(StateError::Manifest("a segment is both listed and dropped"));
        }
        check_part(part, ledger)?;
    }
    Ok(())
}

fn check_part(part: &SegmentPart, ledger: &Ledger) -> Result<(), StateError> {
    let count = chunk_count(part.bytes);
    if part.fresh && part.chunks.len() as u64 != count {
        return Err(StateError::Manifest("a new segment is incomplete"));
    }
    if !part.fresh {
        ledger.check_known(part.number, part.bytes)?;
    }
    if !part.chunks.is_sorted_by(|(one, _), (next, _)| one < next) {
        return Err(StateError::Manifest(
            "the chunks of a segment are out of order",
        ));
    }
    for (index, piece) in &part.chunks {
        let index = u64::from(*index);
        if index >= count || piece.bytes() != chunk_bytes(part.bytes, index) as u64 {
            return Err(StateError::Manifest("a chunk does not fit its segment"));
        }
    }
    Ok(())
}
