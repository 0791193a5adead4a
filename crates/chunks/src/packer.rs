//! Packs a snapshot into the file that the other end maps, when both are on one machine.
//!
//! The file holds the pickle stream, then the fresh segments and the blocks that the kernel itself found
//! changed (see [`crate::scanner`]), then the changed blocks of other segments in the order in which they were
//! found. Pages that the kernel has only read since they were received are skipped (see [`crate::untouched`]).
//! Everything else is read once, in pieces that stay in the processor's cache between reading, hashing and
//! writing. So a snapshot of any size needs little memory besides the file itself.

mod tasks;

use self::tasks::{Content, Task, append, lay_out, portions};
use crate::{
    Bundle, Ledger, StateError, digests,
    layout::{LINE_BYTES, block_count},
    memory::{self, Room},
    sealed::{self, no_room},
    untouched::Untouched,
};
use baton_protocol::{
    memory::BLOCK_BYTES,
    shim::{Delta, Extent, Patch, SegmentDelta, SegmentView, Snapshot, Stream},
};
use std::{
    fs::File,
    iter::repeat,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

/// The bytes to read at once; they fit into the cache of one core.
const PIECE_BYTES: usize = 256 << 10;

/// Below this, starting a second thread takes longer than it saves.
const ALONE_BYTES: u64 = 8 << 20;

/// More threads do not write faster into one file.
const MOST_THREADS: usize = 4;

/// Whether packing takes no longer than handing it to another thread.
#[must_use]
pub fn is_quick(snapshot: &Snapshot) -> bool {
    const MOST_BYTES: u64 = 64 << 10;
    snapshot.bytes() < MOST_BYTES
}

/// Checks what a snapshot claims, before any memory is read or reserved for it.
pub fn check_size(snapshot: &Snapshot, limit_bytes: u64) -> Result<(), StateError> {
    let bytes = snapshot.bytes();
    match bytes > limit_bytes {
        true => Err(StateError::NoRoom { bytes, limit_bytes }),
        false => Ok(()),
    }
}

/// `pid` is the kernel that made the snapshot; `ledger` is the state after the last message of the
/// same table. `room` is for the file. `cancelled` is called between two pieces.
pub fn pack(
    pid: i32,
    snapshot: &Snapshot,
    ledger: &Ledger,
    room: Room,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Bundle, StateError> {
    let nothing = Ledger::default();
    let ledger = if snapshot.messages == 0 {
        &nothing
    } else {
        ledger
    };
    ledger.check_snapshot(&snapshot.segments, &snapshot.dropped_segments)?;
    let mut end = snapshot.stream.bytes();
    let tasks = lay_out(pid, &snapshot.segments, ledger, &mut end, cancelled)?;
    room.check(end)?;
    let file = sealed::create()?;
    sealed::make_room(&file, end, cancelled)?;
    write_stream(pid, &snapshot.stream, &file)?;
    let packing = Packing {
        pid,
        file,
        ledger,
        room,
        end: AtomicU64::new(end.next_multiple_of(LINE_BYTES)),
        untouched: match snapshot.segments.iter().any(is_looked_at) {
            true => Untouched::of(pid),
            false => Untouched::default(),
        },
        cancelled,
    };
    let found = packing.work(&tasks)?;
    packing.finish(snapshot, &tasks, found)
}

/// Writes the pickle stream to the beginning of the file.
fn write_stream(pid: i32, stream: &Stream, file: &File) -> Result<(), StateError> {
    let (mut offset, end) = (0, stream.bytes());
    let mut buffer = Vec::new();
    while offset < end {
        let rest = usize::try_from(end - offset).unwrap_or(PIECE_BYTES);
        buffer.resize(rest.min(PIECE_BYTES), 0);
        memory::read_stream(pid, stream, offset, &mut buffer)?;
        file.write_all_at(&buffer, offset).map_err(no_room)?;
        offset += buffer.len() as u64;
    }
    Ok(())
}

/// What a task wrote to the file, in the order of the segment.
#[derive(Default)]
struct Found {
    patches: Vec<Patch>,
    digests: Vec<u128>,
}

/// Whether the kernel has not looked for changes itself, so that the page table must show which
/// pages were written.
fn is_looked_at(view: &SegmentView) -> bool {
    !view.fresh && view.digests.is_none()
}

struct Packing<'call> {
    pid: i32,
    file: File,
    ledger: &'call Ledger,
    room: Room,
    /// The end of the file, where the next changed blocks are written.
    end: AtomicU64,
    untouched: Untouched,
    cancelled: &'call (dyn Fn() -> bool + Sync),
}

impl Packing<'_> {
    /// Runs all tasks, with as many threads as are worthwhile.
    fn work(&self, tasks: &[Task<'_>]) -> Result<Vec<Found>, StateError> {
        let bytes: u64 = tasks.iter().map(|task| task.content.bytes()).sum();
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::with_capacity(tasks.len()));
        let take = || {
            let mut buffer = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(index) else {
                    return Ok(());
                };
                let result = self.do_task(task, &mut buffer);
                if result.is_err() {
                    next.store(tasks.len(), Ordering::Relaxed);
                }
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                results.push((index, result?));
            }
        };
        if bytes < ALONE_BYTES {
            take()?;
        } else {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            thread::scope(|scope| {
                let others: Vec<_> = (1..cores.min(MOST_THREADS))
                    .map(|_| scope.spawn(take))
                    .collect();
                let mine = take();
                others
                    .into_iter()
                    .map(|other| other.join().unwrap_or(Err(StateError::Cancelled)))
                    .fold(mine, Result::and)
            })?;
        }
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_unstable_by_key(|(index, _)| *index);
        Ok(results.into_iter().map(|(_, found)| found).collect())
    }

    fn do_task(&self, task: &Task<'_>, buffer: &mut Vec<u8>) -> Result<Found, StateError> {
        let mut found = Found::default();
        match &task.content {
            Content::Placed { ranges, place } => {
                let mut place = *place;
                for piece in portions(ranges.clone(), PIECE_BYTES as u64) {
                    self.read(task.view, &piece, buffer)?;
                    self.file.write_all_at(buffer, place).map_err(no_room)?;
                    found.digests.extend(digests(buffer));
                    for range in piece {
                        found.add(range.start, place, range.end - range.start);
                        place += range.end - range.start;
                    }
                }
            }
            Content::Sought(range) => {
                for piece in portions(self.worth_reading(task.view, range), PIECE_BYTES as u64) {
                    self.read(task.view, &piece, buffer)?;
                    self.put_changed(task.view.number, &piece, buffer, &mut found)?;
                }
            }
        }
        Ok(found)
    }

    fn read(
        &self,
        view: &SegmentView,
        piece: &[Range<u64>],
        buffer: &mut Vec<u8>,
    ) -> Result<(), StateError> {
        match (self.cancelled)() {
            true => Err(StateError::Cancelled),
            false => memory::read_ranges(self.pid, view.address, piece, buffer),
        }
    }

    /// The parts of a range that may differ from what the other end holds, cut at block boundaries.
    fn worth_reading(&self, view: &SegmentView, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(untouched) = self.untouched(view, range) else {
            return vec![range.clone()];
        };
        let mut ranges = Vec::new();
        let blocks = range.clone().step_by(BLOCK_BYTES);
        for (start, untouched) in blocks.zip(untouched.into_iter().chain(repeat(false))) {
            if !untouched {
                append(
                    &mut ranges,
                    start..range.end.min(start + BLOCK_BYTES as u64),
                );
            }
        }
        ranges
    }

    /// For each block, whether it is still unchanged from the received file.
    fn untouched(&self, view: &SegmentView, range: &Range<u64>) -> Option<Vec<bool>> {
        let address = view.address.wrapping_add(range.start);
        let end = address.checked_add(range.end - range.start)?;
        self.untouched.pages(address..end)
    }

    /// Writes the changed blocks of a known segment to the file. `bytes` are those of the piece.
    fn put_changed(
        &self,
        segment: u32,
        piece: &[Range<u64>],
        bytes: &mut [u8],
        found: &mut Found,
    ) -> Result<(), StateError> {
        let known = self.ledger.digests(segment);
        let offsets = piece
            .iter()
            .flat_map(|range| range.clone().step_by(BLOCK_BYTES));
        // Where a run of changed blocks starts in the segment, and its range in `bytes`.
        let mut runs: Vec<(u64, Range<usize>)> = Vec::new();
        for (index, (offset, digest)) in offsets.zip(digests(bytes)).enumerate() {
            let block = usize::try_from(offset / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
            if known.get(block) == Some(&digest) {
                continue;
            }
            found.digests.push(digest);
            let from = index * BLOCK_BYTES;
            let to = bytes.len().min(from + BLOCK_BYTES);
            match runs.last_mut() {
                Some((start, run)) if run.end == from && *start + run.len() as u64 == offset => {
                    run.end = to;
                }
                _ => runs.push((offset, from..to)),
            }
        }
        let total: usize = runs.iter().map(|(_, run)| run.len()).sum();
        if total == 0 {
            return Ok(());
        }
        let taken = (total as u64).next_multiple_of(LINE_BYTES);
        let place = self.end.fetch_add(taken, Ordering::Relaxed);
        self.room.check(place + taken)?;
        let mut packed = 0;
        for (offset, run) in runs {
            found.add(offset, place + packed as u64, run.len() as u64);
            let length = run.len();
            bytes.copy_within(run, packed);
            packed += length;
        }
        self.file
            .write_all_at(&bytes[..packed], place)
            .map_err(no_room)
    }

    fn finish(
        self,
        snapshot: &Snapshot,
        tasks: &[Task<'_>],
        found: Vec<Found>,
    ) -> Result<Bundle, StateError> {
        let end = self.end.into_inner();
        self.file.set_len(end).map_err(no_room)?;
        let mut all = Vec::new();
        let mut segments: Vec<SegmentDelta> = Vec::with_capacity(snapshot.segments.len());
        let mut results = tasks.iter().zip(found).peekable();
        for view in &snapshot.segments {
            let mut whole = Found::default();
            while let Some((_, part)) = results.next_if(|(task, _)| task.view.number == view.number)
            {
                for Patch { offset, source } in part.patches {
                    whole.add(offset, source.offset, source.bytes);
                }
                whole.digests.extend(part.digests);
            }
            debug_assert!(whole.digests.len() as u64 <= block_count(view.bytes));
            if view.fresh || !whole.patches.is_empty() {
                all.extend(whole.digests);
                segments.push(SegmentDelta {
                    number: view.number,
                    bytes: view.bytes,
                    fresh: view.fresh,
                    patches: whole.patches,
                });
            }
        }
        let delta = Delta {
            messages: snapshot.messages,
            stream: Extent {
                offset: 0,
                bytes: snapshot.stream.bytes(),
            },
            segments,
            dropped_segments: snapshot.dropped_segments.clone(),
        };
        Bundle::new(delta, &all, self.file)
    }
}

impl Found {
    /// Records that bytes of the segment are in the file. Extends the last patch if both are
    /// contiguous with it.
    fn add(&mut self, offset: u64, place: u64, bytes: u64) {
        match self.patches.last_mut() {
            Some(last)
                if last.offset + last.source.bytes == offset
                    && last.source.offset + last.source.bytes == place =>
            {
                last.source.bytes += bytes;
            }
            _ => self.patches.push(Patch {
                offset,
                source: Extent {
                    offset: place,
                    bytes,
                },
            }),
        }
    }
}
