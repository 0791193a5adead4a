//! Addresses that were reserved at once, and the chunks of memory behind them.

use super::super::{
    heap::Range,
    sys::{
        driver::{self, Access, Code, Context, Event, OUT_OF_MEMORY, SUCCESS, Stream},
        host_memory::HostMemory,
    },
};
use std::collections::BTreeMap;

const CHUNK_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(in super::super) struct Region {
    pub(super) context: Context,
    device: i32,
    pub(super) chunks: Vec<Chunk>,
    views: Views,
}

/// Further addresses of a region's memory, at each of which the program has mapped all of it. By address.
type Views = BTreeMap<u64, View>;

#[derive(Debug)]
struct View {
    range: Range,
    access: Vec<Access>,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) range: Range,
    /// The driver's handle while the chunk is on the GPU.
    pub(super) handle: Option<u64>,
    /// Its place on the host, kept when the chunk returns, because pinning a new one takes longer than the
    /// move.
    pub(super) shadow: Option<HostMemory>,
    /// The shadow holds the chunk's contents.
    pub(super) has_left: bool,
}

impl Region {
    pub(super) fn new(address: u64, bytes: u64, context: Context, device: i32) -> Self {
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
            views: Views::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.range.bytes).sum()
    }

    pub(super) fn away_bytes(&self) -> u64 {
        let away = self.chunks.iter().filter(|chunk| chunk.handle.is_none());
        away.map(|chunk| chunk.range.bytes).sum()
    }

    /// Puts GPU memory behind all chunks that have none, or behind none of them if that fails.
    pub(super) fn back(&mut self) -> Result<(), Code> {
        let (device, chunks, views) = (self.device, &mut self.chunks, &self.views);
        self.context.with(|| {
            let away: Vec<usize> = (0..chunks.len())
                .filter(|index| chunks[*index].handle.is_none())
                .collect();
            for (backed, index) in away.iter().enumerate() {
                if let Err(code) = chunks[*index].back(device, views, *index) {
                    for index in &away[..backed] {
                        let _ = chunks[*index].unback(views, *index);
                    }
                    return Err(code);
                }
            }
            Ok(())
        })
    }

    /// Releases the region's memory, its places on the host and its addresses.
    pub(super) fn release(mut self) {
        let (chunks, views) = (&mut self.chunks, &self.views);
        self.context.with_if_it_lives(|| {
            for (index, chunk) in chunks.iter_mut().enumerate() {
                // An error has no use here: memory that the driver keeps is freed when the process ends.
                let _ = chunk.unback(views, index);
                // The driver can unpin a place only in a context.
                chunk.shadow = None;
            }
        });
        let bytes = self.bytes();
        if let Some(first) = self.chunks.first() {
            driver::unreserve(first.range.address, bytes);
        }
    }

    /// Releases the memory of one chunk, which keeps its place on the host.
    pub(super) fn unback_chunk(&mut self, index: usize) -> Result<(), Code> {
        let (chunk, views) = (&mut self.chunks[index], &self.views);
        (self.context).with_if_it_lives(|| chunk.unback(views, index))
    }

    /// The region's context has ended. What the region has on the GPU stays there.
    pub(super) fn fix(&mut self) {
        self.context = Context::NONE;
        for chunk in &mut self.chunks {
            chunk.shadow = None;
        }
    }

    // ---- views

    pub(super) fn has_views(&self) -> bool {
        !self.views.is_empty()
    }

    /// Adds a view of the region at this address, or none if that fails.
    pub(super) fn show(&mut self, address: u64) -> Result<(), Code> {
        let range = Range {
            address,
            bytes: self.bytes(),
        };
        let view = View {
            range,
            access: Vec::new(),
        };
        for (index, chunk) in self.chunks.iter().enumerate() {
            if let Some(handle) = chunk.handle
                && let Err(code) = view.map(index, handle)
            {
                view.unmap_from(&self.chunks[..index]);
                return Err(code);
            }
        }
        self.views.insert(address, view);
        Ok(())
    }

    /// Removes the view at this address.
    pub(super) fn hide(&mut self, address: u64) -> Result<(), Code> {
        let view = self.views.remove(&address);
        view.map_or(Ok(()), |view| {
            driver::as_result(view.unmap_from(&self.chunks))
        })
    }

    /// Permits access to these addresses of a view, and from the view's next return on to all of it.
    pub(super) fn permit(&mut self, range: Range, access: &[Access]) -> Result<(), Code> {
        let view = self.views.range_mut(..=range.address).next_back();
        let Some((_, view)) = view else { return Ok(()) };
        for (index, chunk) in self.chunks.iter().enumerate() {
            if chunk.handle.is_some()
                && let Some(part) = view.part(index).common(range)
            {
                driver::set_access(part, access)?;
            }
        }
        view.permit(access);
        Ok(())
    }
}

