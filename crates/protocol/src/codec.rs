//! MessagePack with named fields.

use serde::{Serialize, de::DeserializeOwned};

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

pub fn decode<Message: DeserializeOwned>(bytes: &[u8]) -> Result<Message, DecodeError> {
    rmp_serde::from_slice(bytes).map_err(|source| DecodeError {
        expected: std::any::type_name::<Message>(),
        source,
    })
}
