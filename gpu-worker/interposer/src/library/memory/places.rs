//! Places on the host for memory that is on the GPU: made ahead of a move, or left by memory that came back.

use super::{Chunk, ChunkKey, Context, HostMemory, Memory};

impl Memory {
    /// The sizes of the places to make for memory that has none, for at most this many bytes.
    pub(in super::super) fn sizes_without_place(&self, bytes: u64) -> Vec<u64> {
        let mut left = bytes;
        let mut fits = |chunk: &Chunk| {
            let size = chunk.range.bytes;
            let fits = chunk.lacks_place() && size <= left;
            left -= if fits { size } else { 0 };
            fits.then_some(size)
        };
        let chunks = self.regions.values().flat_map(|region| &region.chunks);
        chunks.filter_map(&mut fits).collect()
    }

    /// Memory that lacks a place of this size, and its context.
    pub(in super::super) fn without_place(&self, bytes: u64) -> Option<(ChunkKey, Context)> {
        self.regions.iter().find_map(|(base, region)| {
            let lacks = |chunk: &Chunk| chunk.lacks_place() && chunk.range.bytes == bytes;
            let index = region.chunks.iter().position(lacks)?;
            Some(((*base, index), region.context))
        })
    }

    /// Gives the memory its place, or returns the place if it is no longer needed.
    pub(in super::super) fn give_place(
        &mut self,
        (base, index): ChunkKey,
        context: Context,
        made: HostMemory,
    ) -> Result<(), HostMemory> {
        let region = self.regions.get_mut(&base);
        let region = region.filter(|region| region.context == context);
        match region.and_then(|region| region.chunks.get_mut(index)) {
            Some(chunk) if chunk.lacks_place() && chunk.range.bytes == made.bytes() => {
                chunk.shadow = Some(made);
                Ok(())
            }
            _ => Err(made),
        }
    }

    /// Takes empty places of at least this many bytes, or all. The caller drops each in its context, if that
    /// still exists.
    pub(in super::super) fn take_empty_places(&mut self, bytes: u64) -> Vec<(Context, HostMemory)> {
        let mut left = bytes;
        let mut taken = Vec::new();
        for region in self.regions.values_mut() {
            let here = region.chunks.iter_mut().filter(|one| one.handle.is_some());
            for chunk in here {
                if left == 0 {
                    return taken;
                }
                if let Some(place) = chunk.shadow.take() {
                    left = left.saturating_sub(place.bytes());
                    taken.push((region.context, place));
                }
            }
        }
        taken
    }
}
