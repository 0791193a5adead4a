//! How much a message to the broker, or a part of it, may contain.

use crate::{codec::has_at_most, encode, encoded_bytes};
use serde::Serialize;
use std::fmt;

/// The most bytes in a message, and the most elements in all of its lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub bytes: usize,
    pub elements: usize,
}

/// Of what a message has too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    Bytes(usize),
    /// It has more than this.
    Elements(usize),
}

impl fmt::Display for Excess {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(text, "{bytes} bytes"),
            Self::Elements(most) => write!(text, "more than {most} elements"),
        }
    }
}

impl Bound {
    /// What the broker accepts. A chunk of a manifest takes three elements, so these are the chunks of 170 GB. The
    /// bytes are slightly below what peers accept, because the broker forwards a message inside a larger one.
    pub const MESSAGE: Self = Self {
        bytes: 60 << 20,
        elements: 1 << 19,
    };
    /// An event leaves room for others that are sent with it.
    pub const EVENT: Self = Self {
        bytes: 56 << 20,
        elements: (1 << 19) - (1 << 14),
    };
    /// A state leaves room for the rest of its message: code, an error, lists of files.
    pub const STATE: Self = Self {
        bytes: 48 << 20,
        elements: (1 << 19) - (1 << 15),
    };

    /// Whether the value is within the bound, however it is encoded.
    #[must_use]
    pub fn allows(self, value: &impl Serialize) -> bool {
        let bytes = encoded_bytes(value);
        self.allows_without_count(bytes)
            || (bytes <= self.bytes && self.check_encoded(&encode(value)).is_ok())
    }

    /// Fails if the document is not within the bound.
    pub fn check_encoded(self, document: &[u8]) -> Result<(), Excess> {
        let bytes = document.len();
        if self.allows_without_count(bytes) {
            return Ok(());
        }
        if bytes > self.bytes {
            return Err(Excess::Bytes(bytes));
        }
        has_at_most(document, self.elements).map_err(|_| Excess::Elements(self.elements))
    }

    /// Each element takes at least one byte, so there is nothing to count in a short document.
    fn allows_without_count(self, bytes: usize) -> bool {
        bytes <= self.bytes.min(self.elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Payload, Piece};

    const SMALL: Bound = Bound {
        bytes: 100,
        elements: 20,
    };

    fn check(value: &impl Serialize, expected: Result<(), Excess>) {
        assert_eq!(SMALL.allows(value), expected.is_ok());
        assert_eq!(SMALL.check_encoded(&encode(value)), expected);
    }

    #[test]
    fn bytes_and_elements_are_bounded() {
        let too_many = Err(Excess::Elements(20));
        check(&vec![0_u8; 20], Ok(()));
        check(&vec![0_u8; 21], too_many);
        check(&(vec![0_u8; 9], vec![0_u8; 9]), Ok(()));
        check(&(vec![0_u8; 9], vec![0_u8; 10]), too_many);
        let payload = |bytes: usize| Payload(vec![Piece::Inline(vec![0; bytes].into())]);
        check(&payload(80), Ok(()));
        let too_long = Excess::Bytes(encode(&payload(100)).len());
        check(&payload(100), Err(too_long));
    }
}
