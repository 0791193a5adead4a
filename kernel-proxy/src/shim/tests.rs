//! Proxies between scripted shims and scripted brokers.

#![allow(clippy::unwrap_used)]

mod busy;
mod messages;
mod refusals;
mod results;
mod scripted;
