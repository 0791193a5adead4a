//! Dialling out to the broker: messages on a WebSocket, chunks over HTTP; and past the broker, on one machine.
//!
//! Proxies and workers dial; no other address is needed. A broker on the same machine listens on a Unix
//! socket, any other on TCP, with TLS ([`tls`]) where its address
//! says `https`; all speak the same HTTP.
//!
//! State on the memory transport goes from process to process over a Unix socket of the proxy ([`MemoryHolder`]).
//!
//! **Invariant:** nothing here decides what to say; reconnecting is the caller's, with [`Backoff`] for the pauses.

mod api;
mod backoff;
mod chunks;
mod connection;
mod dial;
mod errors;
pub mod frames;
mod holder;
mod objects;
mod states;
pub mod tls;
mod token;

pub use api::Api;
pub use backoff::Backoff;
pub use chunks::ChunkClient;
pub use connection::{Connection, connect};
pub use dial::Dial;
pub use errors::LinkError;
pub use holder::{Held, MemoryHolder, TransportChoice, Unreachable, deposit, fetch, host};
pub use objects::ObjectClient;
pub use token::Token;
