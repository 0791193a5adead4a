//! A notebook's folder and its mirror, in two folders of this machine.
#![allow(clippy::unwrap_used)]

mod conflicts;
mod contents;
mod listings;
mod pair;
mod random;
