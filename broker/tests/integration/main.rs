//! Tests of a real broker over real sockets, with scripted proxies and workers.
#![allow(clippy::unwrap_used)]

mod access;
mod actions;
mod api;
mod attacks;
mod cancel;
mod capacity;
mod chunk_listener;
mod chunks;
mod courses;
mod deferred;
mod encryption;
mod environments;
mod exhaustion;
mod external_pools;
mod foreign;
mod harness;
mod journal;
mod killed;
mod limits;
mod metrics;
mod needs;
mod objects;
mod orphans;
mod pages;
mod people;
mod postgres;
mod public;
mod queue;
mod reconnect;
mod remote_cell;
mod sign_in;
mod states;
mod worker_tokens;
mod worlds;
mod zones;
