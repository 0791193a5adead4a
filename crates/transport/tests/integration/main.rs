#![allow(clippy::unwrap_used)]

mod chunks;
mod connection;
mod memory;
mod server;
mod token;
