//! Connections to the broker: messages on a WebSocket, chunks over HTTP. On one machine, state also
//! goes directly from process to process.
//!
//! Proxies and workers connect to the broker and need no other address. A broker on the same
//! machine listens on a Unix socket, any other on TCP, with TLS ([`tls`]) if its address says
//! `https`. All of them use the same HTTP.
//!
//! [`transfer`] moves one state out of a kernel's memory, and into a file for the shim of another.
//!
//! On the memory transport, state goes from process to process over a Unix socket of the proxy
//! ([`MemoryHolder`]).
//!
//! **Invariant:** nothing here decides what to send. Callers reconnect, with the pauses of [`Backoff`].

mod api;
mod attempts;
mod backoff;
mod chunks;
mod connection;
mod dial;
mod errors;
pub mod frames;
mod holder;
mod objects;
pub mod own_service;
pub mod states;
pub mod tls;
mod token;
pub mod transfer;

pub use api::Api;
pub use attempts::Attempts;
pub use backoff::Backoff;
pub use chunks::ChunkClient;
pub use connection::{Connection, LARGEST_MESSAGE_BYTES, connect};
pub use dial::Dial;
pub use errors::{LinkError, TokenProblem};
pub use holder::{HeldMemory, MemoryHolder, TransportChoice, Unreachable, deposit, fetch, host};
pub use objects::ObjectClient;
pub use token::Token;
pub use transfer::{Changes, Received, TransferError};
