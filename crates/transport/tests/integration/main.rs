#![allow(clippy::unwrap_used)]

mod chunks;
mod connection;
mod memory;
mod objects;
mod server;
mod token;
mod transfer;
