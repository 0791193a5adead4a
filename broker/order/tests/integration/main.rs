//! The order as everybody sees it who calls it.
#![allow(clippy::unwrap_used)]

mod fairness;
mod order;
