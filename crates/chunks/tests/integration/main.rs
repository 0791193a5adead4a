#![allow(clippy::unwrap_used)]

mod cuts;
mod damage;
mod directory;
mod ends;
mod memory;
mod packed;
mod round_trip;
mod sys;
