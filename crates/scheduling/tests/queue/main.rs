//! The queue order as its callers see it.
#![allow(clippy::unwrap_used)]

mod class;
mod estimate;
mod fairness;
mod history;
mod lecture;
mod offer;
mod order;
mod shown_position;
