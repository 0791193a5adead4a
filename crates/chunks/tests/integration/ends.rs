//! The two ends of an object table: their segments are in this process's memory, with a store of
//! chunks between them.

use baton_chunks::{Assembler, Bundle, Collector, Ledger, StateError, memory::Room, pack};
use baton_protocol::{
    ChunkHash, Manifest, StateVersion, TableId,
    shim::{Delta, Extent, MAPPED_BYTES, SegmentView, Snapshot},
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    os::unix::fs::FileExt,
};

pub(crate) type Store = HashMap<ChunkHash, Bytes>;

#[derive(Default)]
pub(crate) struct End {
    pub(crate) segments: BTreeMap<u32, Vec<u8>>,
    /// The digests that this end has computed itself.
    pub(crate) digests: BTreeMap<u32, Vec<u128>>,
    pub(crate) dropped: Vec<u32>,
    /// Segments that the other end has seen.
    pub(crate) seen: Vec<u32>,
    pub(crate) ledger: Ledger,
    pub(crate) messages: u64,
}

/// A message between the two ends.
pub(crate) struct Message {
    pub(crate) manifest: Manifest,
    pub(crate) chunks: Store,
}

impl End {
    pub(crate) fn set(&mut self, number: u32, bytes: Vec<u8>) {
        self.segments.insert(number, bytes);
    }

    pub(crate) fn snapshot(&self, stream: &[u8]) -> Snapshot {
        let view = |(number, bytes): (&u32, &Vec<u8>)| SegmentView {
            number: *number,
            address: bytes.as_ptr() as u64,
            bytes: bytes.len() as u64,
            fresh: !self.seen.contains(number),
            digests: self.digests.get(number).map(|found| found.as_ptr() as u64),
        };
        Snapshot {
            messages: self.messages,
            stream: stream.into(),
            segments: self.segments.iter().map(view).collect(),
            dropped_segments: self.dropped.clone(),
        }
    }

    pub(crate) fn send(&mut self, stream: &[u8]) -> Result<Message, StateError> {
        let (manifest, chunks, ledger) =
            collect(self.snapshot(stream), std::mem::take(&mut self.ledger))?;
        self.sent(ledger);
        Ok(Message { manifest, chunks })
    }

    /// Packs the same message as one file in memory.
    pub(crate) fn pack(&mut self, stream: &[u8]) -> Result<Bundle, StateError> {
        let pid = i32::try_from(std::process::id()).unwrap();
        let bundle = pack(
            pid,
            &self.snapshot(stream),
            &self.ledger,
            Room::UNLIMITED,
            &|| false,
        )?;
        let ledger = bundle.enter(std::mem::take(&mut self.ledger))?;
        self.sent(ledger);
        Ok(bundle)
    }

    fn sent(&mut self, ledger: Ledger) {
        self.ledger = ledger;
        self.seen = self.segments.keys().copied().collect();
        self.dropped.clear();
        self.messages += 1;
    }

    /// Applies such a file as if received. Returns its stream.
    pub(crate) fn unpack(&mut self, bundle: Bundle) -> Result<Vec<u8>, StateError> {
        let content = bundle.content().clone();
        let (file, _) = bundle.into_parts();
        let bundle = Bundle::receive(content, file)?;
        self.ledger = bundle.enter(std::mem::take(&mut self.ledger))?;
        self.messages += 1;
        let (file, delta) = bundle.into_parts();
        Ok(self.apply(&File::from(file), &delta))
    }

    /// Applies a message. Returns its stream.
    pub(crate) fn receive(&mut self, message: &Message) -> Result<Vec<u8>, StateError> {
        let ledger = std::mem::take(&mut self.ledger);
        let mut assembler = Assembler::new(message.manifest.clone(), ledger, Room::UNLIMITED)?;
        for hash in assembler.wanted() {
            assembler.place(hash, &message.chunks[&hash])?;
        }
        let (file, delta, ledger) = assembler.finish()?;
        self.ledger = ledger;
        self.messages += 1;
        Ok(self.apply(&File::from(file), &delta))
    }

    fn apply(&mut self, file: &File, delta: &Delta) -> Vec<u8> {
        for number in &delta.dropped_segments {
            self.segments.remove(number);
        }
        for segment in &delta.segments {
            let size = usize::try_from(segment.bytes).unwrap();
            let bytes = self.segments.entry(segment.number).or_default();
            if segment.fresh {
                *bytes = vec![0; size];
                assert!(segment.patches.len() == usize::from(size > 0));
            }
            assert_eq!(bytes.len(), size);
            for patch in &segment.patches {
                let mapped = segment.fresh && segment.bytes >= MAPPED_BYTES;
                assert!(!mapped || patch.source.offset % 4096 == 0);
                let from = usize::try_from(patch.offset).unwrap();
                let piece = extent(file, patch.source);
                bytes[from..from + piece.len()].copy_from_slice(&piece);
            }
        }
        self.seen = self.segments.keys().copied().collect();
        extent(file, delta.stream)
    }
}

pub(crate) fn collect(
    snapshot: Snapshot,
    ledger: Ledger,
) -> Result<(Manifest, Store, Ledger), StateError> {
    let pid = i32::try_from(std::process::id()).unwrap();
    let base = StateVersion {
        table: TableId::random(),
        messages: snapshot.messages,
    };
    let mut collector = Collector::new(pid, base, snapshot, ledger);
    let mut chunks = Store::new();
    while let Some(batch) = collector.next_batch()? {
        for (hash, bytes) in batch {
            assert!(chunks.insert(hash, bytes).is_none(), "each chunk once");
        }
    }
    let (manifest, ledger) = collector.finish();
    assert!(manifest.chunks().all(|hash| chunks.contains_key(&hash)));
    Ok((manifest, chunks, ledger))
}

pub(crate) fn extent(file: &File, extent: Extent) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(extent.bytes).unwrap()];
    file.read_exact_at(&mut bytes, extent.offset).unwrap();
    bytes
}

/// Bytes that differ from chunk to chunk.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}
