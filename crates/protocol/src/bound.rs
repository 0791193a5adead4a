//! How much a message to the broker, or a part of it, may contain.

use crate::{codec::has_at_most, encode, encoded_bytes};
use serde::Serialize;

/// The most bytes in a message, and the most elements in all of its lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub bytes: usize,
    pub elements: usize,
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
            || (bytes <= self.bytes && self.allows_encoded(&encode(value)))
    }

    /// Whether the document is within the bound.
    #[must_use]
    pub fn allows_encoded(self, document: &[u8]) -> bool {
        let bytes = document.len();
        self.allows_without_count(bytes)
            || (bytes <= self.bytes && has_at_most(document, self.elements).is_ok())
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

    fn check(value: &impl Serialize, expected: bool) {
        assert_eq!(SMALL.allows(value), expected);
        assert_eq!(SMALL.allows_encoded(&encode(value)), expected);
    }

    #[test]
    fn bytes_and_elements_are_bounded() {
        check(&vec![0_u8; 20], true);
        check(&vec![0_u8; 21], false);
        check(&(vec![0_u8; 9], vec![0_u8; 9]), true);
        check(&(vec![0_u8; 9], vec![0_u8; 10]), false);
        let payload = |bytes: usize| Payload(vec![Piece::Inline(vec![0; bytes].into())]);
        check(&payload(80), true);
        check(&payload(100), false);
    }
}
