//! Interposer, arbiter and driver together: programs on a card that is too small for them.
#![allow(clippy::unwrap_used)]

mod ends;
mod hand;
mod layouts;
mod mapped;
mod moments;
mod monitoring;
mod peers;
mod places;
mod programs;
mod sharing;
mod world;
