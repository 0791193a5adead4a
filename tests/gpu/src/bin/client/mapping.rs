//! Buffers that the program maps itself.

use super::{Answer, Buffer, Client, INVALID, nothing};

impl Client {
    /// Maps this many pieces, one after the other, and permits access to all of them at once.
    pub(super) fn map(&mut self, name: &str, bytes: usize, count: u64) -> Answer<String> {
        let piece_bytes = bytes / count as usize;
        let create = |_| self.driver.create_shareable_piece(piece_bytes);
        let pieces: Vec<u64> = (0..count).map(create).collect::<Answer<_>>()?;
        self.map_pieces(name, piece_bytes, pieces, 0)
    }

    /// Maps the pieces of a buffer at other addresses, too.
    pub(super) fn map_again(&mut self, name: &str, other: &str) -> Answer<String> {
        let pieces = self.pieces.get(name).ok_or(INVALID)?.clone();
        let buffer = self.buffer(name)?;
        let bytes = buffer.numbers * 8 / pieces.len();
        self.map_pieces(other, bytes, pieces, buffer.value)
    }

    fn map_pieces(
        &mut self,
        name: &str,
        each: usize,
        pieces: Vec<u64>,
        value: u64,
    ) -> Answer<String> {
        let (driver, bytes) = (self.driver, each * pieces.len());
        let address = driver.reserve(bytes)?;
        for (index, piece) in pieces.iter().enumerate() {
            driver.map(address + (index * each) as u64, each, *piece)?;
        }
        driver.permit(address, bytes, 0)?;
        let buffer = Buffer {
            address,
            numbers: bytes / 8,
            value,
        };
        self.buffers.insert(name.to_owned(), buffer);
        self.pieces.insert(name.to_owned(), pieces);
        Ok(String::new())
    }

    pub(super) fn unmap(&mut self, name: &str) -> Answer<String> {
        let buffer = self.buffers.remove(name).ok_or(INVALID)?;
        let bytes = buffer.numbers * 8;
        self.driver.unmap(buffer.address, bytes)?;
        nothing(self.driver.unreserve(buffer.address, bytes))
    }

    pub(super) fn release(&mut self, name: &str) -> Answer<String> {
        let pieces = self.pieces.remove(name).ok_or(INVALID)?;
        nothing(
            pieces
                .into_iter()
                .try_for_each(|piece| self.driver.release_piece(piece)),
        )
    }

    /// Whether the piece behind a buffer's address is the one that was mapped there, with its properties.
    pub(super) fn hold(&self, name: &str) -> Answer<String> {
        const ON_DEVICE: i32 = 1;
        let pieces = self.pieces.get(name).ok_or(INVALID)?;
        let held = self
            .driver
            .hold_piece_at(self.buffer(name)?.address + 4096)?;
        let properties = self.driver.properties_of(held)?;
        self.driver.release_piece(held)?;
        Ok((held == pieces[0] && properties == (ON_DEVICE, true)).to_string())
    }
}
