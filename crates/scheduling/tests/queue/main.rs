//! The queue order as its callers see it.
#![allow(clippy::unwrap_used)]

mod class;
mod fairness;
mod forecast;
mod history;
mod lecture;
mod order;
mod told;
