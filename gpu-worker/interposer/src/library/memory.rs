//! The session's memory on the GPU: allocations that can leave it and come back to the same addresses.
//!
//! Addresses are reserved once. The memory behind them comes in chunks, which the driver gives and takes one by one;
//! so what waits for room can begin before all has left. What cannot be moved is counted.

use std::collections::BTreeMap;

use super::{
    heap::{Heap, Range},
    sys::driver::{self, Code, Context, Event, OUT_OF_MEMORY, SUCCESS, Stream},
    sys::host::HostMemory,
};

const CHUNK_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    heap: Heap,
    regions: BTreeMap<u64, Region>,
    is_away: bool,
    bytes: u64,
    /// What cannot leave the GPU, by what it is freed with.
    fixed: BTreeMap<u64, Fixed>,
    /// Of graphs, which cannot leave it either.
    graph_bytes: u64,
    /// Freed, and perhaps still in use by what was submitted before; without an event until the next drain.
    freed: Vec<(u64, Option<Event>)>,
    /// For moving, one for each context.
    streams: BTreeMap<Context, Stream>,
}

#[derive(Debug)]
struct Fixed {
    bytes: u64,
    /// It ends with that.
    context: Option<Context>,
}

#[derive(Debug)]
struct Region {
    context: Context,
    device: i32,
    chunks: Vec<Chunk>,
}

#[derive(Debug)]
struct Chunk {
    range: Range,
    /// While it is on the GPU.
    handle: Option<u64>,
    /// Kept when it comes back, because pinning it anew takes longer than moving it.
    shadow: Option<HostMemory>,
    /// The shadow holds what it held when it left.
    has_left: bool,
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
            freed: Vec::new(),
            streams: BTreeMap::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn fixed_bytes(&self) -> u64 {
        let fixed: u64 = self.fixed.values().map(|fixed| fixed.bytes).sum();
        fixed + self.graph_bytes
    }

    pub(super) fn is_away(&self) -> bool {
        self.is_away
    }

    /// Of the GPU where most of it lies, whoever has the rest.
    pub(super) fn free_bytes(&self) -> u64 {
        let largest = (self.regions.values()).max_by_key(|region| region.chunks.len());
        largest.map_or(0, |region| driver::free_bytes(region.context))
    }

    /// The allocation in which an address lies.
    pub(super) fn find(&self, address: u64) -> Option<Range> {
        self.heap.find(address)
    }

    /// The context of the allocation that begins at an address.
    pub(super) fn context_of(&self, address: u64) -> Option<Context> {
        let found = self.heap.find(address)?;
        let (_, region) = self.regions.range(..=address).next_back()?;
        (found.address == address).then_some(region.context)
    }

    // ---- allocating and freeing

    /// Where there is room already.
    pub(super) fn place(&mut self, bytes: u64) -> Option<u64> {
        self.heap.place(bytes)
    }

    /// How much more an allocation takes that found no room.
    pub(super) fn region_for(&self, bytes: u64) -> u64 {
        self.heap.region_for(bytes)
    }

    /// An allocation in a new region, on the GPU unless the rest is away.
    pub(super) fn grow(
        &mut self,
        bytes: u64,
        (context, device): (Context, i32),
    ) -> Result<u64, Code> {
        let region_bytes = self.heap.region_for(bytes);
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
        Ok(self.heap.add(range, bytes))
    }

    /// How many bytes went back to the driver; `None` for an address that is not one of these allocations.
    pub(super) fn free(&mut self, address: u64) -> Option<u64> {
        let Some(emptied) = self.heap.release(address)? else {
            return Some(0);
        };
        let mut region = self.regions.remove(&emptied.address)?;
        // There is nobody to tell: what the driver keeps it keeps until the process ends.
        let _ = region.unback();
        driver::unreserve(emptied.address, emptied.bytes);
        self.bytes -= emptied.bytes;
        Some(emptied.bytes)
    }

    /// Frees it when the event is reached, or at the next drain.
    pub(super) fn free_after(&mut self, address: u64, event: Option<Event>) {
        self.freed.push((address, event));
    }

    pub(super) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Frees what is not in use any more. How many bytes went back to the driver.
    pub(super) fn reap(&mut self, is_drained: bool) -> u64 {
        let is_free =
            |event: &Option<Event>| is_drained || event.as_ref().is_some_and(Event::is_reached);
        let (free, rest) =
            (std::mem::take(&mut self.freed).into_iter()).partition(|(_, event)| is_free(event));
        self.freed = rest;
        let free: Vec<(u64, Option<Event>)> = free;
        free.into_iter()
            .filter_map(|(address, _)| self.free(address))
            .sum()
    }

    /// Gives up what is in a context that is about to end: its stream for moving, and its marks. What waits for those
    /// is freed at the next drain.
    pub(super) fn prepare_end(&mut self, context: Context) {
        if let Some(stream) = self.streams.remove(&context) {
            let ended = context.with(|| {
                driver::end_stream(stream);
                Ok(())
            });
            // Where the context cannot be entered the stream is gone.
            let _ = ended;
        }
        for (_, event) in &mut self.freed {
            if event
                .as_ref()
                .is_some_and(|event| event.context() == context)
            {
                *event = None;
            }
        }
    }

    /// Frees what a context had that has ended.
    pub(super) fn forget(&mut self, context: Context) -> u64 {
        let addresses: Vec<u64> = (self.regions.iter())
            .filter(|(_, region)| region.context == context)
            .flat_map(|(base, _)| self.heap.allocations(*base))
            .collect();
        self.freed
            .retain(|(address, _)| !addresses.contains(address));
        self.fixed.retain(|_, fixed| fixed.context != Some(context));
        for region in self.regions.values_mut() {
            if region.context == context {
                region.context = Context::NONE;
            }
        }
        addresses
            .into_iter()
            .filter_map(|address| self.free(address))
            .sum()
    }

