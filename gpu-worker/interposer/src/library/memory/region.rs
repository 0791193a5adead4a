//! Addresses that were reserved at once, and the chunks of memory behind them.

use super::super::{
    heap::Range,
    sys::{
        driver::{self, Code, Context, Event, OUT_OF_MEMORY, SUCCESS, Stream},
        host::HostMemory,
    },
};

const CHUNK_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Region {
    pub(super) context: Context,
    device: i32,
    pub(super) chunks: Vec<Chunk>,
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
        }
    }

    pub(super) fn away_bytes(&self) -> u64 {
        let away = self.chunks.iter().filter(|chunk| chunk.handle.is_none());
        away.map(|chunk| chunk.range.bytes).sum()
    }

    /// Puts GPU memory behind all chunks that have none, or behind none of them if that fails.
    pub(super) fn back(&mut self) -> Result<(), Code> {
        let (device, chunks) = (self.device, &mut self.chunks);
        self.context.with(|| {
            let away = chunks.iter_mut().filter(|chunk| chunk.handle.is_none());
            let mut backed = Vec::new();
            for chunk in away {
                match driver::back(chunk.range.address, chunk.range.bytes, device) {
                    Ok(handle) => chunk.handle = Some(handle),
                    Err(code) => {
                        backed.into_iter().for_each(|chunk: &mut Chunk| {
                            let _ = chunk.unback();
                        });
                        return Err(code);
                    }
                }
                backed.push(chunk);
            }
            Ok(())
        })
    }

    /// Releases the region's memory and its places on the host.
    pub(super) fn unback(&mut self) -> Result<(), Code> {
        let chunks = &mut self.chunks;
        self.context.with_if_it_lives(|| {
            let unbacked = chunks.iter_mut().map(Chunk::unback);
            let code = unbacked.fold(SUCCESS, first_error);
            // The driver can unpin a place only in a context.
            chunks.iter_mut().for_each(|chunk| chunk.shadow = None);
            driver::as_result(code)
        })
    }
}

impl Chunk {
    /// It is on the GPU, and has no place on the host.
    pub(super) fn lacks_place(&self) -> bool {
        self.handle.is_some() && self.shadow.is_none()
    }

    pub(super) fn unback(&mut self) -> Result<(), Code> {
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        driver::unback(self.range.address, self.range.bytes, handle)
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
