//! Proxies between scripted shims and scripted brokers.

#![allow(clippy::unwrap_used)]

mod messages;
mod refusals;
mod results;
mod scripted;
