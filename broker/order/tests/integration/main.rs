//! The order as everybody sees it who calls it.
#![allow(clippy::unwrap_used)]

mod class;
mod fairness;
mod forecast;
mod history;
mod lecture;
mod order;
mod told;
