//! MessagePack with named fields.

use serde::{
    Serialize,
    de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use std::{fmt, io};

#[derive(Debug, thiserror::Error)]
#[error("A message could not be read as {expected}")]
pub struct DecodeError {
    expected: &'static str,
    #[source]
    source: rmp_serde::decode::Error,
}

/// # Panics
/// Never for the types of this crate: they hold no maps with keys that MessagePack cannot encode.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    #[expect(
        clippy::expect_used,
        reason = "see above: writing to memory cannot fail"
    )]
    rmp_serde::to_vec_named(message).expect("our own types can be written")
}

/// The size of what [`encode`] returns, without the memory for it.
#[must_use]
pub fn encoded_bytes(message: &impl Serialize) -> usize {
    struct Counter(usize);

    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut counter = Counter(0);
    #[expect(clippy::expect_used, reason = "as in `encode`")]
    rmp_serde::encode::write_named(&mut counter, message).expect("our own types can be written");
    counter.0
}

/// Like [`decode`], for a sender that is not trusted. An element of a list may take one byte in the
/// message and forty in memory, so a message with more than `most` elements in all of its lists is
/// refused before any memory is allocated for them.
pub fn decode_bounded<Message: DeserializeOwned>(
    bytes: &[u8],
    most: usize,
) -> Result<Message, DecodeError> {
    match has_at_most(bytes, most) {
        Ok(()) => decode(bytes),
        Err(source) => Err(DecodeError {
            expected: std::any::type_name::<Message>(),
            source,
        }),
    }
}

/// Fails if the lists of the document have more than `most` elements in all, or if it cannot be read.
pub(crate) fn has_at_most(bytes: &[u8], most: usize) -> Result<(), rmp_serde::decode::Error> {
    let mut left = most;
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    (Elements { left: &mut left }).deserialize(&mut reader)
}

pub fn decode<Message: DeserializeOwned>(bytes: &[u8]) -> Result<Message, DecodeError> {
    rmp_serde::from_slice(bytes).map_err(|source| DecodeError {
        expected: std::any::type_name::<Message>(),
        source,
    })
}

/// Counts the elements of all lists in a value.
struct Elements<'a> {
    left: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(()) = list.next_element_seed(Elements { left: self.left })? {
            let left = self.left.checked_sub(1);
            *self.left =
                left.ok_or_else(|| A::Error::custom("its lists have too many elements"))?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(()) = map.next_key_seed(Elements { left: self.left })? {
            map.next_value_seed(Elements { left: self.left })?;
        }
        Ok(())
    }

    fn visit_newtype_struct<D: serde::Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{Payload, Piece};

    fn payload(pieces: usize) -> Payload {
        Payload(vec![Piece::Inline(b"text".as_slice().into()); pieces])
    }

    #[test]
    fn the_size_is_that_of_the_bytes() {
        let message = payload(1000);
        assert_eq!(encoded_bytes(&message), encode(&message).len());
    }

    #[test]
    fn lists_have_bounded_elements_in_all() {
        let pair = encode(&(payload(3), payload(4)));
        let read = |most| decode_bounded::<(Payload, Payload)>(&pair, most);
        assert_eq!(read(9).unwrap(), (payload(3), payload(4)));
        let error = read(8).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, "its lists have too many elements");
    }

    #[test]
    fn a_list_that_claims_to_be_huge_is_refused() {
        let claims = [&[0xdd, 0xff, 0xff, 0xff, 0xff][..], &[0xc0; 100]].concat();
        assert!(decode_bounded::<Payload>(&claims, 10).is_err());
    }
}