    pub(super) fn fix(&mut self, key: u64, bytes: u64, context: Option<Context>) {
        self.fixed.insert(key, Fixed { bytes, context });
    }

    pub(super) fn unfix(&mut self, key: u64) -> bool {
        self.fixed.remove(&key).is_some()
    }

    /// `false` where it was known.
    pub(super) fn set_graph_bytes(&mut self, bytes: u64) -> bool {
        std::mem::replace(&mut self.graph_bytes, bytes) != bytes
    }

    // ---- moving

    /// Takes everything off the GPU. Nothing may be in flight. How many bytes, and whether they are whole: those that
    /// are not are lost.
    pub(super) fn swap_out(&mut self) -> (u64, Code) {
        let mut code = SUCCESS;
        let mut moves = Vec::new();
        for region in self.regions.values_mut() {
            let context = region.context;
            let stream = stream_of(&mut self.streams, context);
            let copied = context.with(|| region.copy_out(stream?, &mut moves));
            code = first_error(code, copied);
        }
        for event in moves {
            code = first_error(code, event.wait());
        }
        if code != SUCCESS {
            // What was begun before it failed.
            let _ = self.wait_for_moves();
        }
        for region in self.regions.values_mut() {
            code = first_error(code, region.unback());
        }
        self.is_away = true;
        (self.bytes, code)
    }

    /// Brings everything back, or nothing where that fails: then it can be tried again.
    pub(super) fn swap_in(&mut self) -> Result<u64, Code> {
        let backed = self.regions.values_mut().try_for_each(Region::back);
        let copied = backed.and_then(|()| self.copy_in());
        if let Err(code) = copied {
            for region in self.regions.values_mut() {
                let _ = region.unback();
            }
            return Err(code);
        }
        for chunk in self.regions.values_mut().flat_map(|one| &mut one.chunks) {
            chunk.has_left = false;
        }
        self.is_away = false;
        Ok(self.bytes)
    }

    fn copy_in(&mut self) -> Result<(), Code> {
        let mut code = SUCCESS;
        for region in self.regions.values() {
            let context = region.context;
            let stream = stream_of(&mut self.streams, context);
            let copied = context.with(|| region.copy_in(stream?));
            code = first_error(code, copied);
        }
        code = first_error(code, self.wait_for_moves());
        match code {
            SUCCESS => Ok(()),
            code => Err(code),
        }
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

impl Region {
    fn new(address: u64, bytes: u64, context: Context, device: i32) -> Self {
        let chunk = |from: u64| Chunk {
            range: Range {
                address: address + from,
                bytes: CHUNK_BYTES.min(bytes - from),
            },
            handle: None,
            shadow: None,
            has_left: false,
        };
        Self {
            context,
            device,
            chunks: (0..bytes)
                .step_by(CHUNK_BYTES as usize)
                .map(chunk)
                .collect(),
        }
    }

    /// All of it or nothing.
    fn back(&mut self) -> Result<(), Code> {
        let (device, chunks) = (self.device, &mut self.chunks);
        let backed = self.context.with(|| {
            let away = chunks.iter_mut().filter(|chunk| chunk.handle.is_none());
            for chunk in away {
                let Range { address, bytes } = chunk.range;
                chunk.handle = Some(driver::back(address, bytes, device)?);
            }
            Ok(())
        });
        if backed.is_err() {
            let _ = self.unback();
        }
        backed
    }

    fn unback(&mut self) -> Result<(), Code> {
        let chunks = &mut self.chunks;
        self.context.with_if_it_lives(|| {
            let mut code = SUCCESS;
            for chunk in chunks {
                if let Some(handle) = chunk.handle.take() {
                    let Range { address, bytes } = chunk.range;
                    code = first_error(code, driver::unback(address, bytes, handle));
                }
            }
            driver::as_result(code)
        })
    }

    fn copy_out(&mut self, stream: Stream, moves: &mut Vec<Event>) -> Result<(), Code> {
        for chunk in &mut self.chunks {
            let Range { address, bytes } = chunk.range;
            if chunk.shadow.is_none() {
                chunk.shadow = Some(HostMemory::new(bytes).ok_or(OUT_OF_MEMORY)?);
            }
            if let Some(shadow) = &chunk.shadow {
                driver::copy_out(shadow.address(), address, bytes, stream)?;
                chunk.has_left = true;
            }
        }
        moves.push(Event::record(stream).ok_or(OUT_OF_MEMORY)?);
        Ok(())
    }

    fn copy_in(&self, stream: Stream) -> Result<(), Code> {
        let left = self.chunks.iter().filter(|chunk| chunk.has_left);
        for chunk in left {
            if let Some(shadow) = &chunk.shadow {
                let Range { address, bytes } = chunk.range;
                driver::copy_in(address, shadow.address(), bytes, stream)?;
            }
        }
        Ok(())
    }
}

fn stream_of(streams: &mut BTreeMap<Context, Stream>, context: Context) -> Result<Stream, Code> {
    if let Some(stream) = streams.get(&context) {
        return Ok(*stream);
    }
    let stream = context.with(driver::own_stream)?;
    streams.insert(context, stream);
    Ok(stream)
}

fn first_error(code: Code, result: Result<(), Code>) -> Code {
    match (code, result) {
        (SUCCESS, Err(code)) => code,
        _ => code,
    }
}
