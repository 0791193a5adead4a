//! The session's memory on the GPU: allocations that can leave it and come back to the same addresses.
//!
//! Addresses are reserved once. The memory behind them is divided into chunks, which leave and return one by
//! one. So no more leaves than others need, and the room of the first chunk is available before the last has
//! left. Memory that cannot move is only counted.

mod pieces;
mod region;

use self::region::{Chunk, Region, first_error};
use super::{
    freed::{InOrder, StreamOrder},
    heap::{Heap, Range},
    shadows::Shadows,
    sys::{
        driver::{self, Code, Context, Event, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, Stream},
        host_memory::HostMemory,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::AddAssign,
    sync::atomic::AtomicUsize,
    thread,
};

pub(super) use self::pieces::{Pieces, is_handle};

/// How many chunks are copied before the first of them is returned to the driver.
const COPIES_AHEAD: usize = 2;

/// By their addresses.
pub(super) type Regions = BTreeMap<u64, Region>;

/// A chunk, by its region's address and its index there.
type ChunkKey = (u64, usize);

#[derive(Debug)]
pub(super) struct Memory {
    heap: Heap<Context>,
    regions: Regions,
    /// Part or all of the memory is not on the GPU, so the session cannot compute.
    is_away: bool,
    bytes: u64,
    /// Memory that cannot leave the GPU, by the handle that frees it.
    fixed: BTreeMap<u64, Fixed>,
    /// Memory of graphs, which cannot leave the GPU either.
    graph_bytes: u64,
    freed: InOrder,
    /// Streams for moves, one for each context.
    streams: BTreeMap<Context, Stream>,
    pieces: Pieces,
}

/// The outcome of a swap-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) bytes: u64,
    /// The part of `bytes` that had no place on the host before.
    pub(super) new_place_bytes: u64,
    /// `SUCCESS` if the contents are intact; after any other code they are lost.
    pub(super) code: Code,
}

/// Memory that is no longer allocated.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Freed {
    pub(super) bytes: u64,
    /// The part of `bytes` that was not on the GPU.
    pub(super) away_bytes: u64,
}

impl AddAssign for Freed {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.away_bytes += other.away_bytes;
    }
}

#[derive(Debug)]
struct Fixed {
    bytes: u64,
    /// It is freed when this context ends.
    context: Option<Context>,
}

