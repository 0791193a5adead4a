//! The bytes of one file: cut into pieces, and put together again.
//!
//! **Invariant:** only a few chunks are in memory at a time, however large the file is.

use crate::{FilesError, folder::Status};
use baton_chunks::StateError;
use baton_protocol::{CHUNK_BYTES, ChunkHash, INLINE_BYTES, Piece, files::Content};
use bytes::Bytes;
use std::{
    borrow::Borrow,
    collections::HashMap,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    time::{Duration, SystemTime},
};

/// The number of chunks to read at once.
const BATCH: usize = 16;

pub struct ContentReader {
    file: File,
    bytes: u64,
    offset: u64,
    pieces: Vec<Piece>,
    ended: bool,
}

impl ContentReader {
    /// Reads no more than the first `bytes`, because a process could append to the file without end.
    #[must_use]
    pub fn new(file: File, bytes: u64) -> Self {
        Self {
            file,
            bytes,
            offset: 0,
            pieces: Vec::new(),
            ended: false,
        }
    }

    /// Returns the next chunks that must be stored; none at the end.
    pub fn next_batch(&mut self) -> io::Result<Vec<(ChunkHash, Bytes)>> {
        let mut batch = Vec::new();
        while !self.ended && batch.len() < BATCH {
            let mut bytes = read_chunk(&self.file, self.offset)?;
            let left = usize::try_from(self.bytes - self.offset);
            bytes.truncate(left.unwrap_or(CHUNK_BYTES));
            self.ended = bytes.len() < CHUNK_BYTES;
            self.offset += bytes.len() as u64;
            if bytes.len() <= INLINE_BYTES {
                if !bytes.is_empty() {
                    self.pieces.push(Piece::Inline(bytes));
                }
                continue;
            }
            let hash = baton_chunks::hash(&bytes);
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.pieces.push(Piece::Stored {
                hash,
                bytes: length,
            });
            batch.push((hash, bytes));
        }
        Ok(batch)
    }

    /// Returns the content. The caller sets `stamp` if it has one.
    pub fn finish(self) -> io::Result<Content> {
        let status = Status::from(&self.file.metadata()?);
        Ok(Content {
            stamp: None,
            bytes: self.offset,
            modified_ns: status.modified_ns,
            mode: status.mode & 0o777,
            pieces: self.pieces,
        })
    }
}

/// Reads the chunk at `offset`; shorter than others at the end of the file, and empty after it.
pub fn read_chunk(file: &File, offset: u64) -> io::Result<Bytes> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(Bytes::from(buffer))
}

pub(crate) fn time(since_1970_ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(since_1970_ns.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    match since_1970_ns >= 0 {
        true => epoch + distance,
        false => epoch - distance,
    }
}

/// Fills a file with the bytes of a [`Content`].
pub struct ContentWriter<F = File> {
    file: F,
    bytes: u64,
    /// The offsets of chunks that have not arrived.
    missing: HashMap<ChunkHash, Vec<u64>>,
}

impl<F: Borrow<File>> ContentWriter<F> {
    pub fn new(file: F, content: &Content) -> Result<Self, FilesError> {
        let mut missing: HashMap<ChunkHash, Vec<u64>> = HashMap::new();
        let mut offset = 0;
        for piece in &content.pieces {
            if offset % CHUNK_BYTES as u64 != 0 {
                return Err(FilesError::Pieces);
            }
            match piece {
                Piece::Inline(bytes) => write_at(&file, bytes, offset)?,
                Piece::Stored { hash, .. } => missing.entry(*hash).or_default().push(offset),
            }
            offset += piece.bytes();
        }
        if offset != content.bytes {
            return Err(FilesError::Pieces);
        }
        Ok(Self {
            file,
            bytes: content.bytes,
            missing,
        })
    }

    #[must_use]
    pub fn wanted(&self) -> Vec<ChunkHash> {
        self.missing.keys().copied().collect()
    }

    pub fn place(&mut self, hash: ChunkHash, bytes: &[u8]) -> Result<(), FilesError> {
        let found = baton_chunks::hash(bytes);
        if found != hash {
            return Err(StateError::Damaged { hash, found }.into());
        }
        let offsets = self
            .missing
            .remove(&hash)
            .ok_or(StateError::NotWanted { hash })?;
        for offset in offsets {
            write_at(&self.file, bytes, offset)?;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<F, FilesError> {
        if !self.missing.is_empty() {
            let missing = self.missing.len();
            return Err(StateError::Incomplete { missing }.into());
        }
        let file = self.file.borrow();
        file.set_len(self.bytes).map_err(unwritten)?;
        Ok(self.file)
    }
}

fn write_at(file: &impl Borrow<File>, bytes: &[u8], offset: u64) -> Result<(), FilesError> {
    file.borrow().write_all_at(bytes, offset).map_err(unwritten)
}

fn unwritten(source: io::Error) -> FilesError {
    FilesError::Io {
        path: "a received file".into(),
        source,
    }
}