impl View {
    /// What was said about the same places before no longer counts.
    fn permit(&mut self, access: &[Access]) {
        let is_new = |one: &Access| access.iter().all(|other| other.location != one.location);
        self.access.retain(is_new);
        self.access.extend_from_slice(access);
    }

    /// The part of the view behind which a chunk lies.
    fn part(&self, index: usize) -> Range {
        let from = index as u64 * CHUNK_BYTES;
        Range {
            address: self.range.address + from,
            bytes: CHUNK_BYTES.min(self.range.bytes - from),
        }
    }

    /// Maps a chunk, or nothing if that fails.
    fn map(&self, index: usize, handle: u64) -> Result<(), Code> {
        let part = self.part(index);
        driver::map(part, handle)?;
        if !self.access.is_empty()
            && let Err(code) = driver::set_access(part, &self.access)
        {
            let _ = driver::unmap(part);
            return Err(code);
        }
        Ok(())
    }

    fn unmap(&self, index: usize) -> Result<(), Code> {
        driver::unmap(self.part(index))
    }

    /// Unmaps those of a region's first chunks that are on the GPU.
    fn unmap_from(&self, chunks: &[Chunk]) -> Code {
        let here = chunks
            .iter()
            .enumerate()
            .filter(|(_, chunk)| chunk.handle.is_some());
        here.fold(SUCCESS, |code, (index, _)| {
            first_error(code, self.unmap(index))
        })
    }
}

impl Chunk {
    /// It is on the GPU, and has no place on the host.
    pub(super) fn lacks_place(&self) -> bool {
        self.handle.is_some() && self.shadow.is_none()
    }

    /// Puts GPU memory behind the chunk, whose number in its region is `index`.
    fn back(&mut self, device: i32, views: &Views, index: usize) -> Result<(), Code> {
        let handle = driver::back(self.range, device)?;
        self.handle = Some(handle);
        for view in views.values() {
            // After any other error, only those addresses fault: the program has done something else with them.
            if view.map(index, handle) == Err(OUT_OF_MEMORY) {
                let _ = self.unback(views, index);
                return Err(OUT_OF_MEMORY);
            }
        }
        Ok(())
    }

    fn unback(&mut self, views: &Views, index: usize) -> Result<(), Code> {
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        for view in views.values() {
            // The contents are safe whatever the program has done with these addresses.
            let _ = view.unmap(index);
        }
        driver::unback(self.range, handle)
    }

    pub(super) fn copy_out(&mut self, stream: Stream) -> Result<Event, Code> {
        let Range { address, bytes } = self.range;
        if let Some(shadow) = &mut self.shadow {
            shadow.pin();
            driver::copy_out(shadow.address(), address, bytes, stream)?;
            self.has_left = true;
        }
        Event::record(stream).ok_or(OUT_OF_MEMORY)
    }

    pub(super) fn copy_in(&self, stream: Stream) -> Result<(), Code> {
        match &self.shadow {
            Some(shadow) if self.has_left => {
                let Range { address, bytes } = self.range;
                driver::copy_in(address, shadow.address(), bytes, stream)
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn first_error(code: Code, result: Result<(), Code>) -> Code {
    match (code, result) {
        (SUCCESS, Err(code)) => code,
        _ => code,
    }
}