impl Memory {
    pub(super) const fn new() -> Self {
        Self {
            heap: Heap::empty(),
            regions: BTreeMap::new(),
            is_away: false,
            bytes: 0,
            fixed: BTreeMap::new(),
            graph_bytes: 0,
            freed: InOrder::new(),
            streams: BTreeMap::new(),
            pieces: Pieces::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn fixed_bytes(&self) -> u64 {
        let fixed: u64 = self.fixed.values().map(|fixed| fixed.bytes).sum();
        fixed + self.graph_bytes + self.pieces.fixed_bytes()
    }

    pub(super) fn is_away(&self) -> bool {
        self.is_away
    }

    /// How much of an allocation that was granted and not made counts as on the host.
    pub(super) fn away_part(&self, bytes: u64) -> u64 {
        if self.is_away { bytes } else { 0 }
    }

    /// Bytes that are not on the GPU.
    pub(super) fn away_bytes(&self) -> u64 {
        self.regions.values().map(Region::away_bytes).sum()
    }

    /// Free memory of the GPU that has the largest region, whichever processes use the rest.
    pub(super) fn free_bytes(&self) -> u64 {
        let largest = (self.regions.values()).max_by_key(|region| region.chunks.len());
        largest.map_or(0, |region| driver::free_bytes(region.context))
    }

    /// The allocation or view in which an address lies.
    pub(super) fn find(&self, address: u64) -> Option<Range> {
        let view = self.pieces.view_at(&self.regions, address);
        view.map_or_else(|| self.heap.find(address), |(view, _)| Some(view))
    }

    /// The context of the allocation that begins at an address.
    pub(super) fn context_of(&self, address: u64) -> Option<Context> {
        let found = self.heap.find(address)?;
        let context = context_in(&self.regions, address)?;
        (found.address == address).then_some(context)
    }

    // ---- allocating and freeing

    /// Places an allocation of a context in an existing region, if one has room.
    pub(super) fn place(&mut self, bytes: u64, context: Context) -> Option<u64> {
        self.heap.place(bytes, context)
    }

    /// The size of the region to create for an allocation for which no region has room.
    pub(super) fn region_for(&self, bytes: u64, context: Context) -> u64 {
        self.heap.region_for(bytes, context)
    }

    /// Allocates in a new region, on the GPU unless the session is swapped out.
    pub(super) fn grow(
        &mut self,
        bytes: u64,
        (context, device): (Context, i32),
    ) -> Result<u64, Code> {
        let region_bytes = self.heap.region_for(bytes, context);
        let address = driver::reserve(region_bytes)?;
        let mut region = Region::new(address, region_bytes, context, device);
        if !self.is_away
            && let Err(code) = region.back()
        {
            driver::unreserve(address, region_bytes);
            return Err(code);
        }
        self.regions.insert(address, region);
        self.bytes += region_bytes;
        let range = Range {
            address,
            bytes: region_bytes,
        };
        Ok(self.heap.add(range, bytes, context))
    }

    /// The program frees an allocation, whose context is returned; it may do that only once. `None` if no allocation
    /// begins at the address.
    pub(super) fn begin_free(&mut self, address: u64) -> Option<Result<Context, Code>> {
        let context = self.context_of(address)?;
        let is_first = self.heap.mark_freed(address);
        Some(is_first.then_some(context).ok_or(INVALID_VALUE))
    }

    /// Frees an allocation, and returns what is no longer allocated. `None` if no allocation begins at the
    /// address.
    pub(super) fn free(&mut self, address: u64) -> Option<Freed> {
        let Some(emptied) = self.heap.release(address)? else {
            return Some(Freed::default());
        };
        let region = self.regions.remove(&emptied.address)?;
        let away_bytes = region.away_bytes();
        region.release();
        self.bytes -= emptied.bytes;
        Some(Freed {
            bytes: emptied.bytes,
            away_bytes,
        })
    }

    /// Reuses memory that was freed in the same order, if there is some.
    pub(super) fn reuse(&mut self, bytes: u64, order: StreamOrder) -> Option<u64> {
        let address = self.freed.reuse(self.heap.room_for(bytes), order)?;
        self.heap.renew(address, bytes);
        Some(address)
    }

    /// Frees the allocation at the next drain.
    pub(super) fn free_later(&mut self, address: u64) {
        self.freed.push(address, self.heap.room(address));
    }

    /// Frees the allocation after the work in its stream.
    pub(super) fn free_in_order(&mut self, address: u64, order: StreamOrder) {
        self.freed
            .push_in_order(address, self.heap.room(address), order);
    }

    pub(super) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Frees what is no longer in use.
    pub(super) fn reap(&mut self, is_drained: bool) -> Freed {
        let free = self.freed.take(is_drained);
        self.free_all(free)
    }

    fn free_all(&mut self, addresses: Vec<u64>) -> Freed {
        let mut sum = Freed::default();
        for address in addresses {
            sum += self.free(address).unwrap_or_default();
        }
        sum
    }

    /// Records marks, so that memory freed in order can soon be released.
    pub(super) fn mark_freed(&mut self) {
        let regions = &self.regions;
        self.freed.mark(|address| context_in(regions, address));
    }

    /// The stream is about to end.
    pub(super) fn forget_stream(&mut self, stream: Stream) {
        self.freed.forget_stream(stream);
    }

    /// Gives up the stream for moves and the marks of a context that is about to end. Memory that waits for
    /// those marks is freed at the next drain.
    pub(super) fn prepare_end(&mut self, context: Context) {
        if let Some(stream) = self.streams.remove(&context) {
            let ended = context.with(|| {
                driver::end_stream(stream);
                Ok(())
            });
            // If the context cannot be entered, its stream is gone already.
            let _ = ended;
        }
        let regions = &self.regions;
        let is_in_it = |address| context_in(regions, address) == Some(context);
        self.freed.forget_context(context, is_in_it);
    }

    /// Frees all memory of a context that has ended.
    pub(super) fn forget(&mut self, context: Context) -> Freed {
        let mut freed = self.fix_pieces(context);
        let addresses: Vec<u64> = (self.regions.iter())
            .filter(|(_, region)| region.context == context)
            .flat_map(|(base, _)| self.heap.allocations(*base))
            .collect();
        self.freed.remove_all(&addresses);
        self.fixed.retain(|_, fixed| fixed.context != Some(context));
        for region in self.regions.values_mut() {
            if region.context == context {
                region.context = Context::NONE;
            }
        }
        freed += self.free_all(addresses);
        freed
    }

    /// Returns what no longer counts as memory that moves.
    fn fix_pieces(&mut self, context: Context) -> Freed {
        let mut sum = Freed::default();
        for address in self.pieces.in_context(&self.regions, context) {
            self.heap.release(address);
            if let Some(mut region) = self.regions.remove(&address) {
                let (bytes, away_bytes) = (region.bytes(), region.away_bytes());
                sum += Freed { bytes, away_bytes };
                self.bytes -= bytes;
                region.fix();
                self.pieces.fix(address, region);
            }
        }
        sum
    }

    /// Whether there are pieces whose memory is in this context.
    pub(super) fn has_pieces_in(&self, context: Context) -> bool {
        !self.pieces.in_context(&self.regions, context).is_empty()
    }

    /// Whether the program has mapped anything in this range.
    pub(super) fn has_views_in(&self, range: Range) -> bool {
        self.pieces.has_views_in(&self.regions, range)
    }

    /// Calls `action`, and frees the pieces that are no longer used.
    pub(super) fn change_pieces<T>(
        &mut self,
        action: impl FnOnce(&mut Pieces, &mut Regions) -> T,
    ) -> (Freed, T) {
        let result = action(&mut self.pieces, &mut self.regions);
        let unused = self.pieces.take_unused(&self.regions);
        (self.free_all(unused), result)
    }

    pub(super) fn fix(&mut self, key: u64, bytes: u64, context: Option<Context>) {
        self.fixed.insert(key, Fixed { bytes, context });
    }

    pub(super) fn unfix(&mut self, key: u64) -> bool {
        self.fixed.remove(&key).is_some()
    }

    /// Returns whether the number has changed.
    pub(super) fn set_graph_bytes(&mut self, bytes: u64) -> bool {
        std::mem::replace(&mut self.graph_bytes, bytes) != bytes
    }

    // ---- places on the host for memory that is on the GPU

    /// The sizes of the places to make for memory that has none, for at most this many bytes.
    pub(super) fn sizes_without_place(&self, bytes: u64) -> Vec<u64> {
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
    pub(super) fn without_place(&self, bytes: u64) -> Option<(ChunkKey, Context)> {
        self.regions.iter().find_map(|(base, region)| {
            let lacks = |chunk: &Chunk| chunk.lacks_place() && chunk.range.bytes == bytes;
            let index = region.chunks.iter().position(lacks)?;
            Some(((*base, index), region.context))
        })
    }

    /// Gives the memory its place, or returns the place if it is no longer needed.
    pub(super) fn give_place(
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
    pub(super) fn take_empty_places(&mut self, bytes: u64) -> Vec<(Context, HostMemory)> {
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

    // ---- moving

    /// Moves at least this many bytes off the GPU, or all. Nothing may be in flight. `left` is called with the
    /// size of each chunk that the driver has back.
    pub(super) fn swap_out(&mut self, bytes: u64, mut left: impl FnMut(u64)) -> Left {
        self.is_away = true;
        let keys = self.first_to_leave(bytes);
        let new = keys.iter().filter_map(|key| self.lacks_shadow(*key));
        let (new, taken) = (new.collect::<Vec<u64>>(), AtomicUsize::new(0));
        let (bytes, code) = thread::scope(|scope| {
            let mut shadows = Shadows::begin(scope, &new, &taken);
            self.copy_and_give(&keys, &mut shadows, &mut left)
        });
        Left {
            bytes,
            new_place_bytes: new.iter().sum(),
            code,
        }
    }

    fn copy_and_give(
        &mut self,
        keys: &[ChunkKey],
        shadows: &mut Shadows,
        left: &mut impl FnMut(u64),
    ) -> (u64, Code) {
        let (mut code, mut sum) = (SUCCESS, 0);
        let mut copies = VecDeque::new();
        // The next chunks are copied while one is returned to the driver.
        for key in keys.iter().copied() {
            match self.begin_copy(key, shadows) {
                Ok(copied) => copies.push_back((key, Some(copied))),
                Err(error) => {
                    code = first_error(code, Err(error));
                    copies.push_back((key, None));
                }
            }
            while copies.len() > COPIES_AHEAD {
                code = first_error(code, self.give_first(&mut copies, &mut sum, left));
            }
        }
        while !copies.is_empty() {
            code = first_error(code, self.give_first(&mut copies, &mut sum, left));
        }
        (sum, code)
    }

    /// The chunks to move. Those with a place on the host come first, because pinning a new place takes longer
    /// than the copy.
    fn first_to_leave(&self, bytes: u64) -> Vec<ChunkKey> {
        let all = self.regions.iter().flat_map(|(base, region)| {
            let chunks = region.chunks.iter().enumerate();
            let here = chunks.filter(|(_, chunk)| chunk.handle.is_some());
            here.map(|(index, chunk)| ((*base, index), chunk))
        });
        let mut here: Vec<(ChunkKey, &Chunk)> = all.collect();
        here.sort_by_key(|(_, chunk)| chunk.shadow.is_none());
        let mut sum = 0;
        let leaves = |(key, chunk): &(ChunkKey, &Chunk)| {
            let is_needed = sum < bytes;
            sum += chunk.range.bytes;
            is_needed.then_some(*key)
        };
        here.iter().map_while(leaves).collect()
    }

    /// The size of the shadow that the chunk lacks, if it has none.
    fn lacks_shadow(&self, (base, index): ChunkKey) -> Option<u64> {
        let chunk = &self.regions[&base].chunks[index];
        chunk.shadow.is_none().then_some(chunk.range.bytes)
    }

    fn begin_copy(&mut self, key: ChunkKey, shadows: &mut Shadows) -> Result<Event, Code> {
        let new = self.lacks_shadow(key).map(|_| shadows.next());
        let (base, index) = key;
        let region = self.regions.get_mut(&base).expect("it was planned");
        let stream = stream_of(&mut self.streams, region.context)?;
        let chunk = &mut region.chunks[index];
        region.context.with(|| {
            if let Some(new) = new {
                chunk.shadow = Some(new.ok_or(OUT_OF_MEMORY)?);
            }
            chunk.copy_out(stream)
        })
    }

    /// Waits until the first of these chunks is copied, and returns it to the driver.
    fn give_first(
        &mut self,
        copies: &mut VecDeque<(ChunkKey, Option<Event>)>,
        sum: &mut u64,
        left: &mut impl FnMut(u64),
    ) -> Result<(), Code> {
        let Some(((base, index), copied)) = copies.pop_front() else {
            return Ok(());
        };
        let waited = match copied {
            Some(copied) => copied.wait(),
            // This copy failed; wait for those that were begun before.
            None => self.wait_for_moves(),
        };
        let region = self.regions.get_mut(&base).expect("it was planned");
        let given = region.unback_chunk(index);
        let bytes = region.chunks[index].range.bytes;
        *sum += bytes;
        left(bytes);
        waited.and(given)
    }

    /// Moves everything back to the GPU, and returns how many bytes that was. After an error nothing has moved,
    /// so it can be tried again.
    pub(super) fn swap_in(&mut self) -> Result<u64, Code> {
        let away: Vec<ChunkKey> = self.chunks_away();
        let bytes = self.away_bytes();
        let backed = self.regions.values_mut().try_for_each(Region::back);
        let copied = backed.and_then(|()| self.copy_in(&away));
        if let Err(code) = copied {
            for (base, index) in away {
                if let Some(region) = self.regions.get_mut(&base) {
                    let _ = region.unback_chunk(index);
                }
            }
            return Err(code);
        }
        for chunk in self.regions.values_mut().flat_map(|one| &mut one.chunks) {
            chunk.has_left = false;
        }
        self.is_away = false;
        Ok(bytes)
    }

    fn chunks_away(&self) -> Vec<ChunkKey> {
        let all = self.regions.iter().flat_map(|(base, region)| {
            let chunks = region.chunks.iter().enumerate();
            let away = chunks.filter(|(_, chunk)| chunk.handle.is_none());
            away.map(|(index, _)| (*base, index))
        });
        all.collect()
    }

    fn copy_in(&mut self, keys: &[ChunkKey]) -> Result<(), Code> {
        let mut code = SUCCESS;
        for (base, index) in keys {
            let Some(region) = self.regions.get(base) else {
                continue;
            };
            let stream = stream_of(&mut self.streams, region.context);
            let copied = (region.context).with(|| region.chunks[*index].copy_in(stream?));
            code = first_error(code, copied);
        }
        code = first_error(code, self.wait_for_moves());
        driver::as_result(code)
    }

    fn wait_for_moves(&self) -> Result<(), Code> {
        let mut code = SUCCESS;
        for (context, stream) in &self.streams {
            let waited = context.with(|| driver::wait_for(*stream));
            code = first_error(code, waited);
        }
        match code {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }
}

/// The context of the region in which an address lies.
fn context_in(regions: &BTreeMap<u64, Region>, address: u64) -> Option<Context> {
    let (_, region) = regions.range(..=address).next_back()?;
    Some(region.context)
}

fn stream_of(streams: &mut BTreeMap<Context, Stream>, context: Context) -> Result<Stream, Code> {
    if let Some(stream) = streams.get(&context) {
        return Ok(*stream);
    }
    let stream = context.with(driver::own_stream)?;
    streams.insert(context, stream);
    Ok(stream)
}
