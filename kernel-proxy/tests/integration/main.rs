//! The proxy as Jupyter's clients see it: a separate process, real sockets, a real ipykernel.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cells;
mod client;
mod ends;
mod peer;
mod proxy;
mod refusals;
mod wire;
